"""Reads rows of integer tables straight from the pages of a SQLite file, many at a time.

After a crash every row of the state is checked before anything is served
(metadata/state/state_check.py), and with a million committed batches what that costs is the Python
driver: 1.7 µs for each row of eleven integers, against 0.1 µs that SQLite itself takes. So the
tables that are large read their leaves as arrays: a few NumPy operations per column and 4 MiB of
pages, 0.3 µs per row.

Only what those tables have is understood: the b-tree of a WITHOUT ROWID table of integers, whose
key is its first columns, so that columns are stored in their order. Cells of such a table are never
longer than 127 bytes, so they have no overflow pages, and all lengths in them take one byte. The
layout is SQLite's file format, which is fixed for good (sqlite.org/fileformat2.html, 1.6 and 2.1):

    page    uint8 kind (2 interior, 10 leaf), uint16 unused, uint16 cells, uint16, uint8;
            interior: uint32 last child; then a uint16 per cell: where in the page it lies
    cell    interior: uint32 child before it; then uint8 length of the record, the record
    record  uint8 length of its head, uint8 per column: its kind, then the columns, big-endian

The file must be whole: nobody writes it and no write-ahead log lies beside it. Reading it must not
be mixed with SQLite's connections of the same process, as closing the file drops the locks that
they hold on it; connections that take none (`immutable`) do not mind.

This reader is not what finds damage in a tree - rows twice, in wrong order, or in no page: SQLite's
integrity check is. It promises that whatever bytes it meets, it ends, and either gives rows or
raises CorruptState.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from wal.columns import Int64s
from wal.errors import CorruptState, StorageFailed

COLUMNS_MAX: Final = 14
"""More, at nine bytes each with their kind, might not fit into a cell of 127 bytes."""

_MAGIC: Final = b"SQLite format 3\x00"
_FILE_HEADER_BYTES: Final = 100
_INTERIOR: Final = 2
_INTERIOR_HEADER_BYTES: Final = 12
_LEAF: Final = 10
_LEAF_HEADER_BYTES: Final = 8
_LAST_CHILD_AT: Final = 8
_CHILD_BYTES: Final = 4
_CELL_BYTES_MAX: Final = 127
_READ_BYTES: Final = 4 << 20
_MARGIN: Final = 256
"""Zeros behind the pages, so that a damaged cell at their end is read before it is refused."""

_NO_INTEGER: Final = -1
_WIDTHS: Final = np.full(256, _NO_INTEGER, np.int64)
_WIDTHS[[1, 2, 3, 4, 5, 6, 8, 9]] = 1, 2, 3, 4, 6, 8, 0, 0
"""Bytes of a column of each kind; kinds 8 and 9 are the numbers 0 and 1."""
_SHIFTS: Final = np.where(_WIDTHS > 0, 64 - 8 * _WIDTHS, 0)
_ONE: Final = 9

_Bytes = npt.NDArray[np.uint8]


class DatabasePages:
    """The pages of one SQLite file. Context manager; not for two threads at a time."""

    def __init__(self, path: Path) -> None:
        """Raises: CorruptState (this is no database), StorageFailed."""
        self._path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                header = os.pread(self._fd, _FILE_HEADER_BYTES, 0)
                length_bytes = os.fstat(self._fd).st_size
            except OSError:
                os.close(self._fd)
                raise
        except OSError as error:
            raise StorageFailed(f"{path}: {error}") from error
        self._page_bytes = int.from_bytes(header[16:18], "big")
        if self._page_bytes == 1:
            self._page_bytes = 1 << 16
        reserved = header[20:21]
        if header[:16] != _MAGIC or not self._page_bytes or reserved != b"\x00":
            os.close(self._fd)
            raise CorruptState(f"{path} is no SQLite database of ours")
        self._page_count = length_bytes // self._page_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._fd)

    def columns(self, root_page: int, columns: int) -> Iterator[Int64s]:
        """All rows of the table at `root_page`, in arrays of shape (`columns`, rows), in no order.

        Raises: CorruptState, StorageFailed.
        """
        assert columns <= COLUMNS_MAX
        level = np.array([root_page], np.int64)
        pages_at_a_time = max(_READ_BYTES // self._page_bytes, 1)
        seen = 0
        while len(level):
            seen += len(level)
            if seen > self._page_count or level[0] < 2 or level[-1] > self._page_count:
                raise self._corrupt(root_page, "pages that are not there, or more than once")
            children: list[Int64s] = []
            for first in range(0, len(level), pages_at_a_time):
                pages = self._read(level[first : first + pages_at_a_time])
                yield self._columns_of(pages, root_page, columns, children)
            level = np.sort(np.concatenate(children)) if children else level[:0]

    def _columns_of(
        self, data: _Bytes, root_page: int, columns: int, children: list[Int64s]
    ) -> Int64s:
        """Of the rows in the pages `data`; the pages below them are added to `children`."""
        pages = np.arange(0, len(data) - _MARGIN, self._page_bytes)
        kinds = data[pages]
        is_leaf = bool(kinds[0] == _LEAF)
        if not (kinds == (_LEAF if is_leaf else _INTERIOR)).all():
            raise self._corrupt(root_page, "a page that is not of a table of integers")
        header_bytes = _LEAF_HEADER_BYTES if is_leaf else _INTERIOR_HEADER_BYTES
        counts = _uint16(data, pages + 3)
        ends = header_bytes + 2 * counts
        if (ends > self._page_bytes).any():
            raise self._corrupt(root_page, "a page of too many cells")
        # One entry per cell from here on.
        page = np.repeat(pages, counts)
        number = np.arange(len(page)) - np.repeat(np.cumsum(counts) - counts, counts)
        place = _uint16(data, page + header_bytes + 2 * number)
        if ((place < np.repeat(ends, counts)) | (place >= self._page_bytes)).any():
            raise self._corrupt(root_page, "a cell outside its page")
        cells = page + place
        if not is_leaf:
            children += [_uint32(data, cells), _uint32(data, pages + _LAST_CHILD_AT)]
            cells += _CHILD_BYTES
        return self._records(data, cells, page + self._page_bytes, root_page, columns)

    def _records(
        self, data: _Bytes, cells: Int64s, page_ends: Int64s, root_page: int, columns: int
    ) -> Int64s:
        """The columns of the `cells`, which begin with the length of their records."""
        words: npt.NDArray[Any] = np.ndarray((len(data) - 7,), ">i8", data, strides=(1,))
        values = np.empty((columns, len(cells)), np.int64)
        lengths = data[cells]
        is_sound = (lengths <= _CELL_BYTES_MAX) & (data[cells + 1] == columns + 1)
        position = cells + 2 + columns
        for column in range(columns):
            kinds = data[cells + 2 + column]
            widths = _WIDTHS[kinds]
            is_sound &= widths != _NO_INTEGER
            # Eight bytes, of which the first ones are the number: shifted down with their sign.
            numbers = values[column]
            numbers[:] = words[position]
            numbers >>= _SHIFTS[kinds]
            np.copyto(numbers, kinds == _ONE, where=widths == 0)
            position += np.maximum(widths, 0)
        is_sound &= (position == cells + 1 + lengths) & (position <= page_ends)
        if not is_sound.all():
            raise self._corrupt(root_page, "a record that is not one of integers")
        return values

    def _read(self, numbers: Int64s) -> _Bytes:
        """The pages `numbers`, which ascend, one behind the other, and _MARGIN zeros."""
        data = np.zeros(len(numbers) * self._page_bytes + _MARGIN, np.uint8)
        view = data.data
        runs = np.flatnonzero(np.diff(numbers) != 1) + 1
        for first, end in zip([0, *runs], [*runs, len(numbers)], strict=True):
            wanted = view[first * self._page_bytes : end * self._page_bytes]
            try:
                done = os.preadv(self._fd, [wanted], (int(numbers[first]) - 1) * self._page_bytes)
            except OSError as error:
                raise StorageFailed(f"{self._path}: {error}") from error
            if done != len(wanted):
                raise CorruptState(f"{self._path} is too short: {done} bytes of {len(wanted)}")
        return data

    def _corrupt(self, root_page: int, found: str) -> CorruptState:
        return CorruptState(f"{self._path}: the table at page {root_page} has {found}")


def _uint16(data: _Bytes, positions: Int64s) -> Int64s:
    return data[positions].astype(np.int64) << 8 | data[positions + 1]


def _uint32(data: _Bytes, positions: Int64s) -> Int64s:
    return _uint16(data, positions) << 16 | _uint16(data, positions + 2)
