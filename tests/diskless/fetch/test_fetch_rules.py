"""What a Fetch gives, asked of a whole broker over a socket: sizes, order, waits and errors.

The rules of sizes are held to a model that knows the batches and nothing of how they are stored.
"""

import itertools
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Self
from uuid import UUID

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from metadata.operations import CreateTopic, DeleteRecords, TopicDescription
from tests.support.brokers.live_broker import DEADLINE_S, LiveBroker, until
from tests.support.chunks.batch_builder import Row, build_batch
from tests.support.profiles import examples
from tests.support.questions.kafka_raw_client import frame, produce_frame, written
from tests.support.samples.kio_entities import entity_of
from wal.coordinates import TopicIdPartition
from wal.records.record_batch import iterate_headers

FETCH, API_VERSIONS = 1, 18
NAMES, IDS = 12, 18
VERSIONS = range(4, 19)

UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID = 3, 100
OFFSET_OUT_OF_RANGE = 1
FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH = 74, 75

PLENTY: Final = 1 << 20


class Asked(NamedTuple):
    """One partition of a request."""

    topic: str
    partition: int
    offset: int = 0
    max_bytes: int = PLENTY
    leader_epoch: int = -1


class Given(NamedTuple):
    """One partition of an answer."""

    topic: str
    partition: int
    error: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    preferred_read_replica: int
    records: bytes | None


class Client:
    """One connection that sends Fetch requests and reads their answers."""

    def __init__(self, broker: LiveBroker, ids: Mapping[str, UUID]) -> None:
        self._socket = socket.create_connection(("127.0.0.1", broker.port), DEADLINE_S)
        self._ids = ids
        self.session_id = 0
        self.error = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send_frame(self, data: bytes) -> None:
        self._socket.sendall(data)

    def send(
        self,
        rows: Sequence[Asked],
        *,
        version: int = IDS,
        max_bytes: int = PLENTY,
        max_wait_ms: int = 0,
        session: tuple[int, int] = (0, -1),
        **more: Any,
    ) -> None:
        topics: list[dict[str, Any]] = []
        for row in rows:
            if not topics or topics[-1]["topic"] != row.topic:
                topic_id = self._ids.get(row.topic, UUID(int=1))
                topics.append({"topic": row.topic, "topic_id": topic_id, "partitions": []})
            topics[-1]["partitions"].append(
                {
                    "partition": row.partition,
                    "fetch_offset": row.offset,
                    "partition_max_bytes": row.max_bytes,
                    "current_leader_epoch": row.leader_epoch,
                }
            )
        values = {
            "topics": topics,
            "max_bytes": max_bytes,
            "min_bytes": 1,
            "session_id": session[0],
            "session_epoch": session[1],
            "forgotten_topics_data": (),
            "rack_id": "",
            **more,
        }
        body = bytearray(written(entity_of(load_request_schema(FETCH, version), values)))
        struct.pack_into(">i", body, 0 if version >= 15 else 4, max_wait_ms)
        self.send_frame(frame(FETCH, version, 1, bytes(body)))

    def receive(self, version: int = IDS) -> list[Given]:
        read = self.receive_entity(FETCH, version)
        self.error = int(getattr(read, "error_code", 0))
        self.session_id = getattr(read, "session_id", 0)
        names = {topic_id: name for name, topic_id in self._ids.items()}
        return [
            Given(
                names.get(topic.topic_id, "?") if version >= 13 else topic.topic,
                part.partition_index,
                int(part.error_code),
                part.high_watermark,
                part.last_stable_offset,
                getattr(part, "log_start_offset", -1),
                getattr(part, "preferred_read_replica", -1),
                part.records,
            )
            for topic in read.responses
            for part in topic.partitions
        ]

    def receive_entity(self, key: int, version: int) -> Any:
        answer = self._exactly(int.from_bytes(self._exactly(4), "big"))
        schema = load_response_schema(key, version)
        start = 4 + (1 if schema.__header_schema__.__flexible__ else 0)
        read, size = entity_reader(schema)(answer, start)
        assert start + size == len(answer)
        return read

    def fetch(self, rows: Sequence[Asked], *, version: int = IDS, **more: Any) -> list[Given]:
        self.send(rows, version=version, **more)
        return self.receive(version)

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            part = self._socket.recv(count - len(data))
            assert part, "the broker closed the connection"
            data += part
        return bytes(data)


