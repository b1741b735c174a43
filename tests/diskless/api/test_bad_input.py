"""What a whole broker makes of bytes no honest client sends, and of the honest ones beside them."""

import contextlib
import random
import socket
import struct
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from tests.support.brokers.live_broker import LiveBroker
from tests.support.chunks.batch_builder import Row, build_batch, seal
from tests.support.clients.stock_clients import QUIET, TIMEOUT_S, ConfluentKafka, Record
from tests.support.questions.kafka_raw_client import RawClient, frame, request_body, written
from tests.support.samples.kio_entities import smallest

PRODUCE, FETCH, METADATA, API_VERSIONS = 0, 1, 3, 18
CODES = {
    "corrupt": 2,
    "unknown topic": 3,
    "too large": 10,
    "timestamp": 32,
    "sequence": 45,
    "epoch": 47,
    "no id": 53,
    "codec": 76,
    "record": 87,
    "unknown id": 100,
}
"""Kafka's error codes, by what they are about."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    data = tmp_path_factory.mktemp("broker") / "data"
    with LiveBroker(data, {"wal.commit.interval.ms": "5"}) as broker:
        yield broker


@pytest.fixture
async def raw(broker: LiveBroker) -> AsyncIterator[RawClient]:
    client = await RawClient.connect(("127.0.0.1", broker.port))
    yield client
    await client.close()


_numbers = iter(range(1_000_000))


@pytest.fixture
def topic(broker: LiveBroker) -> str:
    """A new topic with twenty partitions and small batches."""
    name = f"topic-{next(_numbers)}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap}, logger=QUIET)
    new = NewTopic(name, 20, config={"max.message.bytes": "10000"})
    admin.create_topics([new])[name].result(TIMEOUT_S)
    return name


# Frames


def announced(length: int, key: int = PRODUCE, version: int = 9) -> bytes:
    return struct.pack(">ihh", length, key, version) + bytes(100)


GARBAGE = random.Random(1)
BAD_FRAMES: Mapping[str, bytes] = {
    "a negative length": announced(-1),
    "the smallest length": announced(-(2**31)),
    "a length of nothing": announced(0),
    "less than a header": announced(9),
    "the greatest length": announced(2**31 - 1),
    "one byte more than allowed": announced((100 << 20) + 1),
    "a control request of 5 MiB": announced(5 << 20, METADATA, 9),
    "an unknown API": frame(METADATA, 9, 1, b"").replace(b"\x00\x03", b"\x7f\x03", 1),
    "a negative API": announced(100, -1, 0),
    "a Produce version of the past": announced(100, PRODUCE, 2),
    "a Produce version of the future": announced(100, PRODUCE, 99),
    "a Fetch version of the past": announced(100, FETCH, 3),
    "a TLS hello": bytes.fromhex("16030100f8010000f40303") + GARBAGE.randbytes(240),
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "random bytes": GARBAGE.randbytes(10_000),
    "a client id longer than its frame": struct.pack(">ihhih", 20, METADATA, 9, 1, 30_000)
    + bytes(10),
    "a Metadata request of garbage": frame(METADATA, 9, 1, b"\xff" * 40),
    "two thousand million topics": frame(METADATA, 8, 1, struct.pack(">i", 2**31 - 1)),
    "a Produce of two thousand million topics": frame(
        PRODUCE, 8, 1, struct.pack(">hhii", -1, -1, 1000, 2**31 - 1)
    ),
    "a compact Produce with an endless count": frame(
        PRODUCE, 9, 1, b"\x00" + struct.pack(">hi", -1, 1000) + b"\xff\xff\xff\xff\x0f"
    ),
    "an unending varint": frame(PRODUCE, 9, 1, b"\xff" * 30),
    "a Fetch of two thousand million partitions": frame(
        FETCH, 11, 1, struct.pack(">iiiibii", -1, 0, 1, 1 << 20, 0, 0, -1) + b"\x7f\xff\xff\xff"
    ),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
async def test_bad_frames_cost_their_sender_the_connection_and_nobody_else(
    name: str, broker: LiveBroker, raw: RawClient, topic: str
) -> None:
    healthy = await RawClient.connect(("127.0.0.1", broker.port))
    await healthy.send(produce(1, {topic: {0: good_batch()}}))
    await raw.send(BAD_FRAMES[name])
    assert await raw.is_closed_by_server()
    await healthy.send(produce(2, {topic: {0: good_batch()}}))
    assert await produced(healthy) == {(topic, 0): (0, 0)}
    assert await produced(healthy) == {(topic, 0): (0, 1)}
    await healthy.close()


async def test_a_frame_that_is_cut_off_leaves_nothing_behind(
    broker: LiveBroker, raw: RawClient, topic: str
) -> None:
    whole = produce(1, {topic: {0: good_batch()}})
    for length in (1, 4, 7, 8, 20, len(whole) // 2, len(whole) - 1):
        client = await RawClient.connect(("127.0.0.1", broker.port))
        await client.send(whole[:length])
        await client.close()
    await raw.send(whole)
    assert await produced(raw) == {(topic, 0): (0, 0)}


async def test_apiversions_of_the_future_is_answered_and_the_connection_stays(
    raw: RawClient,
) -> None:
    await raw.send(struct.pack(">ihhih", 10, API_VERSIONS, 99, 7, -1))
    correlation_id, rest = await raw.receive()
    response, _ = entity_reader(load_response_schema(API_VERSIONS, 0))(rest, 0)
    assert correlation_id == 7
    assert response.error_code == 35
    assert (await raw.call(API_VERSIONS, 0, 8)).error_code == 0


async def test_many_that_announce_much_and_send_little_cost_nothing(
    broker: LiveBroker, raw: RawClient, topic: str
) -> None:
    process = psutil.Process()
    await raw.send(produce(1, {topic: {0: good_batch()}}))
    assert await produced(raw) == {(topic, 0): (0, 0)}
    before = process.memory_info().rss
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            liar = stack.enter_context(socket.create_connection(("127.0.0.1", broker.port)))
            liar.sendall(struct.pack(">ihhih", 99 << 20, PRODUCE, 9, 1, -1) + bytes(2_000))
        for number in range(1, 20):
            await raw.send(produce(number, {topic: {0: good_batch()}}))
            assert await produced(raw) == {(topic, 0): (0, number)}
        # A hundred connections of 4 KiB buffers; their announcements come to 10 GB.
        assert process.memory_info().rss - before < 32 << 20


# Produce requests


def good_batch(value: bytes = b"good", **header: Any) -> bytes:
    now_ms = time.time_ns() // 1_000_000
    return build_batch([Row(now_ms, b"key", value)], **header)


def produce(
    correlation_id: int,
    records: Mapping[str, Mapping[int, bytes | None]],
    *,
    version: int = 9,
    acks: int = -1,
) -> bytes:
    schema = load_request_schema(PRODUCE, version)
    topic_type = schema.__dataclass_fields__["topic_data"].type.__args__[0]
    part_type = topic_type.__dataclass_fields__["partition_data"].type.__args__[0]
    data = tuple(
        topic_type(
            name=name,
            partition_data=tuple(
                part_type(index=index, records=batch) for index, batch in partitions.items()
            ),
        )
        for name, partitions in records.items()
    )
    body = request_body(PRODUCE, version, acks=acks, topic_data=data, transactional_id=None)
    # kio knows the timeout as a timedelta of its own; ten seconds, written in place.
    position = 1 if version >= 9 else 2
    patched = bytearray(body)
    struct.pack_into(">i", patched, position + 2, 10_000)
    return frame(PRODUCE, version, correlation_id, bytes(patched))


async def produced(client: RawClient, *, version: int = 9) -> dict[tuple[str, int], Any]:
    """(topic, partition) -> (error code, base offset) of the next answer."""
    _, rest = await client.receive()
    response, _ = entity_reader(load_response_schema(PRODUCE, version))(
        rest, 1 if version >= 9 else 0
    )
    return {
        (topic.name, partition.index): (int(partition.error_code), partition.base_offset)
        for topic in response.responses
        for partition in topic.partition_responses
    }


def broken_crc(batch: bytes) -> bytes:
    return batch[:-1] + bytes([batch[-1] ^ 1])


def with_length(batch: bytes, change: int) -> bytes:
    (length,) = struct.unpack_from(">i", batch, 8)
    return batch[:8] + struct.pack(">i", length + change) + batch[12:]


def bad_batches() -> dict[str, tuple[bytes | None, str]]:
    """Name -> (records, what Kafka's error code for it is about)."""
    now_ms = time.time_ns() // 1_000_000
    large = build_batch([Row(now_ms, b"", b"x" * 10_000)])
    return {
        "null": (None, "record"),
        "empty": (b"", "record"),
        "a few bytes": (b"\x00" * 20, "record"),
        "flipped bit": (broken_crc(good_batch()), "corrupt"),
        "magic 1": (good_batch(magic=1), "record"),
        "magic 3": (good_batch(magic=3), "record"),
        "more records than deltas": (good_batch(record_count=5, last_offset_delta=0), "record"),
        "more deltas than records": (good_batch(last_offset_delta=5), "record"),
        "no records": (good_batch(record_count=0, last_offset_delta=-1), "record"),
        "negative records": (good_batch(record_count=-1, last_offset_delta=-2), "record"),
        "two batches": (good_batch() + good_batch(), "record"),
        "shorter than it says": (with_length(good_batch(), 10), "record"),
        "longer than it says": (good_batch() + b"\x00", "record"),
        "negative length": (with_length(good_batch(), -2_000_000_000), "corrupt"),
        "oversized": (large, "too large"),
        "control batch": (good_batch(attributes=0x20), "record"),
        "transactional": (good_batch(attributes=0x10, producer_id=5, base_sequence=0), "no id"),
        "append time": (good_batch(attributes=0x08), "timestamp"),
        "no sequence": (good_batch(producer_id=5, producer_epoch=0, base_sequence=-1), "record"),
        "base offset": (good_batch(base_offset=7), "record"),
        "codec 7": (seal(b"", record_count=1, codec=7, compress=False), "codec"),
        "next week": (build_batch([Row(now_ms + 7 * 86_400_000)]), "timestamp"),
    }


async def test_a_bad_partition_gets_its_code_and_the_good_ones_are_committed(
    broker: LiveBroker, raw: RawClient, topic: str
) -> None:
    bad = bad_batches()
    names = list(bad)
    for start in range(0, len(names), 8):
        group = names[start : start + 8]
        # Good and bad by turns: 0 good, 1 bad, 2 good, ...
        partitions: dict[int, bytes | None] = {0: good_batch()}
        for number, name in enumerate(group):
            partitions[2 * number + 1] = bad[name][0]
            partitions[2 * number + 2] = good_batch()
        await raw.send(produce(1, {topic: partitions, "no-such": {0: good_batch()}}))
        answer = await produced(raw)
        round_number = start // 8
        for number, name in enumerate(group):
            code = CODES[bad[name][1]]
            assert answer[topic, 2 * number + 1] == (code, -1), name
            assert answer[topic, 2 * number + 2] == (0, round_number), name
        assert answer[topic, 0] == (0, round_number)
        assert answer["no-such", 0] == (CODES["unknown topic"], -1)
    read = ConfluentKafka().read(broker.bootstrap, topic, 3, partition=0)
    assert [record.value for _, record in read] == [b"good"] * 3


async def test_partitions_that_do_not_exist_are_unknown(raw: RawClient, topic: str) -> None:
    await raw.send(produce(1, {topic: {20: good_batch(), -1: good_batch(), 19: good_batch()}}))
    assert await produced(raw) == {
        (topic, 20): (CODES["unknown topic"], -1),
        (topic, -1): (CODES["unknown topic"], -1),
        (topic, 19): (0, 0),
    }


async def test_zstd_is_refused_in_versions_that_do_not_know_it(raw: RawClient, topic: str) -> None:
    batch = good_batch(codec=4)
    await raw.send(produce(1, {topic: {0: batch}}, version=6))
    assert await produced(raw, version=6) == {(topic, 0): (CODES["codec"], -1)}
    await raw.send(produce(2, {topic: {0: batch}}, version=7))
    assert await produced(raw, version=7) == {(topic, 0): (0, 0)}


async def test_acks_that_do_not_exist_are_refused(raw: RawClient, topic: str) -> None:
    await raw.send(produce(1, {topic: {0: good_batch()}}, acks=2))
    assert await produced(raw) == {(topic, 0): (21, -1)}


# Idempotence


def sequenced(base_sequence: int, count: int = 1, *, pid: int = 4_000_000, epoch: int = 0) -> bytes:
    now_ms = time.time_ns() // 1_000_000
    rows = [Row(now_ms, b"k", b"%d" % (base_sequence + n)) for n in range(count)]
    return build_batch(rows, producer_id=pid, producer_epoch=epoch, base_sequence=base_sequence)


async def send_one(raw: RawClient, topic: str, batch: bytes) -> tuple[int, int]:
    await raw.send(produce(1, {topic: {0: batch}}))
    answer: tuple[int, int] = (await produced(raw))[topic, 0]
    return answer


async def test_a_duplicate_gets_its_first_offset_and_is_not_stored_again(
    broker: LiveBroker, raw: RawClient, topic: str
) -> None:
    sent = [sequenced(0, 3), sequenced(3, 2), sequenced(5, 1), sequenced(6, 4)]
    offsets = [await send_one(raw, topic, batch) for batch in sent]
    assert offsets == [(0, 0), (0, 3), (0, 5), (0, 6)]
    for batch, offset in reversed(list(zip(sent, offsets, strict=True))):
        assert await send_one(raw, topic, batch) == offset
    assert await send_one(raw, topic, sequenced(10)) == (0, 10)
    read = ConfluentKafka().read(broker.bootstrap, topic, 11)
    assert [record.value for _, record in read] == [b"%d" % n for n in range(11)]


async def test_a_duplicate_in_the_same_wal_object_is_recognised_too(
    raw: RawClient, topic: str
) -> None:
    await raw.send(
        *(produce(number, {topic: {0: sequenced(0, 3)}}) for number in range(3)),
        produce(3, {topic: {0: sequenced(3)}}),
        produce(4, {topic: {0: sequenced(0, 3)}}),
    )
    answers = [(await produced(raw))[topic, 0] for _ in range(5)]
    assert answers == [(0, 0), (0, 0), (0, 0), (0, 3), (0, 0)]


async def test_a_gap_and_a_step_back_are_out_of_order(raw: RawClient, topic: str) -> None:
    for sequence in range(7):
        assert (await send_one(raw, topic, sequenced(sequence)))[0] == 0
    assert await send_one(raw, topic, sequenced(9)) == (CODES["sequence"], -1)
    # Older than the last five batches: it cannot be told from a batch that was never there.
    assert await send_one(raw, topic, sequenced(0)) == (CODES["sequence"], -1)
    # Parts of what was sent together are no duplicates of it.
    assert await send_one(raw, topic, sequenced(5, 2)) == (CODES["sequence"], -1)
    assert await send_one(raw, topic, sequenced(7)) == (0, 7)


async def test_an_older_epoch_is_refused_and_a_newer_one_starts_at_zero(
    raw: RawClient, topic: str
) -> None:
    assert await send_one(raw, topic, sequenced(0, epoch=3)) == (0, 0)
    assert await send_one(raw, topic, sequenced(1, epoch=2)) == (CODES["epoch"], -1)
    assert await send_one(raw, topic, sequenced(1, epoch=4)) == (CODES["sequence"], -1)
    assert await send_one(raw, topic, sequenced(0, epoch=4)) == (0, 1)
    assert await send_one(raw, topic, sequenced(1, epoch=3)) == (CODES["epoch"], -1)


async def test_sequences_wrap_at_their_end(raw: RawClient, topic: str) -> None:
    assert await send_one(raw, topic, sequenced(2**31 - 3, 3)) == (0, 0)
    assert await send_one(raw, topic, sequenced(0)) == (0, 3)
    assert await send_one(raw, topic, sequenced(2**31 - 3, 3)) == (0, 0)


# Fetch requests


async def fetched(raw: RawClient, version: int, /, **values: Any) -> Any:
    entity = fetch_body(version, **values)
    await raw.send(frame(FETCH, version, 1, entity))
    _, rest = await raw.receive()
    response, _ = entity_reader(load_response_schema(FETCH, version))(
        rest, 1 if version >= 12 else 0
    )
    return response


def fetch_body(version: int, **values: Any) -> bytes:
    """One partition of one topic at an offset, without a session."""
    entity = smallest(load_request_schema(FETCH, version))
    topic = entity.topics[0]
    names = {name: values.pop(name) for name in ("topic", "topic_id") if name in values}
    partition = replace(topic.partitions[0], **{"partition_max_bytes": 1 << 20, **values})
    return written(
        replace(
            entity,
            topics=(replace(topic, partitions=(partition,), **names),),
            forgotten_topics_data=(),
            max_bytes=1 << 20,
            session_epoch=-1,
        )
    )


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"fetch_offset": 0, "current_leader_epoch": 0}, 0),
        ({"fetch_offset": 1, "current_leader_epoch": -1}, 0),
        ({"fetch_offset": 2, "current_leader_epoch": -1}, 1),
        ({"fetch_offset": -5, "current_leader_epoch": -1}, 1),
        ({"fetch_offset": 2**63 - 1, "current_leader_epoch": -1}, 1),
        ({"fetch_offset": 0, "current_leader_epoch": 9}, 75),
        ({"fetch_offset": 0, "partition": 20, "current_leader_epoch": -1}, 3),
        ({"fetch_offset": 0, "partition": -1, "current_leader_epoch": -1}, 3),
        ({"fetch_offset": 0, "topic": "no-such", "current_leader_epoch": -1}, 3),
    ],
)
async def test_a_fetch_of_what_is_not_there_gets_its_code(
    raw: RawClient, topic: str, values: dict[str, Any], code: int
) -> None:
    assert await send_one(raw, topic, good_batch()) == (0, 0)
    response = await fetched(raw, 11, **{"topic": topic, **values})
    (answer,) = response.responses[0].partitions
    assert answer.error_code == code


