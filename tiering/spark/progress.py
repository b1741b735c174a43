"""How many of a job's tasks are done, as Spark tells while it runs.

Spark moves the plans to their tasks in a stage of its own, whose tasks count for nothing. The
stage that does the work is the last one of the job.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any, Final

from pyspark import SparkContext
from pyspark.sql import SparkSession

POLL_S: Final = 0.2
"""How often Spark in this process is asked."""


def done_of(stages: Iterable[tuple[int, int]]) -> int:
    """Tasks done of those that do the work, of ids of stages with the tasks that each has done."""
    known = sorted(stages)
    return known[-1][1] if len(known) > 1 else 0


@contextmanager
def polled(context: SparkContext, group: str, done: Callable[[int], None]) -> Iterator[None]:
    """While the block runs jobs in this thread, tell `done` from another one."""
    context.setJobGroup(group, "write segments")
    finished = Event()

    def poll() -> None:
        tracker = context.statusTracker()
        while not finished.wait(POLL_S):
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
            stages = [(at, tracker.getStageInfo(at)) for job in jobs if job for at in job.stageIds]
            done(done_of((at, stage.numCompletedTasks if stage else 0) for at, stage in stages))

    thread = Thread(target=poll, name="roll-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


@contextmanager
def reported(session: SparkSession, done: Callable[[int], None]) -> Iterator[None]:
    """While the block waits for a Connect server, tell `done` what it reports, in this thread."""

    def tell(stages: Any, **_: object) -> None:
        done(done_of((stage.stage_id, stage.num_completed_tasks) for stage in stages or ()))

    # PySpark asks for a subclass of a class that is there only with what Spark Connect needs.
    handler: Any = tell
    session.registerProgressHandler(handler)
    try:
        yield
    finally:
        session.removeProgressHandler(handler)
