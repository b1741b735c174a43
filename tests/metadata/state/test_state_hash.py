"""Row checksums: one by one and in bulk, and what they must not miss."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from metadata.state.state_hash import HASH_MODULUS, RowChecksum, from_signed, sum_of, to_signed
from wal.columns import column

int64 = st.integers(-(1 << 63), (1 << 63) - 1)


@given(st.lists(st.tuples(int64, int64, int64), min_size=1, max_size=9), st.integers(1, 99))
def test_checksums_in_bulk_are_those_of_single_rows(
    rows: list[tuple[int, int, int]], tag: int
) -> None:
    checksum = RowChecksum(tag, 3)
    columns = [column(numbers) for numbers in zip(*rows, strict=True)]
    one_by_one = [checksum(row) for row in rows]
    assert checksum.rows(columns).tolist() == one_by_one
    assert [*checksum.each(rows)] == one_by_one
    assert [*checksum.each([])] == []


@given(st.lists(st.tuples(int64, st.binary(max_size=20)), min_size=1, max_size=9))
def test_checksums_of_rows_with_a_blob_take_as_much_of_it_as_there_is(
    rows: list[tuple[int, bytes]],
) -> None:
    checksum = RowChecksum(7, 1)
    padded = np.frombuffer(b"".join(blob.ljust(20, b"x") for _, blob in rows), "V20")
    found = checksum.rows(
        [column(number for number, _ in rows)], padded, column(len(blob) for _, blob in rows)
    )
    assert found.tolist() == [checksum([number], [blob]) for number, blob in rows]


@given(st.lists(int64, min_size=2, max_size=5), st.integers(0, 4), st.integers(0, 63))
def test_every_flipped_bit_changes_the_checksum(numbers: list[int], which: int, bit: int) -> None:
    checksum = RowChecksum(1, len(numbers))
    flipped = [*numbers]
    which %= len(numbers)
    flipped[which] = to_signed((numbers[which] % HASH_MODULUS) ^ 1 << bit)
    assert checksum(flipped) != checksum(numbers)


def test_rows_that_exchange_a_value_do_not_cancel() -> None:
    checksum = RowChecksum(1, 2)
    assert checksum((1, 2)) + checksum((3, 4)) != checksum((1, 4)) + checksum((3, 2))
    assert RowChecksum(2, 2)((1, 2)) != checksum((1, 2))


@given(st.lists(int64, max_size=9))
def test_a_sum_of_checksums_is_modulo_two_to_the_sixty_four(numbers: list[int]) -> None:
    assert sum_of(column(numbers)) == sum(numbers) % HASH_MODULUS
    for number in numbers:
        assert to_signed(from_signed(number)) == number
