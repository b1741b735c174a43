"""Rebuilding: random histories, of which only the bucket is left, against what really happened."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given
from hypothesis import strategies as st

from diskless.acls.acl_checks import check_rule
from diskless.acls.acl_meaning import Policy, Question, decide
from diskless.authorization import CLUSTER_NAME, OPERATIONS_OF, ResourceType
from metadata.log.local_log import LocalMetadataLog
from metadata.metadata_settings import CoordinatorSettings
from metadata.operations import CommitFile
from metadata.rebuild.facts import BucketFacts, RebuildOptions
from metadata.rebuild.filler import FILLER_RECORDS_MAX, filler_batches
from metadata.rebuild.placing.placement import HOLE_RECORDS_MAX
from metadata.rebuild.plan import RebuildPlan, plan_rebuild
from metadata.rebuild.rebuild import check_rebuilt, write_metadata
from metadata.records.file_committed import FileCommittedRecord
from metadata.rules.acls import everything_denied
from metadata.rules.commit_request import check_commit
from tests.support.profiles import examples, seeds
from tests.support.rebuild.rebuild_history import (
    PARTITIONS,
    TOPICS,
    Batch,
    History,
    Placed,
    RebuiltState,
    replayed,
)
from wal.chunks.object_notes import CommitNote, NotedRun, TopicFacts
from wal.clock import ManualClock
from wal.coordinates import ObjectKey, TopicIdPartition
from wal.errors import InvalidSettings
from wal.records.record_batch import parse_header, verify_crc

Step = Callable[[History], object]

_partition = st.integers(0, len(PARTITIONS) - 1)
_batches = st.lists(
    st.tuples(_partition, st.integers(1, 5), st.integers(-1, 1)), min_size=1, max_size=5
)


def steps(brokers: int) -> st.SearchStrategy[list[Step]]:
    broker = st.integers(0, brokers - 1)

    def named(name: str, *arguments: st.SearchStrategy[object]) -> st.SearchStrategy[Step]:
        return st.tuples(*arguments).map(lambda drawn: partial(_step, name=name, arguments=drawn))

    return st.lists(
        st.one_of(
            named("seal", broker, _batches),
            named("seal", broker, _batches),
            named("commit", broker),
            named("commit", broker),
            named("give_up", broker),
            named("restart", broker),
            named("die", broker),
            named("roll", _partition, st.integers(1, 4)),
            named("clean"),
            named("delete_records", _partition, st.sampled_from([0.3, 1.0])),
            named("advance", st.sampled_from([0.001, 1.0, 60.0])),
            named("repeat", broker, st.integers(0, 20)),
        ),
        max_size=40,
    )


def _step(history: History, *, name: str, arguments: tuple[object, ...]) -> None:
    if name == "advance":
        history.clock.advance(*arguments)  # type: ignore[arg-type]
    elif name == "repeat":
        broker, number = arguments
        keys = list(history.objects)
        if keys:
            history.send_again(broker, keys[number % len(keys)])  # type: ignore[arg-type, operator]
    else:
        getattr(history, name)(*arguments)


def rebuilt(
    facts: History | BucketFacts, options: RebuildOptions | None = None
) -> tuple[RebuildPlan, RebuiltState]:
    if isinstance(facts, History):
        facts = facts.facts()
    plan = plan_rebuild(
        facts, options or RebuildOptions(), clock=ManualClock(), rng=random.Random(7)
    )
    return plan, replayed(plan.records)


def play(played: Sequence[Step], *, brokers: int, is_lagging: bool) -> History:
    history = History(brokers=brokers, is_lagging=is_lagging)
    for step in played:
        step(history)
    return history


def rolled_at(history: History, partition: TopicIdPartition, offset: int) -> bool:
    return any(
        segment.partition == partition and segment.base_offset <= offset <= segment.last_offset
        for segment in history.segments.values()
    )


def check_dense(state: RebuiltState) -> None:
    """From the log start to the high watermark every offset is in exactly one extent."""
    for log in state.partitions.values():
        extents = sorted({**log.batches, **log.segments}.items())
        offset = extents[0][0] if extents else log.high_watermark
        assert offset <= log.log_start or not extents
        for base, (end, _) in extents:
            assert base == offset
            offset = end
        assert offset == log.high_watermark


def crcs(history: History, plan: RebuildPlan) -> dict[Batch, int]:
    """What lies where; every batch that was ever sent has a checksum of its own."""
    found = {
        (key, position): extent.crc
        for key, item in history.objects.items()
        for position, extent in enumerate(item.extents)
    }
    for new in plan.new_objects:
        for position, extent in enumerate(new.plan.extents):
            found[new.object_key, position] = extent.crc
    return found


def check_nothing_lost(history: History, plan: RebuildPlan, state: RebuiltState) -> None:
    """Every committed batch that was live is there once, somewhere."""
    crc_of = crcs(history, plan)
    for place, live in history.live_batches().items():
        if not live:
            continue
        log = state.partitions[place]
        served = Counter(crc_of[batch] for _, batch in log.batches.values())
        assert max(served.values(), default=1) == 1
        for placed in live:
            if not rolled_at(history, place, placed.base_offset):
                assert placed.extent.crc in served, placed


def check_exact(
    history: History, plan: RebuildPlan, state: RebuiltState, *, to_the_end: bool
) -> None:
    """Committed batches that were live are at their offsets.

    Those that the report calls exact always are; the others when nothing is in the way.
    """
    crc_of = crcs(history, plan)
    exact_ends = {(row.topic, row.partition): row.exact_end for row in plan.report.partitions}
    for place, live in history.live_batches().items():
        if history.is_traceless(place):
            continue
        name = TOPICS[place.topic_id].name
        exact_end = exact_ends.get((name, place.partition), 0)
        for placed in live:
            log = state.partitions[place]
            if rolled_at(history, place, placed.base_offset):
                bounds = [(base, end) for base, (end, _) in log.segments.items()]
                assert any(base <= placed.base_offset < end for base, end in bounds)
            elif to_the_end or log.log_start <= placed.base_offset < exact_end:
                assert placed.base_offset in log.batches, placed
                end, batch = log.batches[placed.base_offset]
                assert (end, crc_of[batch]) == (placed.next_offset, placed.extent.crc), placed
            assert log.high_watermark >= placed.next_offset


def check_everything(history: History) -> None:
    plan, state = rebuilt(history)
    check_dense(state)
    check_nothing_lost(history, plan, state)
    is_clear = not history.uncommitted and not plan.report.doubts
    check_exact(history, plan, state, to_the_end=is_clear)


@examples(2)
@given(steps(1), st.booleans())
def test_what_one_broker_wrote_is_rebuilt(played: Sequence[Step], is_lagging: bool) -> None:
    check_everything(play(played, brokers=1, is_lagging=is_lagging))


@examples(2)
@given(steps(3), st.booleans())
def test_what_several_brokers_wrote_is_rebuilt(played: Sequence[Step], is_lagging: bool) -> None:
    check_everything(play(played, brokers=3, is_lagging=is_lagging))


@pytest.mark.parametrize("seed", seeds(12))
async def test_a_rebuilt_log_is_one_that_a_coordinator_replays(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    history = History(brokers=1 + seed % 3, seed=seed)
    for _ in range(60):
        broker = rng.randrange(len(history.brokers))
        batches = [
            (rng.randrange(len(PARTITIONS)), rng.randint(1, 5), rng.randint(-1, 1))
            for _ in range(rng.randint(1, 5))
        ]
        history.seal(broker, batches)
        for _ in range(rng.randrange(3)):
            history.commit(rng.randrange(len(history.brokers)))
        if rng.random() < 0.2:
            history.roll(rng.randrange(len(PARTITIONS)), rng.randint(1, 9))
        if rng.random() < 0.1:
            history.delete_records(rng.randrange(len(PARTITIONS)), 0.5)
            history.clean()
    if seed % 2:
        # Somebody deleted an object by hand: a hole.
        noted = [key for key in history.objects if key in history.noted]
        del history.objects[rng.choice(noted)]
    plan, state = rebuilt(history)
    log = await LocalMetadataLog.open(tmp_path / "log", rng=rng)
    try:
        await write_metadata(log, plan.records, history.clock.now_ms())
        await check_rebuilt(log, tmp_path / "state")
    finally:
        await log.close()
    check_dense(state)


# --- one broker, without doubts -------------------------------------------------------------------


def written(history: History, count: int, *, broker: int = 0, partition: int = 0) -> None:
    """Objects of one batch of three records, each committed before the next is sealed."""
    for _ in range(count):
        history.seal(broker, [(partition, 3, -1)])
        history.commit(broker)
        history.clock.advance(1)


def test_everything_but_the_last_object_is_exact() -> None:
    history = History()
    written(history, 5)
    plan, state = rebuilt(history)
    assert not plan.report.doubts
    row = plan.report.partitions[0]
    assert (row.topic, row.log_start_offset, row.exact_end, row.high_watermark) == (
        "flights", 0, 12, 15,
    )  # fmt: skip
    last = list(history.objects)[-1]
    assert plan.report.inferred_objects == plan.report.maybe_uncommitted == [last]
    assert sorted(state.partitions[PARTITIONS[0]].batches) == [0, 3, 6, 9, 12]


def test_topics_have_their_names_partitions_and_configuration() -> None:
    history = History()
    written(history, 2, partition=2)
    key = list(history.objects)[-1]
    facts = TopicFacts("radar", 4, (("retention.ms", "7"),))
    notes = history.objects[key].notes._replace(topics={PARTITIONS[2].topic_id: facts})
    history.objects[key] = replace(history.objects[key], notes=notes)
    plan, state = rebuilt(history)
    assert state.names == {PARTITIONS[2].topic_id: "radar"}
    assert state.configs == {PARTITIONS[2].topic_id: {"retention.ms": "7"}}
    assert len(state.partitions) == 4
    assert plan.report.topics == ["radar"]


def test_an_answer_that_was_given_once_is_given_again() -> None:
    """A broker that recovers its chunk commits the same object once more."""
    history = History()
    written(history, 3)
    history.clean()
    _, state = rebuilt(history)
    for item in history.objects.values():
        request = CommitFile(
            object_key=item.object_key,
            file_size_bytes=item.object_bytes,
            uploader_broker_id=0,
            batches=item.extents,
        )
        digest = check_commit(request, CoordinatorSettings()).digest
        assert state.files[item.object_key].request_digest == digest


def test_producer_ids_are_not_given_out_again() -> None:
    history = History()
    history.seal(0, [(0, 1, 123_456)])
    _, state = rebuilt(history)
    assert state.next_producer_id > 123_456
    assert state.next_producer_id % 1_000 == 0


def test_a_rolled_segment_leaves_its_producers_as_they_were() -> None:
    history = History()
    for _ in range(8):
        history.seal(0, [(0, 2, 1)])
        history.commit(0)
    history.roll(0, 8)
    history.clean()
    plan, _ = rebuilt(history)
    (record,) = (item for item in plan.records if isinstance(item, FileCommittedRecord))
    kept = [(batch.base_offset, batch.base_sequence) for batch in record.batches]
    assert kept == [(0, -1), (6, 6), (8, 8), (10, 10), (12, 12), (14, 14)]


def test_orphans_may_be_left_out() -> None:
    history = History()
    written(history, 3)
    plan, state = rebuilt(history, RebuildOptions(include_orphans=False))
    assert sorted(state.partitions[PARTITIONS[0]].batches) == [0, 3]
    (left,) = plan.report.left_out
    assert not left.is_committed
    assert plan.report.doubts


def test_what_was_deleted_before_the_last_commit_does_not_come_back() -> None:
    history = History()
    written(history, 4)
    history.delete_records(0, 0.5)
    written(history, 2)
    plan, state = rebuilt(history)
    assert state.partitions[PARTITIONS[0]].log_start == 6
    assert not plan.report.doubts


# --- doubts ---------------------------------------------------------------------------------------


def test_objects_without_notes_follow_each_other() -> None:
    history = History(is_noting=False)
    for _ in range(6):
        written(history, 1)
        written(history, 1, partition=1)
    history.roll(0, 3)
    history.clean()
    plan, state = rebuilt(history)
    flights = state.partitions[PARTITIONS[0]]
    assert (sorted(flights.segments), sorted(flights.batches)) == ([0], [9, 12, 15])
    check_nothing_lost(history, plan, state)
    assert plan.report.topics == ["flights"]


def test_a_topic_without_a_name_gets_one_that_can_be_chosen() -> None:
    history = History(is_noting=False)
    written(history, 1)
    topic_id = PARTITIONS[0].topic_id
    plan, state = rebuilt(history)
    assert state.names == {topic_id: f"recovered-{topic_id}"}
    assert [doubt.subject for doubt in plan.report.doubts] == [f"topic {topic_id}"]
    plan, state = rebuilt(history, RebuildOptions(topic_names={topic_id: "flights"}))
    assert state.names == {topic_id: "flights"}
    assert not plan.report.doubts
    with pytest.raises(InvalidSettings, match="nothing in the bucket"):
        rebuilt(history, RebuildOptions(topic_names={UUID(int=5): "x"}))


def test_of_two_topics_with_one_name_the_newer_one_lives() -> None:
    history = History()
    written(history, 2)
    written(history, 2, partition=2)
    old, new = PARTITIONS[0].topic_id, PARTITIONS[2].topic_id
    for key, item in history.objects.items():
        topics = {topic_id: TopicFacts("same", 2) for topic_id in item.notes.topics}
        history.objects[key] = replace(item, notes=item.notes._replace(topics=topics))
    plan, state = rebuilt(history)
    assert state.names == {new: "same"}
    assert plan.report.dropped_topics == [f"same ({old})"]
    assert [doubt.subject for doubt in plan.report.doubts] == [f"topic {old}"]
    plan, state = rebuilt(history, RebuildOptions(topic_names={old: "older"}))
    assert state.names == {new: "same", old: "older"}
    assert not plan.report.doubts


def test_a_missing_object_is_a_hole_and_offsets_behind_it_stay() -> None:
    history = History()
    written(history, 5)
    del history.objects[list(history.objects)[2]]
    plan, state = rebuilt(history)
    # The note of the second went with the third, but the gap has room for just that.
    assert sorted(state.partitions[PARTITIONS[0]].batches) == [0, 3, 6, 9, 12]
    (filler,) = plan.new_objects
    assert plan.report.written_objects == [filler.object_key]
    assert any("6..8 are missing" in doubt.problem for doubt in plan.report.doubts)


def test_a_hole_before_a_segment_is_planned_to_be_rolled() -> None:
    history = History()
    written(history, 6)
    history.roll(0, 2)
    history.roll(0, 2)
    history.clean()
    del history.segments[min(history.segments)]
    # Nothing tells of the first six records but the segment behind them.
    plan, state = rebuilt(history)
    flights = state.partitions[PARTITIONS[0]]
    assert (flights.log_start, sorted(flights.segments), sorted(flights.batches)) == (
        6, [6], [12, 15],
    )  # fmt: skip

    history = History()
    written(history, 6)
    for _ in range(3):
        history.roll(0, 2)
    history.clean()
    del history.segments[sorted(history.segments)[1]]
    plan, state = rebuilt(history)
    flights = state.partitions[PARTITIONS[0]]
    assert (sorted(flights.segments), sorted(flights.batches)) == ([0, 12], [6])
    assert flights.planned_end == 18
    assert len(plan.new_objects) == 1


def test_a_hole_that_is_too_large_moves_the_log_start() -> None:
    history = History()
    written(history, 2)
    history.partitions[PARTITIONS[0]].log.append(
        Placed(6, 6 + 2 * HOLE_RECORDS_MAX, (ObjectKey("gone"), 0),
               next(iter(history.objects.values())).extents[0])
    )  # fmt: skip
    written(history, 3)
    plan, state = rebuilt(history)
    assert state.partitions[PARTITIONS[0]].log_start == 6 + 2 * HOLE_RECORDS_MAX
    assert any("the log starts at" in doubt.problem for doubt in plan.report.doubts)


def test_the_tails_of_two_brokers_are_in_doubt() -> None:
    history = History(brokers=2)
    for broker in (0, 1):
        history.seal(broker, [(0, 3, -1)])
    for broker in (1, 0):
        history.commit(broker)
    plan, _ = rebuilt(history)
    assert any("order of what 2 writers wrote" in doubt.problem for doubt in plan.report.doubts)


def test_objects_that_would_each_come_before_the_other_are_untied_by_a_copy() -> None:
    """Two coordinators committed two objects in different orders."""
    first, second = PARTITIONS[0], PARTITIONS[2]
    history = History(brokers=2)
    a = history.objects[history.seal(0, [(0, 3, -1), (2, 3, -1)])]
    b = history.objects[history.seal(1, [(0, 3, -1), (2, 3, -1)])]
    commits = [
        CommitNote(a.ulid, (NotedRun(0, 5), NotedRun(3, 5))),
        CommitNote(b.ulid, (NotedRun(3, 5), NotedRun(0, 5))),
    ]
    noting = replace(a, notes=a.notes._replace(commits=commits))
    plan, state = rebuilt(BucketFacts(objects=[noting, b], segments=[]))
    assert not plan.report.doubts
    (copy,) = plan.new_objects
    assert len(copy.plan.extents) == 1
    crc_of = {
        (item.object_key, position): extent.crc
        for item in (a, b)
        for position, extent in enumerate(item.extents)
    }
    crc_of[copy.object_key, 0] = copy.plan.extents[0].crc
    for place, position, order in ((first, 0, (a, b)), (second, 1, (b, a))):
        batches = state.partitions[place].batches
        assert [crc_of[batches[base][1]] for base in (0, 3)] == [
            item.extents[position].crc for item in order
        ]
    check_dense(state)


def test_an_empty_bucket_gives_an_empty_log() -> None:
    plan, state = rebuilt(BucketFacts(objects=[], segments=[]))
    assert (state.partitions, plan.report.is_certain) == ({}, True)


def test_rules_that_are_lost_may_have_denied_anything() -> None:
    rules = [record.rule for record in everything_denied()]
    lenient = Policy(frozenset({"root"}), allows_without_acl=True)
    for resource_type, operations in OPERATIONS_OF.items():
        name = CLUSTER_NAME if resource_type == ResourceType.CLUSTER else "x"
        for operation in operations:
            asked = Question("ann", "10.0.0.1", operation, resource_type, name)
            assert not decide(rules, lenient, asked).is_allowed
            assert decide(rules, lenient, asked._replace(user="root")).is_allowed
    assert [*map(check_rule, rules)] == rules


# --- fillers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3, FILLER_RECORDS_MAX, FILLER_RECORDS_MAX + 5])
def test_a_filler_is_control_batches_that_any_reader_takes(count: int) -> None:
    seen = 0
    for data in filler_batches(count):
        header = parse_header(data)
        verify_crc(data)
        assert header.is_control
        batch = DefaultRecordBatch(bytearray(data))
        assert batch.validate_crc()
        assert batch.is_control_batch
        records = list(batch) if count < 100 else []
        assert all(record.key == b"\0\0\0\0" for record in records)
        assert header.record_count == header.last_offset_delta + 1
        seen += header.record_count
    assert seen == count
