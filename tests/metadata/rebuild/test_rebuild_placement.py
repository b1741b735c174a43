"""Where runs without a note go, what keeps its place, and what is told of the others."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from metadata.rebuild.facts import BucketFacts, ObjectFacts, RebuildOptions, SegmentFacts
from metadata.rebuild.layout import Placing
from metadata.rebuild.plan import RebuildPlan, plan_rebuild
from metadata.records.records import TopicColumnsRecord
from metadata.records.segment_identity import segment_key
from tests.support.rebuild.rebuild_history import RebuiltState, replayed
from wal.chunks.kept_notes import KeptNotes
from wal.chunks.object_notes import CommitNote, Floor, NotedRun, ObjectNotes, TopicFacts
from wal.clock import ManualClock
from wal.coordinates import BatchExtent, ByteOffset, TopicIdPartition
from wal.ulid import ulid_at, wal_object_key

TOPIC = UUID(int=0xA)
PLACE = TopicIdPartition(TOPIC, 0)
FACTS = TopicFacts("flights", 1)
STARTED_MS = 1_700_000_000_000


class Bucket:
    """Objects of one batch each, with what is noted of them."""

    def __init__(self) -> None:
        self.rng = random.Random(1)
        self.objects: list[ObjectFacts] = []
        self.commits: list[CommitNote] = []
        self.segments: list[SegmentFacts] = []
        self.kept = KeptNotes()

    def put(
        self,
        records: int,
        *,
        at_s: float,
        noted: int | None = None,
        broker: int = 0,
        lane: int = 0,
        producer: int = -1,
        sequence: int = -1,
        floor: int = 0,
        topic_id: UUID = TOPIC,
        name: str = "flights",
        stored_s: float | None = None,
    ) -> ObjectFacts:
        """An object stored at second `at_s`; committed at that time at offset `noted`, or unknown.

        `stored_s`: it came to the store later than its ULID says.
        """
        time_ms = STARTED_MS + int(at_s * 1000)
        ulid = ulid_at(time_ms, self.rng)
        extent = BatchExtent(
            partition=TopicIdPartition(topic_id, 0),
            byte_offset=ByteOffset(64),
            length_bytes=100,
            record_count=records,
            crc=len(self.objects),
            max_timestamp_ms=time_ms,
            timestamp_type=0,
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequence,
            request_id=0,
        )
        item = ObjectFacts(
            object_key=wal_object_key(ulid),
            ulid=ulid,
            broker_id=broker,
            lane=lane,
            object_bytes=1_000,
            stored_ms=STARTED_MS + int((at_s if stored_s is None else stored_s) * 1000),
            extents=[extent],
            notes=ObjectNotes({topic_id: TopicFacts(name, 1)}, (), [Floor(floor)]),
        )
        self.objects.append(item)
        if noted is not None:
            self.commits.append(CommitNote(ulid, (NotedRun(noted, time_ms),)))
        return item

    def roll(self, item: ObjectFacts, base_offset: int) -> None:
        """An object's batch is in a segment now, and the object is gone."""
        (extent,) = item.extents
        last_offset = base_offset + extent.record_count - 1
        self.objects.remove(item)
        self.segments.append(
            SegmentFacts(
                object_key=segment_key("flights", PLACE, base_offset, last_offset),
                object_bytes=1_000,
                crc32c=7,
                topic_name="flights",
                partition=PLACE,
                base_offset=base_offset,
                last_offset=last_offset,
                record_count=extent.record_count,
                max_timestamp_ms=extent.max_timestamp_ms,
                stored_ms=item.stored_ms + 60_000,
                sources=[],
                last_source=item.ulid,
            )
        )

    def rebuilt(self) -> tuple[RebuildPlan, RebuiltState]:
        kept = self.kept._replace(commits=self.commits)
        facts = BucketFacts(objects=self.objects, segments=self.segments, kept=kept)
        plan = plan_rebuild(facts, RebuildOptions(), clock=ManualClock(), rng=random.Random(7))
        return plan, replayed(plan.records)

    def places(self, plan: RebuildPlan, state: RebuiltState) -> Mapping[int, int]:
        """By number of the object its base offset."""
        numbers = {item.object_key: number for number, item in enumerate(self.objects)}
        batches = state.partitions[PLACE].batches
        return {numbers[key]: base for base, (_, (key, _)) in batches.items() if key in numbers}


