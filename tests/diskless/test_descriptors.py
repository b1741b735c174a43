"""The process's limit of open files against what the broker may open; in processes of their own."""

import re
import resource
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from diskless.config import load_config
from diskless.descriptors import OTHER_DESCRIPTORS
from tests.support.questions.kafka_raw_client import frame

pytestmark = pytest.mark.measures

CONFIG = load_config()
BESIDES = (
    CONFIG.read.fd_cache_capacity
    + CONFIG.file_store.fd_capacity
    + CONFIG.s3.connections_max
    + OTHER_DESCRIPTORS
)

PROGRAM = """
import resource
from diskless.config import load_config
from diskless.descriptors import fit_descriptors
import sys
settings = {"max.connections": "700", "broker.workers": sys.argv[1]}
config = fit_descriptors(load_config(overrides=settings))
print("admits", config.server.max_connections, "files", resource.getrlimit(7)[0])
"""


def run_under(soft: int, hard: int, workers: int = 1) -> subprocess.CompletedProcess[str]:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    before: Callable[[], None] = limit
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(workers)],
        preexec_fn=before,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("soft", "hard", "admits", "files", "workers"),
    [
        (4_000, 4_000, 700, 4_000, 1),
        (256, 4_000, 700, BESIDES + 700, 1),
        (256, BESIDES + 300, 300, BESIDES + 300, 1),
        # A client of a worker may need another one to the head.
        (256, 6_000, 700, BESIDES + 4 + 1_400, 2),
        (256, BESIDES + 4 + 300, 150, BESIDES + 4 + 300, 2),
    ],
)
def test_the_soft_limit_is_raised_and_else_fewer_clients_are_admitted(
    soft: int, hard: int, admits: int, files: int, workers: int
) -> None:
    assert resource.RLIMIT_NOFILE == 7
    ended = run_under(soft, hard, workers)
    assert ended.returncode == 0, ended.stderr
    said = re.search(r"^admits (\d+) files (\d+)$", ended.stdout, re.MULTILINE)
    assert said is not None
    assert (int(said[1]), int(said[2])) == (admits, files)
    assert ("fewer connections than configured" in ended.stdout + ended.stderr) == (admits < 700)


def test_a_process_that_may_open_next_to_nothing_does_not_start() -> None:
    ended = run_under(256, 256)
    assert ended.returncode == 1
    assert "this process may have 256 files open" in ended.stderr


def test_a_broker_with_few_descriptors_admits_as_many_clients_as_it_has_room_for(
    tmp_path: Path,
) -> None:
    limit = BESIDES + 30

    def low() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    command = [sys.executable, "-m", "diskless.cli.cli", "serve", "--data", str(tmp_path / "data")]
    command += ["--listen", "127.0.0.1:0", "--set", "http.listen="]
    with (
        subprocess.Popen(command, preexec_fn=low, stdout=subprocess.PIPE, text=True) as broker,
        ExitStack() as stack,
    ):
        assert broker.stdout is not None
        try:
            port = next(
                int(line.rpartition(":")[2])
                for line in broker.stdout
                if line.startswith("ready on ")
            )
            clients = [
                stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                for _ in range(35)
            ]
            for client in clients:
                client.settimeout(120)
            served = [client for client in clients if _is_answered(client)]
            assert len(served) == 30
            # It can still open what it needs to stop.
        finally:
            broker.terminate()
            broker.stdout.read()
    assert broker.returncode == 0


def _is_answered(client: socket.socket) -> bool:
    try:
        client.sendall(frame(18, 0, 1, b""))
        return bool(client.recv(1 << 16))
    except ConnectionError:
        return False
