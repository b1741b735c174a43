"""Makes memory that processes share by inheriting a descriptor; it has no name."""

import os
import tempfile


def make_memory(name: str, size_bytes: int) -> int:
    """Returns the descriptor of memory full of zeros, of which what is never written costs nothing.

    `name` is for people who look at a process's files. Raises OSError.
    """
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create(name)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    try:
        os.ftruncate(fd, size_bytes)
    except BaseException:
        os.close(fd)
        raise
    return fd