async def test_a_topic_id_nobody_has_is_an_unknown_id(raw: RawClient) -> None:
    response = await fetched(raw, 16, topic_id=UUID(int=5), fetch_offset=0)
    (answer,) = response.responses[0].partitions
    assert answer.error_code == CODES["unknown id"]


async def test_limits_of_nothing_and_less_still_give_one_batch(raw: RawClient, topic: str) -> None:
    assert await send_one(raw, topic, good_batch()) == (0, 0)
    for limit in (0, -1, -(2**31), 1):
        limits = {"partition_max_bytes": limit, "current_leader_epoch": -1}
        response = await fetched(raw, 11, topic=topic, fetch_offset=0, **limits)
        (answer,) = response.responses[0].partitions
        assert answer.error_code == 0
        assert len(answer.records) == len(good_batch())


async def test_the_broker_is_as_well_as_before(
    broker: LiveBroker, topic: str, raw: RawClient
) -> None:
    """After everything above, on the same broker."""
    sent: Sequence[Record] = [Record(value=b"%d" % n) for n in range(100)]
    ConfluentKafka().produce(broker.bootstrap, topic, sent, idempotent=True)
    assert [r for _, r in ConfluentKafka().read(broker.bootstrap, topic, 100)] == sent


def test_a_broker_that_saw_bad_input_stops_and_starts_cleanly(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with LiveBroker(data) as broker:
        with socket.create_connection(("127.0.0.1", broker.port)) as client:
            client.sendall(BAD_FRAMES["a negative length"])
            try:
                assert client.recv(1) == b""
            except ConnectionResetError:
                pass  # closed with bytes unread
        ConfluentKafka().produce(broker.bootstrap, "t", [Record()])
    with LiveBroker(data) as broker:
        assert ConfluentKafka().read(broker.bootstrap, "t", 1)[0].record == Record()
