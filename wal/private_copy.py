"""Makes large copies of bytes that do not keep other threads from the interpreter.

`bytearray(n)` writes zeros, and assigning a slice copies, with the interpreter's lock held: a
thread that does so with 50 MiB stops the event loop for 50 to 150 ms, most of it page faults.
NumPy's memory is not written before it is filled, and its copies give the lock away.
"""

from collections.abc import Sequence

import numpy as np


def joined_copy(views: Sequence[memoryview]) -> memoryview:
    """The bytes of `views` back to back, in memory of their own."""
    joined = np.empty(sum(map(len, views)), np.uint8)
    position = 0
    for view in views:
        joined[position : position + len(view)] = np.frombuffer(view, np.uint8)
        position += len(view)
    return joined.data
