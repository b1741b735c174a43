"""A disk that does what it is told to: fail, write half, run full."""

import errno
import os
from collections import Counter
from collections.abc import Collection, Sequence

from wal.crc import Buffer
from wal.disk import SystemDisk

CHANGING_CALLS = ("create", "pwritev", "fdatasync", "fsync", "ftruncate", "unlink", "rename")


class FailingDisk(SystemDisk):
    """Counts the calls that change something and fails the ones that were asked for.

    `fail_number` fails the call of that number (from 1) over all of `calls`, once; `failing` names
    calls that fail every time until they are taken out of it. A failing write writes half first.
    """

    def __init__(
        self,
        *,
        fail_number: int = 0,
        calls: Collection[str] = CHANGING_CALLS,
        error_number: int = errno.EIO,
    ) -> None:
        self.fail_number = fail_number
        self.calls = calls
        self.error_number = error_number
        self.failing: set[str] = set()
        self.count = 0
        self.counts: Counter[str] = Counter()
        self.failed_calls: list[str] = []
        self.bytes_free: int | None = None

    def _fails(self, call: str) -> bool:
        self.counts[call] += 1
        if call in self.calls:
            self.count += 1
        fails = call in self.failing or (call in self.calls and self.count == self.fail_number)
        if fails:
            self.failed_calls.append(call)
        return fails

    def _error(self, call: str) -> OSError:
        return OSError(self.error_number, f"injected into {call}")

    def open(self, path: str, flags: int) -> int:
        if flags & os.O_CREAT and self._fails("create"):
            raise self._error("create")
        return super().open(path, flags)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        data = b"".join(buffers)
        if self._fails("pwritev"):
            super().pwritev(fd, [data[: len(data) // 2]], offset)
            raise self._error("pwritev")
        if self.bytes_free is not None:
            # As ext4 does it: write what fits, and fail only when nothing does.
            data = data[: self.bytes_free]
            self.bytes_free -= len(data)
            if not data:
                raise OSError(errno.ENOSPC, "No space left on device")
        return super().pwritev(fd, [data], offset)

    def fdatasync(self, fd: int) -> None:
        if self._fails("fdatasync"):
            raise self._error("fdatasync")
        super().fdatasync(fd)

    def fsync(self, fd: int) -> None:
        if self._fails("fsync"):
            raise self._error("fsync")
        super().fsync(fd)

    def ftruncate(self, fd: int, length_bytes: int) -> None:
        if self._fails("ftruncate"):
            raise self._error("ftruncate")
        super().ftruncate(fd, length_bytes)

    def unlink(self, path: str) -> None:
        if self._fails("unlink"):
            raise self._error("unlink")
        super().unlink(path)

    def rename(self, source: str, target: str) -> None:
        if self._fails("rename"):
            raise self._error("rename")
        super().rename(source, target)
