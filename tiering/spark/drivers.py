"""Starts the Spark of a job, in this process or on a Spark Connect server.

Two drivers with one face. `OwnDriver` starts Java in this process, for every master that Spark
knows: local, standalone, YARN, Kubernetes. `ConnectDriver` opens a session on a server that
somebody else has started, and needs no Java here. Both give a `SparkSession`, and what follows
uses only what the two kinds have in common: DataFrames.

What differs, and is kept here:

- Settings. A server was started with those of its executors; a session can set SQL's alone, and
  another one is refused by name.
- Attempts at a task. In this process there are always TASK_ATTEMPTS_MAX, also on one machine; a
  server has its own `spark.task.maxFailures`.
- The end. Java in this process is stopped. Of a server the session is given back, and it goes on.
- Death. Java that is gone refuses connections at once. A server may be restarting, so each call is
  repeated for about a minute. Then the driver is dead for good: another session would be needed.
"""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tiering.spark.progress import polled, reported
from tiering.spark.task_python import is_local, prepare_tasks
from tiering.spark.tasks import SPARK_FAILS, death_reason
from wal.errors import InvalidSettings

JAVA_VERSION_MIN: Final = 17

TASK_ATTEMPTS_MAX: Final = 4
"""Spark's own default on a cluster."""

CONNECT_RETRIES_MAX: Final = 6
"""Of a call to a server that is away: about a minute, with pauses of 0.05, 0.2, … 51 seconds."""

PARALLELISM_MAX: Final = 2_000
"""As many tasks at once as a Connect server is believed to run."""

# The JVM moves plans and results and is gone soon: the optimising compiler and a parallel collector
# would take the cores from the Python workers, and twice the time to start. No collector is named,
# because a JVM that is told another one behind it (spark.driver.extraJavaOptions) does not start.
_JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:ParallelGCThreads=1"

