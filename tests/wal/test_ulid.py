"""ULIDs are Crockford's base 32, and nothing else is one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal.ulid import decode_ulid, encode_ulid, ulid_timestamp_ms

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


@given(st.integers(0, 2**128 - 1))
def test_a_ulid_is_its_number_in_digits_of_five_bits(number: int) -> None:
    ulid = encode_ulid(number)
    assert ulid == "".join(ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))
    assert decode_ulid(ulid) == number
    assert ulid_timestamp_ms(ulid) == number >> 80


@given(st.lists(st.integers(0, 2**128 - 1), min_size=2))
def test_ulids_sort_as_their_numbers(numbers: list[int]) -> None:
    assert sorted(map(encode_ulid, numbers)) == [*map(encode_ulid, sorted(numbers))]


@pytest.mark.parametrize("char", [*"ILOUabv_-+ "])
def test_other_characters_are_refused(char: str) -> None:
    with pytest.raises(ValueError, match="no ULID has"):
        decode_ulid(f"{'0' * 12}{char}{'0' * 13}")
    with pytest.raises(ValueError, match="no ULID has"):
        ulid_timestamp_ms(f"{char}{'0' * 25}")


@pytest.mark.parametrize("ulid", ["", "0" * 25, "0" * 27, "8" + "0" * 25])
def test_a_ulid_has_26_characters_and_128_bits(ulid: str) -> None:
    with pytest.raises(ValueError, match=r"26 characters|128 bits"):
        decode_ulid(ulid)
