"""Fifty consumers join and leave at random while records are written; nothing is lost or shared.

`make test` runs one short storm, `make test-all` a few, and `make storms` all of them for two
minutes each: STORM_SECONDS says how long.
"""

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, TopicPartition
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription, NewTopic

from demo.broker_process import BrokerProcess
from tests.support.brokers.live_broker import until
from tests.support.clients.stock_clients import QUIET, TIMEOUT_S
from tests.support.exhaustive import IS_EXHAUSTIVE
from tests.support.groups.group_storm import CALM_SESSION_MS, Start, Storm, Writer
from tests.support.groups.storm_ledger import SESSION_MS, Ledger
from tests.support.groups.storm_members import (
    HEARTBEAT_MS,
    AioStormMember,
    ConfluentStormMember,
    KafkaPythonStormMember,
    StormMember,
)

pytestmark = pytest.mark.clients

SECONDS: Final = float(os.environ.get("STORM_SECONDS", "0"))
"""0: short ones, and not of every kind."""
SHORT_S: Final = 15.0 if IS_EXHAUSTIVE else 5.0
KILL_EVERY_S: Final = 15.0
MEMBERS: Final = 50
PARTITIONS: Final = 60
CONVERGES_WITHIN_S: Final = 300.0
"""A member that left while the broker was dead is missed one session later at the latest."""
PYTHON_MEMBERS: Final = (AioStormMember, KafkaPythonStormMember)
PYTHON_SHARE: Final = 8
"""One of each among so many members of a group whose protocol they speak."""
SETTINGS: Final = {
    "wal.commit.interval.ms": "20",
    "group.initial.rebalance.delay.ms": "300",
    "group.consumer.heartbeat.interval.ms": str(HEARTBEAT_MS),
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.min.session.timeout.ms": "1000",
}
CLASSIC: Final[dict[str, Any]] = {"heartbeat_interval_ms": HEARTBEAT_MS}
KINDS: Final[dict[str, dict[str, Any]]] = {
    "eager": {**CLASSIC, "partition_assignment_strategy": "range"},
    "cooperative": {**CLASSIC, "partition_assignment_strategy": "cooperative-sticky"},
    "consumer": {"group_protocol": "consumer"},
}
# Of a few seconds: with a broker that is killed, a busy machine lets sessions end meanwhile.
IN_SHORT: Final = {("eager", False)}
IN_ALL: Final = {("cooperative", True), ("consumer", True), *IN_SHORT}


@pytest.fixture
def broker(tmp_path: Path, kind: str) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", tmp_path, SETTINGS) as broker:
        broker.start()
        yield broker


class Killer:
    """Kills the broker again and again, and starts it anew at once, in a thread."""

    def __init__(self, broker: BrokerProcess, every_s: float) -> None:
        self.kills = 0
        self._broker = broker
        self._every_s = every_s
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="killer")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """The broker lives after this."""
        self._stopping.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._stopping.wait(self._every_s):
                self._broker.kill()
                self.kills += 1
                self._broker.start()
        except BaseException as failure:
            self._failure = failure


def settings_of(kind: str, number: int, session_ms: int) -> dict[str, Any]:
    if kind == "both":
        kind = "consumer" if number % 2 else "cooperative"
    settings = KINDS[kind]
    return settings if kind == "consumer" else {**settings, "session_timeout_ms": session_ms}


def members_of(kind: str, broker: BrokerProcess, ledger: Ledger, session_ms: int) -> Start:
    numbers = iter(range(1 << 30))

    def start(name: str) -> StormMember:
        number = next(numbers)
        if kind == "eager" and number % PYTHON_SHARE < len(PYTHON_MEMBERS):
            member = PYTHON_MEMBERS[number % PYTHON_SHARE]
            return member(name, broker.bootstrap, "storm", ledger, session_timeout_ms=session_ms)
        settings = settings_of(kind, number, session_ms)
        return ConfluentStormMember(name, broker.bootstrap, "storm", ledger, **settings)

    return start


@contextmanager
def noting(tell: Callable[[], str]) -> Iterator[None]:
    """What fails in it says how things are."""
    try:
        yield
    except AssertionError as error:
        error.add_note(tell())
        raise


