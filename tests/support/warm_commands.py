"""`diskless` commands that need no second of imports each: forked where everything is imported.

Registered as a pytest plugin in `tests/conftest.py`. What `demo.broker_process` starts (brokers,
`run_diskless`) is forked by a process that has imported what the commands import; the first command
of a test process starts it. The child gets the arguments, the environment, the directory and the
output of the command, and runs `diskless.cli.cli.main` as the installed script does.

Started as a user starts it is whatever a test runs by `subprocess`, as those of the command line
do; every command of a test that is marked `cold` or `measures`, which look at a process from
outside; and a command whose environment says something to the interpreter or to a library that
reads it once.

- The forking process has one thread, so that a child finds no lock that nobody will release.
- It alone waits for its children, and tells how each one ended through a pipe of the child's own.
  Signals go through a pidfd, so they never reach another process that got the number later.
- It ends with the test process, however that ends, and kills the children that still run.
"""

import contextlib
import functools
import gc
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

import pytest

from demo import broker_process
from demo.broker_process import DISKLESS, Child, start_process

_REPOSITORY: Final = Path(__file__).resolve().parents[2]
_READ_ONCE: Final = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "OPENBLAS_", "OMP_", "ARROW_")
_REQUEST_BYTES_MAX: Final = 128 << 10
_NUMBER: Final = struct.Struct("!i")
_SEEN_FROM_OUTSIDE: Final = frozenset({"cold", "measures"})


@pytest.hookimpl(tryfirst=True)  # fixtures, which start brokers, are set up by the same hook
def pytest_runtest_setup(item: pytest.Item) -> None:
    is_cold = not _SEEN_FROM_OUTSIDE.isdisjoint(mark.name for mark in item.iter_markers())
    broker_process.start = start_process if is_cold else _start


def pytest_unconfigure() -> None:
    broker_process.start = start_process
    if _forks.cache_info().currsize:
        _forks().close()
        _forks.cache_clear()


def _start(command: Sequence[str | Path], output: int, environment: Mapping[str, str]) -> Child:
    def read_once(variables: Mapping[str, str]) -> dict[str, str]:
        return {name: variables[name] for name in variables if name.startswith(_READ_ONCE)}

    if command[0] != DISKLESS or read_once(environment) != read_once(os.environ):
        return start_process(command, output, environment)
    with _asking:  # a cluster's brokers are started in threads
        forks = _forks()
    return forks.start([str(word) for word in command[1:]], output, environment)


class _WarmChild:
    """A child of the forking process, from the line on which that tells of it."""

    def __init__(self, line: socket.socket, stdout: IO[str] | None) -> None:
        pid, pidfds, _, _ = socket.recv_fds(line, _NUMBER.size, 1)
        assert pid, "the process that forks commands has died"
        (self.pid,) = _NUMBER.unpack(pid)
        (self._pidfd,) = pidfds
        self._line = line
        self._status: int | None = None
        self.stdout = stdout

    def send_signal(self, sig: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._status is None:
                signal.pidfd_send_signal(self._pidfd, sig)

    def wait(self, timeout: float | None = None) -> int:
        if self._status is None:
            if not select.select([self._line], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("diskless", timeout or 0)
            status = self._line.recv(_NUMBER.size)
            assert status, "the process that forks commands has died"
            (self._status,) = _NUMBER.unpack(status)
            self._line.close()
            os.close(self._pidfd)
        return self._status


class _Forks:
    """The forking process, as the test process has it."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd=_REPOSITORY,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )

    def start(self, words: Sequence[str], output: int, environment: Mapping[str, str]) -> Child:
        request = json.dumps([words, dict(environment), str(Path.cwd())]).encode()
        assert len(request) <= _REQUEST_BYTES_MAX
        ours, theirs = socket.socketpair()
        stdout = None
        with theirs:
            if output == subprocess.PIPE:
                read, write = os.pipe()
                stdout = os.fdopen(read)
            else:
                write = os.dup(output)
            socket.send_fds(self._requests, [request], [write, theirs.fileno()])
            os.close(write)
        return _WarmChild(ours, stdout)

    def close(self) -> None:
        self._requests.close()
        self._process.wait()


_forks = functools.cache(_Forks)
_asking: Final = threading.Lock()


def _fork(requests: socket.socket) -> tuple[str, ...] | None:
    """Fork a child for every request; in each child the words of its command, None at the end."""
    running: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for ready in select.select([requests.fileno(), *running], [], [])[0]:
            if ready in running:
                pid, line = running.pop(ready)
                _, status = os.waitpid(pid, 0)
                os.close(ready)
                with line, contextlib.suppress(BrokenPipeError):
                    line.sendall(_NUMBER.pack(os.waitstatus_to_exitcode(status)))
                continue
            request, files, _, _ = socket.recv_fds(requests, _REQUEST_BYTES_MAX, 2)
            if not request:
                for pidfd in running:
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                return None
            line = socket.socket(fileno=files.pop())
            pid = os.fork()
            if pid == 0:
                for ours in [requests, line, *(line for _, line in running.values())]:
                    ours.close()
                for pidfd in running:
                    os.close(pidfd)
                words, environment, directory = json.loads(request)
                return _become(words, environment, directory, *files)
            os.close(*files)
            pidfd = os.pidfd_open(pid)
            running[pidfd] = pid, line
            with contextlib.suppress(BrokenPipeError):
                socket.send_fds(line, [_NUMBER.pack(pid)], [pidfd])


def _become(
    words: Sequence[str], environment: Mapping[str, str], directory: str, output: int
) -> tuple[str, ...]:
    """Give a child what its command has at its start; the words of the command."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(output, sys.stdout.fileno())
    os.dup2(output, sys.stderr.fileno())
    os.close(output)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    sys.argv = [str(DISKLESS), *words]
    return tuple(words)


def _main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
    # As the command leaves it out (diskless/cli/cli.py).
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    import aioboto3  # noqa: F401
    import uvloop  # noqa: F401

    import diskless.cli.dumps.metadata_dump
    import diskless.cli.rebuild
    import diskless.cli.serve
    import diskless.cli.topic_client
    import diskless.cli.verify  # noqa: F401
    from diskless.cli.cli import main

    del sys.modules["hypothesis"]
    gc.freeze()
    assert len(os.listdir("/proc/self/task")) == 1
    words = _fork(socket.socket(fileno=int(sys.argv[1])))
    if words is None:
        return 0
    gc.enable()
    return main(words)


if __name__ == "__main__":
    sys.exit(_main())
