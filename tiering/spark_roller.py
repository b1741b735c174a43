"""Rolls plans in parallel on Spark: one task per planned segment, through `mapInArrow`.

A plan goes into a task as bytes, the exact result comes out as one row, and `collect` gives the
driver the rows of the attempts that Spark counted, one per plan. Spark itself reads and writes
nothing: tasks use the object store through `wal.stores.blocking_store`, so no jar is needed.

Failures are kept apart. What a roll raises is a row that says so. A task that dies without a word
(killed, out of memory) is started again by Spark, `TASK_ATTEMPTS_MAX` times in all, also on one
machine, where Spark by itself would not. When that does not help the job is split in halves, down
to the plan that cannot be rolled, which fails alone; the others find what they wrote. Merges of
segments go the same way, and compactions are split likewise.

On a cluster (a master other than `local…`) the packages that a task imports are sent along as a zip
file. PyArrow and this project's other dependencies must be installed on the workers.

This module starts Spark; tiering/compaction/spark_compactor.py works on the session of a roller.
"""

import os
import pickle
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Final, Self, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext, TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from metadata.operations import SegmentPlan
from metadata.rewrites import Rewrite, RewritePlan, outcome_of
from tiering.merging.merge import merge
from tiering.roll import Rolled
from tiering.rounds import Done, Failed, Plan, Written, attempted, describe
from tiering.spark_python import choose_python, is_local, package_zip
from tiering.types.registry import RegistrySettings
from tiering.types.typed_roll import roll_as_planned
from wal import failpoint
from wal.clock import SystemClock
from wal.errors import DisklessError, InvalidSettings
from wal.stores.blocking_store import BlockingStore, open_blocking_store

JAVA_VERSION_MIN: Final = 17

TASK_ATTEMPTS_MAX: Final = 4
"""Spark's own default on a cluster."""

POLL_S: Final = 0.2
"""How often Spark is asked how many tasks are done."""

_COLUMNS: Final = "number int, data binary"
"""Of the rows that go in, with plans, and of those that come out, with results: both pickled."""
_RESULT_SCHEMA: Final = pa.schema([("number", pa.int32()), ("data", pa.binary())])

# The JVM moves plans and results and is gone soon: the optimising compiler and a parallel collector
# would take the cores from the Python workers, and twice the time to start. No collector is named,
# because a JVM that is told another one behind it (spark.driver.extraJavaOptions) does not start.
_JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:ParallelGCThreads=1"

_DEFAULTS: Final = {
    "spark.app.name": "diskless tier",
    "spark.master": "local[*]",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
    "spark.task.maxFailures": str(TASK_ATTEMPTS_MAX),
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL_DEFAULTS: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}

# Spark's chatter at start and its stack traces for what is reported anyway would hide the job's own
# lines; what remains is what makes Spark stop.
_LOG4J: Final = """\
rootLogger.level = {level}
# PySpark's gateway counts as a shell; of equal level, it prints no hint about log levels.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = spark: %p %c{{1}}: %m%n
"""

_SPARK_FAILS: Final = (PySparkException, Py4JError, ConnectionError)
"""A job failed; or Java is gone, and nobody listens any more."""

_Plan = TypeVar("_Plan", bound=Plan)
_Made = TypeVar("_Made")


