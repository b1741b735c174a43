"""kafka-python's `test/integration`, against a broker that is already there (its external mode).

Their pytest runs in a virtual environment of its own below build/conformance/, made by `prepare`,
with the client taken from the source itself. Their directory is only read: no caches, no compiled
files, no installation in it. The tests that have to be run go to pytest in one run; whatever ends
that run before its end (a crash, a test that hangs for good) fails the test that was running, and
the rest goes on in a next run.

pytest-timeout ends a test that takes too long. Should even that fail, the run is ended from here
when nothing happened for twice as long.

A test that fails in the whole run is run again alone, once. If it passes then, it passed, and the
page says what the first run said: on a loaded machine their own deadlines of a few seconds are
easily missed.
"""

import json
import os
import re
import select
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping, Sequence
from io import RawIOBase
from pathlib import Path
from typing import Any, Final

from tests.conformance.judgements import PLAINTEXT, Judgements
from tests.conformance.outcomes import Result
from tests.conformance.suites import KAFKA_VERSION, SuiteError, SuiteRun, git_description, named

TESTS: Final = "test/integration"
PACKAGES: Final = (
    "crc32c",
    "lz4",
    "py",
    "pytest>=8.4,<9",
    "pytest-mock",
    "pytest-timeout",
    "python-snappy",
    "xxhash",
    "zstandard",
)
"""What the tests import and what the client needs for every codec; not the client."""

TEST_TIMEOUT_S: Final = 120.0
"""For one test; the longest takes a tenth of it on a quiet machine."""
START_TIMEOUT_S: Final = 300.0
"""For pytest until its first event."""
INSTALLATION_TIMEOUT_S: Final = 900.0

JUDGEMENTS: Final = Path(__file__).with_name("judgements_kafka_python.toml")
PLUGIN: Final = Path(__file__).with_name("plugin")
_VERSION: Final = re.compile(r"""^__version__ = ['"](.+)['"]""", re.MULTILINE)
_RESULTS: Final = {
    "passed": Result.PASSED,
    "failed": Result.FAILED,
    "skipped": Result.NOT_APPLICABLE,
}


