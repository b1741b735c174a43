"""Ends a broker whose data directory somebody deleted, moved away or replaced.

Open files outlive their names: such a broker would go on for days, and what it keeps would be gone
with its process. Its lock file tells; an idle broker would notice nothing else. What is
acknowledged into a local metadata log does not rest on this: each append looks for the name of its
own file.
"""

import asyncio
from pathlib import Path
from typing import Final

from wal.errors import DirectoryLost
from wal.segmented_log.log_directory import DirectoryLock

WATCH_INTERVAL_S: Final = 1.0


class DirectoryWatch:
    """The task that looks, once a second."""

    def __init__(self, path: Path, lock: DirectoryLock) -> None:
        """`lock` is that of the directory `path`, and open as long as this runs."""
        self._path = path
        self._lock = lock

    async def run(self) -> None:
        """Look until cancelled. Raises: DirectoryLost, StorageFailed."""
        while True:
            if not await asyncio.to_thread(self._lock.is_in_place):
                raise DirectoryLost(
                    f"{self._path} was deleted, moved or replaced under this broker"
                )
            await asyncio.sleep(WATCH_INTERVAL_S)