class SparkRoller:
    """A context manager that starts Spark with the first roll and stops it at the end.

    `master` and `spark_settings` win over what Spark is told by spark-submit or
    spark-defaults.conf, which wins over the defaults of this class.
    Raises InvalidSettings when Java is missing or too old, or Spark is one of Spark Connect.
    """

    def __init__(
        self,
        master: str | None = None,
        *,
        spark_settings: Mapping[str, str] | None = None,
        registry: RegistrySettings | None = None,
        log_level: str = "FATAL",
    ) -> None:
        self._master = master
        self._spark_settings = dict(spark_settings or {})
        self._registry = registry
        self._log_level = log_level
        self._session: SparkSession | None = None
        self._cleanup = ExitStack()
        self._jobs = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()
        self._session = None

    @property
    def session(self) -> SparkSession:
        """The session, started when it was not yet. Raises: InvalidSettings."""
        if self._session is None:
            self._session = self._start()
        return self._session

    @property
    def is_alive(self) -> bool:
        """Whether Spark runs, or was not needed yet."""
        if self._session is None:
            return True
        try:
            # What Java says, not what this process remembers.
            return not self._session.sparkContext._jsc.sc().isStopped()
        except (*_SPARK_FAILS, AttributeError):
            # PySpark forgets a context that was stopped.
            return False

    def roll(
        self, plans: Sequence[SegmentPlan], object_store_url: str, done: Done
    ) -> Sequence[Written[SegmentPlan, Rolled] | Failed[SegmentPlan]]:
        """See `tiering.rounds.Write`."""
        return self.each(partial(_rolled, self._registry), plans, object_store_url, done)

    def merge(
        self, plans: Sequence[RewritePlan], object_store_url: str, done: Done
    ) -> Sequence[Written[RewritePlan, Rewrite] | Failed[RewritePlan]]:
        """See `tiering.rounds.Write`."""
        return self.each(_merged, plans, object_store_url, done)

    def each(
        self,
        work: Callable[[_Plan, BlockingStore], _Made],
        plans: Sequence[_Plan],
        object_store_url: str,
        done: Done,
    ) -> Sequence[Written[_Plan, _Made] | Failed[_Plan]]:
        """What `work` makes of each plan, with one task for each.

        `work` is a function of a module that tasks can import, and must come to the same result
        when it is repeated. `done` is told how many are finished.
        """
        return in_halves(partial(self._together, work, object_store_url), plans, done)

    def _together(
        self,
        work: Callable[[_Plan, BlockingStore], _Made],
        object_store_url: str,
        plans: Sequence[_Plan],
        done: Done,
    ) -> Sequence[Written[_Plan, _Made] | Failed[_Plan]]:
        session = self.session
        rows = [(number, pickle.dumps(plan)) for number, plan in enumerate(plans)]
        tasks = session.sparkContext.parallelize(rows, numSlices=len(rows))
        failpoints = os.environ.get(failpoint.ENVIRONMENT_VARIABLE, "")
        in_tasks = partial(_in_task, work, object_store_url, failpoints)
        with warnings.catch_warnings():
            # PySpark asks for Pandas on the way to Arrow, and fears its version 3; we use none.
            warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
            frame = session.createDataFrame(tasks, _COLUMNS)
            results = frame.mapInArrow(in_tasks, _COLUMNS)
        self._jobs += 1
        with _told(session.sparkContext, f"diskless-tier-{self._jobs}", done):
            collected = {row["number"]: bytes(row["data"]) for row in results.collect()}
        return [pickle.loads(collected[number]) for number in range(len(plans))]

    def _start(self) -> SparkSession:
        require_java()
        asked = dict(self._spark_settings)
        if self._master is not None:
            asked["spark.master"] = self._master
        _refuse_connect(asked)
        directory = Path(self._cleanup.enter_context(_temporary_directory()))
        log4j = directory / "log4j2.properties"
        log4j.write_text(_LOG4J.format(level=self._log_level.lower()))
        # The JVM reads spark-defaults.conf, and behind spark-submit it runs already. So what it
        # was told is known when it is there; only its own options have to come before.
        java_options = f"{_JAVA_OPTIONS} -Dlog4j2.configurationFile={log4j.as_uri()}"
        # PySpark passes for a shell, in which a bar of Spark's own would cut through our lines.
        first = {
            "spark.driver.defaultJavaOptions": java_options,
            "spark.ui.showConsoleProgress": "false",
        } | asked
        SparkContext._ensure_initialized(conf=_conf(first))
        settings = _DEFAULTS | dict(SparkConf().getAll()) | asked
        settings["spark.master"] = master = _with_retries(settings["spark.master"])
        if is_local(master):
            settings = _LOCAL_DEFAULTS | settings
        with _handler_kept(signal.SIGINT):
            session = SparkSession.builder.config(conf=_conf(settings)).getOrCreate()
        self._cleanup.callback(_stop, session)
        context = session.sparkContext
        choose_python(context)
        if not is_local(master):
            context.addPyFile(str(package_zip(directory)))
        return session


def _conf(settings: Mapping[str, str]) -> SparkConf:
    conf = SparkConf(loadDefaults=False)
    for key, value in settings.items():
        conf.set(key, value)
    return conf


def require_java() -> None:
    """Raise InvalidSettings unless Spark will find Java 17 or newer; says what to install."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home) / "bin" / "java") if home else "java")
    version = _java_version(java) if java else None
    if version is not None and version >= JAVA_VERSION_MIN:
        return
    found = "none was found" if version is None else f"Java {version} was found at {java}"
    raise InvalidSettings(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer, {found}. Install one (Debian, Ubuntu:"
        " apt install openjdk-17-jre-headless; macOS: brew install openjdk@17) or point JAVA_HOME"
        " at it. The broker itself needs no Java."
    )


# --- in the tasks --------------------------------------------------------------------------------


def _in_task(
    work: Callable[[_Plan, BlockingStore], _Made],
    object_store_url: str,
    failpoints: str,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Runs in a Python worker of Spark: a result row for every row with a plan."""
    arm_in_task(failpoints)
    for batch in batches:
        rows = [
            {
                "number": row["number"],
                "data": pickle.dumps(_attempted(work, pickle.loads(row["data"]), object_store_url)),
            }
            for row in batch.to_pylist()
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=_RESULT_SCHEMA)


