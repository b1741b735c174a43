"""The broker and the other `diskless` commands, as child processes.

`BrokerProcess` is one broker on one data directory through several lives: started, killed, started
again on the same port, stopped. It adds up the counters of its metrics page over these lives.
`run_diskless` runs one command to its end. Output goes to log files below the demo's directory;
what is needed of it (the `ready` line) is read on the way.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, ClassVar, Final, Protocol, Self

from prometheus_client.parser import text_string_to_metric_families

DISKLESS: Final = Path(sys.executable).with_name("diskless")
"""The command as it was installed beside this Python."""

START_TIMEOUT_S: Final = 180.0
STOP_TIMEOUT_S: Final = 180.0
METRICS_TIMEOUT_S: Final = 10.0
LOG_TAIL_LINES: Final = 20

_READY_ADDRESS: Final = re.compile(
    r"\bready\b.*?\b(127\.0\.0\.1:\d+)|(127\.0\.0\.1:\d+).*?\bready\b"
)


class BrokerError(Exception):
    """A `diskless` process did not do what it was asked; the message ends with its last output."""


class Child(Protocol):
    """A process that was started; `subprocess.Popen` is one."""

    @property
    def pid(self) -> int: ...
    @property
    def stdout(self) -> IO[str] | None: ...
    def send_signal(self, sig: int) -> None: ...
    def wait(self, timeout: float | None = None) -> int: ...


def start_process(
    command: Sequence[str | Path], output: int, environment: Mapping[str, str]
) -> Child:
    """Start a command without input; all its output goes to `output`, a file or PIPE."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )


start: Callable[[Sequence[str | Path], int, Mapping[str, str]], Child] = start_process
"""How every process here is started."""


