"""The loop of a tiering job: plans, has them written, commits, until nothing more is due.

    coordinator --plans--> tasks --exact results--> one commit for all of them --> next round

A `Job` says what is planned, how it is written and how it is committed; `run_job` is the same for a
roll, a merge and a compaction. What is committed is what tasks returned, never what a listing of
the bucket shows, so that an object which a killed task left is no segment. Any step may die and the
whole be run again: plans are durable, a task finds its object written, a commit is recognised. Two
jobs at once do the work twice and commit it once.

A plan that cannot be written, because an object is damaged or its task is killed again and again,
or whose outcome the coordinator refuses, is reported and left out for the rest of the run; it stays
planned and the others go on. A topic that is deleted meanwhile takes its plans with it, which is no
failure.

This module knows nothing of Spark; tiering/spark does, and starts it only when there is
something to write.

Failure cases: InvalidSettings when nobody names an object store; CommitFailed and
CommitOutcomeUnknown after some attempts; Rejected when the broker refuses to plan at all.
"""

import time
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from tiering.coordinator_client import repeated
from wal.clock import Clock
from wal.errors import DisklessError, InvalidSettings, UnknownPartition, UnknownTopicId
from wal.failpoint import failpoint
from wal.stores.blocking_store import BlockingStore, MeteredStore

ROUNDS_MAX: Final = 1000
"""A job that producers outrun ends nevertheless, and says so."""


class Plan(Protocol):
    """What every plan says."""

    @property
    def topic_name(self) -> str: ...


_Plan = TypeVar("_Plan", bound=Plan)
_Made = TypeVar("_Made")
_Report = TypeVar("_Report")


class Work(NamedTuple):
    """What plans took of the store and of time; repeated attempts are not in it."""

    gets: int = 0
    get_bytes: int = 0
    seconds: float = 0.0
    key_bytes: int = 0
    """Of `get_bytes`, those read to decide which records a compaction removes."""


class Written(NamedTuple, Generic[_Plan, _Made]):
    """A plan whose objects lie in the store, and what is to be committed of it."""

    plan: _Plan
    made: _Made
    work: Work = Work()


class Failed(NamedTuple, Generic[_Plan]):
    """A plan that could not be written, and why."""

    plan: _Plan
    reason: str


Done = Callable[[int], None]
"""Is told how many plans are finished so far."""

Write = Callable[[Sequence[_Plan], str, Done], Sequence[Written[_Plan, _Made] | Failed[_Plan]]]
"""Writes many plans at once: gets the URL of the store, gives an outcome for each, in any order."""


class Sizes(NamedTuple):
    """What was committed of one plan, in numbers."""

    topic_name: str
    input_bytes: int
    output_bytes: int
    record_count: int
    oldest_ms: int | None = None
    """When the first of a roll's batches was sent, by the name of its WAL object."""
    untyped_count: int | None = None
    """Keys and values of a roll that did not fit their schema; None where there is no schema."""


class Planned(NamedTuple, Generic[_Plan]):
    """What is due, and where its objects lie."""

    plans: Sequence[_Plan]
    object_store_url: str


class Job(Protocol[_Plan, _Made]):
    """What is particular to one kind of job."""

    @property
    def name(self) -> str:
        """In front of its failpoints."""
        ...

    def plan(self, failed: Collection[Hashable]) -> Planned[_Plan]:
        """Those of the next round, without those whose identity is in `failed`."""
        ...

    def identity(self, plan: _Plan) -> Hashable:
        """By which a plan that failed is known when it is planned again."""
        ...

    def title(self, plan: _Plan) -> str:
        """What a report calls it."""
        ...

    @property
    def write(self) -> Write[_Plan, _Made]:
        """See there."""
        ...

    def commit(self, made: Sequence[_Made]) -> Sequence[DisklessError | None]:
        """Offer outcomes to the coordinator; the answers match them by position."""
        ...

    def sizes(self, written: Written[_Plan, _Made]) -> Sizes:
        """What a plan that was committed adds up to."""
        ...