class KafkaPythonSuite:
    """The suite of a source tree. See `tests.conformance.suites.Suite`."""

    how = (
        f"`KAFKA_URI=kafka://HOST:PORT KAFKA_VERSION={KAFKA_VERSION} pytest {TESTS}`, every test; "
        "on a broker with the settings of partitions and groups with which the suite starts Kafka."
    )
    broker_settings: Mapping[str, str] = {  # what their own fixture starts Kafka with
        "num.partitions": "4",
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",
    }

    def __init__(
        self,
        source: Path,
        security: str = PLAINTEXT,
        *,
        python: Path | None = None,
        test_timeout_s: float = TEST_TIMEOUT_S,
    ) -> None:
        """`python` has the packages already; None: `prepare` makes an environment with them."""
        self._source = source
        self.security: Final = security
        self.name, self.title = named("kafka-python", "kafka-python", security)
        self._test_timeout_s = test_timeout_s
        self._is_prepared = python is not None
        self._python = python or Path(sys.executable)

    @property
    def judgements(self) -> Judgements:
        return Judgements.read(JUDGEMENTS, "kafka-python", security=self.security)

    def version(self) -> str:
        if described := git_description(self._source):
            return described
        file = self._source / "kafka" / "version.py"
        found = _VERSION.search(file.read_text(encoding="utf-8")) if file.exists() else None
        return found[1] if found else "unknown"

    def prepare(self, work: Path) -> None:
        if not (self._source / TESTS).is_dir():
            raise SuiteError(f"{self._source} has no {TESTS}: it is no source of kafka-python")
        if self._is_prepared:
            return
        environment = work.parent / "venv-kafka-python"
        self._python = environment / "bin" / "python"
        installed = environment / ".installed"
        wanted = "\n".join([sys.version, *PACKAGES])
        if installed.exists() and installed.read_text(encoding="utf-8") == wanted:
            return
        if environment.exists():
            shutil.rmtree(environment)
        venv.create(environment, with_pip=True)
        pip = [str(self._python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        try:
            done = subprocess.run(
                [*pip, *PACKAGES],
                check=False,
                capture_output=True,
                text=True,
                timeout=INSTALLATION_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired as error:
            raise SuiteError(f"pip did not install its packages: {error}") from error
        if done.returncode != 0:
            raise SuiteError(f"pip could not install its packages: {done.stderr.strip()}")
        installed.write_text(wanted, encoding="utf-8")

    def run(self, run: SuiteRun) -> None:
        collected = [
            event["test"]
            for event in self._events(run, [TESTS], "--collect-only", log="collect.log")
            if event["event"] == "collected"
        ]
        if not collected:
            raise SuiteError(f"pytest found no tests; see {run.work / 'collect.log'}")
        failed: dict[str, str] = {}
        remaining = [_node(test) for test in run.choose(_name(node) for node in collected)]
        attempt = 0
        while remaining:
            attempt += 1
            ended = self._run_some(run, remaining, failed, f"run-{attempt}.log")
            if not ended:
                raise SuiteError(f"pytest runs no tests; see {run.work / f'run-{attempt}.log'}")
            remaining = [node for node in remaining if node not in ended]
        for number, (node, first_why) in enumerate(failed.items(), start=1):
            self._run_alone(run, node, first_why, f"alone-{number}.log")

    def _run_some(
        self, run: SuiteRun, nodes: Sequence[str], failed: dict[str, str], log: str
    ) -> set[str]:
        """Run `nodes` until all ended or the run died; those that ended. `failed` gets failures."""
        ended: set[str] = set()
        running: str | None = None
        for event in self._events(run, nodes, log=log):
            node = event["test"]
            if event["event"] == "started":
                running = node
            elif event["event"] == "ended":
                running = None
                ended.add(node)
                if event["result"] == "failed":
                    failed[node] = event["why"]
                    run.note(f"{_name(node)} failed; once more, alone, at the end")
                else:
                    run.report(
                        _name(node),
                        _RESULTS[event["result"]],
                        event["why"],
                        seconds=event["seconds"],
                    )
        if running is not None:
            ended.add(running)
            failed[running] = f"the test run died in it; see {log}"
            run.note(f"the test run died in {_name(running)}; the rest in a new one")
        return ended

    def _run_alone(self, run: SuiteRun, node: str, first_why: str, log: str) -> None:
        result, why, seconds = Result.FAILED, f"the test run died in it; see {log}", None
        for event in self._events(run, [node], log=log):
            if event["event"] == "ended":
                result, why, seconds = _RESULTS[event["result"]], event["why"], event["seconds"]
        if result is Result.PASSED:
            why = f"alone; in the whole run: {first_why}"
        run.report(_name(node), result, why, seconds=seconds)

    def _events(
        self, run: SuiteRun, nodes: Sequence[str], *options: str, log: str
    ) -> Iterator[Mapping[str, Any]]:
        """What happens in one run of their pytest, as it happens; its output goes to `log`."""
        nowhere = (
            run.work / "no-kafka-here"
        )  # their fixtures want the directory, and look no further
        nowhere.mkdir(exist_ok=True)
        reading, writing = os.pipe()
        command = [str(self._python), "-m", "pytest", "-p", "conformance_events"]
        # Their own watchdog ends the whole run; a signal ends the test.
        told: dict[str, str] = {}
        if run.security is not None:
            command += ["-p", "conformance_security"]
            told["CONFORMANCE_SECURITY"] = json.dumps(dict(run.security.kafka_python))
        command += ["-p", "no:cacheprovider", "--timeout-method=signal"]
        timeout_s = self._test_timeout_s * run.patience
        command += [f"--timeout={timeout_s:.0f}", *options, *nodes]
        with (run.work / log).open("w") as output, os.fdopen(reading, "rb", 0) as events:
            try:
                process = subprocess.Popen(
                    command,
                    cwd=self._source,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=[writing],
                    env={
                        **os.environ,
                        **told,
                        "CONFORMANCE_EVENTS": str(writing),
                        "KAFKA_ROOT": str(nowhere),
                        "KAFKA_URI": f"kafka://{run.bootstrap}",
                        "KAFKA_VERSION": KAFKA_VERSION,
                        "PYTEST_ADDOPTS": "",  # what somebody set there is for another run
                        "PYTHONDONTWRITEBYTECODE": "1",
                        "PYTHONPATH": str(PLUGIN),
                    },
                )
            finally:
                os.close(writing)  # the pipe ends with the process
            try:
                for line in _lines(events, START_TIMEOUT_S * run.patience, timeout_s * 2):
                    yield json.loads(line)
            finally:
                process.kill()  # harmless after its end; otherwise nobody reads what it says
                process.wait()


def _lines(pipe: RawIOBase, first_within_s: float, silent_max_s: float) -> Iterator[bytes]:
    """The lines of `pipe`, to its end, or until the first or the next one does not come in time."""
    pending = b""
    limit_s = first_within_s
    while select.select([pipe], [], [], limit_s)[0]:
        read = os.read(pipe.fileno(), 1 << 16)
        if not read:
            return
        *lines, pending = (pending + read).split(b"\n")
        yield from lines
        limit_s = silent_max_s


def _name(node: str) -> str:
    return node.removeprefix(f"{TESTS}/")


def _node(name: str) -> str:
    return f"{TESTS}/{name}"