def arm_in_task(failpoints: str) -> None:
    """Arm what the driver was told to. Called in a task."""
    context = TaskContext.get()
    # A crash that a test asks for happens once, or no second attempt could ever show anything.
    is_first = context is None or context.attemptNumber() == 0
    failpoint.arm(failpoints if is_first else "")


def _attempted(
    work: Callable[[_Plan, BlockingStore], _Made], plan: _Plan, object_store_url: str
) -> Written[_Plan, _Made] | Failed[_Plan]:
    clock = SystemClock()
    try:
        with open_blocking_store(object_store_url, clock=clock) as store:
            return attempted(work, plan, store, clock)
    except DisklessError as error:
        return Failed(plan, describe(error))


def _rolled(registry: RegistrySettings | None, plan: SegmentPlan, store: BlockingStore) -> Rolled:
    return roll_as_planned(plan, store, registry, SystemClock())


def _merged(plan: RewritePlan, store: BlockingStore) -> Rewrite:
    return outcome_of(plan, [merge(plan, store)])


# --- around them ---------------------------------------------------------------------------------


def in_halves(
    attempt: Callable[[Sequence[_Plan], Done], Sequence[Written[_Plan, _Made] | Failed[_Plan]]],
    plans: Sequence[_Plan],
    done: Done,
) -> Sequence[Written[_Plan, _Made] | Failed[_Plan]]:
    """What `attempt` gives for all plans; of those on which Spark fails, for each half of them."""
    try:
        return attempt(plans, done)
    except _SPARK_FAILS as error:
        if len(plans) == 1:
            return [Failed(plans[0], f"its Spark task died: {death_reason(error)}")]
    # One of them kills its worker. The first half counts as done when the second is under way.
    middle = len(plans) // 2
    first = in_halves(attempt, plans[:middle], done)
    rest = in_halves(attempt, plans[middle:], lambda number: done(middle + number))
    return [*first, *rest]


@contextmanager
def _told(context: SparkContext, group: str, done: Callable[[int], None]) -> Iterator[None]:
    """While the block runs Spark jobs, tell `done` from another thread how many tasks are done."""
    context.setJobGroup(group, "write segments")
    finished = Event()

    def poll() -> None:
        tracker = context.statusTracker()
        while not finished.wait(POLL_S):
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
            stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
            done(sum(stage.numCompletedTasks for stage in stages if stage))

    thread = Thread(target=poll, name="roll-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


def _stop(session: SparkSession) -> None:
    """Also one that is gone already."""
    with suppress(*_SPARK_FAILS, AttributeError):
        session.stop()


@contextmanager
def _handler_kept(number: signal.Signals) -> Iterator[None]:
    """PySpark puts a handler of its own in place, which drops all jobs under way."""
    before = signal.getsignal(number)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(number, before)


@contextmanager
def _temporary_directory() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="diskless-tier-") as directory:
        yield directory


def _with_retries(master: str) -> str:
    """`local[N]` as `local[N,attempts]`: on one machine Spark gives a task one attempt only."""
    if master == "local":
        return f"local[1,{TASK_ATTEMPTS_MAX}]"
    cores = re.fullmatch(r"local\[\s*(\*|\d+)\s*\]", master)
    return f"local[{cores[1]},{TASK_ATTEMPTS_MAX}]" if cores else master


def _refuse_connect(asked: Mapping[str, str]) -> None:
    """Spark would say that its gateway exited, or look for a driver that is not there."""
    remote = asked.get("spark.remote") or os.environ.get("SPARK_REMOTE")
    master = asked.get("spark.master", "")
    if remote or master.startswith("sc://"):
        raise InvalidSettings(
            f"the job needs a driver of its own, so it does not run over Spark Connect"
            f" ({remote or master}): give --master spark://…, yarn, k8s://… or local[*], and no"
            " spark.remote or SPARK_REMOTE"
        )


def _java_version(java: str) -> int | None:
    try:
        answer = subprocess.run(
            [java, "-version"], check=False, capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    # `openjdk version "17.0.15"`, and `"1.8.0_392"` before Java 9.
    version = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    return int(version[1]) if version else None


def death_reason(error: BaseException) -> str:
    """What went wrong in the last line of a Python traceback, without Java's below it."""
    lines = [
        line.strip()
        for line in str(error).splitlines()
        if line.strip() and not line.lstrip().startswith(("at ", "... ", "Caused by:", "File "))
    ]
    return lines[-1] if lines else type(error).__name__
