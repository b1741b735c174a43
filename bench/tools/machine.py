"""How fast the machine is just now, by work that never changes and is not ours.

Machines are shared: the same figure differs by a half from hour to hour, and a wait by four times.
Ratios are made in one run and show less of it. Milliseconds and core-seconds of two runs can be
compared where this work took the same time in both, and nothing was stolen. It is done before each
group.
"""

import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from bench.tools.broker import fresh_directory

REPEATED: Final = 5
_COPIED_BYTES: Final = 32 << 20
_FILES: Final = 10
_FILE_BYTES: Final = 16 << 10


class Sample(NamedTuple):
    """What it took, medians of a few."""

    python_ms: float
    """The interpreter: a document of 2,000 rows made, written as JSON and read again."""
    copy_ms_per_mib: float
    """The system: 32 MiB written to a new file, which is page cache, not disk."""
    file_ms: float
    """The disk: a file of 16 KiB made, written and synced."""
    wanted_s: float
    """Processor time that was used since the system started, and what it did not get."""
    stolen_s: float
    """The latter: other systems on the same host had it."""


def stolen_share(before: Sample, after: Sample) -> float:
    """What part of the processor time that was wanted between the two went to other systems."""
    wanted_s = after.wanted_s - before.wanted_s
    return (after.stolen_s - before.stolen_s) / wanted_s if wanted_s else 0.0


def sample() -> Sample:
    """Takes half a second, on the disk that brokers of the bench are on."""
    with fresh_directory() as directory:
        times = psutil.cpu_times()
        return Sample(
            python_ms=_median_ms(_interpret),
            copy_ms_per_mib=_copied_ms(directory) / (_COPIED_BYTES >> 20),
            file_ms=statistics.median(_files_ms(directory)),
            wanted_s=sum(times[:3]) + times.irq + times.softirq + times.steal,
            stolen_s=times.steal,
        )


def _median_ms(work: Callable[[], object]) -> float:
    took = []
    for _ in range(REPEATED):
        started = time.perf_counter()
        work()
        took.append((time.perf_counter() - started) * 1_000)
    return statistics.median(took)


def _interpret() -> int:
    rows = [{"number": number, "name": f"row {number}"} for number in range(2_000)]
    total: int = sum(row["number"] for row in json.loads(json.dumps(rows)))
    return total


def _copied_ms(directory: Path) -> float:
    data = memoryview(bytes(range(256)) * (_COPIED_BYTES // 256))
    numbers = iter(range(REPEATED))

    def copy() -> None:
        with (directory / f"copied-{next(numbers)}").open("xb", buffering=0) as file:
            file.write(data)

    return _median_ms(copy)


def _files_ms(directory: Path) -> Sequence[float]:
    data = bytes(_FILE_BYTES)
    took = []
    for number in range(_FILES):
        started = time.perf_counter()
        with (directory / f"file-{number}").open("xb", buffering=0) as file:
            file.write(data)
            os.fdatasync(file.fileno())
        took.append((time.perf_counter() - started) * 1_000)
    return took
