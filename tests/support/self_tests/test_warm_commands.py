"""A command that is forked is what it is when it is started: what goes in, how it ends."""

import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

import pytest

from demo import broker_process
from demo.broker_process import DISKLESS, BrokerProcess, run_diskless

REPOSITORY: Final = Path(__file__).resolve().parents[3]


def told(*words: str | Path, **environment: str) -> tuple[int, str]:
    process = broker_process.start(
        [DISKLESS, *words], subprocess.PIPE, {**os.environ, **environment}
    )
    assert process.stdout is not None
    with process.stdout:
        return process.wait(60), process.stdout.read()


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_words_environment_directory_and_output_are_those_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, text = told("serve", "--data", "d", DISKLESS_NUM_PARTITION="3")
    assert (status, text.count("DISKLESS_NUM_PARTITION names no")) == (2, 1)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f").write_text("num.partition=3\n")
    assert "num.partition;" in told("serve", "--data", "d", "--config", "f")[1]
    log = tmp_path / "log"
    assert run_diskless(["config"], log, 60) == 0
    assert "num.partitions" in log.read_text()


def test_brokers_of_several_threads_are_forked_by_one_process_and_signalled(tmp_path: Path) -> None:
    brokers = []
    for number in range(3):
        (tmp_path / str(number)).mkdir()
        brokers.append(BrokerProcess(tmp_path / str(number) / "data", tmp_path / str(number)))
    starts = [threading.Thread(target=broker.start) for broker in brokers]
    for start in starts:
        start.start()
    for start in starts:
        start.join()
    assert len({parent(broker.pid) for broker in brokers}) == 1
    assert parent(brokers[0].pid) != os.getpid()
    brokers[0].stop()
    brokers[1].kill()
    os.kill(brokers[2].pid, signal.SIGKILL)
    assert brokers[2].wait_for_death() == -signal.SIGKILL


def test_what_is_read_once_is_read_by_a_process_of_its_own() -> None:
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    process = broker_process.start([DISKLESS, "--help"], subprocess.DEVNULL, environment)
    assert parent(process.pid) == os.getpid()
    assert process.wait(60) == 0


@pytest.mark.cold
def test_a_cold_one_is_a_child_of_the_tests(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", tmp_path) as broker:
        broker.start()
        assert parent(broker.pid) == os.getpid()
        assert str(DISKLESS).encode() in Path(f"/proc/{broker.pid}/cmdline").read_bytes()


def test_no_broker_survives_a_test_process_that_is_killed(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from demo.broker_process import BrokerProcess
from tests.support import warm_commands
from demo import broker_process
broker_process.start = warm_commands._start
broker = BrokerProcess(Path(sys.argv[1], "data"), Path(sys.argv[1]))
broker.start()
print(broker.pid, flush=True)
broker.wait_for_death()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script, tmp_path], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    ) as tests:
        assert tests.stdout is not None
        broker = int(tests.stdout.readline())
        end = os.pidfd_open(broker)
        tests.kill()
    assert select.select([end], [], [], 120)[0]
    os.close(end)
