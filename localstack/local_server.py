"""One server on loopback for tests: started, found again, stopped by its process id.

Owns what LocalStack (`localstack.local_s3`) and MinIO (`localstack.minio`) have in common: a state
directory with the server's log and `server.json`, and the command line `start` and `stop`. Standard
library only, so that it runs before anything is installed.

What it keeps:

- `start` returns when the server answers, or fails with the end of the server's log and leaves
  nothing running. Starting a started server returns that one.
- `stop` ends a process by id, after it made sure that the id still belongs to the server.
- The server sees the settings of its `Launch` and the search path, nothing else of the user's.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parent.parent

POLL_INTERVAL_S: Final = 0.05
STOP_TIMEOUT_S: Final = 15.0
LOG_TAIL_LINES: Final = 25

_children: Final[dict[int, subprocess.Popen[bytes]]] = {}
"""What this process started itself: `stop` waits for it, so that no zombie stays."""


class LocalServerError(Exception):
    """The server could not be installed, started or stopped; the message says what to look at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A process to be."""

    command: Sequence[str | Path]
    environment: Mapping[str, str]
    working_directory: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A kind of server."""

    name: str
    """For people; the log is named like it."""
    state_directory: Path
    """Of the server that is meant where nobody names one."""
    credentials: Mapping[str, str]
    """By the names of the environment variables that S3 clients read."""
    mark: Callable[[Path], str]
    """What the command line of the server of a state directory has, and nobody else's."""
    prepare: Callable[[Path, int], Launch]
    """Makes the state directory ready for a start on a port. Raises LocalServerError."""
    is_ready: Callable[[str], bool]
    """Whether the server at this URL answers."""
    clean: Callable[[Path], None] = lambda state_directory: None
    """Removes what a stopped server has no more use for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server, as `server.json` remembers it."""

    pid: int
    port: int
    log: str

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def start(program: Program, state_directory: Path, port: int, timeout_s: float) -> Server:
    """Start a server, or find the one already running from this state directory.

    `port` 0 takes a free one. Raises LocalServerError with the end of the log when the server does
    not answer within `timeout_s`; nothing is left running then.
    """
    running = running_server(program, state_directory)
    if running is not None:
        if port not in (0, running.port):
            raise LocalServerError(
                f"a server is running on port {running.port} already; stop it first"
            )
        return running
    state_directory.mkdir(parents=True, exist_ok=True)
    port = port or _free_port()
    launch = program.prepare(state_directory, port)
    log = state_directory / f"{program.name.lower()}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            launch.command,
            cwd=launch.working_directory,
            env={"PATH": os.environ.get("PATH", os.defpath), **launch.environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = Server(pid=process.pid, port=port, log=str(log))
    try:
        _wait_until_ready(program, process, server, timeout_s)
        _state_file(state_directory).write_text(json.dumps(asdict(server)) + "\n")
    except BaseException:
        process.kill()
        process.wait()
        raise
    _children[process.pid] = process
    return server


def stop(program: Program, state_directory: Path) -> Server | None:
    """Stop the server of this state directory; its log stays. None when there was none."""
    server = running_server(program, state_directory)
    if server is not None:
        os.kill(server.pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while _is_alive(server.pid, program.mark(state_directory)):
            if time.monotonic() > deadline:
                os.kill(server.pid, signal.SIGKILL)
                deadline = time.monotonic() + STOP_TIMEOUT_S
            time.sleep(POLL_INTERVAL_S)
        if child := _children.pop(server.pid, None):
            child.wait()
    _state_file(state_directory).unlink(missing_ok=True)
    program.clean(state_directory)
    return server


def running_server(program: Program, state_directory: Path) -> Server | None:
    """The server `server.json` names, if that process is still the one it was."""
    try:
        server = Server(**json.loads(_state_file(state_directory).read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise LocalServerError(f"{_state_file(state_directory)} is damaged: {error}") from error
    return server if _is_alive(server.pid, program.mark(state_directory)) else None


def answers(url: str) -> bytes | None:
    """The body of a 200 from this URL; None while there is no such answer."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bytes(answer.read())
    except OSError:  # not listening yet, or an error status while it starts
        return None


def main(program: Program, install: Callable[[], None]) -> int:
    """The command line of one program; 0 on success, 1 with one message on stderr."""
    parser = argparse.ArgumentParser(description=f"{program.name} on loopback, without a container")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("install", help="get the server, once")
    for name, text in (("start", "start and wait until S3 answers"), ("stop", "stop the server")):
        command = commands.add_parser(name, help=text)
        command.add_argument(
            "--state", type=Path, default=program.state_directory, help="log and process id"
        )
        if name == "start":
            command.add_argument("--port", type=int, default=0, help="0 (default): a free one")
            command.add_argument("--timeout", type=float, default=120.0, help="seconds to wait")
    arguments = parser.parse_args()
    try:
        match arguments.command:
            case "install":
                install()
            case "start":
                state_directory = arguments.state.absolute()
                server = start(program, state_directory, arguments.port, arguments.timeout)
                _print_how_to_use(program, server)
            case "stop":
                stopped = stop(program, arguments.state.absolute())
                print(f"stopped pid {stopped.pid}" if stopped else "no server was running")
    except LocalServerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _wait_until_ready(
    program: Program, process: subprocess.Popen[bytes], server: Server, timeout_s: float
) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        if process.poll() is not None:
            raise LocalServerError(
                f"{program.name} ended with status {process.returncode}; {_log_tail(server)}"
            )
        if program.is_ready(server.endpoint):
            return
        if time.monotonic() > deadline:
            raise LocalServerError(
                f"{program.name} did not answer within {timeout_s:.0f} s; {_log_tail(server)}"
            )
        time.sleep(POLL_INTERVAL_S)


def _log_tail(server: Server) -> str:
    lines = Path(server.log).read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
    return f"the end of {server.log}:\n" + "\n".join(f"    {line}" for line in lines)


def _is_alive(pid: int, mark: str) -> bool:
    """Whether this process lives and is the server; a finished child nobody waited for is not."""
    if Path("/proc/self").exists():
        try:
            # Empty for a zombie.
            return mark.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            return False
    listing = subprocess.run(
        ["ps", "-o", "command=", "-p", str(pid)], check=False, capture_output=True, text=True
    )
    return mark in listing.stdout


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _state_file(state_directory: Path) -> Path:
    return state_directory / "server.json"


def _print_how_to_use(program: Program, server: Server) -> None:
    print(f"{program.name} is ready at {server.endpoint} (pid {server.pid}, log {server.log})")
    print()
    for name, value in {**program.credentials, "AWS_ENDPOINT_URL": server.endpoint}.items():
        print(f"export {name}={value}")
