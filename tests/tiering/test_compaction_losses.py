"""Which records a compaction removes, and which inputs it writes anew."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from metadata.rewrites import COMPACTION, RewriteInput, RewritePlan
from tiering.compaction.losses import KEY_ROWS, Loss, losses_of, offsets_in
from tiering.compaction.outputs import outputs_of
from wal.coordinates import ObjectKey, Offset, TopicIdPartition

PARTITION = TopicIdPartition(UUID(int=1), 0)


class Row(NamedTuple):
    plan: int
    segment: int
    offset: int
    key: bytes
    is_new_tombstone: bool = False
    is_expired: bool = False


def losses(rows: Sequence[Row]) -> dict[tuple[int, int], tuple[list[int], int]]:
    """By plan and segment: the offsets that go, and how many new tombstones stay."""
    table = pa.Table.from_pylist([row._asdict() for row in rows], schema=KEY_ROWS)
    found = {}
    for row in losses_of(table).to_pylist():
        offsets = offsets_in([row["offsets"]]).tolist()
        assert len(offsets) == row["removed"]
        found[row["plan"], row["segment"]] = (offsets, row["marked"])
    return found


def test_the_newest_record_of_a_key_stays() -> None:
    rows = [Row(0, 0, 1, b"a"), Row(0, 0, 2, b"b"), Row(0, 1, 11, b"a"), Row(0, 2, 21, b"a")]
    assert losses(rows) == {(0, 0): ([1], 0), (0, 1): ([11], 0)}


def test_keys_of_different_plans_have_nothing_to_do_with_each_other() -> None:
    assert losses([Row(0, 0, 1, b"a"), Row(1, 0, 2, b"a")]) == {}


def test_keys_that_differ_in_their_last_byte_differ() -> None:
    assert losses([Row(0, 0, 1, b"k" * 100 + b"a"), Row(0, 0, 2, b"k" * 100 + b"b")]) == {}
    assert losses([Row(0, 0, 1, b""), Row(0, 0, 2, b"\0")]) == {}


def test_a_new_tombstone_stays_and_is_marked() -> None:
    rows = [Row(0, 0, 1, b"a"), Row(0, 1, 11, b"a", is_new_tombstone=True)]
    assert losses(rows) == {(0, 0): ([1], 0), (0, 1): ([], 1)}


def test_an_expired_tombstone_goes_when_it_is_the_last_of_its_key() -> None:
    assert losses([Row(0, 0, 1, b"a", is_expired=True)]) == {(0, 0): ([1], 0)}


def test_an_expired_tombstone_stays_as_long_as_something_older_is_there() -> None:
    rows = [Row(0, 0, 1, b"a"), Row(0, 1, 11, b"a", is_expired=True)]
    assert losses(rows) == {(0, 0): ([1], 0)}


def test_no_rows_lose_nothing() -> None:
    assert losses([]) == {}


@given(
    st.lists(
        st.tuples(st.binary(max_size=2), st.sampled_from(["value", "new tombstone", "expired"])),
        max_size=60,
    )
)
def test_what_stays_is_what_a_dictionary_keeps(written: Sequence[tuple[bytes, str]]) -> None:
    rows = [
        Row(0, at // 7, at, key, kind == "new tombstone", kind == "expired")
        for at, (key, kind) in enumerate(written)
    ]
    newest = {row.key: row for row in rows}
    counts: dict[bytes, int] = {}
    for row in rows:
        counts[row.key] = counts.get(row.key, 0) + 1
    gone = {
        row.offset
        for row in rows
        if newest[row.key] != row or (row.is_expired and counts[row.key] == 1)
    }
    found = losses(rows)
    assert {offset for offsets, _ in found.values() for offset in offsets} == gone
    marked = sum(row.is_new_tombstone and newest[row.key] == row for row in rows)
    assert sum(count for _, count in found.values()) == marked


# --- outputs --------------------------------------------------------------------------------------


def outputs(sizes: Sequence[int], found: Mapping[int, Loss]) -> list[tuple[int, int]]:
    """Of inputs of 10 records and so many bytes, with a target of 100 bytes."""
    plan = RewritePlan(
        topic_name="t",
        partition=PARTITION,
        kind=COMPACTION,
        generation=1,
        planned_at_ms=0,
        delete_horizon_ms=0,
        producers_since_ms=0,
        target_bytes=100,
        inputs=[
            RewriteInput(ObjectKey(str(at)), size, Offset(10 * at), Offset(10 * at + 9), 10, 0)
            for at, size in enumerate(sizes)
        ],
    )
    return [(output.first, output.last) for output in outputs_of(plan, found)]


def test_inputs_that_lose_nothing_stay() -> None:
    assert outputs([90, 90, 10, 10], {}) == []
    assert outputs([90, 90, 90], {1: Loss(5)}) == [(1, 1)]


def test_neighbours_are_joined_up_to_the_target() -> None:
    halved = {at: Loss(5) for at in range(5)}
    assert outputs([80, 80, 80, 80, 80], halved) == [(0, 1), (2, 3), (4, 4)]


def test_small_clean_neighbours_join_in_and_large_ones_do_not() -> None:
    assert outputs([20, 90, 20, 40, 20], {2: Loss(5), 4: Loss(1)}) == [(2, 4)]


def test_what_is_empty_joins_its_neighbours() -> None:
    assert outputs([90, 90, 90], {0: Loss(10), 1: Loss(10), 2: Loss(1)}) == [(0, 2)]


def test_a_tombstone_to_be_marked_is_reason_enough() -> None:
    assert outputs([90, 90], {1: Loss(0, 1)}) == [(1, 1)]
