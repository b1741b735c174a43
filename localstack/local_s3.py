"""A real S3 server on loopback for tests: LocalStack's S3 without its container.

Owns the virtual environment `.venv-localstack` (LocalStack's pins would fight the broker's), one
server process, and a state directory with its log and `server.json`. `localstack/start` and
`localstack/stop` are the commands; `tests/localstack/conftest.py` runs them too. Standard library
only, so that it runs before anything is installed.

What it keeps:

- The server listens on 127.0.0.1 and, once installed, talks to nothing else: no telemetry, no
  certificate download, no DNS server.
- It writes below the state directory only.
- `start` returns when S3 answers, or fails with the end of the server's log. Starting a started
  server returns that one.
- `stop` ends a process by id, after it made sure that the id still belongs to LocalStack.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
REPOSITORY: Final = HERE.parent
VENV: Final = REPOSITORY / ".venv-localstack"
REQUIREMENTS: Final = HERE / "requirements.txt"
DEFAULT_STATE_DIRECTORY: Final = REPOSITORY / "build" / "localstack"

RUNTIME_MODULE: Final = "localstack.runtime.main"
POLL_INTERVAL_S: Final = 0.1
STOP_TIMEOUT_S: Final = 15.0
LOG_TAIL_LINES: Final = 25

CREDENTIALS: Final = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
}
"""LocalStack takes any; these are the ones its documentation uses."""


class LocalS3Error(Exception):
    """The server could not be installed, started or stopped; the message says what to look at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server, as `server.json` remembers it."""

    pid: int
    port: int
    log: str

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def install() -> None:
    """Make `.venv-localstack` unless it holds exactly `requirements.txt` already. Needs network."""
    stamp = VENV / ".installed"
    wanted = REQUIREMENTS.read_text()
    if stamp.exists() and stamp.read_text() == wanted:
        stamp.touch()
        return
    print(f"== installing LocalStack in {VENV.name} (about a minute on a first run)", flush=True)
    pip_install = [_venv_python(), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(VENV)],
        [*pip_install, "--requirement", str(REQUIREMENTS)],
    ):
        if subprocess.run(command, check=False).returncode != 0:
            raise LocalS3Error(f"installing LocalStack failed: {' '.join(command)}")
    stamp.write_text(wanted)


def start(state_directory: Path, port: int, timeout_s: float) -> Server:
    """Start a server, or find the one already running from this state directory.

    `port` 0 takes a free one. Raises LocalS3Error with the end of the log when S3 does not answer
    within `timeout_s`; nothing is left running then.
    """
    running = running_server(state_directory)
    if running is not None:
        if port not in (0, running.port):
            raise LocalS3Error(f"a server is running on port {running.port} already; stop it first")
        return running
    install()
    run_directory = state_directory / "run"
    shutil.rmtree(run_directory, ignore_errors=True)
    for name in ("home", "tmp", "filesystem"):
        (run_directory / name).mkdir(parents=True)
    log = state_directory / "localstack.log"
    port = port or _free_port()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [_venv_python(), "-m", RUNTIME_MODULE],
            # `-m` puts the working directory first on the import path, where the repository's own
            # localstack/ must not stand for the installed package.
            cwd=run_directory,
            env=_environment(run_directory, port),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = Server(pid=process.pid, port=port, log=str(log))
    try:
        _wait_until_healthy(process, server, timeout_s)
        _state_file(state_directory).write_text(json.dumps(asdict(server)) + "\n")
    except BaseException:
        process.kill()
        process.wait()
        raise
    return server


def stop(state_directory: Path) -> Server | None:
    """Stop the server of this state directory; its log stays. None when there was none."""
    server = running_server(state_directory)
    if server is not None:
        os.kill(server.pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while _is_localstack(server.pid):
            if time.monotonic() > deadline:
                os.kill(server.pid, signal.SIGKILL)
                deadline = time.monotonic() + STOP_TIMEOUT_S
            time.sleep(POLL_INTERVAL_S)
    _state_file(state_directory).unlink(missing_ok=True)
    shutil.rmtree(state_directory / "run", ignore_errors=True)
    return server


def running_server(state_directory: Path) -> Server | None:
    """The server `server.json` names, if that process is still LocalStack."""
    try:
        server = Server(**json.loads(_state_file(state_directory).read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise LocalS3Error(f"{_state_file(state_directory)} is damaged: {error}") from error
    return server if _is_localstack(server.pid) else None


def _environment(run_directory: Path, port: int) -> dict[str, str]:
    """What the server sees: our settings and the search path, nothing else of the user's."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(run_directory / "home"),
        "TMPDIR": str(run_directory / "tmp"),
        # Without these two, LocalStack running inside some container takes itself for its own
        # image and writes to /var/lib.
        "OVERRIDE_IN_DOCKER": "0",
        "FILESYSTEM_ROOT": str(run_directory / "filesystem"),
        "SERVICES": "s3",
        "EAGER_SERVICE_LOADING": "1",
        "GATEWAY_SERVER": "hypercorn",
        "GATEWAY_LISTEN": f"127.0.0.1:{port}",
        "DNS_ADDRESS": "0",
        "DISABLE_EVENTS": "1",
        "SKIP_SSL_CERT_DOWNLOAD": "1",
    }


