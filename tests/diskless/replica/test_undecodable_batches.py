"""Batches whose CRC is right and whose records are not: what a whole broker makes of them."""

import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kio.index import load_response_schema
from kio.serial import entity_reader

from tests.support.brokers.live_broker import LiveBroker
from tests.support.chunks.batch_builder import Row, build_batch, seal
from tests.support.clients.stock_clients import QUIET, TIMEOUT_S
from tests.support.questions.kafka_raw_client import RawClient, fetch_frame, produce_frame
from tests.support.tiers.rolled import roll_everything
from wal.records.record_batch import iterate_headers

PRODUCE, FETCH = 0, 1
SETTINGS = {"wal.commit.interval.ms": "5"}


@contextlib.asynccontextmanager
async def connected(broker: LiveBroker) -> AsyncIterator[RawClient]:
    client = await RawClient.connect(("127.0.0.1", broker.port))
    try:
        yield client
    finally:
        await client.close()


async def received(client: RawClient, key: int, version: int, header_bytes: int) -> Any:
    """The one partition of the next answer."""
    _, rest = await client.receive()
    response: Any
    response, _ = entity_reader(load_response_schema(key, version))(rest, header_bytes)
    (topic,) = response.responses
    (partition,) = topic.partition_responses if key == PRODUCE else topic.partitions
    return partition


async def produce(client: RawClient, batch: bytes) -> tuple[int, int]:
    """(error code, base offset)"""
    frame = bytearray(produce_frame(1, [batch]))
    # kio knows the timeout as a timedelta of its own: ten seconds, behind header, id and acks.
    timeout = 4 + 8 + 2 + len(b"raw") + 1 + 1 + 2
    frame[timeout : timeout + 4] = (10_000).to_bytes(4, "big")
    await client.send(bytes(frame))
    answer = await received(client, PRODUCE, 9, 1)
    return int(answer.error_code), answer.base_offset


async def fetch(client: RawClient) -> list[bytes]:
    """The batches of the partition from offset 0 on, byte by byte."""
    await client.send(fetch_frame(1))
    answer = await received(client, FETCH, 11, 0)
    assert int(answer.error_code) == 0
    records = bytes(answer.records)
    return [
        records[position : position + header.length_bytes]
        for position, header in iterate_headers(records)
    ]


@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
async def test_they_are_served_byte_for_byte_before_and_after_the_roll(
    tmp_path: Path, timestamp_type: str
) -> None:
    now_ms = time.time_ns() // 1_000_000
    good = build_batch([Row(now_ms, b"k%d" % at, b"v") for at in range(3)])
    poison = [
        seal(b"\xff" * 50, record_count=4, base_timestamp=now_ms),
        seal(b"\x07" * 50, record_count=5, codec=4, compress=False, base_timestamp=now_ms),
    ]
    async with contextlib.AsyncExitStack() as stack:
        broker = stack.enter_context(LiveBroker(tmp_path / "data", SETTINGS))
        admin = AdminClient({"bootstrap.servers": broker.bootstrap}, logger=QUIET)
        new = NewTopic("t", 1, config={"message.timestamp.type": timestamp_type})
        admin.create_topics([new])["t"].result(TIMEOUT_S)
        client = await stack.enter_async_context(connected(broker))
        base_offsets = [0, 3, 7, 10, 15]
        for batch, base in zip([good, poison[0], good, poison[1], good], base_offsets, strict=True):
            assert await produce(client, batch) == (0, base)
        before = await fetch(client)
        assert before[0][61:] == good[61:]
        assert [before[1][61:], before[3][61:]] == [batch[61:] for batch in poison]

        (segment,) = roll_everything(broker)
        assert (segment.base_offset, segment.last_offset) == (0, 17)
        after = await fetch(client)
        assert broker.broker.reads.reader.statistics().segment_bytes > 0
        assert [after[1], after[3]] == [before[1], before[3]]
        # Those that could be decoded were encoded anew; under LogAppendTime with another base.
        assert [batch[61:] for batch in after] == [batch[61:] for batch in before]
        assert await produce(client, good) == (0, 18)


async def test_more_records_than_bytes_can_hold_are_refused_as_invalid(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        broker = stack.enter_context(LiveBroker(tmp_path / "data", SETTINGS))
        admin = AdminClient({"bootstrap.servers": broker.bootstrap}, logger=QUIET)
        admin.create_topics([NewTopic("t", 1)])["t"].result(TIMEOUT_S)
        client = await stack.enter_async_context(connected(broker))
        now_ms = time.time_ns() // 1_000_000
        for codec in (0, 4):
            liar = seal(b"", record_count=2**31 - 1, codec=codec, base_timestamp=now_ms)
            assert (await produce(client, liar))[0] == 87
        assert await produce(client, build_batch([Row(now_ms)])) == (0, 0)
