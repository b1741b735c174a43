"""SIGKILL at every named point of whatever coordinators do: nothing acknowledged is lost.

A script (tests/crash/life_script.py) commits, rolls, deletes, snapshots, hands files over, scans
for orphans and restarts. It is first run in one life, which tells every failpoint it comes to and
how often, and what there is in the end. Then it is run again and again, in lives that are killed at
one of those points each and go on where the last one died. Wherever they died:

- every step is answered as in the run without a death: nothing that was acknowledged is lost or
  done twice, whatever was not is done when it is asked for again;
- in the end there are the same rows in all tables of both coordinators, and the same objects: no
  operation is there in part, no file is left behind or deleted too early;
- `verify_metadata` finds nothing.

`make test` takes every point once on each log: one the first time it is reached, the next in the
middle, the next the last time, and the other log another one of these. `make test-all` takes all
three on both logs, DISKLESS_CRASH_POINTS=all every time.
"""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.crash.broker_life import DOOMED, KEPT, LOG_KINDS, SETTINGS
from tests.crash.compared_lives import answers_in, check, in_chains
from tests.crash.killed_lives import INVENTORY, OPENING, CrashPoint, Lives
from tests.crash.life_script import script
from tests.support.coordinators.coordinator_model import CoordinatorModel
from tests.support.documented_failpoints import documented_failpoints
from tests.support.exhaustive import IS_EXHAUSTIVE
from wal.clock import ManualClock

pytestmark = pytest.mark.crash

ELSEWHERE = (
    *("chunk.", "upload.", "commit.after_answer"),
    *("roll.", "merge.", "compact.", "table.", "schema.", "sink."),
    *("notes.", "transaction."),
)
"""Points of the write path, which tests/crash/test_crash_points.py is about, of tiering, tables and
Spark's sink (tests/tiering/), and of notes (tests/metadata/workers/test_note_keeper.py,
tests/metadata/coordinator/test_end_notes.py)."""
NOT_BOTH = {"log.before_sync": "local"}


@pytest.fixture(scope="module")
def lives() -> Iterator[Lives]:
    opened = Lives("everything")
    yield opened
    assert opened.close() == ""


def chosen(points: Sequence[CrashPoint], kind: str) -> list[CrashPoint]:
    """The first, middle or last time of each name; all three; or all."""
    if os.environ.get("DISKLESS_CRASH_POINTS") == "all":
        return list(points)
    by_name: dict[str, list[CrashPoint]] = {}
    for point in points:
        by_name.setdefault(point.name, []).append(point)
    some: set[CrashPoint] = set()
    for number, (_, found) in enumerate(sorted(by_name.items()), LOG_KINDS.index(kind)):
        times = (0, len(found) // 2, len(found) - 1)
        some.update(found[at] for at in (times if IS_EXHAUSTIVE else times[number % 3 :][:1]))
    return [point for point in points if point in some]


@pytest.mark.parametrize("kind", LOG_KINDS)
def test_wherever_a_broker_is_killed_all_it_acknowledged_is_there_once(
    kind: str, lives: Lives, tmp_path: Path
) -> None:
    expected = tmp_path / "expected"
    points = lives.recorded(expected, kind)
    steps = len(script())
    assert len(answers_in(expected)) == steps
    assert json.loads((expected / INVENTORY).read_text())["violations"] == []
    # Nothing is killed while the test itself looks at what there is.
    points = [point for point in points if point.step < steps]
    for number, chain in enumerate(in_chains(chosen(points, kind))):
        directory = tmp_path / f"chain-{number}"
        for place, point in enumerate(chain):
            assert not lives.live(directory, kind, point), f"{point} was not reached"
            if place % 5 == 4:
                # Nor does it matter when the next life ends before it serves.
                again = CrashPoint(OPENING, "lead.after_log", 1 + place % 2)
                assert not lives.live(directory, kind, again)
        assert lives.live(directory, kind)
        check(directory, expected, chain)


def test_without_a_death_commits_are_answered_as_the_model_answers(
    lives: Lives, tmp_path: Path
) -> None:
    """So that what all the other lives are compared with is right."""
    assert lives.live(tmp_path, "local")
    model = CoordinatorModel(SETTINGS)
    clock = ManualClock()
    for topic_id, name, partitions in ((KEPT, "kept", 6), (DOOMED, "doomed", 2)):
        assert model.grow_topic(topic_id, name, partitions) is None
    committed = 0
    for step, (name, answer) in zip(script(), answers_in(tmp_path), strict=True):
        assert step.name == name
        clock.advance(step.after_s)
        if step.name == "expire":
            model.expire_producers(now_ms=clock.now_ms())
        if step.request is None:
            continue
        expected = model.commit(step.request, now_ms=clock.now_ms(), wall_ms=clock.now_ms())
        assert not isinstance(expected, type)
        assert isinstance(answer, list)
        for outcome, (base_offset, time_ms, _, is_duplicate, error) in zip(
            expected, answer, strict=True
        ):
            assert error == "NoneType"
            assert outcome.error is None
            assert (base_offset, time_ms, is_duplicate) == (
                outcome.base_offset,
                outcome.log_append_time_ms,
                outcome.is_duplicate,
            )
        committed += len(answer)
    assert committed > 1_000


@pytest.mark.parametrize("kind", LOG_KINDS)
def test_the_script_comes_to_every_point_there_is(kind: str, lives: Lives, tmp_path: Path) -> None:
    wanted = {
        name
        for name in documented_failpoints()
        if not name.startswith(ELSEWHERE) and NOT_BOTH.get(name, kind) == kind
    }
    assert {point.name for point in lives.recorded(tmp_path, kind)} == wanted