def reasons(plan: RebuildPlan) -> Sequence[tuple[int, int, str]]:
    return [(run.base_offset, run.record_count, run.why) for run in plan.report.inferred]


def test_a_run_goes_where_its_producers_sequences_say() -> None:
    bucket = Bucket()
    bucket.put(748, at_s=1, noted=0, producer=7, sequence=0)
    # Another broker's, without sequences and as large, seems to fit as well and was here earlier.
    bucket.put(24, at_s=2, broker=1)
    bucket.put(24, at_s=60, broker=2, producer=7, sequence=748)
    bucket.put(5, at_s=3, noted=772, producer=7, sequence=772)
    plan, state = bucket.rebuilt()
    assert bucket.places(plan, state) == {0: 0, 2: 748, 3: 772, 1: 777}
    assert not plan.new_objects
    assert reasons(plan) == [(748, 24, Placing.FILLS.value), (777, 24, Placing.TAIL.value)]


def test_a_gap_is_left_to_what_has_room_nowhere_else() -> None:
    bucket = Bucket()
    bucket.put(10, at_s=1, noted=0)
    bucket.put(3, at_s=2, broker=1)
    bucket.put(3, at_s=3, broker=2)
    bucket.put(10, at_s=4, noted=13)
    bucket.put(1, at_s=5, noted=23, broker=2)
    plan, state = bucket.rebuilt()
    # What broker 2 wrote lies in front of what it is known to have written later.
    assert bucket.places(plan, state) == {0: 0, 2: 10, 3: 13, 4: 23, 1: 24}


def test_what_finds_its_place_taken_comes_last_and_is_named() -> None:
    bucket = Bucket()
    bucket.put(10, at_s=1, noted=0)
    first, second = (bucket.put(3, at_s=2 + broker, broker=broker) for broker in (1, 2))
    bucket.put(10, at_s=4, noted=13)
    for broker in (1, 2):
        bucket.put(1, at_s=5 + broker, noted=22 + broker, broker=broker)
    plan, state = bucket.rebuilt()
    assert not plan.report.left_out
    places = bucket.places(plan, state)
    assert sorted((places[1], places[2])) == [10, 25]
    (last,) = [run for run in plan.report.inferred if run.why == Placing.NO_ROOM.value]
    assert last.object_key in (first.object_key, second.object_key)
    assert (last.topic, last.partition, last.base_offset, last.record_count) == (
        "flights", 0, 25, 3,
    )  # fmt: skip
    assert any(last.object_key in line for line in plan.report.lists()["offset not noted"])


def test_only_what_cannot_have_been_committed_is_left_out() -> None:
    bucket = Bucket()
    bucket.put(10, at_s=1, noted=0)
    # Its broker's next object is known to follow the one before it without a gap.
    bucket.put(3, at_s=2)
    bucket.put(10, at_s=3, noted=10)
    plan, state = bucket.rebuilt()
    assert bucket.places(plan, state) == {0: 0, 2: 10}
    (left,) = plan.report.left_out
    assert left.object_key == bucket.objects[1].object_key


def test_what_its_broker_is_only_guessed_to_have_written_before_leaves_nothing_out() -> None:
    bucket = Bucket()
    bucket.put(10, at_s=1, noted=0)
    # Committed late, behind what another broker wrote: its objects are all gone.
    bucket.put(3, at_s=2, stored_s=90)
    other = bucket.put(5, at_s=3, broker=1)
    bucket.roll(other, 10)
    plan, state = bucket.rebuilt()
    assert bucket.places(plan, state)[1] == 15
    assert not plan.report.left_out


def test_a_run_lies_behind_the_floor_of_what_its_broker_wrote_before() -> None:
    bucket = Bucket()
    bucket.put(10, at_s=1, noted=0)
    bucket.put(10, at_s=2, noted=13)
    bucket.put(4, at_s=3, broker=1, floor=23)
    # Its broker had no floor to note, for its replica did not know the partition yet.
    bucket.put(3, at_s=4, broker=1)
    plan, state = bucket.rebuilt()
    assert bucket.places(plan, state) == {0: 0, 1: 13, 2: 23, 3: 27}


