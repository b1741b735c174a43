"""What lives that were killed did, compared with one life that was not."""

import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from tests.crash.killed_lives import ANSWERS, INVENTORY, CrashPoint


def in_chains(points: Sequence[CrashPoint]) -> list[list[CrashPoint]]:
    """Each chain has at most one point per step, and can be run through in one directory."""
    chains: list[list[CrashPoint]] = []
    for _, of_step in groupby(sorted(points, key=lambda point: point.step), lambda p: p.step):
        for number, point in enumerate(of_step):
            if number == len(chains):
                chains.append([])
            chains[number].append(point)
    return chains


def answers_in(directory: Path) -> list[tuple[str, object]]:
    return [tuple(json.loads(line)) for line in (directory / ANSWERS).read_text().splitlines()]


def check(directory: Path, expected: Path, killed_at: Sequence[CrashPoint]) -> None:
    """The lives in `directory` did what the one in `expected` did."""
    blocks: set[int] = set()
    for (step, answer), (expected_step, expected_answer) in zip(
        answers_in(directory), answers_in(expected), strict=True
    ):
        assert step == expected_step
        if step.startswith("allocate"):
            # A block that nobody was told of is never given out.
            assert isinstance(answer, list)
            first, end = answer
            assert end - first == 1_000
            assert not blocks & set(range(first, end))
            blocks |= set(range(first, end))
        else:
            assert answer == expected_answer, f"{step}: killed at {killed_at}"
    found = json.loads((directory / INVENTORY).read_text())
    assert found["violations"] == [], f"killed at {killed_at}"
    wanted = json.loads((expected / INVENTORY).read_text())
    assert found == wanted, f"killed at {killed_at}"
