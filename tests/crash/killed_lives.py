"""Lives of a script, each in a process of its own that can be killed anywhere.

    lives = Lives("everything")                         # one process that forks a child per life
    points = lives.recorded(directory, "local")         # every failpoint that was hit, by step
    lives.live(directory, "local", CrashPoint(12, "commit.after_log", 1))
    lives.live(directory, "local")                      # goes on with the step that was interrupted

A script is a list of steps (`life_script.py`); the answer of each is written to `answers.jsonl`
when it is there, as a client would note it. A later life in the same directory begins with the
first step without an answer, as a client repeats what it was not told the outcome of. Time is the
script's too: a step begins at the same time in every life. At the end of the script the inventory
is written to `inventory.json`.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import wal.failpoint
from tests.crash.broker_life import Life
from tests.crash.life_script import SCRIPTS
from wal.clock import ManualClock

ANSWERS: Final = "answers.jsonl"
RECORDED: Final = "failpoints.json"
INVENTORY: Final = "inventory.json"


OPENING: Final = -1
"""The step before the first: starting."""


class CrashPoint(NamedTuple):
    """The `nth` time that `name` is reached within a step, from 1."""

    step: int
    name: str
    nth: int


def _number_of_life(directory: Path) -> int:
    """From 1; noted, so that the next life has another one."""
    number = len([*directory.glob("life-*")]) + 1
    (directory / f"life-{number}").touch()
    return number


async def live(directory: Path, script: str, kind: str, begin_step: Callable[[int], None]) -> None:
    """Go on with the first step that has no answer, to the end; then write the inventory."""
    steps = SCRIPTS[script]()
    answers = directory / ANSWERS
    done = len(answers.read_text().splitlines()) if answers.exists() else 0
    lives = _number_of_life(directory)
    clock = ManualClock()
    for step in steps[: done + 1]:
        clock.advance(step.after_s)
    begin_step(OPENING)
    with answers.open("a") as noted:
        async with Life(directory, kind, lives, clock) as life:
            for number, step in enumerate(steps[done:], done):
                if number > done:
                    clock.advance(step.after_s)
                begin_step(number)
                answer = await step.do(life)
                noted.write(json.dumps([step.name, answer]) + "\n")
                noted.flush()
            begin_step(len(steps))
            inventory = dict(await life.inventory())
            await life.stop()
            inventory["violations"] = await life.verify()
    (directory / INVENTORY).write_text(json.dumps(inventory, indent=1, sort_keys=True))


class _Recorder(dict[str, Any]):
    """Takes the place of the armed failpoints: none is, and all that are hit are noted."""

    def __init__(self) -> None:
        super().__init__(none=None)
        self.step = OPENING
        self._counts: dict[tuple[int, str], int] = {}
        self.hit: list[CrashPoint] = []

    def begin_step(self, step: int) -> None:
        self.step = step

    def __contains__(self, name: object) -> bool:
        key = self.step, str(name)
        self._counts[key] = self._counts.get(key, 0) + 1
        self.hit.append(CrashPoint(*key, self._counts[key]))
        return False


def _child(
    directory: Path, script: str, kind: str, kill_at: CrashPoint | None, is_recorded: bool
) -> int:
    recorder = _Recorder()

    def begin_step(step: int) -> None:
        armed = ""
        if kill_at is not None and kill_at.step == step:
            armed = f"{kill_at.name}=kill:{kill_at.nth}"
        wal.failpoint.arm(armed)

    if is_recorded:
        wal.failpoint._armed = recorder
        begin_step = recorder.begin_step
    try:
        asyncio.run(live(directory, script, kind, begin_step))
    except BaseException:
        traceback.print_exc()
        return 1
    if is_recorded:
        (directory / RECORDED).write_text(json.dumps(recorder.hit))
    return 0


def _serve() -> None:
    """Fork a child for each line of the input, and answer how it ended."""
    for line in sys.stdin:
        directory, script, kind, kill_at, is_recorded = json.loads(line)
        child = os.fork()
        if child == 0:
            point = None if kill_at is None else CrashPoint(*kill_at)
            os._exit(_child(Path(directory), script, kind, point, is_recorded))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


class Lives:
    """A process that has imported everything, and forks a child for every life of a script."""

    def __init__(self, script: str) -> None:
        """`script` is one of SCRIPTS."""
        self._script = script
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )

    def recorded(self, directory: Path, kind: str) -> Sequence[CrashPoint]:
        """The whole script in one life; all points that it came to, in order."""
        assert self._live(directory, kind, None, is_recorded=True)
        return [CrashPoint(*point) for point in json.loads((directory / RECORDED).read_text())]

    def live(self, directory: Path, kind: str, kill_at: CrashPoint | None = None) -> bool:
        """One life in `directory`, to its end or, which is False, to its death at `kill_at`."""
        return self._live(directory, kind, kill_at, is_recorded=False)

    def _live(
        self, directory: Path, kind: str, kill_at: CrashPoint | None, *, is_recorded: bool
    ) -> bool:
        directory.mkdir(exist_ok=True, parents=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = json.dumps([str(directory), self._script, kind, kill_at, is_recorded])
        self._process.stdin.write(request + "\n")
        self._process.stdin.flush()
        status = self._process.stdout.readline().strip()
        if status not in ("0", str(-signal.SIGKILL)):
            raise AssertionError(f"{kill_at}: ended with {status}: {self.close()}")
        return status == "0"

    def close(self) -> str:
        """End the process; what it and its children complained about."""
        _, complaints = self._process.communicate()
        return complaints


if __name__ == "__main__":
    _serve()
