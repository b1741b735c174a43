"""Groups of the coordinator: what a commit and a look-up cost, small and large, alone and together.

Each part builds what it measures on (`bench/tools/coordinator_bed.py` says where the measurement
sits) and removes it afterwards. Where two things are compared, they take turns, commit by commit,
so that whatever else the machine does meanwhile falls on both.
"""

import asyncio
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench.coordinator.files import Files, Producers
from bench.coordinator.state import (
    BATCH_BYTES,
    FILE_INTERVAL_MS,
    RECORDS_PER_BATCH,
    GeneratedTopic,
    generate,
)
from bench.tools.broker import fresh_directory
from bench.tools.coordinator_bed import CLOCK, Bed, coordinating, run, settle
from bench.tools.report import Report
from metadata.log.local_log import LOG_DIRECTORY
from metadata.log.object_log import ObjectMetadataLog
from metadata.log.object_log_settings import ObjectLogSettings
from metadata.operations import BatchCommit, CommitFile, FindBatches, FoundBatches
from wal.coordinates import ObjectKey
from wal.stores.memory_store import MemoryStore
from wal.stores.object_store import ObjectBody

PARTITIONS: Final = 632
BATCHES: Final = 1_600
WARM_UP_COMMITS: Final = 15
COMMITS: Final = 100

FEW_ROWS: Final = 10_000
MANY_ROWS: Final = 5_000_000
FLATNESS_COMMITS: Final = 60
COMMITS_PER_SMALL_STATE: Final = 15
"""Then the small state is made anew, since every one of these commits adds 632 rows to it."""
FLATNESS_FINDS: Final = 400
FOUND_PARTITIONS: Final = 10
FOUND_ROWS: Final = 8
"""Rows per partition in an answer."""

BACKLOG_PARTITIONS: Final = 64

BROKERS: Final = 8
PUT_S: Final = 0.020
PIPELINED_FILES: Final = ((40, 40), (200, 79))
"""(batches, partitions) of a file. Small ones, so that it is the pipeline that is measured; and a
broker's share when BROKERS of them write what is one file of BATCHES otherwise."""
PIPELINED_COMMITS: Final = 60
"""Of each broker, and of the one that is alone; made in advance, which is no coordinator's work."""
PIPELINED_ROUNDS: Final = 3


# -- commits --------------------------------------------------------------------------------------


class CommitFigures(NamedTuple):
    """Milliseconds of each commit, by who wrote the batches; what these left in the log."""

    waits_ms: dict[Producers, Sequence[float]]
    log_bytes_per_batch: dict[Producers, float]
    sync_ms: float


def run_commits(report: Report) -> None:
    """One file of BATCHES batches over PARTITIONS partitions at a time, on the local log."""
    report.step(f"commits: files of {BATCHES:,} batches over {PARTITIONS} partitions, local log")
    with fresh_directory() as directory:
        figures = run(measure_commits(directory))
    medians = {who: statistics.median(waits) for who, waits in figures.waits_ms.items()}
    report.add(
        "commit_1600_ms",
        medians[Producers.NONE],
        "ms",
        bound="≤ 20",
        note=f"median of {len(figures.waits_ms[Producers.NONE])} from call to answer, "
        f"one at a time; fastest {min(figures.waits_ms[Producers.NONE]):.1f}, raw fdatasync "
        f"{figures.sync_ms:.1f}",
    )
    for key, who in (
        ("commit_1600_8_producers_ms", Producers.SHARED),
        ("commit_1600_1600_producers_ms", Producers.OWN),
    ):
        report.add(key, medians[who], "ms", note=f"median, {who.value}")
    report.add(
        "log_bytes_per_batch",
        figures.log_bytes_per_batch[Producers.NONE],
        "bytes",
        bound="≤ 24",
        note="growth of the log's files",
    )
    report.add(
        "log_bytes_per_idempotent_batch",
        figures.log_bytes_per_batch[Producers.SHARED],
        "bytes",
        note=Producers.SHARED.value,
    )


async def measure_commits(
    directory: Path, *, batches: int = BATCHES, partitions: int = PARTITIONS, commits: int = COMMITS
) -> CommitFigures:
    """Measure in an empty `directory`."""
    waits: dict[Producers, Sequence[float]] = {}
    log_bytes: dict[Producers, float] = {}
    sync_ms = _sync_ms(directory)
    async with coordinating(directory) as bed:
        written = await bed.topic("written", partitions)
        settle()
        for who in Producers:
            files = Files(written, batches, producers=who)
            await _commit_each(bed, files, WARM_UP_COMMITS)
            before = _size_of(directory / LOG_DIRECTORY)
            waits[who] = await _commit_each(bed, files, commits)
            grown = _size_of(directory / LOG_DIRECTORY) - before
            log_bytes[who] = grown / commits / batches
    return CommitFigures(waits, log_bytes, sync_ms)


async def _commit_each(bed: Bed, files: Files, count: int) -> Sequence[float]:
    """Commit one after the other; milliseconds from each call to its answer."""
    return [await _timed_commit(bed, files.next()) for _ in range(count)]