class Failure(NamedTuple):
    """A plan that was not done, and why."""

    topic_name: str
    title: str
    reason: str

    def __str__(self) -> str:
        return f"{self.title}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport(Generic[_Plan, _Made]):
    """What a run did."""

    committed: Sequence[Written[_Plan, _Made]] = ()
    """In this run, or by one that died before it heard so."""
    failures: Sequence[Failure] = ()
    withdrawn: Sequence[_Plan] = ()
    """Written for a topic that was deleted meanwhile."""
    sizes: Sequence[Sizes] = ()
    """Of what is committed."""

    @property
    def work(self) -> Work:
        """Of what is committed, added up."""
        return Work(*map(sum, zip(Work(), *(one.work for one in self.committed), strict=True)))

    @property
    def input_bytes(self) -> int:
        """Of the batches, or segments, in whose place others are."""
        return sum(one.input_bytes for one in self.sizes)

    @property
    def output_bytes(self) -> int:
        return sum(one.output_bytes for one in self.sizes)

    @property
    def record_count(self) -> int:
        """Of the segments that were written."""
        return sum(one.record_count for one in self.sizes)


class Progress:
    """Hears how a job goes on, and does nothing about it."""

    def planned(self, job: str, count: int) -> None:
        pass

    def written(self, done: int) -> None:
        """`done` of the plans of this round are written."""

    def committed(self, job: str, sizes: Sequence[Sizes]) -> None:
        pass

    def failed(self, job: str, failure: Failure) -> None:
        pass

    def not_typed(self, topic_name: str, side: str, reason: str) -> None:
        """The topic's schema of keys or values gives no columns: they are bytes only."""


class RunSettings(NamedTuple):
    """What all jobs of a pass have in common."""

    object_store_url: str | None = None
    """Replaces the one the broker gives, for tasks that reach the bucket by another name."""
    progress: Progress = Progress()
    is_stopping: Callable[[], bool] = lambda: False
    """No round begins when it says so."""
    sleep: Callable[[float], None] = time.sleep


USUAL: Final = RunSettings()


def run_job(job: Job[_Plan, _Made], run: RunSettings, report: Callable[..., _Report]) -> _Report:
    """Write and commit all that is due, however many rounds that takes. Blocks.

    `report` makes the report of the fields of a JobReport. Raises what the head of this module
    says.
    """
    progress = run.progress
    committed: list[Written[_Plan, _Made]] = []
    failures: dict[Hashable, Failure] = {}
    withdrawn: list[_Plan] = []
    sizes: list[Sizes] = []

    def fail(plan: _Plan, reason: str) -> None:
        failure = Failure(plan.topic_name, job.title(plan), reason)
        failures[job.identity(plan)] = failure
        progress.failed(job.name, failure)

    for _ in range(ROUNDS_MAX):
        if run.is_stopping():
            break
        plans, url = job.plan(failures.keys())
        if not plans:
            break
        url = run.object_store_url or url
        if not url:
            raise InvalidSettings("the broker names no object store; give its URL")
        progress.planned(job.name, len(plans))
        written = []
        for outcome in job.write(plans, url, progress.written):
            if isinstance(outcome, Failed):
                fail(*outcome)
            else:
                written.append(outcome)
        if not written:
            continue
        failpoint(f"{job.name}.before_commit")
        errors = repeated(partial(job.commit, [one.made for one in written]), run.sleep)
        failpoint(f"{job.name}.after_commit")
        before = len(sizes)
        for one, error in zip(written, errors, strict=True):
            if error is None:
                committed.append(one)
                sizes.append(job.sizes(one))
            elif isinstance(error, UnknownPartition | UnknownTopicId):
                withdrawn.append(one.plan)
            else:
                fail(one.plan, f"not committed: {error}")
        progress.committed(job.name, sizes[before:])
    return report(
        committed=committed, failures=[*failures.values()], withdrawn=withdrawn, sizes=sizes
    )


def attempted(
    work: Callable[[_Plan, BlockingStore], _Made], plan: _Plan, store: BlockingStore, clock: Clock
) -> Written[_Plan, _Made] | Failed[_Plan]:
    """What becomes of a plan by `work`. Called where plans are written: in tasks."""
    started = clock.monotonic()
    metered = MeteredStore(store)
    try:
        made = work(plan, metered)
    except DisklessError as error:
        return Failed(plan, describe(error))
    return Written(plan, made, Work(metered.gets, metered.get_bytes, clock.monotonic() - started))


def describe(error: DisklessError) -> str:
    """An error of a task as one line of the report."""
    return f"{type(error).__name__}: {error}"