def free_port() -> int:
    """A port of 127.0.0.1 that the system gives to the first that asks."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class BrokerProcess:
    """One broker on loopback. Leaving the `with` block kills it if it still runs.

    `counters` are the metrics page's counters, summed over all lives that were asked for them:
    `refresh_counters` before a kill, since a killed broker cannot be asked any more.
    """

    new_port: ClassVar[Callable[[], int]] = staticmethod(free_port)
    """Where the next broker listens, in all its lives."""

    def __init__(
        self,
        data: Path,
        work_directory: Path,
        settings: Mapping[str, str] | None = None,
        *,
        object_store: str | None = None,
    ) -> None:
        """`settings` are configuration keys besides the metrics page's address.

        Without `listeners` among them, it is reached at `bootstrap`.
        """
        self._object_store = object_store
        self._data = data
        self._log = work_directory / "broker.log"
        self._configuration = work_directory / "broker.properties"
        self._address = f"127.0.0.1:{type(self).new_port()}"
        self._metrics_address = f"127.0.0.1:{type(self).new_port()}"
        lines = {**(settings or {}), "http.listen": self._metrics_address}
        self._configuration.write_text("".join(f"{key}={lines[key]}\n" for key in lines))
        self._has_listeners = "listeners" in lines
        self._process: Child | None = None
        self._output: threading.Thread | None = None
        self._is_ready = False
        self._settled = threading.Event()  # it is ready, or it ended
        self._counters_of_earlier_lives: Counter[str] = Counter()
        self._counters_of_this_life: Counter[str] = Counter()

    @property
    def bootstrap(self) -> str:
        """HOST:PORT; the same in every life."""
        return self._address

    @property
    def http_url(self) -> str:
        """Where metrics and the catalogue of tables are."""
        return f"http://{self._metrics_address}"

    @property
    def counters(self) -> Counter[str]:
        """Such as `diskless_fetch_bytes_total{source="segment"}`; absent ones are 0."""
        return self._counters_of_earlier_lives + self._counters_of_this_life

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, environment: Mapping[str, str] | None = None) -> None:
        """Start and wait for the `ready` line. Raises BrokerError when it does not come.

        `environment` adds to this process's own, for this life only.
        """
        assert self._process is None
        self._is_ready = False
        self._settled.clear()
        command: list[str | Path] = [DISKLESS, "serve", "--data", self._data]
        command += [] if self._has_listeners else ["--listen", self._address]
        command += ["--config", self._configuration]
        if self._object_store is not None:
            command += ["--object-store", self._object_store]
        self._process = start(command, subprocess.PIPE, {**os.environ, **(environment or {})})
        self._output = threading.Thread(target=self._copy_output, args=(self._process,))
        self._output.start()
        ended_or_ready = self._settled.wait(START_TIMEOUT_S)
        if not self._is_ready:
            status = self._end(None if ended_or_ready else signal.SIGKILL)
            raise BrokerError(f"the broker was not ready (status {status}); {self.log_tail()}")

    def kill(self) -> None:
        """SIGKILL: what a crash does. The counters since the last refresh are lost with it."""
        self._end(signal.SIGKILL)

    def wait_for_death(self) -> int:
        """Wait until it ends by itself, as at a crash point; its status."""
        return self._end(None)

    def stop(self) -> None:
        """SIGTERM, as an operator would. Raises BrokerError unless it ends with status 0."""
        self.refresh_counters()
        status = self._end(signal.SIGTERM)
        if status != 0:
            raise BrokerError(f"the broker stopped with status {status}; {self.log_tail()}")

    def refresh_counters(self) -> None:
        """Read the metrics page of the running broker. Raises BrokerError."""
        url = f"{self.http_url}/metrics"
        try:
            with urllib.request.urlopen(url, timeout=METRICS_TIMEOUT_S) as answer:
                page = answer.read().decode()
        except OSError as error:
            raise BrokerError(f"{url}: {error}; {self.log_tail()}") from error
        self._counters_of_this_life = Counter(parse_counters(page))

    def log_tail(self) -> str:
        """The last lines that the broker wrote, in all its lives."""
        return _tail(self._log)

    def _end(self, how: signal.Signals | None) -> int:
        """Signal the process, wait for its end and for the last of its output; its status."""
        assert self._process is not None
        assert self._output is not None
        if how is not None:
            self._process.send_signal(how)
        try:
            status = self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise BrokerError(
                f"the broker did not stop within {STOP_TIMEOUT_S:.0f} s; {self.log_tail()}"
            ) from None
        self._output.join()
        self._process = None
        self._counters_of_earlier_lives += self._counters_of_this_life
        self._counters_of_this_life = Counter()
        return status

    def _copy_output(self, process: Child) -> None:
        """Append the broker's output to its log; the first `ready` line tells its address."""
        assert process.stdout is not None
        with process.stdout, self._log.open("a") as log:
            for line in process.stdout:
                log.write(line)
                log.flush()
                found = None if self._is_ready else _READY_ADDRESS.search(line)
                if found is not None:
                    self._address = found.group(1) or found.group(2)
                    self._is_ready = True
                    self._settled.set()
        self._settled.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._end(signal.SIGKILL)


def run_diskless(arguments: Sequence[str | Path], log: Path, timeout_s: float) -> int:
    """Run `diskless …` to its end, its output in `log`; its exit status.

    Raises BrokerError when it takes longer than `timeout_s`; it is killed then.
    """
    return run_logged([DISKLESS, *arguments], log, timeout_s)


def run_logged(
    command: Sequence[str | Path],
    log: Path,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Run any command in the same way; `environment` adds to this process's own."""
    with log.open("a") as output:
        output.write(f"$ {' '.join(map(str, command))}\n")
        output.flush()
        process = start(command, output.fileno(), {**os.environ, **(environment or {})})
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            raise BrokerError(
                f"{command[0]} {command[1]} took longer than {timeout_s:.0f} s; {_tail(log)}"
            ) from None


def parse_counters(page: str) -> dict[str, float]:
    """The diskless counters of a Prometheus text page, named as they stand there."""
    return {
        name: sample.value
        for family in text_string_to_metric_families(page)
        if family.type == "counter" and family.name.startswith("diskless_")
        for sample in family.samples
        if (name := _name_with_labels(sample.name, sample.labels)) and "_created" not in name
    }


def _name_with_labels(name: str, labels: dict[str, str]) -> str:
    text = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    return f"{name}{{{text}}}" if text else name


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
    return f"the end of {log}:\n" + "\n".join(f"    {line}" for line in lines)
