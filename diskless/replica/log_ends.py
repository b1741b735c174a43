"""Remembers where logs begin and end, as fetches found out, for as long as it holds.

A poll of 1,000 idle partitions asks where 1,000 logs end, and gets the same answer every time. Here
it is kept in columns, with a *slot* for each partition of every topic that was fetched: log start
offset, last stable offset and high watermark as somebody looked them up, and when the partition was
last heard of. A commit forgets the offsets and notes the time, which is a counter of commits; the
next fetch looks them up. So a commit costs the same for any number of fetches, and a fetch of many
partitions touches one by one only those in which something happened.

Invariants:

- What is learnt was looked up after the last commit to its partition: `learn` takes the moment at
  which the look-up began, and ignores partitions that were committed to since.
- A slot means the same partition for as long as `generation` is the same. A topic that grows gets
  other slots, which makes another generation; a fetch that waits with slots of an earlier one has
  to look again. Slots of topics that are gone or have grown stay unused until the columns would
  have to be larger; if half of them are unused by then, all are dealt out anew.

The slot NOWHERE belongs to no partition; nothing is ever known of it.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple
from uuid import UUID

import numpy as np

from metadata.operations import FoundBatches, TopicDescription
from wal.columns import Int64s
from wal.coordinates import TopicIdPartition

NOWHERE: Final = 0
UNKNOWN: Final = -(2**63)
"""A high watermark that is not known; no client can be there."""

_SLOTS_MIN: Final = 1 << 10


class _Range(NamedTuple):
    """The slots of one topic, `first` + partition."""

    topic: TopicDescription
    first: int


class HeardOf(NamedTuple):
    """Partitions of one topic that were committed to."""

    first: int
    """Where the topic's slots begin."""
    slots: Sequence[int]


class LogEnds:
    """Offsets of partitions by slot. Everything runs on the event loop's thread."""

    def __init__(self, exists: Callable[[UUID], bool], slots: int = _SLOTS_MIN) -> None:
        """`exists`: whether there (still) is a topic of this id."""
        self._exists = exists
        self.now = 0
        """How many commits were heard of."""
        self.generation = 0
        self._ranges: dict[UUID, _Range] = {}
        self._used = NOWHERE + 1
        self._reset(slots)

    def _reset(self, slots: int) -> None:
        self.high_watermarks: Int64s = np.full(slots, UNKNOWN, np.int64)
        self.last_stable_offsets: Int64s = np.zeros(slots, np.int64)
        """Where the high watermark is known."""
        self.log_start_offsets: Int64s = np.zeros(slots, np.int64)
        self.heard_at: Int64s = np.zeros(slots, np.int64)
        """The value of `now` when the partition was last committed to."""

    @property
    def slot_count(self) -> int:
        """The number of slots, used or not."""
        return len(self.heard_at)

    def first_slots(self, topics: Sequence[TopicDescription | None]) -> list[int]:
        """Returns where each topic's slots begin, and deals out missing ones; NOWHERE for None."""
        generation = self.generation
        firsts = [NOWHERE if topic is None else self._first_slot(topic) for topic in topics]
        if generation == self.generation:
            return firsts
        # One that came later may have moved those before it; now there is room for all.
        return self.first_slots(topics)

    def _first_slot(self, topic: TopicDescription) -> int:
        known = self._ranges.get(topic.topic_id)
        if known is not None:
            # Whatever changes about a topic makes another description of it.
            if known.topic is topic:
                return known.first
            if known.topic.partition_count == topic.partition_count:
                self._ranges[topic.topic_id] = known._replace(topic=topic)
                return known.first
            self.forget(topic.topic_id)
            self.generation += 1
        if self._used + topic.partition_count > self.slot_count:
            self._make_room(topic.partition_count)
        first = self._used
        self._ranges[topic.topic_id] = _Range(topic, first)
        self._used += topic.partition_count
        return first

    def heard(self, partitions: Collection[TopicIdPartition]) -> Sequence[HeardOf]:
        """Something was committed to these: what was known of them is not true any more.

        Gives the slots of those that have any.
        """
        self.now += 1
        found = []
        topic_id: UUID | None = None
        known: _Range | None = None
        slots: list[int] = []
        for partition in partitions:
            # Most commits name the partitions of one topic in a row, by the same id.
            if partition.topic_id is not topic_id:
                topic_id = partition.topic_id
                known = self._ranges.get(topic_id)
                if known is not None:
                    slots = []
                    found.append(HeardOf(known.first, slots))
            if known is not None and partition.partition < known.topic.partition_count:
                slots.append(known.first + partition.partition)
        for heard in found:
            self.high_watermarks[heard.slots] = UNKNOWN
            self.heard_at[heard.slots] = self.now
        return found

    def learn(
        self,
        slots: Sequence[int],
        found: Sequence[FoundBatches],
        *,
        generation: int,
        looked_at: int,
    ) -> None:
        """Takes in what a look-up gave that began when `now` was `looked_at`."""
        if generation != self.generation:
            return
        for slot, answer in zip(slots, found, strict=True):
            if answer.error is None and self.heard_at[slot] <= looked_at:
                self.high_watermarks[slot] = answer.high_watermark
                self.last_stable_offsets[slot] = answer.last_stable_offset
                self.log_start_offsets[slot] = answer.log_start_offset

    def heard_since(self, then: int, slots: Int64s, generation: int) -> bool:
        """Whether one of `slots` was committed to after `then`; True when there is no telling."""
        if self.now == then:
            return False
        return generation != self.generation or int(self.heard_at[slots].max(initial=0)) > then

    def forget(self, topic_id: UUID) -> int:
        """The topic is gone: nobody may go on waiting for it. Where its slots began, or NOWHERE."""
        known = self._ranges.pop(topic_id, None)
        if known is None:
            return NOWHERE
        self.now += 1
        slots = slice(known.first, known.first + known.topic.partition_count)
        self.high_watermarks[slots] = UNKNOWN
        self.heard_at[slots] = self.now
        return known.first

    def _make_room(self, count: int) -> None:
        self._ranges = {
            topic_id: known for topic_id, known in self._ranges.items() if self._exists(topic_id)
        }
        needed = sum(known.topic.partition_count for known in self._ranges.values()) + count
        if needed * 2 <= self.slot_count:
            self._deal_anew()
            return
        size = self.slot_count
        while size < self._used + count:
            size *= 2
        columns = (
            self.high_watermarks,
            self.last_stable_offsets,
            self.log_start_offsets,
            self.heard_at,
        )
        used = len(self.heard_at)
        self._reset(size)
        self.high_watermarks[:used] = columns[0]
        self.last_stable_offsets[:used] = columns[1]
        self.log_start_offsets[:used] = columns[2]
        self.heard_at[:used] = columns[3]

    def _deal_anew(self) -> None:
        """All topics get other slots, and everything is to be looked up again."""
        self.generation += 1
        self.now += 1
        self._reset(self.slot_count)
        self._used = NOWHERE + 1
        for topic_id, known in self._ranges.items():
            self._ranges[topic_id] = known._replace(first=self._used)
            self._used += known.topic.partition_count