def _wait_until_healthy(process: subprocess.Popen[bytes], server: Server, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        if process.poll() is not None:
            raise LocalS3Error(
                f"LocalStack ended with status {process.returncode}; {_log_tail(server)}"
            )
        if _is_healthy(server):
            return
        if time.monotonic() > deadline:
            raise LocalS3Error(
                f"LocalStack did not answer within {timeout_s:.0f} s; {_log_tail(server)}"
            )
        time.sleep(POLL_INTERVAL_S)


def _is_healthy(server: Server) -> bool:
    try:
        with urllib.request.urlopen(f"{server.endpoint}/_localstack/health", timeout=2) as answer:
            services = json.load(answer)["services"]
    except (OSError, ValueError):  # not listening yet, or half an answer while it starts
        return False
    return services.get("s3") in ("available", "running")


def _log_tail(server: Server) -> str:
    lines = Path(server.log).read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
    return f"the end of {server.log}:\n" + "\n".join(f"    {line}" for line in lines)


def _is_localstack(pid: int) -> bool:
    """Whether this process id is a live LocalStack; a finished child nobody waited for is not."""
    if Path("/proc/self").exists():
        try:
            # Empty for a zombie.
            return RUNTIME_MODULE.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            return False
    listing = subprocess.run(
        ["ps", "-o", "command=", "-p", str(pid)], check=False, capture_output=True, text=True
    )
    return RUNTIME_MODULE in listing.stdout


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _venv_python() -> str:
    return str(VENV / "bin" / "python")


def _state_file(state_directory: Path) -> Path:
    return state_directory / "server.json"


def _print_how_to_use(server: Server) -> None:
    print(f"LocalStack S3 is ready at {server.endpoint} (pid {server.pid}, log {server.log})")
    print()
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": server.endpoint}.items():
        print(f"export {name}={value}")


def main() -> int:
    """The command line; 0 on success, 1 with one message on stderr."""
    parser = argparse.ArgumentParser(description="LocalStack's S3 on loopback, without a container")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("install", help="make .venv-localstack")
    for name, text in (("start", "start and wait until S3 answers"), ("stop", "stop the server")):
        command = commands.add_parser(name, help=text)
        command.add_argument(
            "--state", type=Path, default=DEFAULT_STATE_DIRECTORY, help="log and process id"
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
                server = start(arguments.state.absolute(), arguments.port, arguments.timeout)
                _print_how_to_use(server)
            case "stop":
                stopped = stop(arguments.state.absolute())
                print(f"stopped pid {stopped.pid}" if stopped else "no server was running")
    except LocalS3Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