async def _timed_commit(bed: Bed, file: CommitFile) -> float:
    started = time.perf_counter()
    answers = await bed.client.commit_file(file)
    wait_ms = (time.perf_counter() - started) * 1_000
    _refuse_errors(answers)
    return wait_ms


def _refuse_errors(answers: Sequence[BatchCommit] | Sequence[FoundBatches]) -> None:
    for answer in answers:
        if answer.error is not None:
            raise answer.error


def _size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


def _sync_ms(directory: Path) -> float:
    """Median of an fdatasync of as much as one commit appends."""
    waits = []
    with (directory / "syncs").open("xb", buffering=0) as file:
        for _ in range(50):
            file.write(os.urandom(16 << 10))
            started = time.perf_counter()
            os.fdatasync(file.fileno())
            waits.append((time.perf_counter() - started) * 1_000)
    (directory / "syncs").unlink()
    return statistics.median(waits)


# -- flatness -------------------------------------------------------------------------------------


class BacklogFigures(NamedTuple):
    """Milliseconds with few rows and with many; and along one consumer's way through many."""

    few_commit_ms: float
    many_commit_ms: float
    few_find_ms: float
    many_find_ms: float
    first_fetch_ms: float
    last_fetch_ms: float
    fetches: int


def run_backlog(report: Report) -> None:
    """Commits and look-ups with few and with many committed rows, taking turns."""
    report.step(f"backlog: {MANY_ROWS:,} rows beside {FEW_ROWS:,}")
    with fresh_directory() as directory, report.progress("generating rows") as progress:
        figures = run(measure_backlog(directory, on_progress=progress))
    report.add(
        "commit_flatness",
        figures.many_commit_ms / figures.few_commit_ms,
        bound="≤ 1.5",
        note=f"medians {figures.many_commit_ms:.1f} ÷ {figures.few_commit_ms:.1f} ms, "
        f"{BATCHES:,} batches",
    )
    report.add(
        "find_batches_flatness",
        figures.many_find_ms / figures.few_find_ms,
        bound="≤ 1.5",
        note=f"medians {figures.many_find_ms:.2f} ÷ {figures.few_find_ms:.2f} ms, {FOUND_ROWS} "
        f"rows at random offsets of {FOUND_PARTITIONS} partitions",
    )
    report.add(
        "find_batches_lag_ratio",
        figures.last_fetch_ms / figures.first_fetch_ms,
        bound="≤ 1.5",
        note=f"last ÷ first tenth of {figures.fetches} fetches, "
        f"{figures.last_fetch_ms:.2f} ÷ {figures.first_fetch_ms:.2f} ms",
    )


