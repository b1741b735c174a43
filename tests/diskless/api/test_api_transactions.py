"""The APIs of transactional producers over a real socket, in all their versions."""

import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import pytest

from diskless.transactions.errors import TransactionAbortable
from metadata.operations import METADATA_TOPIC
from metadata.rules.groups import group_coordinator
from metadata.transaction_operations import (
    AddToTransaction,
    EndTransaction,
    InitProducer,
    Transaction,
    TransactionGroup,
    TransactionPartition,
    TransactionState,
)
from tests.support.brokers.kafka_fakes import Broker, running_broker
from tests.support.questions.kafka_raw_client import RawClient, frame, request_body
from tests.support.transactions.memory_transactions import (
    COORDINATORS,
    Led,
    MemoryTransactions,
    leading,
)
from wal.clock import ManualClock
from wal.coordinates import TopicIdPartition
from wal.errors import (
    CommitFailed,
    CommitOutcomeUnknown,
    ConcurrentTransactions,
    DisklessError,
    InvalidProducerIdMapping,
    InvalidTransactionState,
    NotCoordinator,
    ProducerFenced,
)

FIND, INIT, ADD_PARTITIONS, ADD_OFFSETS, END, DESCRIBE, LIST = 10, 22, 24, 25, 26, 65, 66
INIT_VERSIONS, ADD_VERSIONS, OFFSETS_VERSIONS, END_VERSIONS = 6, 4, 5, 5
NAME: Final = "pay"
NOW_MS: Final = 100_000


class Bench(NamedTuple):
    broker: Broker
    client: RawClient
    store: MemoryTransactions

    async def init(self, version: int = 5, name: str = NAME, **more: Any) -> Any:
        asked = {
            "transactional_id": name,
            "transaction_timeout": timedelta(seconds=60),
            "producer_id": -1,
            "producer_epoch": -1,
            **more,
        }
        return await self.client.ask(INIT, version, **asked)

    async def add(
        self, *topics: tuple[str, Sequence[int]], version: int = 3, name: str = NAME
    ) -> Sequence[Sequence[tuple[int, int]]]:
        """(partition, error code) by topic."""
        answer = await self.client.ask(
            ADD_PARTITIONS,
            version,
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=1_001,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=[
                {"name": topic, "partitions": partitions} for topic, partitions in topics
            ],
        )
        rows = answer.results_by_topic_v3_and_below
        assert [row.name for row in rows] == [topic for topic, _ in topics]
        return [
            [
                (one.partition_index, int(one.partition_error_code))
                for one in row.results_by_partition
            ]
            for row in rows
        ]

    async def add_many(
        self, version: int, *asked: tuple[str, Sequence[int]], verify: bool = False
    ) -> Sequence[tuple[str, Sequence[int]]]:
        """Partitions of "t" to each of some ids; their error codes."""
        answer = await self.client.ask(
            ADD_PARTITIONS,
            version,
            transactions=[
                {
                    "transactional_id": name,
                    "producer_id": 1_001,
                    "producer_epoch": 0,
                    "verify_only": verify,
                    "topics": [{"name": "t", "partitions": partitions}],
                }
                for name, partitions in asked
            ],
        )
        assert answer.error_code == 0
        return [
            (
                row.transactional_id,
                [int(one.partition_error_code) for one in topic.results_by_partition],
            )
            for row in answer.results_by_transaction
            for topic in row.topic_results
        ]

    async def add_group(self, group_id: str = "g", version: int = 4) -> int:
        answer = await self.client.ask(
            ADD_OFFSETS,
            version,
            transactional_id=NAME,
            producer_id=1_001,
            producer_epoch=0,
            group_id=group_id,
        )
        return int(answer.error_code)

    async def end(self, version: int = 4, *, is_commit: bool = True) -> int:
        answer = await self.client.ask(
            END,
            version,
            transactional_id=NAME,
            producer_id=1_001,
            producer_epoch=0,
            committed=is_commit,
        )
        return int(answer.error_code)

    async def listed(self, version: int = 2, **filters: Any) -> Sequence[tuple[str, int, str]]:
        answer = await self.client.ask(LIST, version, **{**ALL, **filters})
        assert (answer.error_code, answer.unknown_state_filters) == (0, ())
        return sorted(
            (row.transactional_id, row.producer_id, row.transaction_state)
            for row in answer.transaction_states
        )


