"""The other brokers of the cluster: through which of their listeners, and as whom.

Each broker registers its listeners in the catalogue. Another one comes through the first of
`inter.broker.listener.name` that both have, with that listener's protocol, keys and log-in. So a
running cluster moves from one listener to another broker by broker. A leader that has not
registered yet is reached where it says in the metadata log, through the first.

Failure case: the secrets of the cluster cannot be read again. That is logged and tried again; the
broker goes on with those it knows.
"""

import asyncio
import functools
import random
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Final

import structlog

from diskless.listeners.endpoints import Endpoint, parse_endpoints
from diskless.listeners.listeners import Listener
from diskless.parts.background import run_until_stop
from diskless.parts.foundation import Foundation
from diskless.parts.storage import Storage
from diskless.sasl.broker_login import as_broker
from diskless.sasl.broker_secrets import BrokerSecrets
from diskless.sasl.cluster_secret import ClusterSecret, shared_secrets
from metadata.clients.routed_client import PeerAddress
from metadata.clients.wire_client import Connect, WireClient, connect_tcp, connect_tls
from metadata.operations import Leader, RegisteredBroker
from metadata.workers.periodic import repeat
from wal.errors import CorruptObject, DisklessError

_KNOCK_S: Final = 0.5

log = structlog.get_logger(__name__)


class Peers:
    """Where the other brokers are, and the way to connect to each."""

    def __init__(
        self,
        base: Foundation,
        secrets: BrokerSecrets | None,
        *,
        registered: Callable[[], Mapping[int, RegisteredBroker]],
    ) -> None:
        """`registered` are the brokers of the catalogue, as far as this broker has read it."""
        self._base = base
        self._registered = registered
        self._listeners: Final = {listener.name: listener for listener in base.inter_broker}
        # Seen by everybody; a generator that has a state would give it away.
        self._nonces = random.SystemRandom()
        self._log_in = None
        if secrets is not None:
            follow_s = base.config.sasl.secret_follow_ms / 1000
            self._log_in = as_broker(secrets, base.clock, follow_s)

    def address_of(self, leader: Leader) -> PeerAddress:
        """Where this broker reaches it."""
        registered = self._registered().get(leader.broker_id)
        if registered is not None and registered.incarnation == leader.incarnation:
            there = _by_listener(registered.endpoints)
            for name in self._listeners:
                if name in there:
                    _, host, port = there[name]
                    return PeerAddress(host, port, name)
        return PeerAddress(leader.host, leader.port, next(iter(self._listeners)))

    async def is_refused(self, broker: RegisteredBroker) -> bool:
        """Whether nobody listens any more where this broker reached another one."""
        address = self.address_of(
            Leader(0, broker.broker_id, broker.host, broker.port, broker.incarnation)
        )
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_KNOCK_S):
                hosts = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
                # A name may have several addresses, of which a broker has but one.
                for _, _, _, _, (host, *_) in hosts:
                    try:
                        transport, _ = await loop.create_connection(
                            asyncio.Protocol, str(host), address.port
                        )
                    except ConnectionRefusedError:
                        continue
                    transport.close()
                    return False
        except (OSError, TimeoutError):
            return False
        return True

    def connect(self, address: PeerAddress) -> WireClient:
        listener = self._listeners[address.listener]
        log_in = self._log_in if listener.protocol.is_sasl else None
        return WireClient(
            address.host,
            address.port,
            clock=self._base.clock,
            rng=self._base.rng if log_in is None else self._nonces,
            client_id=f"diskless-broker-{self._base.node_id}",
            connect=_connect(listener),
            log_in=log_in,
        )


def _connect(listener: Listener) -> Connect:
    keys = listener.tls
    return connect_tcp if keys is None else connect_tls(lambda: keys.client)


@functools.lru_cache(maxsize=1_000)
def _by_listener(endpoints: str) -> Mapping[str, Endpoint]:
    return {one.listener: one for one in parse_endpoints(endpoints, "the record of a broker")}


async def follow_secrets(
    stack: AsyncExitStack, tasks: asyncio.TaskGroup, base: Foundation, storage: Storage
) -> BrokerSecrets | None:
    """The secrets of the cluster, followed until the broker stops; None where nobody logs in.

    Raises: ObjectStoreUnavailable, UploadOutcomeUnknown, CorruptObject.
    """
    is_asking = base.is_http_asking or any(one.protocol.is_sasl for one in base.listeners)
    if not base.is_shared or not is_asking:
        return None
    rng = random.SystemRandom()

    async def load() -> Sequence[ClusterSecret]:
        return await shared_secrets(storage.store, base.clock, rng)

    secrets = BrokerSecrets(await load(), load, base.clock)

    async def once() -> None:
        try:
            await secrets.refresh()
        except CorruptObject as error:
            failed(error)

    def failed(error: DisklessError) -> None:
        log.warning("the secret of the cluster was not read again", error=str(error))

    following = repeat(
        once,
        interval_s=base.config.sasl.secret_follow_ms / 1000,
        backoff_max_s=0,
        sleep=asyncio.sleep,
        failed=failed,
    )
    run_until_stop(stack, tasks, following, "secrets")
    return secrets
