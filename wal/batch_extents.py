"""The batches of a WAL object as columns, from its layout to their commit.

An object holds thousands of batches, and laying it out, sending, checking and committing it work on
all of them at once. So their numbers stand in NumPy columns: made once, where the object is laid
out (wal/chunks/wal_object.py) or its commit arrives (metadata/messages/commit_file.py), and handed
on as they are. As a sequence it makes the `BatchExtent` asked for, and can be made of such.

Byte formats keep the same numbers as rows; `rows` and `of_rows` are the way there and back, by the
names of the fields.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Self
from uuid import UUID

import numpy as np
import numpy.typing as npt

from wal.columns import Columns, Int64s, Rows, column, tuples
from wal.coordinates import NO_SEQUENCE, SEQUENCE_MASK, BatchExtent, TopicIdPartition

_NUMBERS: Final = BatchExtent._fields[1:]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchExtents(Columns[BatchExtent]):
    """Batches in some order. Never modified."""

    partitions: Sequence[TopicIdPartition]
    """The distinct partitions, in the order of their first batches."""
    partition_of: Int64s
    """Which of them each batch is of."""
    byte_offset: Int64s
    length_bytes: Int64s
    record_count: Int64s
    crc: Int64s
    max_timestamp_ms: Int64s
    timestamp_type: Int64s
    producer_id: Int64s
    producer_epoch: Int64s
    base_sequence: Int64s
    request_id: Int64s
    transaction_number: Int64s

    @classmethod
    def of(cls, batches: Sequence[BatchExtent]) -> Self:
        """`batches` as columns. Raises ValueError for a number of more than 64 bits."""
        if isinstance(batches, cls):
            return batches
        names, *numbers = zip(*batches, strict=True) if batches else [()] * (1 + len(_NUMBERS))
        # Runs first, because hashing a UUID is Python code.
        runs = [(partition, len([*run])) for partition, run in groupby(names)]
        places: dict[TopicIdPartition, int] = {}
        run_places = [places.setdefault(partition, len(places)) for partition, _ in runs]
        return cls(
            partitions=[*places],
            partition_of=np.repeat(column(run_places), column(length for _, length in runs)),
            **dict(zip(_NUMBERS, map(column, numbers), strict=True)),
        )

    @classmethod
    def of_rows(cls, rows: Rows, **others: Int64s) -> Self:
        """Takes rows with `topic_id`, `partition` and the fields that `others` do not give."""
        topic_ids, indexes = rows["topic_id"], rows["partition"]
        is_start = np.ones(len(rows), np.bool_)
        is_start[1:] = (topic_ids[1:] != topic_ids[:-1]) | (indexes[1:] != indexes[:-1])
        starts = np.flatnonzero(is_start)
        known: dict[bytes, UUID] = {}
        places: dict[TopicIdPartition, int] = {}
        run_places = []
        for topic, index in zip(topic_ids[starts].tolist(), indexes[starts].tolist(), strict=True):
            topic_id = known.get(topic)
            if topic_id is None:
                topic_id = known[topic] = UUID(bytes=topic)
            run_places.append(places.setdefault(TopicIdPartition(topic_id, index), len(places)))
        numbers = {name: rows[name].astype(np.int64) for name in _NUMBERS if name not in others}
        return cls(
            partitions=[*places],
            partition_of=np.repeat(column(run_places), np.diff(np.append(starts, len(rows)))),
            **numbers,
            **others,
        )

    def rows(self, kind: np.dtype[np.void]) -> Rows:
        """The batches as rows of `kind`; fields with names that are not ours are 0.

        Raises ValueError for a number that its field cannot hold.
        """
        rows = np.zeros(len(self), kind)
        topic_ids = b"".join([partition.topic_id.bytes for partition in self.partitions])
        rows["topic_id"] = np.frombuffer(topic_ids, "V16")[self.partition_of]
        numbers = {name: getattr(self, name) for name in _NUMBERS if name in (kind.names or ())}
        for name, content in {**numbers, "partition": self.indexes[self.partition_of]}.items():
            rows[name] = content
            if (rows[name] != content).any():
                raise ValueError(f"{name} of a batch does not fit {kind[name]}")
        return rows

    def take(self, which: Sequence[int] | npt.NDArray[np.intp]) -> Self:
        """The batches at these positions, in their order."""
        places, first, partition_of = np.unique(
            self.partition_of[which], return_index=True, return_inverse=True
        )
        order = np.argsort(first, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        return type(self)(
            partitions=[self.partitions[place] for place in places[order].tolist()],
            partition_of=rank[partition_of],
            **{name: getattr(self, name)[which] for name in _NUMBERS},
        )

    @property
    def indexes(self) -> Int64s:
        """The partition indexes of `partitions`."""
        return column(partition.partition for partition in self.partitions)

    @property
    def each_partition(self) -> list[TopicIdPartition]:
        """The partition of each batch."""
        partitions = self.partitions
        return [partitions[place] for place in self.partition_of.tolist()]

    @property
    def run_starts(self) -> Int64s:
        """The places of batches whose partition is not that of the batch before."""
        of = self.partition_of
        is_start = np.ones(len(of), np.bool_)
        np.not_equal(of[1:], of[:-1], out=is_start[1:])  # np.diff with a start takes 12 µs more.
        return is_start.nonzero()[0]

    @property
    def last_sequence(self) -> Int64s:
        """As `BatchExtent.last_sequence`."""
        last = self.base_sequence + self.record_count - 1 & SEQUENCE_MASK
        return np.where(self.base_sequence < 0, NO_SEQUENCE, last)

    def __len__(self) -> int:
        return len(self.partition_of)

    def at(self, position: int) -> BatchExtent:
        """One batch, without making the others."""
        numbers = (int(getattr(self, name)[position]) for name in _NUMBERS)
        partition = self.partitions[self.partition_of[position]]
        return tuple.__new__(BatchExtent, (partition, *numbers))

    def __iter__(self) -> Iterator[BatchExtent]:
        numbers = [getattr(self, name).tolist() for name in _NUMBERS]
        return iter(tuples(BatchExtent, self.each_partition, *numbers))
