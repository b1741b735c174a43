"""The exactly-once sink against a broker, without Spark: what is committed, and what is refused."""

import random
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

import google_crc32c
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql.types import StructType

from metadata.sink_operations import CommitStaged, StagedFile
from tests.support.brokers.live_broker import LiveBroker
from tiering.coordinator_client import CoordinatorClient
from tiering.source.data_source import DisklessDataSource
from tiering.source.options import parse_sink_options
from tiering.source.writing import sink_commits
from tiering.source.writing.exactly_once import ExactlyOnceStreamSink, StagedMessage
from tiering.source.writing.record_rows import make_batches, record_table
from tiering.source.writing.sink_commits import SinkCommits
from wal.chunks.kept_notes import NOTES_PREFIX, decode_kept_notes, merged
from wal.clock import SystemClock
from wal.coordinates import ObjectKey
from wal.errors import DisklessError, InvalidSettings, KeysMissing, Rejected, UnknownPartition
from wal.records.compression import LZ4
from wal.records.recompression import Compression
from wal.staging.staged_object import staged_object
from wal.stores.blocking_store import BlockingBucket, open_blocking_store
from wal.ulid import mint_ulid

SCHEMA = StructType().add("key", "string").add("value", "binary")
TOPICS = {
    "plain": {},
    "compacted": {"cleanup.policy": "compact"},
    "packed": {"compression.type": "zstd"},
    "small": {"max.message.bytes": "1000"},
    "timed": {"message.timestamp.before.max.ms": "1000"},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
}


