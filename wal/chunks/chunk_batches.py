"""The batches of a chunk, from the append to the object.

A chunk holds up to thousands of batches, each a row (wal/chunks/batch_rows.py). Rows that were just
written and rows that recovery read are worked on alike, all at once, as a NumPy array. As a
sequence it makes the `ChunkEntry` asked for, and can be made of such.

The *head* of a batch is its first 21 bytes, which its own CRC leaves out: base offset, which is 0,
length, leader epoch, magic and the CRC. A row knows them all, so a flipped bit there is found too.
"""

import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple, Self
from uuid import UUID

import numpy as np
import numpy.typing as npt

from wal.batch_extents import BatchExtents
from wal.chunks.batch_rows import BATCH_ROW, INDEX_ENTRY, INDEX_ROW, ROW, ROW_ZEROS
from wal.columns import FEW_MAX, Columns, Int64s, Rows, row_type, tuples
from wal.coordinates import NO_TRANSACTION, BatchExtent, TopicIdPartition
from wal.crc import crc32c
from wal.records.crc_columns import crc32c_of_pieces, crc32c_of_rows
from wal.records.record_batch import (
    CRC_START,
    LENGTH_PREFIX_BYTES,
    MAGIC_V2,
)

_ROW_BYTES: Final = np.dtype(f"V{BATCH_ROW.size}")

_SAME_NUMBERS: Final = BatchExtent._fields[2:]
"""What an object says of a batch as its chunk does: all but the partition and the place."""

_HEAD: Final = struct.Struct(">qiibI")
assert _HEAD.size == CRC_START
_HEAD_ROW: Final = row_type(_HEAD, "base_offset length leader_epoch magic crc")


class ChunkEntry(NamedTuple):
    """One batch of a chunk."""

    partition: TopicIdPartition
    data_offset: int
    length_bytes: int
    record_count: int
    crc: int
    """The batch's own CRC field, over its bytes from 21 on."""
    max_timestamp_ms: int
    timestamp_type: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    request_id: int
    leader_epoch: int = -1
    transaction_number: int = NO_TRANSACTION

    @property
    def head(self) -> bytes:
        """The batch's first 21 bytes."""
        return head_of(self.length_bytes, self.leader_epoch, self.crc)


def head_of(length_bytes: int, leader_epoch: int, crc: int) -> bytes:
    """The first 21 bytes of a batch."""
    return _HEAD.pack(0, length_bytes - LENGTH_PREFIX_BYTES, leader_epoch, MAGIC_V2, crc)


def heads_of(
    length_bytes: npt.NDArray[Any], leader_epochs: npt.NDArray[Any], crcs: npt.NDArray[Any]
) -> npt.NDArray[np.uint8]:
    """`head_of` each of many batches, a row for each."""
    heads = np.zeros(len(crcs), _HEAD_ROW)
    heads["length"] = length_bytes - LENGTH_PREFIX_BYTES
    heads["leader_epoch"] = leader_epochs
    heads["magic"] = MAGIC_V2
    heads["crc"] = crcs
    return heads.view(np.uint8).reshape(len(crcs), CRC_START)


def is_intact(data: memoryview, length_bytes: int, leader_epoch: int, crc: int) -> bool:
    """Whether `data`, all bytes of one batch, is what was appended."""
    return (
        len(data) == length_bytes
        and data[:CRC_START] == head_of(length_bytes, leader_epoch, crc)
        and crc32c(data[CRC_START:]) == crc
    )


