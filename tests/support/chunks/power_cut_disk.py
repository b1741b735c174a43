"""A disk whose power is cut: what was not synced is there, partly there, or not.

Between two syncs the kernel writes back what it likes in any order, and so does this disk: some
writes become durable at once (write-back), and when the power is cut every page of every file is
either the last durable one or the last written one. A name that was created or removed since the
directory was synced may be there or not.
"""

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from wal.crc import Buffer
from wal.disk import SystemDisk

PAGE_BYTES: Final = 16
"""Small, so that records of a few bytes span pages."""


class PowerCut(BaseException):
    """Raised by every call from the cut on, as if the process were gone."""


class PowerCutDisk(SystemDisk):
    """Loses its power at the changing call of number `cut_at`, or when `cut` is called."""

    def __init__(self, directory: Path, rng: random.Random, cut_at: int) -> None:
        self._directory = directory
        self._rng = rng
        self._calls_left = cut_at
        self._paths: dict[int, Path] = {}
        self._durable: dict[Path, bytes] = {}
        self._last_content: dict[Path, bytes] = {}
        self._durable_names: set[Path] = set()

    def _call(self) -> None:
        self._calls_left -= 1
        if self._calls_left <= 0:
            raise PowerCut

    def open(self, path: str, flags: int) -> int:
        file = Path(path)
        if flags & os.O_CREAT:
            self._call()
            if not file.exists():
                self._durable.pop(file, None)  # that was another file of the same name
        fd = super().open(path, flags)
        self._paths[fd] = file
        return fd

    def close(self, fd: int) -> None:
        del self._paths[fd]
        super().close(fd)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        self._call()
        written = super().pwritev(fd, buffers, offset)
        if self._rng.random() < 0.3:
            self._write_back(self._paths[fd])
        return written

    def ftruncate(self, fd: int, length_bytes: int) -> None:
        self._call()
        super().ftruncate(fd, length_bytes)

    def fdatasync(self, fd: int) -> None:
        self._call()
        self._write_back(self._paths[fd])

    def fsync(self, fd: int) -> None:
        self._call()
        assert self._paths[fd] == self._directory
        self._durable_names = set(self._directory.iterdir())

    def unlink(self, path: str) -> None:
        self._call()
        file = Path(path)
        self._last_content[file] = file.read_bytes()
        super().unlink(path)

    def _write_back(self, path: Path) -> None:
        self._durable[path] = path.read_bytes()

    def cut(self, into: Path) -> None:
        """Write into the new directory `into` what is there when the power is back."""
        into.mkdir()
        present = set(self._directory.iterdir())
        for path in sorted(present | self._durable_names):
            certain = path in present and path in self._durable_names
            if not certain and self._rng.random() < 0.5:
                continue
            durable = self._durable.get(path, b"")
            written = path.read_bytes() if path in present else self._last_content[path]
            (into / path.name).write_bytes(self._blend(durable, written))

    def _blend(self, durable: bytes, written: bytes) -> bytes:
        if durable == written:
            return durable
        size = self._rng.choice((len(durable), len(written)))
        share = self._rng.choice((0.0, 0.5, 0.9, 1.0))
        blended = bytearray()
        for start in range(0, size, PAGE_BYTES):
            source = written if self._rng.random() < share else durable
            page = source[start : start + PAGE_BYTES]
            blended += page.ljust(min(PAGE_BYTES, size - start), b"\0")
        return bytes(blended[:size])
