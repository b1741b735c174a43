"""Makes large copies of bytes that do not keep other threads from the interpreter.

`bytearray(n)` writes zeros, and assigning a slice copies, with the interpreter's lock held: a
thread that does so with 50 MiB stops the event loop for 50 to 150 ms, most of it page faults.
NumPy's memory is not written before it is filled, and its copies give the lock away.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

BLOCK_BYTES: Final = 4096
"""What addresses, offsets and lengths are multiples of where a disk reads or writes memory itself.
"""


def aligned_buffer(length_bytes: int) -> memoryview:
    """Writable memory with anything in it, from an address that is a multiple of BLOCK_BYTES."""
    memory = np.empty(length_bytes + BLOCK_BYTES, np.uint8)
    start = -_address(memory) % BLOCK_BYTES
    return memory[start : start + length_bytes].data


def is_aligned(view: memoryview) -> bool:
    """Whether `view` starts at a multiple of BLOCK_BYTES."""
    return _address(np.frombuffer(view, np.uint8)) % BLOCK_BYTES == 0


def _address(memory: npt.NDArray[np.uint8]) -> int:
    return int(memory.__array_interface__["data"][0])


def copy_into(buffer: memoryview, views: Sequence[memoryview]) -> None:
    """Fill `buffer` with the bytes of `views` back to back, which are as long together."""
    filled = np.frombuffer(buffer, np.uint8)
    position = 0
    for view in views:
        filled[position : position + len(view)] = np.frombuffer(view, np.uint8)
        position += len(view)
