"""Which neighbouring segments are merged: pure rules over their sizes, offsets and times."""

import random
from collections.abc import Sequence

import pytest

from metadata.metadata_settings import CoordinatorSettings
from metadata.retention_settings import RetentionSettings
from metadata.rewrites import RewriteInput
from metadata.rules.rewriting.merges import (
    INPUTS_MAX,
    RUN_MAX,
    MergePolicy,
    due_for_merge,
    merge_policy,
)
from tests.support.profiles import seeds
from wal.coordinates import ObjectKey, Offset

MIB = 1 << 20
POLICY = MergePolicy(512 * MIB)


def segments(*sizes: int, start: int = 0, time_ms: int = 1_000_000) -> list[RewriteInput]:
    """Neighbours of ten records each."""
    return [
        RewriteInput(ObjectKey(f"{at}"), size, Offset(base), Offset(base + 9), 10, time_ms)
        for at, size in enumerate(sizes)
        for base in [start + 10 * at]
    ]


def merged(inputs: Sequence[RewriteInput]) -> RewriteInput:
    return RewriteInput(
        ObjectKey("merged"),
        sum(one.object_bytes for one in inputs),
        inputs[0].base_offset,
        inputs[-1].last_offset,
        sum(one.record_count for one in inputs),
        max(one.max_timestamp_ms for one in inputs),
    )


def settled(found: list[RewriteInput], policy: MergePolicy) -> int:
    """Do all merges that are due, in place; returns the bytes that were written."""
    written = 0
    while due := due_for_merge(found, policy):
        assert len(due) > 1
        assert sum(one.object_bytes for one in due) <= policy.target_bytes
        at = found.index(due[0])
        assert found[at : at + len(due)] == due
        found[at : at + len(due)] = [merged(due)]
        written += found[at].object_bytes
    return written


def test_fewer_small_segments_than_a_run_are_left_alone() -> None:
    assert due_for_merge(segments(*[MIB] * (RUN_MAX - 1)), POLICY) == ()
    found = segments(*[MIB] * RUN_MAX)
    assert due_for_merge(found, POLICY) == found


def test_as_many_as_fit_are_merged_at_once() -> None:
    found = segments(*[200 * MIB] * 5)
    assert due_for_merge(found, POLICY) == found[:2]
    found = segments(300 * MIB, *[60 * MIB] * 20)
    assert due_for_merge(found, POLICY) == found[1:9]


def test_a_large_old_segment_is_not_written_anew_for_a_few_small_ones() -> None:
    found = segments(100 * MIB, *[MIB] * (RUN_MAX - 1))
    assert due_for_merge(found, POLICY) == found[1:]
    found = segments(*[4**at * MIB for at in reversed(range(5))], MIB, MIB, MIB)
    assert due_for_merge(found, MergePolicy(1 << 40)) == found[2:]


def test_what_lies_before_a_full_segment_is_merged_however_little() -> None:
    found = segments(MIB, MIB, 400 * MIB, MIB)
    assert due_for_merge(found, POLICY) == found[:2]
    assert due_for_merge(segments(MIB, 400 * MIB, MIB), POLICY) == ()


def test_a_hole_that_is_not_rolled_yet_ends_the_look() -> None:
    found = [*segments(MIB, MIB), *segments(*[MIB] * 20, start=40)]
    assert due_for_merge(found, POLICY) == ()


def test_spans_of_time_are_not_mixed_and_end_with_the_next_one() -> None:
    hourly = MergePolicy(512 * MIB, 3_600_000)
    first = segments(MIB, MIB, time_ms=3_599_999)
    second = segments(*[MIB] * 7, start=20, time_ms=3_600_000)
    assert due_for_merge([*first, *second], hourly) == first
    assert due_for_merge(second, hourly) == ()
    timeless = segments(MIB, start=90, time_ms=-1)
    assert due_for_merge([*second, *timeless], hourly) == [*second, *timeless]


def test_a_merge_has_a_limited_number_of_inputs_and_of_records() -> None:
    assert len(due_for_merge(segments(*[1] * 1000), POLICY)) == INPUTS_MAX
    huge = [one._replace(record_count=2**30) for one in segments(*[MIB] * 3)]
    assert due_for_merge(huge, POLICY) == ()
    many = [one._replace(record_count=2**28) for one in segments(*[MIB] * 9)]
    assert due_for_merge(many, POLICY) == many[:7]


@pytest.mark.parametrize("size", [100 << 10, MIB, 20 * MIB, 60 * MIB])
def test_a_thousand_rolls_end_as_few_files_and_are_rewritten_a_few_times(size: int) -> None:
    found: list[RewriteInput] = []
    written = 0
    for one in segments(*[size] * 1000):
        found.append(one)
        written += settled(found, POLICY)
    files_per_128_mib = len(found) / max(1, 1000 * size / (128 * MIB))
    assert files_per_128_mib <= 12
    assert written <= 5 * 1000 * size


@pytest.mark.parametrize("seed", seeds(20))
def test_any_sizes_and_times_settle_with_few_small_segments(seed: int) -> None:
    rng = random.Random(seed)
    policy = MergePolicy(rng.choice([10, 1000, 10**6]) * 1000, rng.choice([0, 50, 1000]))
    found: list[RewriteInput] = []
    time_ms = 0
    for one in segments(*(rng.randrange(1, policy.target_bytes // 3) for _ in range(200))):
        time_ms += rng.randrange(20)
        found.append(one._replace(max_timestamp_ms=time_ms))
        settled(found, policy)
        spans = [policy.span(segment.max_timestamp_ms) for segment in found]
        assert spans == sorted(spans)
        tail = [segment for segment in found if policy.is_small(segment)]
        assert len(tail) < RUN_MAX + 2 * len(set(spans)) + len(found) - len(tail)
    assert sum(one.record_count for one in found) == 2000


def policy_of(**configs: str) -> MergePolicy | None:
    named = {name.replace("_", "."): value for name, value in configs.items()}
    return merge_policy(named, CoordinatorSettings(), RetentionSettings())


def test_the_policy_follows_the_topic_and_its_retention() -> None:
    week_ms = 7 * 24 * 3_600_000
    assert policy_of() == (512 * MIB, week_ms // 4)
    assert policy_of(retention_ms="-1") == (512 * MIB, 0)
    assert policy_of(segment_merge_bytes="1000") == (1000, week_ms // 4)
    assert policy_of(retention_bytes="4000", retention_ms="-1") == (1000, 0)
    assert policy_of(segment_merge_bytes="0") is None
    assert policy_of(tiering_enable="false") is None
    assert policy_of(cleanup_policy="compact,delete") is None
