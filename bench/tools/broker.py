"""A broker in a process of its own, as a user starts it, with its memory watched."""

import atexit
import contextlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil

from demo.broker_process import BrokerProcess

SAMPLE_INTERVAL_S: Final = 0.05


class BenchBroker(BrokerProcess):
    """Runs from `with` to its end, as often as it is entered, on one port and one directory."""

    def __init__(self, data: Path, settings: Mapping[str, object]) -> None:
        """`settings` are configuration keys."""
        values = {key: str(value) for key, value in settings.items()}
        data.parent.mkdir(parents=True, exist_ok=True)
        super().__init__(data, data.parent, {"log.level": "warning", **values})

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.stop()
        super().__exit__(error_type, error, traceback)

    def end(self) -> None:
        """Kill it, if it runs."""
        super().__exit__(None, None, None)

    def metrics(self) -> Mapping[str, float]:
        """The counters of the metrics page, as they are now."""
        self.refresh_counters()
        return self.counters

    def cpu_s(self) -> float:
        """Processor time that it has used."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)


class ResidentMemory:
    """Samples a process's resident set while it is entered; `peak_mib` and the samples after."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.samples: list[tuple[float, float]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def peak_mib(self) -> float:
        return max(mib for _, mib in self.samples)

    def _sample(self) -> None:
        started = time.monotonic()
        while True:
            resident = self._process.memory_info().rss / (1 << 20)
            self.samples.append((time.monotonic() - started, resident))
            if self._stop.wait(SAMPLE_INTERVAL_S):
                return


@contextlib.contextmanager
def fresh_directory() -> Iterator[Path]:
    """A directory on the disk that holds build/; its space is free afterwards.

    Its files are emptied then, and removed when the bench ends: ext4 without a journal looks at
    every inode that was deleted within the last minutes before it creates a file, which would make
    what is measured next pay for thousands of small files of what was measured before.
    """
    parent = Path("build")
    parent.mkdir(exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix="bench-", dir=parent)).resolve()
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    try:
        yield path
    finally:
        _empty_files(path)


def _empty_files(directory: Path) -> None:
    for parent, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(parent, name)
            if os.path.isfile(path) and not os.path.islink(path):
                with contextlib.suppress(PermissionError):  # A key; it is small.
                    os.truncate(path, 0)
