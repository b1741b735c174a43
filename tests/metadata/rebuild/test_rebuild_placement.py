"""Where runs without a note go, what keeps its place, and what is told of the others."""

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from metadata.rebuild.layout import Placing
from metadata.rebuild.plan import RebuildPlan
from metadata.records.records import TopicColumnsRecord
from tests.support.rebuild.rebuild_bucket import FACTS, PLACE, TOPIC, Bucket
from wal.chunks.kept_notes import KeptNotes
from wal.chunks.object_notes import CommitNote, Floor, NotedRun


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
