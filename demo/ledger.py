"""Who got which offset, and whether what is read back is what was sent.

A `Ledger` belongs to one topic. The producer's delivery reports fill it; afterwards any number of
readings are compared with it, record by record: the event found at (partition, offset) must be the
event acknowledged there, with equal key, value, headers and timestamp, no record may be missing or
come twice, and each partition must be read in offset order.

A ledger of a new topic also knows what the offsets themselves must be: 0, 1, 2, … in each
partition, in the order of sending, because the producer is idempotent.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from demo.events import Event

DIFFERENCES_TOLD_MAX: Final = 5
_NOT_DELIVERED: Final = -1


class ReadRecord(NamedTuple):
    """One record as the consumer returned it."""

    partition: int
    offset: int
    event: Event


class Comparison(NamedTuple):
    """One reading of a topic against its ledger."""

    records: int
    size_bytes: int
    differences: int
    told: tuple[str, ...]
    """The first few differences, in words."""

    @property
    def held(self) -> bool:
        return self.differences == 0


class Ledger:
    """The events of one topic and the place each was acknowledged at."""

    def __init__(self, topic: str, events: Sequence[Event], partitions: int) -> None:
        self.topic = topic
        self.events = events
        self.partitions = partitions
        self.delivered_count = 0
        self.failures: list[str] = []
        self._partition_of = np.full(len(events), _NOT_DELIVERED, dtype=np.int32)
        self._offset_of = np.full(len(events), _NOT_DELIVERED, dtype=np.int64)

    def delivered(self, number: int, partition: int, offset: int) -> None:
        """Event `number` was acknowledged at this place; a second report is a failure."""
        if self._partition_of[number] != _NOT_DELIVERED:
            self.failures.append(f"event {number} was reported twice")
            return
        if not 0 <= partition < self.partitions:
            self.failures.append(f"event {number} went to partition {partition}")
            return
        self._partition_of[number] = partition
        self._offset_of[number] = offset
        self.delivered_count += 1

    def failed(self, number: int, reason: str) -> None:
        """Event `number` was refused."""
        self.failures.append(f"event {number}: {reason}")

    def delivery_problems(self) -> list[str]:
        """What is wrong with the acknowledgements themselves; empty when all is well."""
        problems = self.failures[:DIFFERENCES_TOLD_MAX]
        missing = len(self.events) - self.delivered_count
        if missing:
            problems.append(f"{missing} of {len(self.events)} events were never acknowledged")
        for partition, numbers in enumerate(self._numbers_by_offset()):
            if not np.array_equal(self._offset_of[numbers], np.arange(len(numbers))):
                problems.append(f"partition {partition}: offsets are not 0 to {len(numbers) - 1}")
            if numbers != sorted(numbers):
                problems.append(f"partition {partition}: offsets are not in the order of sending")
        return problems

    def compare(self, records: Iterable[ReadRecord]) -> Comparison:
        """Compare one reading of the whole topic; consumes `records` once, as they arrive."""
        numbers = self._numbers_by_offset()
        next_offset = [0] * self.partitions
        read_bytes = read_count = differences = 0
        told: list[str] = []

        def differs(text: str) -> None:
            nonlocal differences
            differences += 1
            if len(told) < DIFFERENCES_TOLD_MAX:
                told.append(f"{self.topic}: {text}")

        for partition, offset, event in records:
            read_count += 1
            read_bytes += event.size_bytes
            if offset != next_offset[partition]:
                differs(f"{partition}@{offset} came where {next_offset[partition]} was next")
            next_offset[partition] = offset + 1
            if not 0 <= offset < len(numbers[partition]):
                differs(f"{partition}@{offset} was never acknowledged")
                continue
            sent = self.events[numbers[partition][offset]]
            if event != sent:
                differs(f"{partition}@{offset} differs: {_difference(sent, event)}")
        for partition, expected in enumerate(numbers):
            if next_offset[partition] != len(expected):
                differs(
                    f"partition {partition} ended before {next_offset[partition]}"
                    f" instead of {len(expected)}"
                )
        return Comparison(read_count, read_bytes, differences, tuple(told))

    def _numbers_by_offset(self) -> list[list[int]]:
        """Per partition, the numbers of its events in offset order."""
        ordered = np.lexsort((self._offset_of, self._partition_of))
        partition_of = self._partition_of[ordered]
        return [ordered[partition_of == number].tolist() for number in range(self.partitions)]


def _difference(sent: Event, read: Event) -> str:
    """Which fields differ, and how."""
    return ", ".join(
        f"{name} was {before!r}, is {after!r}"
        for name, before, after in zip(Event._fields, sent, read, strict=True)
        if before != after
    )
