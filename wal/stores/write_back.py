"""Has the system begin to write a file to its disk, without waiting for it.

Python has no door to `sync_file_range` of Linux, so the C library's is called, which gives the
interpreter's lock away meanwhile. It promises nothing: whoever needs the bytes on the disk syncs
the file afterwards, and waits for what is left.
"""

import ctypes
from collections.abc import Callable
from typing import Final

_WRITE: Final = 2
"""SYNC_FILE_RANGE_WRITE: begin to write what is not being written yet."""


def _found() -> Callable[[int, int, int, int], int] | None:
    """The system's call; None where it has none."""
    function = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if function is None:
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    call: Callable[[int, int, int, int], int] = function
    return call


_sync_file_range: Final = _found()


def begin_write_back(fd: int) -> None:
    """Begin with all that was written to the file by now; where that cannot be, nothing happens."""
    if _sync_file_range is not None:
        _sync_file_range(fd, 0, 0, _WRITE)