ALL: Final = {
    "state_filters": [],
    "producer_id_filters": [],
    "duration_filter": -1,
    "transactional_id_pattern": None,
}


@asynccontextmanager
async def serving(*, leads: bool = True) -> AsyncIterator[Bench]:
    """A broker that coordinates all transactional ids, or none; a topic "t" of three partitions."""
    async with running_broker(clock=ManualClock(now_ms=NOW_MS)) as broker:
        broker.topics.add("t", 3)
        store = broker.known_transactions
        client = await broker.connect()
        if not leads:
            yield Bench(broker, client, store)
            return
        async with leading(broker.transactions, store):
            yield Bench(broker, client, store)


def versions(count: int) -> Any:
    return pytest.mark.parametrize("version", range(count))


# -- the way to the coordinator


@versions(7)
async def test_the_coordinator_of_a_transactional_id_is_found(version: int) -> None:
    async with serving(leads=False) as bench:
        port = bench.broker.server.address[1]
        names = {"key": NAME, "coordinator_keys": [NAME, "other"], "key_type": 1}
        if version == 0:
            return
        answer = await bench.client.ask(FIND, version, **names)
        found = answer.coordinators if version >= 4 else [answer]
        assert {(one.error_code, one.node_id, one.port) for one in found} == {(0, 0, port)}


async def test_nobody_coordinates_it_while_nobody_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Led, "leader", None)
    async with serving(leads=False) as bench:
        answer = await bench.client.ask(FIND, 2, key=NAME, key_type=1)
        assert (answer.error_code, answer.node_id) == (15, -1)


async def test_a_broker_that_does_not_coordinate_it_says_so() -> None:
    async with serving(leads=False) as bench:
        answer = await bench.init()
        assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (16, -1, -1)
        assert await bench.add(("t", [0, 1])) == [[(0, 16), (1, 16)]]
        assert await bench.add_group() == 16
        assert await bench.end() == 16
        assert await described_code(bench) == 16
        assert await bench.listed() == []


# -- producers


@versions(INIT_VERSIONS)
async def test_a_producer_gets_its_id_and_a_higher_epoch_each_time(version: int) -> None:
    async with serving() as bench:
        for epoch in range(3):
            answer = await bench.init(version)
            assert (answer.error_code, answer.producer_id) == (0, 1_001)
            assert answer.producer_epoch == epoch
        assert bench.store.asked[0] == InitProducer(NAME, 60_000, 1_001, -1, -1)


@pytest.mark.parametrize("version", range(3, INIT_VERSIONS))
async def test_a_producer_that_goes_on_says_who_it_was(version: int) -> None:
    async with serving() as bench:
        await bench.init(version, producer_id=77, producer_epoch=5)
        assert bench.store.asked == [InitProducer(NAME, 60_000, 1_001, 77, 5)]
        for half in ({"producer_id": 77}, {"producer_epoch": 5}):
            answer = await bench.init(version, **half)
            assert (answer.error_code, answer.producer_id) == (42, -1)
        assert len(bench.store.asked) == 1


@versions(INIT_VERSIONS)
@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
async def test_a_timeout_that_is_too_long_or_none_is_refused(version: int, timeout_ms: int) -> None:
    async with serving() as bench:
        answer = await bench.init(version, transaction_timeout=timedelta(milliseconds=timeout_ms))
        assert (answer.error_code, answer.producer_id) == (50, -1)
        assert (await bench.init(version, name="")).error_code == 42


@versions(ADD_VERSIONS)
async def test_partitions_and_groups_are_added_and_the_transaction_ends(version: int) -> None:
    async with serving() as bench:
        await bench.init()
        assert await bench.add(("t", [0, 2]), version=version) == [[(0, 0), (2, 0)]]
        assert await bench.add_group(version=version) == 0
        topic = bench.broker.topics.known["t"]
        _, partitions, groups = bench.store.asked
        assert partitions == AddToTransaction(
            NAME,
            1_001,
            0,
            partitions=[
                TransactionPartition(TopicIdPartition(topic.topic_id, index), 0) for index in (0, 2)
            ],
        )
        of_group = group_coordinator("g", COORDINATORS)
        assert groups == AddToTransaction(NAME, 1_001, 0, groups=[TransactionGroup("g", of_group)])
        assert await bench.end(version, is_commit=version % 2 == 0) == 0
        assert bench.store.asked[-1] == EndTransaction(NAME, 1_001, 0, version % 2 == 0)


