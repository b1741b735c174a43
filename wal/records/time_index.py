"""Knows the timestamps in one extent of a WAL object, to answer for any time.

Control batches have no time: they are no records to anybody who asks.

Made of the headers of the extent's batches; a batch whose records were looked into adds the records
at which its largest timestamp rises (`wal/records/record_scan.py`). What was learned stays right,
because stored batches never change.
"""

from typing import Final, NamedTuple, Self

import numpy as np

from wal.columns import Int64s
from wal.crc import Buffer
from wal.errors import CorruptBatch
from wal.records.record_batch import iterate_headers

_NEVER_MS: Final = -(2**63)
"""Before any time that is asked for."""


class FoundRecord(NamedTuple):
    """A record's offset and timestamp."""

    offset: int
    timestamp_ms: int


class BatchPlace(NamedTuple):
    """A batch of the extent, whose records have to be looked into."""

    number: int
    """Counted from the extent's first batch."""
    byte_offset: int
    """From the start of the extent."""
    length_bytes: int
    base_offset: int


class TimeIndex:
    """The batches of one extent; `find` answers, or says which batch has to be opened first."""

    def __init__(self, places: list[BatchPlace], max_timestamps: list[int]) -> None:
        self._places = np.array(places, dtype=np.int64).reshape(
            len(places), len(BatchPlace._fields)
        )
        self._max_timestamps = np.array(max_timestamps, dtype=np.int64)
        self._rising: dict[int, tuple[Int64s, Int64s]] = {}

    @classmethod
    def of(cls, buffer: Buffer, *, base_offset: int, last_offset: int) -> Self:
        """Read the headers of all batches in `buffer`.

        Raises: CorruptBatch, also when they do not end at `last_offset`.
        """
        places: list[BatchPlace] = []
        max_timestamps: list[int] = []
        for position, header in iterate_headers(buffer):
            places.append(BatchPlace(len(places), position, header.length_bytes, base_offset))
            max_timestamps.append(_NEVER_MS if header.is_control else header.max_timestamp_ms)
            base_offset += header.last_offset_delta + 1
        if base_offset != last_offset + 1:
            raise CorruptBatch(f"the batches end at {base_offset - 1}, not at {last_offset}")
        return cls(places, max_timestamps)

    @property
    def size_bytes(self) -> int:
        """The bytes it takes in memory."""
        rising = sum(offsets.nbytes + times.nbytes for offsets, times in self._rising.values())
        return self._places.nbytes + self._max_timestamps.nbytes + rising

    def learn(self, number: int, offsets: Int64s, timestamps: Int64s) -> None:
        """The records of batch `number` whose timestamp is larger than all before, in order."""
        self._rising[number] = (offsets, timestamps)

    def first_at_or_after(self, timestamp_ms: int) -> FoundRecord | BatchPlace | None:
        """The first record, by offset, whose timestamp is not smaller; None if there is none.

        A BatchPlace: that batch has to be looked into before there is an answer.
        """
        for number in np.flatnonzero(self._max_timestamps >= timestamp_ms).tolist():
            rising = self._rising.get(number)
            if rising is None:
                return self._place(number)
            offsets, timestamps = rising
            at = int(np.searchsorted(timestamps, timestamp_ms))
            if at < len(timestamps):
                return FoundRecord(int(offsets[at]), int(timestamps[at]))
            # The header's maximum is the producer's word; a later batch may hold the record.
        return None

    def largest(self, max_timestamp_ms: int) -> FoundRecord | BatchPlace | None:
        """The first record with the largest timestamp, which is `max_timestamp_ms` by the headers.

        A BatchPlace: that batch has to be looked into before there is an answer.
        """
        for number in np.flatnonzero(self._max_timestamps >= max_timestamp_ms).tolist():
            rising = self._rising.get(number)
            if rising is None:
                return self._place(number)
            offsets, timestamps = rising
            if len(timestamps):
                return FoundRecord(int(offsets[-1]), int(timestamps[-1]))
        return None

    def _place(self, number: int) -> BatchPlace:
        return BatchPlace(*self._places[number].tolist())