def lie_as_they_came(names: Sequence[tuple[bytes, int]]) -> bool:
    """Whether batches that came in this order, named by their partitions, lie so in an object."""
    if len(names) > FEW_MAX:
        return False
    runs = 1 + sum([name != before for before, name in pairwise(names)])
    return not names or runs == len({*names})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChunkBatches(Columns[ChunkEntry]):
    """Batches of one chunk in some order. Never modified."""

    rows: Rows
    topic_ids: Mapping[bytes, UUID]
    """By their bytes: the topics in `rows`, or more."""

    @classmethod
    def of(cls, entries: Sequence[ChunkEntry]) -> Self:
        """`entries` as rows."""
        if isinstance(entries, cls):
            return entries
        topic_ids = {entry.partition.topic_id.bytes: entry.partition.topic_id for entry in entries}
        rows = [
            BATCH_ROW.pack(
                entry.partition.topic_id.bytes,
                entry.partition.partition,
                entry.data_offset,
                entry.length_bytes,
                entry.record_count,
                entry.crc,
                entry.max_timestamp_ms,
                entry.producer_id,
                entry.base_sequence,
                entry.producer_epoch,
                entry.timestamp_type,
                entry.request_id,
                entry.transaction_number,
                entry.leader_epoch,
                ROW_ZEROS,
            )
            for entry in entries
        ]
        return cls.of_bytes(b"".join(rows), topic_ids)

    @classmethod
    def of_bytes(cls, data: bytes, topic_ids: Mapping[bytes, UUID] | None = None) -> Self:
        """Takes rows back to back; `topic_ids` has all topics in them, or is made here."""
        rows = np.frombuffer(data, ROW)
        if topic_ids is None:
            topic_ids = {name: UUID(bytes=name) for name in set(rows["topic_id"].tolist())}
        return cls(rows=rows, topic_ids=topic_ids)

    def take(self, which: Int64s) -> Self:
        """The batches at these positions, in their order."""
        # As plain bytes: NumPy would copy rows with fields field by field.
        rows = self.rows.view(_ROW_BYTES)[which].view(ROW)
        return type(self)(rows=rows, topic_ids=self.topic_ids)

    def numbers(self, name: str) -> Int64s:
        """One field of all batches, by its name in a row."""
        return self.rows[name].astype(np.int64)

    def object_order(self, excluded: Collection[int] = ()) -> Int64s:
        """The positions of the batches as they will lie in their object.

        Those of a partition are neighbours, in arrival order. The partitions are sorted by (topic
        id, index), but a few batches that came so lie as they came: the object of a few large ones
        can be written while they arrive. Those in `excluded` are left out, and change nothing for
        the others.
        """
        rows = self.rows
        if lie_as_they_came(self.names()):
            order = np.arange(len(rows))
        else:
            indexes = rows["partition"].astype(np.int32)
            if len(self.topic_ids) == 1:
                order = indexes.argsort(kind="stable")
            else:
                order = np.lexsort((indexes, *self._topic_halves()))
        if excluded:
            is_kept = np.ones(len(rows), np.bool_)
            is_kept[[*excluded]] = False
            order = order[is_kept[order]]
        return order

    def names(self) -> list[tuple[bytes, int]]:
        """The partition of each batch, as topic id and index."""
        found: list[tuple[bytes, int]] = self.rows[["topic_id", "partition"]].tolist()
        return found

    def extents(self, byte_offset: Int64s) -> BatchExtents:
        """What the coordinator must know of the batches, which lie at `byte_offset` of an object.

        Batches of one partition are neighbours.
        """
        rows = self.rows
        indexes = self.numbers("partition")
        is_next = indexes[1:] != indexes[:-1]
        if len(self.topic_ids) > 1:
            for halves in self._topic_halves():
                is_next |= halves[1:] != halves[:-1]
        partition_of = np.zeros(len(rows), np.int64)
        is_next.cumsum(out=partition_of[1:])
        firsts = [0, *(np.flatnonzero(is_next) + 1).tolist()] if len(rows) else []
        topics = [*self.topic_ids.values()] * len(firsts)
        if len(self.topic_ids) > 1:
            topics = [self.topic_ids[name] for name in rows["topic_id"][firsts].tolist()]
        return BatchExtents(
            partitions=tuples(TopicIdPartition, topics, indexes[firsts].tolist()),
            partition_of=partition_of,
            byte_offset=byte_offset,
            **{name: self.numbers(name) for name in _SAME_NUMBERS},
        )

    def _topic_halves(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """The lower and the upper half of each batch's topic id."""
        halves = np.ascontiguousarray(self.rows["topic_id"]).view(">u8").astype(np.uint64)
        return halves[1::2], halves[::2]

    def index_entries(self, byte_offset: Int64s) -> bytes:
        """The object's index entries of the batches."""
        count = len(self.rows)
        as_bytes = self.rows.view(np.uint8).reshape(count, BATCH_ROW.size)
        entries = as_bytes[:, : INDEX_ENTRY.size].copy().view(INDEX_ROW)[:, 0]
        entries["byte_offset"] = byte_offset
        return entries.tobytes()

    def wanted(self) -> "list[Wanted]":
        """What the bytes of each batch are checked by."""
        return tuples(Wanted, *[self.rows[name].tolist() for name in Wanted._fields])

    def crc32c_between(self, header: bytes, footer: bytes) -> int:
        """CRC32C of `header`, the bytes of the batches back to back and `footer`.

        It follows from the rows: a batch is its head, which they tell, and what its CRC is of.
        """
        rows, count = self.rows, len(self.rows)
        heads = heads_of(rows["length_bytes"], rows["leader_epoch"], rows["crc"])
        crcs = np.empty(2 * count + 2, np.uint32)
        lengths = np.empty(2 * count + 2, np.int64)
        crcs[0], lengths[0] = crc32c(header), len(header)
        crcs[1:-1:2] = crc32c_of_rows(heads)
        lengths[1:-1:2] = CRC_START
        crcs[2:-1:2] = self.rows["crc"]
        lengths[2:-1:2] = self.numbers("length_bytes") - CRC_START
        crcs[-1], lengths[-1] = crc32c(footer), len(footer)
        return crc32c_of_pieces(crcs, lengths)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[ChunkEntry]:
        partitions: dict[tuple[bytes, int], TopicIdPartition] = {}
        for topic_id, partition, *numbers in self.rows[_LOOKED_AT].tolist():
            place = (topic_id, partition)
            name = partitions.get(place)
            if name is None:
                name = TopicIdPartition(self.topic_ids[topic_id], partition)
                partitions[place] = name
            yield ChunkEntry(name, *numbers)


_LOOKED_AT: Final = [
    "topic_id" if name == "partition" else "byte_offset" if name == "data_offset" else name
    for name in ChunkEntry._fields
]
_LOOKED_AT.insert(1, "partition")


class Wanted(NamedTuple):
    """What is known of a batch that is to be read: fields of its row."""

    byte_offset: int
    """In .data."""
    length_bytes: int
    leader_epoch: int
    crc: int
