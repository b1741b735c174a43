"""Counts what the passes of a tiering job do, for who watches it.

A `Progress` that counts as rounds end, so that a pass of hours is seen as it goes. The values are
read from another thread: each `figures` is a copy, made under a lock.

Topics are named by up to TOPICS_MAX labels; the failures of others are counted together, and of
others there is no lag.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Final, NamedTuple

from tiering.rounds import Failure, Progress, Sizes
from tiering.tables.report import TablesReport
from wal.clock import Clock

TOPICS_MAX: Final = 100

OTHERS: Final = "(others)"
"""Stands for topics beyond TOPICS_MAX; no topic can have this name."""

TABLES: Final = "table"
KINDS: Final = ("roll", "merge", "compact", TABLES)
"""Of jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFigures:
    """What one kind of job did since the start."""

    seconds: float = 0.0
    committed: int = 0
    input_bytes: int = 0
    output_bytes: int = 0
    record_count: int = 0


class TypedCounts(NamedTuple):
    """Of a topic with a schema."""

    records: int = 0
    """That were rolled."""
    poison: int = 0
    """Keys and values among them that did not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierFigures:
    """What all passes did since the start."""

    jobs: Mapping[str, JobFigures] = field(
        default_factory=lambda: {kind: JobFigures() for kind in KINDS}
    )
    passes: Mapping[str, int] = field(default_factory=lambda: {"done": 0, "failed": 0})
    """That ended, by how; a failed one left out something that was due."""
    failures: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """By kind of job and topic."""
    rolled_lag_s: Mapping[str, float] = field(default_factory=dict)
    """How old the first batch was of what a topic's last commit rolled, by topic."""
    typed: Mapping[str, TypedCounts] = field(default_factory=dict)
    """By topic."""
    schema_problems: Mapping[str, int] = field(default_factory=dict)
    """By topic: how often its schema of keys or values was found to give no columns."""
    pass_ended_s: float | None = None
    """When the last pass ended, by the monotonic clock."""
    pause_s: float = 0.0
    """Before the next pass."""
    problem: str = "no pass has ended yet"
    """Of the last pass; empty when it did all that was due."""


class TierStatistics(Progress):
    """Counts; see the head of this module."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._figures = TierFigures()

    @property
    def figures(self) -> TierFigures:
        with self._lock:
            return self._figures

    def committed(self, job: str, sizes: Sequence[Sizes]) -> None:
        now_ms = self._clock.now_ms()
        with self._lock:
            was = self._figures.jobs[job]
            self._change(
                job,
                committed=was.committed + len(sizes),
                input_bytes=was.input_bytes + sum(one.input_bytes for one in sizes),
                output_bytes=was.output_bytes + sum(one.output_bytes for one in sizes),
                record_count=was.record_count + sum(one.record_count for one in sizes),
            )
            lags: dict[str, float] = {}
            for one in sizes:
                if one.oldest_ms is not None:
                    lag_s = max(now_ms - one.oldest_ms, 0) / 1000
                    lags[one.topic_name] = max(lag_s, lags.get(one.topic_name, 0.0))
            # The latest stay.
            kept = {
                name: lag for name, lag in self._figures.rolled_lag_s.items() if name not in lags
            }
            newest = [*kept.items(), *lags.items()][-TOPICS_MAX:]
            self._figures = replace(self._figures, rolled_lag_s=dict(newest))
            self._count_typed(sizes)

    def failed(self, job: str, failure: Failure) -> None:
        self._fail(job, failure.topic_name)

    def not_typed(self, topic_name: str, side: str, reason: str) -> None:
        with self._lock:
            known = self._figures.schema_problems
            name = topic_name if topic_name in known or len(known) < TOPICS_MAX else OTHERS
            problems = {**known, name: known.get(name, 0) + 1}
            self._figures = replace(self._figures, schema_problems=problems)

    def tables_written(self, report: TablesReport) -> None:
        """Count what became of tables."""
        for table in report.failures:
            self._fail(TABLES, table.topic_name)
        with self._lock:
            was = self._figures.jobs[TABLES]
            count = sum(table.is_committed for table in report.tables)
            self._change(TABLES, committed=was.committed + count)

    @contextmanager
    def timed(self, job: str) -> Iterator[None]:
        """The block is a run of this kind of job."""
        started = self._clock.monotonic()
        try:
            yield
        finally:
            with self._lock:
                seconds = self._clock.monotonic() - started
                self._change(job, seconds=self._figures.jobs[job].seconds + seconds)

    def pass_ended(self, problem: str, pause_s: float) -> None:
        """`problem` is empty when all that was due was done."""
        result = "failed" if problem else "done"
        with self._lock:
            passes = self._figures.passes
            self._figures = replace(
                self._figures,
                passes={**passes, result: passes[result] + 1},
                pass_ended_s=self._clock.monotonic(),
                problem=problem,
                pause_s=pause_s,
            )

    def _count_typed(self, sizes: Sequence[Sizes]) -> None:
        typed = dict(self._figures.typed)
        for one in sizes:
            if one.untyped_count is not None:
                known = one.topic_name in typed or len(typed) < TOPICS_MAX
                name = one.topic_name if known else OTHERS
                records, poison = typed.get(name, TypedCounts())
                typed[name] = TypedCounts(records + one.record_count, poison + one.untyped_count)
        self._figures = replace(self._figures, typed=typed)

    def _fail(self, job: str, topic_name: str) -> None:
        with self._lock:
            failures = self._figures.failures
            known = {name for _, name in failures}
            name = topic_name if topic_name in known or len(known) < TOPICS_MAX else OTHERS
            count = failures.get((job, name), 0) + 1
            self._figures = replace(self._figures, failures={**failures, (job, name): count})

    def _change(self, job: str, **fields: float) -> None:
        jobs = self._figures.jobs
        changed = replace(jobs[job], **fields)  # type: ignore[arg-type]
        self._figures = replace(self._figures, jobs={**jobs, job: changed})


class Listeners(Progress):
    """Several that hear how a job goes on."""

    def __init__(self, *listeners: Progress) -> None:
        self._listeners = listeners

    def planned(self, job: str, count: int) -> None:
        for one in self._listeners:
            one.planned(job, count)

    def written(self, done: int) -> None:
        for one in self._listeners:
            one.written(done)

    def committed(self, job: str, sizes: Sequence[Sizes]) -> None:
        for one in self._listeners:
            one.committed(job, sizes)

    def failed(self, job: str, failure: Failure) -> None:
        for one in self._listeners:
            one.failed(job, failure)

    def not_typed(self, topic_name: str, side: str, reason: str) -> None:
        for one in self._listeners:
            one.not_typed(topic_name, side, reason)
