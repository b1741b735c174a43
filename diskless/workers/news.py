"""What a head tells its workers of the state, as bytes: the content of messages on their lines.

    TOPICS    those that came, grew or were altered, as CreateTopics answers with them; ids of gone
    ENDS      partitions that a commit, a deletion or whatever else has changed, with high watermark
              and log start offset; -1 both for what is gone
    QUOTAS    all of them, in the form of AlterClientQuotas
    CLUSTER   over how many metadata partitions groups are spread, who leads each of them, and the
              registered brokers
    LOGS      start, end and applied offset of each metadata log

ENDS are told before whoever committed hears of it.
"""

import struct
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple
from uuid import UUID

import numpy as np

from metadata import operations as ops
from metadata.messages.brokers import ALTER_CLIENT_QUOTAS, REGISTER_BROKER, TOPIC
from wal.coordinates import TopicIdPartition
from wal.errors import CorruptLog
from wal.wire.fields import INT32, FieldReader
from wal.wire.layouts import layout

_RUN: Final = struct.Struct(">16sI")
_LOG: Final = struct.Struct(">qqq")


class TopicNews(NamedTuple):
    """What became of topics."""

    changed: Sequence[ops.TopicDescription] = ()
    gone: Sequence[UUID] = ()

    def encode(self) -> bytes:
        return b"".join(
            (
                INT32.pack(len(self.changed)),
                *map(TOPIC.write, self.changed),
                INT32.pack(len(self.gone)),
                *(topic_id.bytes for topic_id in self.gone),
            )
        )

    @classmethod
    def decode(cls, data: bytes) -> "TopicNews":
        reader = FieldReader(data, "news of topics", CorruptLog)
        changed = [TOPIC.read(reader) for _ in range(reader.int32())]
        gone = [reader.uuid() for _ in range(reader.int32())]
        return cls(changed, gone)


class PartitionEnd(NamedTuple):
    """Where the log of a partition begins and ends."""

    high_watermark: int
    log_start_offset: int


GONE: Final = PartitionEnd(-1, -1)


def encode_ends(ends: Sequence[tuple[TopicIdPartition, PartitionEnd]]) -> bytes:
    """Runs of one topic: its id, how many rows, and the rows as columns of three numbers."""
    parts: list[bytes] = []
    for topic_id, run in groupby(ends, key=lambda end: end[0].topic_id):
        rows = [(partition.partition, *end) for partition, end in run]
        parts += (_RUN.pack(topic_id.bytes, len(rows)), np.array(rows, ">i8").tobytes())
    return b"".join(parts)


def decode_ends(data: memoryview) -> Mapping[TopicIdPartition, PartitionEnd]:
    found: dict[TopicIdPartition, PartitionEnd] = {}
    at = 0
    while at < len(data):
        id_bytes, count = _RUN.unpack_from(data, at)
        at += _RUN.size
        topic_id = UUID(bytes=id_bytes)
        rows = np.frombuffer(data, ">i8", 3 * count, at).reshape(-1, 3).tolist()
        at += 24 * count
        for partition, high_watermark, log_start_offset in rows:
            found[TopicIdPartition(topic_id, partition)] = PartitionEnd(
                high_watermark, log_start_offset
            )
    return found


def encode_quotas(quotas: Mapping[ops.QuotaEntity, Mapping[str, float]]) -> bytes:
    return ALTER_CLIENT_QUOTAS.encode_request(
        [ops.AlterClientQuotas(entity=entity, changes=values) for entity, values in quotas.items()],
        0,
    )


def decode_quotas(data: bytes) -> Mapping[ops.QuotaEntity, Mapping[str, float]]:
    requests, _ = ALTER_CLIENT_QUOTAS.decode_request(data)
    return {
        request.entity: {key: value for key, value in request.changes.items() if value is not None}
        for request in requests
    }


class ClusterNews(NamedTuple):
    """Who is there, and who leads what."""

    coordinators: int
    """Over how many metadata partitions groups and transactional ids are spread."""
    leaders: Sequence[ops.Leader | None]
    """By metadata partition."""
    brokers: Mapping[int, ops.RegisteredBroker]

    def encode(self) -> bytes:
        parts = [INT32.pack(self.coordinators), INT32.pack(len(self.leaders))]
        for leader in self.leaders:
            parts.append(INT32.pack(leader is not None))
            if leader is not None:
                parts.append(_LEADER.write(leader))
        parts.append(INT32.pack(len(self.brokers)))
        for broker in self.brokers.values():
            record = REGISTER_BROKER.encode_request(broker, 0)
            parts += (INT32.pack(len(record)), record)
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes) -> "ClusterNews":
        reader = FieldReader(data, "news of the cluster", CorruptLog)
        coordinators = reader.int32()
        leaders = [_LEADER.read(reader) if reader.int32() else None for _ in range(reader.int32())]
        brokers = {}
        for _ in range(reader.int32()):
            broker, _ = REGISTER_BROKER.decode_request(reader.raw(reader.int32()))
            brokers[broker.broker_id] = broker
        return cls(coordinators, leaders, brokers)


_LEADER: Final = layout(ops.Leader)


class LogNews(NamedTuple):
    """How far one metadata log is."""

    start_offset: int = 0
    end_offset: int = 0
    applied_offset: int = 0


def encode_logs(logs: Sequence[LogNews]) -> bytes:
    return b"".join(_LOG.pack(*log) for log in logs)


def decode_logs(data: memoryview) -> Sequence[LogNews]:
    return [LogNews(*fields) for fields in _LOG.iter_unpack(data)]
