"""Checksums of parts make the checksum of the whole."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wal.crc import crc32c, crc32c_joined
from wal.records.crc_columns import crc32c_of_pieces, crc32c_of_rows


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_two_checksums_join_to_that_of_both_pieces(first: bytes, second: bytes) -> None:
    assert crc32c_joined(crc32c(first), crc32c(second), len(second)) == crc32c(first + second)


def test_a_piece_of_any_length_joins() -> None:
    zeros = bytes(3 << 20)
    assert crc32c_joined(crc32c(b"x"), crc32c(zeros), len(zeros)) == crc32c(b"x" + zeros)


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=20))
def test_checksums_of_many_pieces_join_to_that_of_all(pieces: list[bytes]) -> None:
    crcs = np.array([crc32c(piece) for piece in pieces], np.uint32)
    lengths = np.array([len(piece) for piece in pieces])
    assert crc32c_of_pieces(crcs, lengths) == crc32c(b"".join(pieces))


def test_many_pieces_of_any_length_join() -> None:
    pieces = [bytes([number]) * length for number, length in enumerate((1, 3 << 20, 70_000, 5))]
    crcs = np.array([crc32c(piece) for piece in pieces], np.uint32)
    lengths = np.array([len(piece) for piece in pieces])
    assert crc32c_of_pieces(crcs, lengths) == crc32c(b"".join(pieces))
    assert crc32c_of_pieces(crcs[:1], lengths[:1]) == crc32c(pieces[0])


@given(st.lists(st.binary(min_size=21, max_size=21), max_size=20))
def test_rows_have_the_checksums_of_their_bytes(rows: list[bytes]) -> None:
    table = np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), 21)
    assert crc32c_of_rows(table).tolist() == [crc32c(row) for row in rows]