@pytest.fixture(
    scope="module",
    params=[pytest.param(1, marks=pytest.mark.exhaustive), 3],
    ids="{}-metadata-partitions".format,
)
def broker(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[LiveBroker]:
    settings = {"diskless.metadata.topic.num.partitions": str(request.param)}
    with LiveBroker(tmp_path_factory.mktemp("broker"), settings) as live:
        admin = AdminClient({"bootstrap.servers": live.bootstrap})
        new = [NewTopic(name, 2, config=config) for name, config in TOPICS.items()]
        for future in admin.create_topics(new).values():
            future.result(30)
        yield live


@pytest.fixture
def sink_id() -> str:
    return f"s-{uuid4()}"


def sink(broker: LiveBroker, topic: str, sink_id: str, **options: str) -> ExactlyOnceStreamSink:
    given = {"bootstrap": broker.bootstrap, "topic": topic, "sink.id": sink_id, **options}
    return ExactlyOnceStreamSink(parse_sink_options(given), SCHEMA)


def rows(*values: bytes, key: str | None = "k") -> Iterator[pa.RecordBatch]:
    keys = pa.array([key] * len(values), pa.string())
    yield pa.record_batch({"key": keys, "value": pa.array(values, pa.binary())})


def read(broker: LiveBroker, topic: str) -> Sequence[tuple[int, int, bytes]]:
    """(partition, offset, value) of all records, with a stock client."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "nobody"})
    try:
        found = []
        for partition in range(2):
            place = TopicPartition(topic, partition)
            _, end = consumer.get_watermark_offsets(place, timeout=60)
            consumer.assign([TopicPartition(topic, partition, 0)])
            at = 0
            while at < end:
                message = consumer.poll(60)
                assert message is not None
                assert message.error() is None
                found.append((partition, message.offset(), message.value()))
                at = message.offset() + 1
        return found
    finally:
        consumer.close()


def values(broker: LiveBroker, topic: str) -> Sequence[bytes]:
    return sorted(value for _, _, value in read(broker, topic))


def store_of(broker: LiveBroker, topic: str, sink_id: str) -> BlockingBucket:
    opened = SinkCommits(CoordinatorClient(broker.bootstrap), sink_id, topic).open()
    return open_blocking_store(opened.object_store_url)


def test_tasks_stage_and_the_commit_shows_all_at_once(broker: LiveBroker, sink_id: str) -> None:
    before = values(broker, "plain")
    writer = sink(broker, "plain", sink_id)
    messages = [writer.write(rows(b"a", b"b")), writer.write(rows()), writer.write(rows(b"c"))]
    assert values(broker, "plain") == before
    writer.commit(messages, 0)
    assert values(broker, "plain") == sorted([*before, b"a", b"b", b"c"])


def test_a_commit_is_noted_in_the_bucket(broker: LiveBroker, sink_id: str) -> None:
    writer = sink(broker, "plain", sink_id)
    writer.commit([writer.write(rows(b"a"))], 7)
    with store_of(broker, "plain", sink_id) as store:
        keys = [stat.key for stat in store.list(NOTES_PREFIX)]
        notes = merged(decode_kept_notes(store.get(key), key) for key in keys)
    (noted,) = [noted for noted in notes.sinks if noted.sink_id == sink_id]
    assert noted.batch_id == 7
    (staged,) = [staged for staged in notes.staged if staged.sink_id == sink_id]
    (run,) = staged.runs
    assert (run.partition, run.base_offset, run.base_offset) == noted.ranges[0]
    assert notes.topics[run.partition.topic_id].name == "plain"


def test_a_batch_that_is_written_again_is_there_once(broker: LiveBroker, sink_id: str) -> None:
    before = values(broker, "stamped")
    for division in ([b"a", b"b"], [b"c"]), ([b"c", b"b", b"a"],), ([b"b"], [b"c"], [b"a"]):
        # A driver of its own each time, which knows nothing of the others.
        writer = sink(broker, "stamped", sink_id)
        writer.commit([writer.write(rows(*some)) for some in division], 3)
    assert values(broker, "stamped") == sorted([*before, b"a", b"b", b"c"])


def test_the_second_of_two_drivers_with_one_sink_id_is_refused(
    broker: LiveBroker, sink_id: str
) -> None:
    before = values(broker, "plain")
    first, second = sink(broker, "plain", sink_id), sink(broker, "plain", sink_id)
    staged = [first.write(rows(b"mine"))], [second.write(rows(b"other"))]
    first.commit(staged[0], 0)
    with pytest.raises(Rejected, match="batch 0 was committed with other records"):
        second.commit(staged[1], 0)
    first.commit([first.write(rows(b"more"))], 1)
    with pytest.raises(Rejected, match="batch 0 comes after batch 1 was committed"):
        second.commit(staged[1], 0)
    assert values(broker, "plain") == sorted([*before, b"mine", b"more"])


def test_a_batch_without_rows_is_a_batch(broker: LiveBroker, sink_id: str) -> None:
    writer = sink(broker, "plain", sink_id)
    writer.commit([], 0)
    writer.commit([writer.write(rows())], 1)
    with pytest.raises(Rejected, match="comes after"):
        writer.commit([], 0)


def test_a_task_keeps_the_rules_of_its_topic(broker: LiveBroker, sink_id: str) -> None:
    with pytest.raises(KeysMissing):
        sink(broker, "compacted", sink_id).write(rows(b"a", key=None))
    with pytest.raises(Rejected, match="1000"):
        sink(broker, "small", sink_id).write(rows(random.Random(1).randbytes(2_000)))
    with pytest.raises(UnknownPartition, match="there is no topic 'nowhere'"):
        sink(broker, "nowhere", sink_id)
    for topic in ("compacted", "packed", "timed"):
        writer = sink(broker, topic, f"{sink_id}-{topic}")
        before = values(broker, topic)
        writer.commit([writer.write(rows(b"v" * 1_000))], 0)
        assert values(broker, topic) == sorted([*before, b"v" * 1_000])


def test_a_batch_that_does_not_fit_into_one_commit_is_refused(
    broker: LiveBroker, sink_id: str
) -> None:
    """By a task that has too much alone, and by the driver before it asks for the commit."""
    before = values(broker, "plain")
    writer = sink(broker, "plain", sink_id)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(writer, "_opened", writer._opened._replace(batches_max=1))
        messages = [writer.write(rows(b"a")), writer.write(rows(b"b"))]
        of_both_partitions = (one for key in "abcdefgh" for one in rows(b"v", key=key))
        with pytest.raises(Rejected, match="a task alone has more than the 1 record batches"):
            writer.write(of_both_partitions)
        with pytest.raises(Rejected, match=r"has 2 record batches in 2 objects; 1 in 2000"):
            writer.commit(messages, 0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sink_commits, "STAGED_OBJECTS_MAX", 1)
        with pytest.raises(Rejected, match=r"50000 in 1 fit .* \(maxOffsetsPerTrigger\)"):
            writer.commit(messages, 0)
    assert values(broker, "plain") == before
    writer.commit(messages, 0)
    assert values(broker, "plain") == sorted([*before, b"a", b"b"])


def damaged(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


def resealed(data: bytes) -> bytes:
    """The batch with the CRC of its bytes."""
    return damaged(data, 17, google_crc32c.value(data[21:]).to_bytes(4, "big"))


FOREIGN = {
    "another topic's key rule": ("compacted", "plain", None, "no key"),
    "another codec": ("packed", "plain", None, "lz4, packed wants zstd"),
    "a batch that is too large": ("small", "plain", None, "1000 allowed"),
    "a damaged record": ("plain", "plain", "flip", "CRC"),
    "a producer id": ("plain", "plain", "producer", "producer id"),
    "a control batch": ("plain", "plain", "control", "control"),
    "a transaction": ("plain", "plain", "transactional", "a transactional batch"),
    "an old timestamp": ("timed", "plain", "old", "before now"),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_broker_believes_nothing_of_an_object(
    broker: LiveBroker, sink_id: str, what: str
) -> None:
    """A task that breaks a rule of Produce, written by hand, is refused at its commit."""
    topic, made_for, damage, complaint = FOREIGN[what]
    own = SinkCommits(CoordinatorClient(broker.bootstrap), sink_id, topic).open()
    other = SinkCommits(CoordinatorClient(broker.bootstrap), sink_id, made_for).open()
    (rule,) = other.topics
    table = record_table(next(rows(random.Random(2).randbytes(1_500), key=None)))
    now = SystemClock().now_ms()
    (batch,) = make_batches(
        table, rule, Compression(LZ4), batch_bytes=1 << 20,
        timestamp_ms=now - 60_000 if damage == "old" else now,
    )  # fmt: skip
    data = batch.data
    if damage == "flip":
        data = damaged(data, len(data) - 5, bytes([data[-5] ^ 1]))
    elif damage in ("producer", "control", "transactional"):
        at, value = {
            "producer": (43, (7).to_bytes(8, "big") + b"\0\0" + b"\0\0\0\0"),
            "control": (21, (0x23).to_bytes(2, "big")),
            "transactional": (21, (0x13).to_bytes(2, "big")),
        }[damage]
        data = resealed(damaged(data, at, value))
    place = batch.partition._replace(topic_id=own.topics[0].topic_id)
    ulid = mint_ulid(SystemClock(), random.Random())
    staged = staged_object(sink_id, ulid, now, [(place, data)])
    with open_blocking_store(own.object_store_url) as store:
        store.put(staged.object_key, staged.body)
    end = len(read(broker, topic))
    asked = CommitStaged(
        sink_id, 0, bytes(16), [topic],
        [StagedFile(staged.object_key, staged.body.length_bytes)],
    )  # fmt: skip
    with pytest.raises(Rejected, match=complaint):
        CoordinatorClient(broker.bootstrap).commit_staged(asked)
    assert len(read(broker, topic)) == end


def test_only_staged_objects_of_the_very_sink_are_committed(
    broker: LiveBroker, sink_id: str
) -> None:
    writer = sink(broker, "plain", sink_id)
    message = writer.write(rows(b"a"))
    assert isinstance(message, StagedMessage)
    (file,) = message.staged.files
    client = CoordinatorClient(broker.bootstrap)

    def commit(**fields: Any) -> None:
        asked = CommitStaged(sink_id, 0, bytes(16), ["plain"], [file])
        client.commit_staged(asked._replace(**fields))

    with pytest.raises(DisklessError, match="is no object of"):
        commit(sink_id=f"{sink_id}-other")
    for key in ("wal/00/" + "0" * 26, "meta/cluster", f"staged/{sink_id}/../x"):
        with pytest.raises(DisklessError, match="is no object of"):
            commit(files=[file._replace(object_key=ObjectKey(key))])
    missing = file.object_key[:-26] + mint_ulid(SystemClock(), random.Random())
    with pytest.raises(Rejected, match="is not there"):
        commit(files=[file._replace(object_key=ObjectKey(missing))])
    with pytest.raises(Rejected):
        commit(files=[file._replace(object_bytes=file.object_bytes - 1)])
    with pytest.raises(UnknownPartition, match="a topic that the commit does not name"):
        commit(topics=["stamped"])
    commit()


def test_options_that_make_no_sense_are_refused(broker: LiveBroker) -> None:
    given = {"bootstrap": broker.bootstrap, "topic": "plain"}
    for more, complaint in (
        ({"sink.batch.id": "1"}, "is for writes with option sink.id"),
        ({"compression": "lz4"}, "is for writes with option sink.id"),
        ({"sink.id": "a/b"}, "option sink.id"),
        ({"sink.id": "a", "compression": "best"}, "must be one of"),
        ({"sink.id": "a", "sink.batch.id": "-1"}, "must be a number"),
    ):
        with pytest.raises(InvalidSettings, match=complaint):
            parse_sink_options({**given, **more})
    with pytest.raises(InvalidSettings, match=r"needs sink\.batch\.id"):
        DisklessDataSource({**given, "sink.id": "a"}).writer(SCHEMA, overwrite=False)
    source = DisklessDataSource({**given, "sink.id": "a", "sink.batch.id": "1"})
    with pytest.raises(InvalidSettings, match="a stream has its own"):
        source.streamWriter(SCHEMA, overwrite=False)
