"""A Kafka client that sends exactly what it is told, frame by frame."""

import asyncio
import io
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self
from uuid import UUID

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from tests.support.samples.kio_entities import entity_of, smallest
from wal.records.record_batch import HEADER, HEADER_BYTES, LENGTH_PREFIX_BYTES, MAGIC_V2


def a_batch(size_bytes: int = 100, *, record_count: int = 1, fill: int = 7) -> bytes:
    """Bytes with the header of a RecordBatch; nobody here looks at its CRC or its records."""
    header = HEADER.pack(
        0, size_bytes - LENGTH_PREFIX_BYTES, 0, MAGIC_V2, 0, 0, record_count - 1,
        1, 1, -1, -1, -1, record_count,
    )  # fmt: skip
    return header + bytes([fill]) * (size_bytes - HEADER_BYTES)


def written(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def request_body(key: int, version: int, /, **values: Any) -> bytes:
    """The smallest request of this version, with `values` in place of its fields."""
    return written(replace(smallest(load_request_schema(key, version)), **values))


def frame(key: int, version: int, correlation_id: int, body: bytes) -> bytes:
    """A whole request with its length; the client id is "raw"."""
    flexible = load_request_schema(key, version).__flexible__
    header = struct.pack(">hhih", key, version, correlation_id, 3) + b"raw"
    if flexible:
        header += b"\x00"
    return struct.pack(">i", len(header) + len(body)) + header + body


def produce_frame(
    correlation_id: int,
    records: Sequence[bytes | None],
    *,
    topic: str | UUID = "t",
    acks: int = -1,
    version: int = 9,
    partition: int = 0,
    timeout_ms: int = 0,
) -> bytes:
    schema = load_request_schema(0, version)
    topic_type = schema.__dataclass_fields__["topic_data"].type.__args__[0]
    part_type = topic_type.__dataclass_fields__["partition_data"].type.__args__[0]
    parts = tuple(part_type(index=partition, records=item) for item in records)
    named = {"topic_id" if isinstance(topic, UUID) else "name": topic}
    data = (topic_type(**named, partition_data=parts),)
    body = bytearray(request_body(0, version, acks=acks, topic_data=data))
    # Behind a null transactional id and acks.
    struct.pack_into(">i", body, 3 if schema.__flexible__ else 4, timeout_ms)
    return frame(0, version, correlation_id, bytes(body))


def fetch_frame(
    correlation_id: int, *, max_wait_ms: int = 0, topic: str = "t", version: int = 11, **values: Any
) -> bytes:
    """One partition from offset 0."""
    entity = smallest(load_request_schema(1, version))
    topic_type = type(entity.topics[0])
    part = type(entity.topics[0].partitions[0])(
        partition=0, fetch_offset=0, partition_max_bytes=1 << 20
    )
    chosen = {
        "topics": (topic_type(topic=topic, partitions=(part,)),),
        "forgotten_topics_data": (),
        "max_bytes": 1 << 20,
        "min_bytes": 1,
        "session_epoch": -1,
        **values,
    }
    known = {name: value for name, value in chosen.items() if hasattr(entity, name)}
    body = bytearray(written(replace(entity, **known)))
    struct.pack_into(">i", body, 4, max_wait_ms)
    return frame(1, version, correlation_id, bytes(body))


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, address: tuple[str, int], local_host: str | None = None) -> Self:
        local = (local_host, 0) if local_host else None
        return cls(*await asyncio.open_connection(*address, local_addr=local, limit=256 << 20))

    async def send(self, *frames: bytes) -> None:
        self.writer.write(b"".join(frames))
        await self.writer.drain()

    async def receive(self) -> tuple[int, bytes]:
        """(correlation id, everything behind it) of the next answer."""
        async with asyncio.timeout(120):
            (length,) = struct.unpack(">i", await self.reader.readexactly(4))
            answer = await self.reader.readexactly(length)
        return struct.unpack_from(">i", answer)[0], answer[4:]

    async def call(self, key: int, version: int, correlation_id: int = 1, /, **values: Any) -> Any:
        """Send a control request, and give the answer as kio reads it."""
        await self.send(frame(key, version, correlation_id, request_body(key, version, **values)))
        return await self._answer(key, version, correlation_id)

    async def ask(self, key: int, version: int, /, **values: Any) -> Any:
        """Send a request given as nested mappings; what the schema lacks is left out."""
        entity = entity_of(load_request_schema(key, version), values)
        await self.send(frame(key, version, 1, written(entity)))
        return await self._answer(key, version, 1)

    async def _answer(self, key: int, version: int, correlation_id: int) -> Any:
        answered, rest = await self.receive()
        assert answered == correlation_id
        schema = load_response_schema(key, version)
        start = 1 if schema.__header_schema__.__flexible__ else 0
        response, size = entity_reader(schema)(rest, start)
        assert start + size == len(rest)
        return response

    async def is_closed_by_server(self) -> bool:
        """Wait for the end of the stream; anything else is a timeout."""
        async with asyncio.timeout(120):
            try:
                while await self.reader.read(1 << 16):
                    pass
            except ConnectionResetError:
                pass
        return True

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass  # the server was first