@versions(ADD_VERSIONS)
async def test_nothing_is_added_where_one_partition_is_not_there(version: int) -> None:
    async with serving() as bench:
        assert await bench.add(("t", [0, 9]), ("gone", [0]), version=version) == [
            [(0, 55), (9, 3)],
            [(0, 3)],
        ]
        assert await bench.add(("t", [0]), (METADATA_TOPIC, [0]), version=version) == [
            [(0, 55)],
            [(0, 29)],
        ]
        assert await bench.add_group("") == 24
        assert bench.store.asked == []


@pytest.mark.parametrize("version", [4, 5])
async def test_partitions_of_many_transactions_are_added_and_verified(version: int) -> None:
    async with serving() as bench:
        await bench.init()
        await bench.init(name="other")
        assert await bench.add_many(version, (NAME, [0, 1]), ("other", [2, 9])) == [
            (NAME, [0, 0]),
            ("other", [55, 3]),
        ]
        known = bench.store.known
        assert [place.partition for place in known[NAME].partitions] == [0, 1]
        assert known["other"].state == TransactionState.EMPTY
        aborts = 48 if version == 4 else 120
        asked = ((NAME, [1]), (NAME, [1, 2]), (NAME, [1, 9]), ("nobody", [0]))
        assert await bench.add_many(version, *asked, verify=True) == [
            (NAME, [0]),
            (NAME, [0, aborts]),
            (NAME, [55, 3]),
            ("nobody", [49]),
        ]
        assert len(known[NAME].partitions) == 2


ERRORS: Final[Sequence[tuple[DisklessError, int]]] = [
    (ProducerFenced("x"), 90),
    (InvalidProducerIdMapping("x"), 49),
    (InvalidTransactionState("x"), 48),
    (ConcurrentTransactions("x"), 51),
    (TransactionAbortable("x"), 120),
]
OLDER: Final = {90: 47, 120: 48}
KNOWN_FROM: Final = {
    (INIT, 90): 4, (ADD_PARTITIONS, 90): 2, (ADD_OFFSETS, 90): 2, (END, 90): 2,
    (INIT, 120): 5, (ADD_PARTITIONS, 120): 5, (ADD_OFFSETS, 120): 4, (END, 120): 4,
}  # fmt: skip


@pytest.mark.parametrize(("error", "code"), ERRORS, ids=lambda value: str(value))
async def test_errors_are_those_that_a_version_knows(error: DisklessError, code: int) -> None:
    async with serving() as bench:
        bench.store.error = error

        def expected(key: int, version: int) -> int:
            return code if version >= KNOWN_FROM.get((key, code), 0) else OLDER[code]

        for version in range(INIT_VERSIONS):
            answer = await bench.init(version)
            assert answer.error_code == expected(INIT, version)
            assert (answer.producer_id, answer.producer_epoch) == (-1, -1)
        for version in range(ADD_VERSIONS):
            ((row, other),) = await bench.add(("t", [0, 1]), version=version)
            assert row[1] == other[1] == expected(ADD_PARTITIONS, version)
        for version in range(OFFSETS_VERSIONS):
            assert await bench.add_group(version=version) == expected(ADD_OFFSETS, version)
        for version in range(END_VERSIONS):
            assert await bench.end(version) == expected(END, version)


@pytest.mark.parametrize(
    ("failure", "code"),
    [(NotCoordinator("x"), 16), (CommitOutcomeUnknown("x"), 15), (CommitFailed("x"), 15)],
)
async def test_what_was_not_stored_is_asked_again_of_the_coordinator(
    failure: DisklessError, code: int
) -> None:
    async with serving() as bench:

        async def failing(asked: Any) -> Any:
            raise failure

        for name in ("init_producer", "add_to_transaction", "end_transaction"):
            setattr(bench.store, name, failing)
        assert (await bench.init()).error_code == code
        assert await bench.add(("t", [0])) == [[(0, code)]]
        assert await bench.add_group() == code
        assert await bench.end() == code


# -- administration


async def described_code(bench: Bench, name: str = NAME) -> int:
    (state,) = (await bench.client.ask(DESCRIBE, 0, transactional_ids=[name])).transaction_states
    assert (state.transactional_id, state.topics) == (name, ())
    return int(state.error_code)