def test_the_tail_of_several_brokers_is_in_the_order_in_which_it_was_stored() -> None:
    bucket = Bucket()
    bucket.put(10, at_s=1, noted=0)
    # Opened first and stored last; what its broker wrote behind it cannot come before it.
    bucket.put(2, at_s=2, broker=1, stored_s=9)
    bucket.put(3, at_s=3, broker=1, stored_s=4)
    bucket.put(4, at_s=5, broker=2)
    plan, state = bucket.rebuilt()
    assert bucket.places(plan, state) == {0: 0, 3: 10, 1: 14, 2: 16}
    assert any("not noted" in doubt.problem for doubt in plan.report.doubts)


def test_two_workers_of_one_broker_commit_in_no_order_of_their_ulids() -> None:
    bucket = Bucket()
    bucket.put(10, at_s=1, noted=0)
    # Opened first and stored last, and the other worker did not wait for it.
    bucket.put(2, at_s=2, lane=1, stored_s=9)
    bucket.put(3, at_s=3, lane=2, stored_s=4)
    plan, state = bucket.rebuilt()
    assert bucket.places(plan, state) == {0: 0, 2: 10, 1: 13}


def test_a_partition_without_records_goes_on_where_it_was() -> None:
    bucket = Bucket()
    bucket.kept = KeptNotes({TOPIC: FACTS}, (), {PLACE: Floor(40, 40)})
    plan, state = bucket.rebuilt()
    log = state.partitions[PLACE]
    assert (log.log_start, log.high_watermark, state.names) == (40, 40, {TOPIC: "flights"})
    bucket.put(3, at_s=1, floor=0)
    plan, state = bucket.rebuilt()
    assert bucket.places(plan, state) == {0: 40}


OTHER = UUID(int=0xB)


def test_a_topic_that_was_made_anew_keeps_its_name_and_the_deleted_one_is_left_out() -> None:
    bucket = Bucket()
    bucket.put(3, at_s=1, noted=0, topic_id=OTHER)
    bucket.put(2, at_s=5, noted=0)
    # A broker that has not heard of the deletion yet uploads some more, which is refused.
    late = bucket.put(1, at_s=9, topic_id=OTHER)
    bucket.commits.append(CommitNote(late.ulid, (NotedRun(-1, 0),), {0: 1}))
    plan, state = bucket.rebuilt()
    assert state.names == {TOPIC: "flights"}
    assert plan.report.dropped_topics == [f"flights ({OTHER})"]


def test_of_two_topics_with_one_name_both_come_back_when_either_may_be_the_one_that_lives() -> None:
    bucket = Bucket()
    bucket.put(2, at_s=5, noted=0)
    bucket.put(1, at_s=9, topic_id=OTHER)
    plan, state = bucket.rebuilt()
    assert state.names == {TOPIC: "flights", OTHER: f"flights-{OTHER}"}
    assert not plan.report.dropped_topics
    assert [doubt.subject for doubt in plan.report.doubts] == [f"topic {OTHER}"]


def test_typed_columns_come_back_from_the_segment_with_the_greatest_ids() -> None:
    bucket = Bucket()
    for at_s, base in ((1, 0), (2, 10), (3, 20)):
        bucket.roll(bucket.put(10, at_s=at_s, noted=base), base)
    typed = ((120, b"older"), (131, b"newest"), (-1, b""))
    bucket.segments = [
        replace(segment, column_id_max=greatest, columns=columns)
        for segment, (greatest, columns) in zip(bucket.segments, typed, strict=True)
    ]
    plan, _ = bucket.rebuilt()
    found = [record for record in plan.records if isinstance(record, TopicColumnsRecord)]
    # Made of no configs: nothing is planned before a job has made them follow the topic's own.
    assert found == [TopicColumnsRecord(topic_id=TOPIC, version=1, basis=b"", columns=b"newest")]