_DEFAULTS: Final = {
    "spark.app.name": "diskless tier",
    "spark.master": "local[*]",
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
rootLogger.level = fatal
# PySpark's gateway counts as a shell; of equal level, it prints no hint about log levels.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = fatal
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = spark: %p %c{1}: %m%n
"""


class Driver(Protocol):
    """A Spark that runs."""

    @property
    def session(self) -> SparkSession: ...

    @property
    def is_alive(self) -> bool:
        """Whether jobs can still be given to it."""

    @property
    def parallelism(self) -> int:
        """How many tasks it runs at once, as far as it says."""

    def progress(self, done: Callable[[int], None]) -> AbstractContextManager[None]:
        """Tell `done` how many tasks are done of the job that the block runs in this thread."""

    def stop(self) -> None:
        """Also one that is gone already."""


def start_driver(master: str | None, remote: str | None, settings: Mapping[str, str]) -> Driver:
    """Start Spark where `master` says, or open a session on the server `remote` (`sc://…`).

    `settings` may have either, as spark.master and spark.remote; without both SPARK_REMOTE counts.
    Raises: InvalidSettings when Java is missing or too old, no server answers, or both are given.
    """
    asked = dict(settings)
    configured_remote = asked.pop("spark.remote", None) or os.environ.get("SPARK_REMOTE")
    configured_master = asked.pop("spark.master", None)
    remote, master = remote or configured_remote, master or configured_master
    if master is not None and master.startswith("sc://"):
        raise InvalidSettings(f"{_shown(master)} is a Spark Connect server: give it as --remote")
    if not remote:
        return OwnDriver(master, asked)
    if master is not None:
        raise InvalidSettings(
            f"the job runs on one Spark: on the Spark Connect server {_shown(remote)} (--remote,"
            f" spark.remote or SPARK_REMOTE), or with --master {master}"
        )
    if not remote.startswith("sc://"):
        raise InvalidSettings(
            f"{_shown(remote)} is no Spark Connect server: give sc://HOST:PORT, or --master"
        )
    return ConnectDriver(remote, asked)


class OwnDriver:
    """Spark whose driver is this process."""

    def __init__(self, master: str | None, settings: Mapping[str, str]) -> None:
        require_java()
        asked = dict(settings) | ({} if master is None else {"spark.master": master})
        self._jobs = 0
        with ExitStack() as cleanup:
            directory = Path(cleanup.enter_context(_temporary_directory()))
            log4j = directory / "log4j2.properties"
            log4j.write_text(_LOG4J)
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
                self._session = SparkSession.builder.config(conf=_conf(settings)).getOrCreate()
            cleanup.callback(_stop, self._session)
            prepare_tasks(self._session, lambda: directory)
            self._cleanup = cleanup.pop_all()

    @property
    def session(self) -> SparkSession:
        return self._session

    @property
    def is_alive(self) -> bool:
        try:
            # What Java says, not what this process remembers.
            return not self._session.sparkContext._jsc.sc().isStopped()
        except (*SPARK_FAILS, AttributeError):
            # PySpark forgets a context that was stopped.
            return False

    @property
    def parallelism(self) -> int:
        return self._session.sparkContext.defaultParallelism

    def progress(self, done: Callable[[int], None]) -> AbstractContextManager[None]:
        self._jobs += 1
        return polled(self._session.sparkContext, f"diskless-tier-{self._jobs}", done)

    def stop(self) -> None:
        self._cleanup.close()


class ConnectDriver:
    """A session on a Spark Connect server; `remote` is `sc://host:port/;param=value…`."""

    def __init__(self, remote: str, settings: Mapping[str, str]) -> None:
        self._is_gone = False
        try:
            from pyspark.sql.connect.client.retries import DefaultPolicy
        except ImportError as error:
            raise InvalidSettings(
                "Spark Connect needs more of PySpark: pip install 'pyspark[connect]'"
            ) from error
        with ExitStack() as cleanup:
            directory = Path(cleanup.enter_context(_temporary_directory()))
            try:
                self._session = SparkSession.builder.remote(remote).create()
                cleanup.callback(_stop, self._session)
                self._session.client.set_retry_policies(
                    [DefaultPolicy(max_retries=CONNECT_RETRIES_MAX)]
                )
                _set(self._session, settings)
                prepare_tasks(self._session, lambda: directory)
                self._parallelism = _partitions_of_a_range(self._session)
            except PySparkException as error:
                raise InvalidSettings(
                    f"the Spark Connect server {_shown(remote)} cannot be used:"
                    f" {death_reason(error)}"
                ) from error
            self._cleanup = cleanup.pop_all()

    @property
    def session(self) -> SparkSession:
        return self._session

    @property
    def is_alive(self) -> bool:
        """Asks the server, whose answer is a refusal when it was started anew meanwhile."""
        if not self._is_gone:
            try:
                self._session.conf.get("spark.sql.session.timeZone")
            except SPARK_FAILS:
                self._is_gone = True
        return not self._is_gone

    @property
    def parallelism(self) -> int:
        return self._parallelism

    def progress(self, done: Callable[[int], None]) -> AbstractContextManager[None]:
        return reported(self._session, done)

    def stop(self) -> None:
        self._cleanup.close()


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


def _conf(settings: Mapping[str, str]) -> SparkConf:
    conf = SparkConf(loadDefaults=False)
    for key, value in settings.items():
        conf.set(key, value)
    return conf


def _set(session: SparkSession, settings: Mapping[str, str]) -> None:
    """Not by the builder of the session, which passes over what the server refuses."""
    for name, value in settings.items():
        try:
            session.conf.set(name, value)
        except PySparkException as error:
            raise InvalidSettings(
                f"{name} cannot be set by a session of Spark Connect, only where its server is"
                f" started: {death_reason(error)}"
            ) from error


def _partitions_of_a_range(session: SparkSession) -> int:
    """By default a range has as many as tasks can run; Connect tells that in no other way."""
    ids = session.range(PARALLELISM_MAX).select(F.spark_partition_id())
    return max(ids.distinct().count(), 1)


def _shown(remote: str) -> str:
    """Without parameters, of which one may be a token."""
    return remote.partition(";")[0]


def _stop(session: SparkSession) -> None:
    with suppress(*SPARK_FAILS, AttributeError):
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
