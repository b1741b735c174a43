"""Rebuilding: random histories, of which only the bucket is left, against what really happened."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rebuild_history import PARTITIONS, TOPICS, Batch, History, RebuiltState, replayed

from metadata.rebuild_facts import RebuildOptions
from metadata.rebuild_plan import RebuildPlan, plan_rebuild
from wal.coordinates import TopicIdPartition

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


def rebuilt(history: History, **options: object) -> tuple[RebuildPlan, RebuiltState]:
    plan = plan_rebuild(
        history.facts(),
        RebuildOptions(**options),  # type: ignore[arg-type]
        clock=history.clock,
        rng=random.Random(7),
    )
    return plan, replayed(plan.records)


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


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps(1))
def test_what_one_broker_wrote_is_rebuilt_exactly(played: Sequence[Step]) -> None:
    history = History()
    for step in played:
        step(history)
    plan, state = rebuilt(history)
    check_dense(state)
    check_nothing_lost(history, plan, state)
    is_clear = not history.uncommitted and not plan.report.doubts
    check_exact(history, plan, state, to_the_end=is_clear)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps(3))
def test_nothing_that_several_brokers_wrote_is_lost(played: Sequence[Step]) -> None:
    history = History(brokers=3)
    for step in played:
        step(history)
    plan, state = rebuilt(history)
    check_dense(state)
    check_nothing_lost(history, plan, state)
    is_clear = not history.uncommitted and not plan.report.doubts
    check_exact(history, plan, state, to_the_end=is_clear)
