"""A broker in a process of its own, as a user starts it, with its memory watched."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

import psutil

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
SAMPLE_INTERVAL_S = 0.05
_READY = re.compile(r"ready\D*?(?P<address>[\w.\-]+:\d+)")


class BenchBroker:
    """`diskless serve` on a directory; a context manager that stops it."""

    def __init__(self, data: Path, *, object_store: str | None = None, **settings: object) -> None:
        self.data = data
        self._settings = settings
        self._object_store = object_store
        self._process: subprocess.Popen[str] | None = None
        self.bootstrap = ""
        self.metrics_url = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        command = [str(Path(sys.executable).parent / "diskless"), "serve"]
        command += ["--data", str(self.data), "--listen", self.bootstrap or "127.0.0.1:0"]
        if self._object_store:
            command += ["--object-store", self._object_store]
        for key, value in {"log.level": "warning", **self._settings}.items():
            command += ["--set", f"{key.replace('__', '.')}={value}"]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
        )
        self._read_until_ready()

    def _read_until_ready(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        timer = threading.Timer(READY_TIMEOUT_S, self._process.kill)
        timer.start()
        try:
            for line in self._process.stdout:
                found = re.search(r"metrics\D*(http://\S+)", line)
                if found:
                    self.metrics_url = found.group(1)
                found = _READY.search(line)
                if found:
                    self.bootstrap = found.group("address")
                    return
        finally:
            timer.cancel()
        raise RuntimeError(f"the broker did not start, exit status {self._process.wait()}")

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None

    def metrics(self) -> Mapping[str, float]:
        """Every sample by its name and labels, as the endpoint gives it."""
        with urllib.request.urlopen(self.metrics_url, timeout=10) as answer:
            text = answer.read().decode()
        samples = {}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                samples[name] = float(value)
        return samples


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
    """A directory on the disk that holds build/, removed afterwards."""
    parent = Path("build")
    parent.mkdir(exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix="bench-", dir=parent))
    try:
        yield path.resolve()
    finally:
        shutil.rmtree(path, ignore_errors=True)
