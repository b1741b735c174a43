"""A connection that says what it is told, for what no client library can be made to do.

Requests are written by hand, mostly in versions without tagged fields, so that hundreds of these
cost the measuring process little beside the broker that is measured.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, Self

from crc32c import crc32c

from wal.records.record_batch import CRC_START, HEADER, HEADER_BYTES, LENGTH_PREFIX_BYTES, MAGIC_V2
from wal.wire.fields import compact_string, zigzag

CLIENT_ID: Final = "bench"

_LENGTH: Final = struct.Struct(">i")
_INT16: Final = struct.Struct(">h")
_PRODUCED: Final = struct.Struct(">ihqqq")
"""Partition, error, base offset, time of the append, log start offset."""


def text(value: str | None) -> bytes:
    """A string with its length in front."""
    if value is None:
        return b"\xff\xff"
    encoded = value.encode()
    return _INT16.pack(len(encoded)) + encoded


def data(value: bytes) -> bytes:
    """Bytes with their length in front."""
    return _LENGTH.pack(len(value)) + value


def compact_text(value: str | None) -> bytes:
    """A string as in versions with tagged fields."""
    if value is None:
        return b"\0"
    return compact_string(value)


def frame(key: int, version: int, body: bytes, *, correlation_id: int = 1) -> bytes:
    """A whole request."""
    return data(struct.pack(">hhi", key, version, correlation_id) + text(CLIENT_ID) + body)


API_VERSIONS: Final = frame(18, 0, b"")


class RawClient(asyncio.Protocol):
    """One connection; many requests may be under way, answers come in their order."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def connect(cls, bootstrap: str) -> Self:
        host, _, port = bootstrap.rpartition(":")
        _, client = await asyncio.get_running_loop().create_connection(cls, host, int(port))
        return client

    def send(self, key: int, version: int, body: bytes) -> "asyncio.Future[bytes]":
        """The answer behind its correlation id."""
        return self.send_together(key, version, [body])[0]

    def send_together(
        self, key: int, version: int, bodies: Sequence[bytes]
    ) -> "Sequence[asyncio.Future[bytes]]":
        """The answers to several requests that go out in one write."""
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        answers: list[asyncio.Future[bytes]] = [loop.create_future() for _ in bodies]
        self._waiting += answers
        self._transport.write(b"".join([frame(key, version, body) for body in bodies]))
        return answers

    async def close(self) -> None:
        assert self._transport is not None
        self._transport.close()
        await self._gone

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        while len(received) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(received)[0]
            if len(received) < end:
                return
            answer = bytes(received[2 * _LENGTH.size : end])
            del received[:end]
            waiting = self._waiting.popleft()
            if not waiting.cancelled():
                waiting.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(ConnectionError("the broker closed the connection"))
        self._gone.set_result(None)


def batch(
    value: bytes,
    producer_id: int = -1,
    sequence: int = 0,
    *,
    producer_epoch: int = 0,
    attributes: int = 0,
) -> bytes:
    """A RecordBatch of one record; of an idempotent producer where one is given."""
    record = b"\0\0\0\x01" + zigzag(len(value)) + value + b"\0"
    records = zigzag(len(record)) + record
    size = HEADER_BYTES + len(records)
    epoch, base_sequence = (-1, -1) if producer_id < 0 else (producer_epoch, sequence)
    head = HEADER.pack(
        0, size - LENGTH_PREFIX_BYTES, -1, MAGIC_V2, 0, attributes, 0, 0, 0, producer_id,
        epoch, base_sequence, 1
    )  # fmt: skip
    checked = crc32c(head[CRC_START:] + records)
    return head[: CRC_START - 4] + checked.to_bytes(4, "big") + head[CRC_START:] + records


def produce_body(topic: str, partition: int, records: bytes) -> bytes:
    """Produce 7, acks=all, of one batch."""
    return produce_many_body(topic, {partition: records})


def produce_many_body(
    topic: str, batches: Mapping[int, bytes], transactional_id: str | None = None
) -> bytes:
    """Produce 7, acks=all, of a batch for each of several partitions."""
    head = text(transactional_id) + struct.pack(">hi", -1, 30_000) + _LENGTH.pack(1) + text(topic)
    rows = b"".join(_LENGTH.pack(partition) + data(batches[partition]) for partition in batches)
    return head + _LENGTH.pack(len(batches)) + rows


def check_produced(answer: bytes) -> int:
    """The base offset that Produce 7 was answered with, for the one batch. Raises RuntimeError."""
    (topic_length,) = _INT16.unpack_from(answer, 4)
    error, base_offset = struct.unpack_from(">hq", answer, 4 + 2 + topic_length + 4 + 4)
    if error:
        raise RuntimeError(f"Produce was answered with error {error}")
    return int(base_offset)


def check_produced_all(answer: bytes) -> None:
    """Raises RuntimeError unless Produce 7 stored the batches of all partitions."""
    (topic_length,) = _INT16.unpack_from(answer, 4)
    position = 4 + 2 + topic_length
    (count,) = _LENGTH.unpack_from(answer, position)
    rows = answer[position + 4 : position + 4 + count * _PRODUCED.size]
    errors = {row[1] for row in _PRODUCED.iter_unpack(rows)} - {0}
    if errors:
        raise RuntimeError(f"Produce was answered with errors {sorted(errors)}")
