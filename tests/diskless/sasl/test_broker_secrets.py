"""Brokers log in to each other while the secret of their cluster is rotated."""

import random
from collections.abc import Sequence

import pytest

from diskless.logs import Pace
from diskless.protocol.wire import ProtocolError
from diskless.sasl.broker_login import UsersAndBrokers, as_broker
from diskless.sasl.broker_secrets import BROKERS_MECHANISM, BrokerSecrets
from diskless.sasl.cluster_secret import OVERLAP_MS, ClusterSecret, rotate, shared_secrets
from diskless.sasl.failure_delay import FailureDelay
from diskless.sasl.login import SASL_HANDSHAKE, Login, LoginRules
from diskless.sasl.mechanisms import ScramExchange
from metadata.clients.sasl_login import IsStale
from wal.clock import ManualClock
from wal.errors import CommitFailed
from wal.stores.memory_store import MemoryStore
from wal.wire.fields import INT16, FieldReader, compact_bytes

FOLLOW_S = 60.0
COMMIT_FILE = 500
OVERLAP_S = OVERLAP_MS / 1000


class Bucket:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock)
        self.rng = random.Random(1)

    async def load(self) -> Sequence[ClusterSecret]:
        return await shared_secrets(self.store, self.clock, self.rng)

    async def rotate(self) -> None:
        assert (await rotate(self.store, self.clock, self.rng)).is_new

    async def broker(self) -> "Broker":
        return Broker(self, BrokerSecrets(await self.load(), self.load, self.clock))


class Broker:
    """One that others log in to, and that logs in to others."""

    def __init__(self, bucket: Bucket, secrets: BrokerSecrets) -> None:
        self.secrets = secrets
        self._bucket = bucket
        self._log_in = as_broker(secrets, bucket.clock, FOLLOW_S)
        self.failures: list[str] = []
        users = UsersAndBrokers(dict, decoy_key=secrets.decoys, secrets=secrets)
        self.rules = LoginRules(
            mechanisms={
                BROKERS_MECHANISM.sasl_name: lambda: ScramExchange(
                    BROKERS_MECHANISM, users, bucket.rng
                )
            },
            max_reauth_ms=0,
            receive_max_bytes=1_000,
            delay=FailureDelay(0, bucket.clock),
            clock=bucket.clock,
            sleep=self._sleep,
            ended=lambda _, result: self.failures.append(result),
            failures=Pace(),
        )

    async def _sleep(self, delay: float) -> None:
        pass

    async def log_in_to(self, other: "Broker") -> tuple[IsStale, Login]:
        login = other.rules.login("h", lambda _: None)

        async def ask(key: int, version: int, rest: bytes) -> bytes:
            reader = FieldReader(rest, "request")
            if key == SASL_HANDSHAKE:
                assert login.handshake(reader.raw(reader.int16()).decode()).error is None
                return INT16.pack(0) + bytes(4)
            reader.skip_tags()
            answer = await login.authenticate(reader.compact_bytes())
            code = INT16.pack(0 if answer.error is None else 58)
            return b"\0" + code + b"\0" + compact_bytes(answer.token) + bytes(9)

        return await self._log_in("there", ask, self._bucket.rng), login


async def test_brokers_that_heard_of_a_rotation_and_others_log_in_to_each_other() -> None:
    bucket = Bucket()
    one, two = await bucket.broker(), await bucket.broker()
    bucket.clock.advance(OVERLAP_S)
    stale, session = await one.log_in_to(two)
    await bucket.rotate()
    down_meanwhile = await bucket.broker()
    await one.secrets.refresh()
    for asking, asked in ((one, two), (two, one), (down_meanwhile, two), (two, down_meanwhile)):
        await asking.log_in_to(asked)
    assert "failure" not in (*one.failures, *two.failures, *down_meanwhile.failures)
    # The connection of before moves to the new secret, when the other broker may know it.
    assert not stale()
    bucket.clock.advance(FOLLOW_S)
    assert stale()
    again, _ = await one.log_in_to(two)
    assert not again()
    session.check(COMMIT_FILE, 10)


async def test_a_log_in_to_a_broker_that_is_behind_is_made_anew_later() -> None:
    bucket = Bucket()
    behind, ahead = await bucket.broker(), await bucket.broker()
    bucket.clock.advance(OVERLAP_S)
    await bucket.rotate()
    await ahead.secrets.refresh()
    stale, _ = await ahead.log_in_to(behind)
    assert not stale()
    bucket.clock.advance(FOLLOW_S)
    assert stale()
    await behind.secrets.refresh()
    fresh, _ = await ahead.log_in_to(behind)
    bucket.clock.advance(FOLLOW_S)
    assert not fresh()


async def test_a_secret_that_was_rotated_away_ends() -> None:
    bucket = Bucket()
    thief, victim, behind = [await bucket.broker() for _ in range(3)]
    bucket.clock.advance(OVERLAP_S)
    _, session = await thief.log_in_to(victim)
    await bucket.rotate()
    old = thief.secrets.offered
    await victim.secrets.refresh()
    assert victim.secrets.offered != old
    session.check(COMMIT_FILE, 10)
    bucket.clock.advance(OVERLAP_S - 1)
    session.check(COMMIT_FILE, 10)
    bucket.clock.advance(1)
    with pytest.raises(ProtocolError):
        session.check(COMMIT_FILE, 10)
    # Nor is it proven any more to whoever asks for it.
    with pytest.raises(CommitFailed, match="a secret is asked for"):
        await victim.log_in_to(behind)


async def test_a_broker_of_another_cluster_is_refused_and_refuses() -> None:
    ours, theirs = await Bucket().broker(), Bucket()
    theirs.rng = random.Random(2)
    stranger = await theirs.broker()
    for asking, asked in ((ours, stranger), (stranger, ours)):
        with pytest.raises(CommitFailed, match="a secret is asked for"):
            await asking.log_in_to(asked)


async def test_a_listing_that_is_behind_takes_nothing_back() -> None:
    bucket = Bucket()
    before = await bucket.load()
    bucket.clock.advance(OVERLAP_S)
    await bucket.rotate()
    broker = await bucket.broker()
    offered = broker.secrets.offered

    async def old() -> Sequence[ClusterSecret]:
        return before

    secrets = BrokerSecrets(await bucket.load(), old, bucket.clock)
    await secrets.refresh()
    assert secrets.offered == offered
