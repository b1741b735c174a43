"""Checksums of parts make the checksum of the whole."""

from hypothesis import given
from hypothesis import strategies as st

from wal.crc import crc32c, crc32c_joined


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_two_checksums_join_to_that_of_both_pieces(first: bytes, second: bytes) -> None:
    assert crc32c_joined(crc32c(first), crc32c(second), len(second)) == crc32c(first + second)


def test_a_piece_of_any_length_joins() -> None:
    zeros = bytes(3 << 20)
    assert crc32c_joined(crc32c(b"x"), crc32c(zeros), len(zeros)) == crc32c(b"x" + zeros)