async def test_an_open_transaction_is_described_with_its_partitions() -> None:
    async with serving() as bench:
        other = bench.broker.topics.add("a", 2)
        await bench.init()
        await bench.add(("t", [2, 0]), ("a", [1]))
        await bench.add_group()
        (state,) = (
            await bench.client.ask(DESCRIBE, 0, transactional_ids=[NAME])
        ).transaction_states
        assert (state.error_code, state.transactional_id) == (0, NAME)
        assert (state.transaction_state, state.producer_id) == ("Ongoing", 1_001)
        assert (state.producer_epoch, state.transaction_timeout) == (0, timedelta(seconds=60))
        assert state.transaction_start_time == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
        assert [(topic.topic, topic.partitions) for topic in state.topics] == [
            ("a", (1,)),
            ("t", (0, 2)),
        ]
        del bench.broker.topics.known[other.name]
        (state,) = (
            await bench.client.ask(DESCRIBE, 0, transactional_ids=[NAME])
        ).transaction_states
        assert [topic.topic for topic in state.topics] == ["t"]


async def test_ids_without_an_open_transaction_are_described_too() -> None:
    async with serving() as bench:
        await bench.init()
        await bench.add(("t", [0]))
        await bench.end()
        # kio does not read a time that is missing.
        body = request_body(DESCRIBE, 0, transactional_ids=(NAME,))
        await bench.client.send(frame(DESCRIBE, 0, 1, body))
        _, answer = await bench.client.receive()
        assert b"\x0fCompleteCommit" in answer
        timeout_and_start = struct.pack(">iqqh", 60_000, -1, 1_001, 0)
        assert answer.endswith(timeout_and_start + b"\x01\x00\x00")
        assert await described_code(bench, "unheard of") == 105
        assert await described_code(bench, "") == 42


def some_transactions() -> Sequence[Transaction]:
    return [
        Transaction(number, f"id-{state.name.lower()}", 100 + number, 0, state=state,
                    began_ms=NOW_MS - 10_000 * number)
        for number, state in enumerate(TransactionState)
    ]  # fmt: skip


@versions(3)
async def test_transactions_are_listed_by_state_and_producer(version: int) -> None:
    async with serving() as bench:
        bench.store.known = {one.transactional_id: one for one in some_transactions()}
        names = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort",
                 "CompleteCommit", "CompleteAbort")  # fmt: skip
        every = sorted(
            (one.transactional_id, one.producer_id, names[one.state])
            for one in bench.store.known.values()
        )
        assert await bench.listed(version) == every
        found = await bench.listed(version, state_filters=["Ongoing", "CompleteAbort", "Dead"])
        assert [state for *_, state in found] == ["CompleteAbort", "Ongoing"]
        found = await bench.listed(version, producer_id_filters=[101, 104, 9])
        assert {producer_id for _, producer_id, _ in found} == {101, 104}
        assert await bench.listed(version, state_filters=["Dead"]) == []
        answer = await bench.client.ask(
            LIST, version, **{**ALL, "state_filters": ["Ongoing", "ongoing", "No"]}
        )
        assert {*answer.unknown_state_filters} == {"ongoing", "No"}
        assert [row.transaction_state for row in answer.transaction_states] == ["Ongoing"]


async def test_transactions_are_listed_by_how_long_they_are_open() -> None:
    async with serving() as bench:
        bench.store.known = {one.transactional_id: one for one in some_transactions()}
        for version in (1, 2):
            for longer_than, found in ((0, 3), (10_000, 2), (20_000, 1), (30_000, 0)):
                assert len(await bench.listed(version, duration_filter=longer_than)) == found
        assert len(await bench.listed(0, duration_filter=30_000)) == 6


async def test_transactions_are_listed_by_pattern() -> None:
    async with serving() as bench:
        bench.store.known = {one.transactional_id: one for one in some_transactions()}
        found = await bench.listed(transactional_id_pattern="id-(on|prepare).*")
        assert [name for name, *_ in found] == [
            "id-ongoing",
            "id-prepare_abort",
            "id-prepare_commit",
        ]
        assert await bench.listed(transactional_id_pattern="id") == []
        assert len(await bench.listed(transactional_id_pattern="")) == 6
        for pattern in ("(", "a(?=b)", "x" * 10_000):
            answer = await bench.client.ask(LIST, 2, **{**ALL, "transactional_id_pattern": pattern})
            assert (answer.error_code, answer.transaction_states) == (128, ())
