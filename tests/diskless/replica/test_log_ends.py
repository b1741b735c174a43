"""What is known of the ends of logs: never what is not so any more, whatever becomes of topics."""

from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from diskless.replica.log_ends import NOWHERE, UNKNOWN, HeardOf, LogEnds
from metadata.operations import FoundBatches, TopicDescription
from tests.support.profiles import examples
from wal.columns import Int64s
from wal.coordinates import TopicIdPartition
from wal.errors import OffsetOutOfRange

T = TopicDescription(topic_id=UUID(int=1), name="t", partition_count=3)
P0, P1, P2 = (TopicIdPartition(T.topic_id, index) for index in range(3))


def everything_exists(topic_id: UUID) -> bool:
    return True


def learnt(ends: LogEnds, slot: int, high_watermark: int, looked_at: int | None = None) -> None:
    at = ends.now if looked_at is None else looked_at
    found = [FoundBatches(0, high_watermark)]
    ends.learn([slot], found, generation=ends.generation, looked_at=at)


def test_what_was_learnt_is_known_until_a_commit():
    ends = LogEnds(everything_exists)
    (first,) = ends.first_slots([T])
    assert first != NOWHERE
    assert ends.high_watermarks[first] == UNKNOWN
    learnt(ends, first, 5)
    learnt(ends, first + 1, 6)
    assert ends.heard([P0]) == [HeardOf(first, [first])]
    assert ends.high_watermarks[first : first + 3].tolist() == [UNKNOWN, 6, UNKNOWN]


def test_what_a_commit_came_in_between_of_is_not_learnt():
    ends = LogEnds(everything_exists)
    (first,) = ends.first_slots([T])
    looked_at = ends.now
    ends.heard([P0])
    learnt(ends, first, 5, looked_at)
    learnt(ends, first + 1, 5, looked_at)
    assert ends.high_watermarks[first : first + 2].tolist() == [UNKNOWN, 5]


def test_an_error_teaches_nothing():
    ends = LogEnds(everything_exists)
    (first,) = ends.first_slots([T])
    answer = FoundBatches(0, 9, error=OffsetOutOfRange("beyond"))
    ends.learn([first], [answer], generation=ends.generation, looked_at=ends.now)
    assert ends.high_watermarks[first] == UNKNOWN


def test_partitions_that_nobody_fetches_are_not_kept():
    ends = LogEnds(everything_exists)
    assert ends.heard([P0, P1]) == []
    (first,) = ends.first_slots([T])
    other = TopicIdPartition(UUID(int=2), 0)
    beyond = TopicIdPartition(T.topic_id, 3)
    assert ends.heard([other, P2, beyond]) == [HeardOf(first, [first + 2])]


def test_a_topic_that_grows_ends_the_wait_for_it():
    ends = LogEnds(everything_exists)
    (first,) = ends.first_slots([T])
    looked_at, generation = ends.now, ends.generation
    slots = np.array([first])
    assert not ends.heard_since(looked_at, slots, generation)
    renamed = replace(T, configs={"retention.ms": "1"})
    assert ends.first_slots([renamed]) == [first]
    assert not ends.heard_since(looked_at, slots, generation)
    assert ends.first_slots([replace(T, partition_count=4)]) != [first]
    assert ends.heard_since(looked_at, slots, generation)


def test_a_topic_that_is_forgotten_ends_the_wait_for_it():
    ends = LogEnds(everything_exists)
    (first,) = ends.first_slots([T])
    looked_at = ends.now
    ends.forget(T.topic_id)
    ends.forget(T.topic_id)
    assert ends.heard_since(looked_at, np.array([first]), ends.generation)
    assert ends.heard([P0]) == []


class Waiting(NamedTuple):
    """A look at some partitions, as a fetch keeps it while it waits."""

    looked_at: int
    generation: int
    slots: Int64s
    partitions: list[TopicIdPartition]
    commits: dict[TopicIdPartition, int]