class Batch(NamedTuple):
    base_offset: int
    next_offset: int
    size: int


class World(NamedTuple):
    """A broker with the topic `sizes`, and where its batches are."""

    broker: LiveBroker
    ids: dict[str, UUID]
    batches: Mapping[int, Sequence[Batch]]

    def connect(self) -> Client:
        return Client(self.broker, self.ids)

    def create(self, name: str, partitions: int = 1) -> None:
        (created,) = self.broker.run(
            self.broker.broker.coordination.client.create_topics(
                [CreateTopic(name=name, partition_count=partitions)]
            )
        )
        assert isinstance(created, TopicDescription)
        self.ids[name] = created.topic_id


SIZES: Final = {
    0: [100, 5_000, 100, 100, 2_000, 300, 300, 300],
    1: [9_000],
    2: [],
    3: [200] * 12,
    4: [700, 700, 12_000, 90, 90],
}
"""Bytes that the only value of each batch has, by partition."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with LiveBroker(tmp_path_factory.mktemp("broker") / "data") as broker:
        world = World(broker, {}, {partition: [] for partition in SIZES})
        world.create("sizes", len(SIZES))
        with world.connect() as client:
            # In flight together, batches share an object and lie next to each other; then alone.
            together = [
                (partition, size) for partition, sizes in SIZES.items() for size in sizes[:5]
            ]
            alone = [(partition, size) for partition, sizes in SIZES.items() for size in sizes[5:]]
            produce(client, world.batches, together)
            for one in alone:
                produce(client, world.batches, [one])
        yield world


def produce(
    client: Client, batches: Mapping[int, Sequence[Batch]], chosen: Sequence[tuple[int, int]]
) -> None:
    """Batches of one to three records each; note where they are."""
    for number, (partition, size) in enumerate(chosen):
        rows = [Row(value=bytes(size)), *[Row(value=b"more")] * (number % 3)]
        data = build_batch(rows)
        client.send_frame(
            produce_frame(
                1, [data], topic="sizes", partition=partition, timeout_ms=30_000, version=9
            )
        )
        of = batches[partition]
        assert isinstance(of, list)
        base = of[-1].next_offset if of else 0
        of.append(Batch(base, base + len(rows), len(data)))
    for _ in chosen:
        (topic,) = client.receive_entity(0, 9).responses
        assert [int(part.error_code) for part in topic.partition_responses] == [0]


def batches_of(records: bytes | None) -> list[Batch]:
    assert records is not None, "empty, not null"
    found = [
        Batch(header.base_offset, header.last_offset + 1, header.length_bytes)
        for _, header in iterate_headers(records)
    ]
    assert sum(batch.size for batch in found) == len(records), "whole batches only"
    return found


# -- sizes and order ------------------------------------------------------------------------------


def asked_rows() -> st.SearchStrategy[list[Asked]]:
    limits = st.integers(0, 300) | st.integers(0, 15_000) | st.just(PLENTY)
    row = st.sampled_from(sorted(SIZES)).flatmap(
        lambda partition: st.builds(
            Asked,
            st.just("sizes"),
            st.just(partition),
            st.integers(0, 2 * len(SIZES[partition])),
            limits,
            st.just(-1),
        )
    )
    return st.lists(row, max_size=7, unique_by=lambda row: row.partition)


def expected_batches(
    world: World, rows: Sequence[Asked], max_bytes: int
) -> Iterator[tuple[list[Batch], bool]]:
    """(batches, whether it must be all of them) of each row.

    When a batch does not fit into what is left of the whole answer, no more has to be given, but
    what is given has to fit. From the middle of a log it may be less: batches lie side by side,
    and how large each of them is shows when they are read. What one row leaves over is then for
    the next ones, so these may have as much as their own limits allow.
    """
    left = max_bytes
    is_first = True
    is_full = False
    for row in rows:
        taken: list[Batch] = []
        own_left = row.max_bytes
        must_be_all = not is_full and not any(row.offset for row in rows)
        for batch in world.batches[row.partition]:
            if batch.next_offset <= row.offset:
                continue
            fits = batch.size <= min(own_left, left)
            if not fits and not is_first:
                is_full = is_full or left <= own_left
                break
            taken.append(batch)
            is_first = False
            own_left -= batch.size
            left -= batch.size
        yield (taken if must_be_all else within_its_limit(world, row)), must_be_all


def within_its_limit(world: World, row: Asked) -> list[Batch]:
    """What a row may have, were it asked for alone."""
    wanted = [batch for batch in world.batches[row.partition] if batch.next_offset > row.offset]
    ends = itertools.accumulate(batch.size for batch in wanted)
    fitting = sum(end <= row.max_bytes for end in ends)
    return wanted[: max(fitting, 1)]


@example(  # the first row has room for four batches to the byte, and is given three
    rows=[Asked("sizes", 3, 3, 1_113), Asked("sizes", 0, 0, PLENTY)], max_bytes=9_829, version=4
)
@examples(2.5, allow=[HealthCheck.function_scoped_fixture])
@given(
    rows=asked_rows(),
    max_bytes=st.integers(0, 500) | st.integers(0, 40_000) | st.just(PLENTY),
    version=st.sampled_from([4, 11, 12, 18]),
)
def test_an_answer_has_the_batches_that_fit_in_the_order_of_the_request(
    world: World, rows: list[Asked], max_bytes: int, version: int
) -> None:
    ends = {
        partition: batches[-1].next_offset if batches else 0
        for partition, batches in world.batches.items()
    }
    rows = [row for row in rows if row.offset <= ends[row.partition]]
    with world.connect() as client:
        given_rows = client.fetch(rows, version=version, max_bytes=max_bytes)
    assert [(g.topic, g.partition, g.error) for g in given_rows] == [
        ("sizes", row.partition, 0) for row in rows
    ]
    expected = expected_batches(world, rows, max_bytes)
    for one, (batches, must_be_all) in zip(given_rows, expected, strict=True):
        found = batches_of(one.records)
        if must_be_all:
            assert found == batches
        else:
            assert found == batches[: len(found)]
        # The first that has anything gives something, or a consumer could wait for ever.
        assert found or not batches or any(other.records for other in given_rows)
        assert one.high_watermark == one.last_stable_offset == ends[one.partition]
    total = sum(len(one.records or b"") for one in given_rows)
    assert total <= max_bytes or sum(len(batches_of(one.records)) for one in given_rows) == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_the_first_batch_is_given_whatever_the_limits(world: World, version: int) -> None:
    rows = [Asked("sizes", 2, 0, 1), Asked("sizes", 1, 0, 1), Asked("sizes", 3, 0, 1)]
    with world.connect() as client:
        empty, first, second = client.fetch(rows, version=version, max_bytes=1)
    assert (empty.records, second.records) == (b"", b"")
    assert batches_of(first.records) == world.batches[1]


def test_who_asks_in_turn_gets_all_in_turn(world: World) -> None:
    """An answer with room for one batch, and a client that begins with the next each time."""
    partitions = [0, 1, 3, 4]
    with world.connect() as client:
        for first in range(4):
            order = partitions[first:] + partitions[:first]
            found = client.fetch([Asked("sizes", p) for p in order], max_bytes=1)
            assert [one.partition for one in found] == order
            assert [bool(one.records) for one in found] == [True, False, False, False]


def test_a_topic_may_be_named_in_several_places(world: World) -> None:
    rows = [Asked("sizes", 3), Asked("gone", 0), Asked("sizes", 0), Asked("sizes", 2)]
    for version in (NAMES, IDS):
        with world.connect() as client:
            found = client.fetch(rows, version=version)
        assert [one.partition for one in found] == [3, 0, 0, 2]
        assert [one.error for one in found] == [0, 3 if version == NAMES else 100, 0, 0]
        assert [bool(one.records) for one in found] == [True, False, True, False]


# -- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 11, 12, 13, 18])
def test_an_error_is_its_partitions_own_and_has_no_offsets(world: World, version: int) -> None:
    end = world.batches[0][-1].next_offset
    rows = [
        Asked("sizes", 0, end + 1),
        Asked("sizes", 0, -1),
        Asked("sizes", 99),
        Asked("sizes", -3),
        Asked("nobody", 0),
        Asked("sizes", 0, end),
        Asked("sizes", 1),
    ]
    with world.connect() as client:
        # A wait that never ends, if it were not for the errors.
        found = client.fetch(rows, version=version, max_wait_ms=3_600_000, min_bytes=1 << 19)
    unknown = UNKNOWN_TOPIC_ID if version >= 13 else UNKNOWN_TOPIC_OR_PARTITION
    assert [one.error for one in found] == [1, 1, 3, 3, unknown, 0, 0]
    for one in found[:5]:
        assert one[3:] == (-1, -1, -1, -1, b"")
    assert (found[5].high_watermark, found[5].last_stable_offset) == (end, end)
    assert found[5].log_start_offset == (0 if version >= 5 else -1)
    assert batches_of(found[6].records) == world.batches[1]


@pytest.mark.parametrize("version", [9, 12, 18])
def test_only_leader_epoch_0_is_right(world: World, version: int) -> None:
    epochs = [-1, 0, 1, 7, -2]
    with world.connect() as client:
        found = client.fetch(
            [Asked("sizes", 2, leader_epoch=epoch) for epoch in epochs], version=version
        )
    assert [one.error for one in found] == [
        0,
        0,
        UNKNOWN_LEADER_EPOCH,
        UNKNOWN_LEADER_EPOCH,
        FENCED_LEADER_EPOCH,
    ]


def test_below_the_log_start_is_out_of_range_and_the_start_is_told(world: World) -> None:
    world.create("deleted-from")
    partition = TopicIdPartition(world.ids["deleted-from"], 0)
    with world.connect() as client:
        client.send_frame(
            produce_frame(1, [build_batch([Row()] * 5)], topic="deleted-from", timeout_ms=30_000)
        )
        client.receive_entity(0, 9)
        before = client.fetch([Asked("deleted-from", 0, 5)])
        assert (before[0].log_start_offset, before[0].high_watermark) == (0, 5)
        (deleted,) = world.broker.run(
            world.broker.broker.coordination.client.delete_records([DeleteRecords(partition, 3)])
        )
        assert deleted.error is None
        below, within, at_end = client.fetch(
            [Asked("deleted-from", 0, 2), Asked("deleted-from", 0, 3), Asked("deleted-from", 0, 5)]
        )
        assert below.error == OFFSET_OUT_OF_RANGE
        assert (within.error, within.log_start_offset) == (0, 3)
        # The batch begins below the offset that was asked for; clients skip what is inside.
        assert batches_of(within.records)[0].base_offset == 0
        assert (at_end.error, at_end.log_start_offset, at_end.high_watermark) == (0, 3, 5)


@pytest.mark.parametrize("version", range(11, 19))
def test_a_rack_changes_nothing(world: World, version: int) -> None:
    with world.connect() as client:
        (found,) = client.fetch([Asked("sizes", 1)], version=version, rack_id="somewhere")
    assert (found.error, found.preferred_read_replica) == (0, -1)
    assert found.records


# -- waiting --------------------------------------------------------------------------------------


def parked(world: World) -> int:
    return world.broker.broker.reads.replicas.fetcher.purgatory.statistics().watched


def test_a_later_request_of_the_connection_ends_a_wait_when_its_answer_is_ready(
    world: World,
) -> None:
    with world.connect() as client:
        client.send([Asked("sizes", 2)], max_wait_ms=3_600_000)
        until(lambda: parked(world) == 1, "a fetch that waits")
        client.send_frame(frame(API_VERSIONS, 0, 2, b""))
        (found,) = client.receive()
        assert (found.error, found.records, found.high_watermark) == (0, b"", 0)
        assert client.receive_entity(API_VERSIONS, 0).api_keys
        # A further Fetch is no such request: it only begins when the first has its answer.
        client.send([Asked("sizes", 2)], max_wait_ms=3_600_000)
        client.send([Asked("sizes", 1)])
        until(lambda: parked(world) == 1, "a fetch that waits")
        client.send_frame(frame(API_VERSIONS, 0, 2, b""))
        assert client.receive()[0].records == b""
        assert client.receive()[0].records
        client.receive_entity(API_VERSIONS, 0)
    until(lambda: parked(world) == 0, "nobody to wait any more")


def test_a_wait_ends_when_there_are_enough_bytes(world: World) -> None:
    world.create("awaited", 2)
    batch = build_batch([Row(value=bytes(400))])
    rows = [Asked("awaited", 0), Asked("awaited", 1)]
    with world.connect() as client, world.connect() as producer:
        client.send(rows, max_wait_ms=3_600_000, min_bytes=2 * len(batch))
        for partition in (0, 1):
            until(lambda: parked(world) == 1, "a fetch that waits")
            producer.send_frame(
                produce_frame(1, [batch], topic="awaited", partition=partition, timeout_ms=30_000)
            )
            producer.receive_entity(0, 9)
        assert [len(one.records or b"") for one in client.receive()] == [len(batch)] * 2


# -- sessions -------------------------------------------------------------------------------------


def test_a_session_reads_what_its_requests_leave_out(world: World) -> None:
    world.create("session", 3)
    with world.connect() as client, world.connect() as producer:
        first = client.fetch([Asked("session", p) for p in (2, 0, 1)], session=(0, 0))
        assert [one.partition for one in first] == [2, 0, 1]
        session_id = client.session_id
        assert session_id > 0
        client.send([], session=(session_id, 1), max_wait_ms=3_600_000)
        until(lambda: parked(world) == 1, "a fetch that waits")
        batch = build_batch([Row()])
        producer.send_frame(produce_frame(1, [batch], topic="session", timeout_ms=30_000))
        producer.receive_entity(0, 9)
        (found,) = client.receive()
        assert (client.session_id, found.partition, found.high_watermark) == (session_id, 0, 1)
        assert found.records
        # It has not said that it read them: they come again.
        (again,) = client.fetch([], session=(session_id, 2))
        assert again == found
        assert client.fetch([Asked("session", 0, 1)], session=(session_id, 3)) == []
        gone = [{"topic_id": world.ids["session"], "partitions": [0, 1]}]
        assert client.fetch([], session=(session_id, 4), forgotten_topics_data=gone) == []
        producer.send_frame(produce_frame(1, [batch], topic="session", timeout_ms=30_000))
        producer.receive_entity(0, 9)
        assert client.fetch([], session=(session_id, 5)) == []
        # A session is bound to its id, and not to its connection.
        with world.connect() as other:
            assert other.fetch([], session=(session_id, 6)) == []
            assert (other.error, other.session_id) == (0, session_id)


def test_a_session_is_told_that_a_topic_is_gone(world: World) -> None:
    world.create("going", 2)
    with world.connect() as client:
        client.fetch([Asked("going", 0), Asked("sizes", 2), Asked("going", 1)], session=(0, 0))
        session_id = client.session_id
        client.send([], session=(session_id, 1), max_wait_ms=3_600_000)
        until(lambda: parked(world) == 1, "a fetch that waits")
        (error,) = world.broker.run(
            world.broker.broker.coordination.client.delete_topics([world.ids["going"]])
        )
        assert error is None
        found = client.receive()
        assert [(one.topic, one.partition, one.error) for one in found] == [
            ("going", 0, UNKNOWN_TOPIC_ID),
            ("going", 1, UNKNOWN_TOPIC_ID),
        ]
        # Until the client has forgotten them.
        gone = [{"topic_id": world.ids["going"], "partitions": [0, 1]}]
        assert client.fetch([], session=(session_id, 2), forgotten_topics_data=gone) == []


def test_sessions_do_not_outlive_the_broker(tmp_path: Path) -> None:
    ids: dict[str, UUID] = {}
    with LiveBroker(tmp_path / "data") as broker:
        world = World(broker, ids, {})
        world.create("t")
        with world.connect() as client:
            client.fetch([Asked("t", 0)], session=(0, 0))
            session_id = client.session_id
    with LiveBroker(tmp_path / "data") as broker, Client(broker, ids) as client:
        assert client.fetch([], session=(session_id, 1)) == []
        assert (client.error, client.session_id) == (70, 0)