async def measure_backlog(
    directory: Path,
    *,
    few: int = FEW_ROWS,
    many: int = MANY_ROWS,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> BacklogFigures:
    """Measure in an empty `directory`; `on_progress` hears how many of how many rows are made."""
    done = 0

    def count(rows: int) -> None:
        nonlocal done
        done += rows
        on_progress(done, many)

    large_topic = await _generate(directory / "many", many, count)
    few_commits: list[float] = []
    many_commits: list[float] = []
    few_finds: list[float] = []
    many_finds: list[float] = []
    async with coordinating(directory / "many") as large:
        for number in range(FLATNESS_COMMITS // COMMITS_PER_SMALL_STATE):
            path = directory / f"few-{number}"
            small_topic = await _generate(path, few)
            async with coordinating(path) as small:
                settle()
                finds = FLATNESS_FINDS * COMMITS_PER_SMALL_STATE // FLATNESS_COMMITS
                places = _Places(small_topic, number), _Places(large_topic, number)
                for turn in range(-20, finds):
                    few_ms = await _timed_find(small, places[0].requests())
                    many_ms = await _timed_find(large, places[1].requests())
                    if turn >= 0:
                        few_finds.append(few_ms)
                        many_finds.append(many_ms)
                await _commit_in_turns(
                    small, large, COMMITS_PER_SMALL_STATE, few_commits, many_commits
                )
        fetches = await _read_through(large, large_topic)
    tenth = len(fetches) // 10
    return BacklogFigures(
        few_commit_ms=statistics.median(few_commits),
        many_commit_ms=statistics.median(many_commits),
        few_find_ms=statistics.median(few_finds),
        many_find_ms=statistics.median(many_finds),
        first_fetch_ms=statistics.median(fetches[:tenth]),
        last_fetch_ms=statistics.median(fetches[-tenth:]),
        fetches=len(fetches),
    )


async def _generate(
    directory: Path, rows: int, on_progress: Callable[[int], None] = lambda _: None
) -> GeneratedTopic:
    now_ms = CLOCK.now_ms()
    age_ms = rows // PARTITIONS * FILE_INTERVAL_MS + 60_000
    topic = GeneratedTopic("written", PARTITIONS, rows, now_ms - age_ms)
    await generate(directory, [topic], now_ms=now_ms, on_progress=on_progress)
    return topic


async def _commit_in_turns(
    small: Bed, large: Bed, count: int, few_ms: list[float], many_ms: list[float]
) -> None:
    """The first two of each are not counted: the look-ups of a new connection, cold pages."""
    files = [Files(await bed.topic("written", PARTITIONS), BATCHES) for bed in (small, large)]
    for number in range(-2, count):
        few = await _timed_commit(small, files[0].next())
        many = await _timed_commit(large, files[1].next())
        if number >= 0:
            few_ms.append(few)
            many_ms.append(many)


class _Places:
    """Random places in the generated rows of a topic that have FOUND_ROWS rows behind them."""

    def __init__(self, topic: GeneratedTopic, seed: int) -> None:
        self._topic = topic
        self._rng = random.Random(seed)

    def requests(self) -> Sequence[FindBatches]:
        """The look-up of one fetch."""
        # At the beginning of a row: what lies before the offset would make room for one more.
        end = self._topic.files - FOUND_ROWS
        return [
            _wanted(self._topic, index, self._rng.randrange(end) * RECORDS_PER_BATCH)
            for index in self._rng.sample(range(self._topic.partitions), FOUND_PARTITIONS)
        ]


def _wanted(topic: GeneratedTopic, index: int, offset: int) -> FindBatches:
    """FOUND_ROWS rows from `offset` on."""
    return FindBatches(topic.partition(index), offset, FOUND_ROWS * BATCH_BYTES)


async def _timed_find(bed: Bed, requests: Sequence[FindBatches]) -> float:
    """Milliseconds from the call to the answer, which must be as long as was asked for."""
    started = time.perf_counter()
    found = await bed.client.find_batches(requests, max_bytes=len(requests) << 20)
    wait_ms = (time.perf_counter() - started) * 1_000
    _refuse_errors(found)
    assert all(len(answer.extents) == FOUND_ROWS for answer in found)
    return wait_ms


async def _read_through(bed: Bed, topic: GeneratedTopic) -> Sequence[float]:
    """One consumer of BACKLOG_PARTITIONS partitions from their beginning to their end."""
    step = FOUND_ROWS * RECORDS_PER_BATCH
    return [
        await _timed_find(
            bed, [_wanted(topic, index, offset) for index in range(BACKLOG_PARTITIONS)]
        )
        for offset in range(0, topic.files * RECORDS_PER_BATCH - step, step)
    ]


# -- pipelining -----------------------------------------------------------------------------------


class _SlowPuts(MemoryStore):
    """A store whose PUT takes PUT_S, as S3's do; what it takes in is there at the end of it."""

    async def put(self, key: ObjectKey, body: ObjectBody) -> None:
        await asyncio.sleep(PUT_S)
        await super().put(key, body)


class PipelinedFigures(NamedTuple):
    """Commits per second; of all brokers together, and of one at a time."""

    together_per_s: float
    alone_per_s: float


def run_pipelined(report: Report) -> None:
    """Commits of BROKERS brokers at once beside one at a time, on the object log."""
    report.step(f"pipelined: {BROKERS} brokers, object log, PUT {PUT_S * 1_000:.0f} ms")
    for number, (batches, partitions) in enumerate(PIPELINED_FILES):
        with fresh_directory() as directory:
            figures = run(measure_pipelined(directory, batches=batches, partitions=partitions))
        report.add(
            "pipelined_commit_ratio" if number == 0 else f"pipelined_commit_{batches}_ratio",
            figures.together_per_s / figures.alone_per_s,
            bound="≥ 4" if number == 0 else "",
            note=f"{figures.together_per_s:.0f} ÷ {figures.alone_per_s:.0f} commits/s of "
            f"{batches} batches, one commit under way per broker",
        )


async def measure_pipelined(
    directory: Path,
    *,
    batches: int,
    partitions: int,
    commits: int = PIPELINED_COMMITS,
    rounds: int = PIPELINED_ROUNDS,
) -> PipelinedFigures:
    """Both take turns of `commits` per broker; each broker has `partitions` of its own."""
    store = _SlowPuts(clock=CLOCK)
    settings = ObjectLogSettings()
    log = await ObjectMetadataLog.open(
        store, 0, clock=CLOCK, rng=random.Random(2), settings=settings
    )
    together: list[float] = []
    alone: list[float] = []
    async with coordinating(directory, log, lease_ms=settings.lease_ms) as bed:
        written = await bed.topic("written", BROKERS * partitions)
        brokers = [
            Files(written[number * partitions :][:partitions], batches, seed=number)
            for number in range(BROKERS)
        ]
        await _commits_per_s(bed, brokers, 5)
        settle()
        for _ in range(rounds):
            alone.append(await _commits_per_s(bed, brokers[:1], commits))
            together.append(await _commits_per_s(bed, brokers, commits))
    return PipelinedFigures(statistics.median(together), statistics.median(alone))


async def _commits_per_s(bed: Bed, brokers: Sequence[Files], commits: int) -> float:
    """Each broker has one commit under way, as its commit lane does."""
    lanes = [[files.next() for _ in range(commits)] for files in brokers]

    async def serve(lane: Sequence[CommitFile]) -> None:
        for file in lane:
            _refuse_errors(await bed.client.commit_file(file))

    started = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for lane in lanes:
            tasks.create_task(serve(lane))
    return len(lanes) * commits / (time.perf_counter() - started)
