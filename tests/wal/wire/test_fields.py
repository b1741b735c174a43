"""Fields that are written many at once are those that are written one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal.wire.fields import uvarint, uvarints


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_varints_together_are_the_same_bytes_as_one_by_one(numbers: list[int]) -> None:
    assert uvarints(numbers) == b"".join(uvarint(number, 64) for number in numbers)


@pytest.mark.parametrize("number", [-1, 2**64])
def test_a_number_that_no_varint_holds_is_refused_among_others(number: int) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        uvarints([1, number, 2])