@pytest.mark.parametrize(
    ("kind", "is_killed"),
    [
        pytest.param(kind, is_killed, id=f"{kind}, {'killed' if is_killed else 'alive'}")
        for kind in (*KINDS, "both")
        for is_killed in (False, True)
        if SECONDS or (kind, is_killed) in (IN_ALL if IS_EXHAUSTIVE else IN_SHORT)
    ],
)
def test_a_storm_of_joining_and_leaving_loses_nothing_and_shares_nothing(
    broker: BrokerProcess,
    kind: str,
    is_killed: bool,
    record_property: Any,
) -> None:
    seconds = SECONDS or SHORT_S
    admin = AdminClient({"bootstrap.servers": broker.bootstrap}, logger=QUIET)
    admin.create_topics([NewTopic("storm", PARTITIONS)])["storm"].result(TIMEOUT_S)
    commit_the_beginning(broker)
    ledger = Ledger()
    writer = Writer(broker.bootstrap, "storm", PARTITIONS)
    session_ms = SESSION_MS if is_killed else CALM_SESSION_MS
    storm = Storm(members_of(kind, broker, ledger, session_ms), MEMBERS, random.Random(7))
    killer = Killer(broker, min(KILL_EVERY_S, seconds / 2))
    try:
        writer.start()
        storm.fill()
        if is_killed:
            killer.start()
        storm.rage(seconds)
        if is_killed:
            killer.stop()
        storm.fill()
        calm_at = time.monotonic()
        with noting(lambda: "\n".join(not_shared(ledger, storm))):
            until(
                lambda: not not_shared(ledger, storm),
                "all members to share all partitions",
                deadline_s=CONVERGES_WITHIN_S,
            )
        converged_s = time.monotonic() - calm_at
        # The last of them may have what they should, but not have said so yet.
        until(lambda: describe(admin).state is ConsumerGroupState.STABLE, "a stable group")
        assert len(describe(admin).members) == MEMBERS
        writer.stop()
        until(
            lambda: ledger.delivered_count() >= writer.count(),
            "every record that was acknowledged",
            deadline_s=CONVERGES_WITHIN_S,
        )
        storm.end()
    finally:
        if is_killed and killer._thread.is_alive():
            killer.stop()
        writer._stopping.set()
        storm.abandon()
    print(
        f"\n{kind}, killed {killer.kills} times: {seconds:.0f} s, {storm.joins} joins, "
        f"{storm.leaves} leaves, {ledger.rebalances()} assignments of a partition, "
        f"{writer.count()} records, {len(ledger.refused_commits)} commits refused, "
        f"shared by all after {converged_s:.1f} s"
    )
    with noting(broker.log_tail):
        assert ledger.faults == []
        assert ledger.overlaps() == []
        assert ledger.leaps() == []
        assert ledger.repeats() == []
        assert ledger.delivered == {
            partition: offsets for partition, offsets in writer.acknowledged.items() if offsets
        }
        if kind == "eager" and not is_killed:
            # The others read on while they rebalance, and then some commits come too late.
            assert ledger.refused_commits == []


def commit_the_beginning(broker: BrokerProcess) -> None:
    """Members of librdkafka go by committed offsets alone."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "storm", "logger": QUIET}
    )
    places = [TopicPartition("storm", partition, 0) for partition in range(PARTITIONS)]
    answers = consumer.commit(offsets=places, asynchronous=False)
    assert answers is not None
    assert all(place.error is None for place in answers)
    consumer.close()


def describe(admin: AdminClient) -> ConsumerGroupDescription:
    described: ConsumerGroupDescription = admin.describe_consumer_groups(["storm"])["storm"].result(
        TIMEOUT_S
    )
    return described


def not_shared(ledger: Ledger, storm: Storm) -> list[str]:
    """What keeps the partitions from being shared: each has one owner, and nobody has none."""
    owners = ledger.owners()
    holders = {owner for one in owners.values() for owner in one}
    members = {member.name for member in storm.members}
    return [
        *(
            f"{partition} is had by {owners.get(partition)}"
            for partition in range(PARTITIONS)
            if len(owners.get(partition, ())) != 1
        ),
        *(f"{name} has nothing" for name in members - holders),
        *(f"{name} has left and has something" for name in holders - members),
    ]
