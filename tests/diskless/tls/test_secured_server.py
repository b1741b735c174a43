"""A server on a TLS listener that asks for a log-in: what its parts are told of each other."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from diskless.listeners.pending_logins import PLACE_BYTES, SHARED_BYTES, TLS_BYTES
from diskless.listeners.tls_keys import TlsKeys
from diskless.listeners.tls_settings import TlsSettings
from diskless.listeners.tls_stream import SCRATCH_BYTES, UNKNOWN_BYTES
from diskless.logs import Pace
from diskless.sasl.failure_delay import FailureDelay
from diskless.sasl.login import LOGIN_MAX_S, LoginRules
from diskless.sasl.mechanisms import Step
from tests.support.brokers.kafka_fakes import Broker, running_broker
from tests.support.brokers.listeners import plain_listener
from tests.support.brokers.server_tests import on_both_loops
from tests.support.loops.until import until
from tests.support.questions.kafka_raw_client import RawClient, frame
from tests.support.security.certificates import Certificates
from wal.clock import Clock, ManualClock, SystemClock
from wal.security.security_protocol import SecurityProtocol

LOG_IN = (frame(17, 1, 1, b"\0\x05TOKEN"), frame(36, 0, 2, b"\0\0\0\x03ann"))


class Token:
    """A mechanism whose token is the name of the user."""

    async def step(self, token: bytes) -> Step:
        return Step(b"welcome", token.decode())


@asynccontextmanager
async def secured_broker(
    certificates: Certificates, clock: Clock, **settings: int
) -> AsyncIterator[Broker]:
    keys = TlsSettings(keystore=certificates.server, truststore=certificates.authority)
    plain = plain_listener("SECURED")
    rules = LoginRules(
        mechanisms={"TOKEN": Token},
        max_reauth_ms=0,
        receive_max_bytes=512 << 10,
        delay=FailureDelay(0, clock),
        clock=clock,
        sleep=asyncio.sleep,
        failures=Pace(),
    )
    listener = replace(
        plain, protocol=SecurityProtocol.SASL_SSL, tls=TlsKeys("SECURED", keys, SystemClock())
    )
    async with running_broker(
        clock=clock, listener=listener, logins={"SECURED": rules}, **settings
    ) as broker:
        yield broker


async def connect(broker: Broker, certificates: Certificates) -> RawClient:
    """Shakes hands; the broker's fakes close it at the end."""
    client = RawClient(
        *await asyncio.open_connection(
            *broker.server.address, ssl=certificates.context(), server_hostname="localhost"
        )
    )
    broker.clients.append(client)
    return client


async def log_in(client: RawClient) -> None:
    for number, request in enumerate(LOG_IN, start=1):
        await client.send(request)
        assert (await client.receive())[0] == number


@on_both_loops
async def test_who_is_heard_later_has_its_whole_time_to_log_in(certificates: Certificates) -> None:
    clock = ManualClock()
    async with secured_broker(certificates, clock, max_connection_creation_rate=1) as broker:
        for _ in range(2):
            await connect(broker, certificates)
        await until(lambda: broker.open_connections == 2)
        # The second is heard after a second.
        clock.advance(LOGIN_MAX_S + 0.5)
        for cut in (1, 2):
            broker.server.sweep()
            assert broker.metrics.cut == {"slow log-in": cut}
            clock.advance(1)


@on_both_loops
async def test_a_connection_ends_in_two_steps_over_tls_too(certificates: Certificates) -> None:
    async with secured_broker(certificates, ManualClock()) as broker:
        client = await connect(broker, certificates)
        await log_in(client)
        # It does not see the end yet, and could go on to send.
        client.writer.transport.pause_reading()
        (connection,) = broker.server.connections
        connection.finish()
        await until(lambda: not broker.open_connections)
        assert len(broker.server._lingering) == 1
        client.writer.transport.resume_reading()
        await until(lambda: not len(broker.server._lingering))


@on_both_loops
async def test_little_is_received_at_once_until_the_client_has_logged_in(
    certificates: Certificates,
) -> None:
    async with secured_broker(certificates, ManualClock()) as broker:
        client = await connect(broker, certificates)
        await until(lambda: broker.open_connections == 1)
        (connection,) = broker.server.connections
        assert len(connection._transport.get_buffer(-1)) == UNKNOWN_BYTES
        await log_in(client)
        assert len(connection._transport.get_buffer(-1)) == SCRATCH_BYTES


async def test_what_tls_keeps_counts_for_each_that_has_not_logged_in(
    certificates: Certificates,
) -> None:
    async with secured_broker(certificates, ManualClock(), max_connections=1_000_000) as broker:
        pending = broker.server._pending
        places = SHARED_BYTES // 2 // (PLACE_BYTES + TLS_BYTES)
        for number in range(places):
            assert pending.refusal(str(number)) is None
            pending.begin(str(number))
        assert pending.refusal("one more") == "unauthenticated connections"