class LogEndsMachine(RuleBasedStateMachine):
    """Topics that come, grow and go, few slots, and looks that take their time."""

    def __init__(self) -> None:
        super().__init__()
        self.topics: dict[UUID, TopicDescription] = {}
        self.ends = LogEnds(lambda topic_id: topic_id in self.topics, slots=16)
        self.commits: dict[TopicIdPartition, int] = {}
        """How many there were of each partition, which is where its log ends."""
        self.waiting: list[Waiting] = []
        self.created = 0

    @rule(partitions=st.integers(1, 5))
    def create(self, partitions: int) -> None:
        self.created += 1
        topic = TopicDescription(
            topic_id=UUID(int=self.created), name="", partition_count=partitions
        )
        self.topics[topic.topic_id] = topic

    @precondition(lambda self: self.topics)
    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        topic = self.drawn(data)
        more = replace(topic, partition_count=topic.partition_count + data.draw(st.integers(0, 3)))
        self.topics[topic.topic_id] = more

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), is_told=st.booleans())
    def delete(self, data: st.DataObject, is_told: bool) -> None:
        topic = self.drawn(data)
        del self.topics[topic.topic_id]
        if is_told:
            self.ends.forget(topic.topic_id)

    @precondition(lambda self: self.topics)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        partitions = self.some_partitions(data)
        for partition in partitions:
            self.commits[partition] = self.commits.get(partition, 0) + 1
        heard = [slot for one in self.ends.heard(partitions) for slot in one.slots]
        for waiting in self.waiting:
            if waiting.generation == self.ends.generation:
                slots = dict(zip(waiting.partitions, waiting.slots.tolist(), strict=True))
                for partition in set(partitions) & set(slots):
                    if partition.topic_id in self.topics:
                        assert slots[partition] in heard, "or nobody would be woken"

    @precondition(lambda self: self.topics)
    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        partitions = self.some_partitions(data)
        slots = self.slots_of(partitions)
        self.waiting.append(
            Waiting(self.ends.now, self.ends.generation, slots, partitions, dict(self.commits))
        )

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def learn(self, data: st.DataObject) -> None:
        """The answer to a look comes: what was so at some time since."""
        looked = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        found = [FoundBatches(0, looked.commits.get(p, 0)) for p in looked.partitions]
        self.ends.learn(
            looked.slots.tolist(), found, generation=looked.generation, looked_at=looked.looked_at
        )

    def drawn(self, data: st.DataObject) -> TopicDescription:
        return data.draw(st.sampled_from([*self.topics.values()]))

    def some_partitions(self, data: st.DataObject) -> list[TopicIdPartition]:
        all_of_them = [
            TopicIdPartition(topic.topic_id, index)
            for topic in self.topics.values()
            for index in range(topic.partition_count)
        ]
        return data.draw(st.lists(st.sampled_from(all_of_them), max_size=6, unique=True))

    def slots_of(self, partitions: list[TopicIdPartition]) -> Int64s:
        topics = [*{p.topic_id: self.topics[p.topic_id] for p in partitions}.values()]
        firsts = dict(zip([t.topic_id for t in topics], self.ends.first_slots(topics), strict=True))
        return np.array([firsts[p.topic_id] + p.partition for p in partitions], np.int64)

    @invariant()
    def what_is_known_is_so(self) -> None:
        for topic in [*self.topics.values()]:
            partitions = [
                TopicIdPartition(topic.topic_id, index) for index in range(topic.partition_count)
            ]
            slots = self.slots_of(partitions)
            assert len(set(slots.tolist())) == len(slots)
            for partition, known in zip(
                partitions, self.ends.high_watermarks[slots].tolist(), strict=True
            ):
                assert known in (UNKNOWN, self.commits.get(partition, 0))

    @invariant()
    def nobody_waits_for_what_came(self) -> None:
        for waiting in self.waiting:
            if any(
                self.commits.get(p, 0) != waiting.commits.get(p, 0)
                for p in waiting.partitions
                if p.topic_id in self.topics
            ):
                assert self.ends.heard_since(waiting.looked_at, waiting.slots, waiting.generation)

    @invariant()
    def slots_that_nobody_has_are_used_again(self) -> None:
        live = sum(topic.partition_count for topic in self.topics.values())
        assert self.ends.slot_count <= max(16, 8 * (live + 8) + 8 * 5 * len(self.topics))


LogEndsMachine.TestCase.settings = examples(0.5, steps=25)
TestLogEndsAgainstAModel = LogEndsMachine.TestCase
