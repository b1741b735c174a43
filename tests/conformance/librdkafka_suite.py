"""librdkafka's `tests/`, run test by test with one of the two group protocols.

Their source is copied to build/conformance/librdkafka and built there, once for both suites, so
that the directory that was given stays clean. The table of their test.c tells which tests there
are, which of them talk to a broker and which scenario they need. `noautocreate` gets a second
broker: it differs in a setting that a broker has for its whole life.

Each number of a test is a process of its own (their runner takes nothing smaller), with a limit of
time; a few run at a time. A failed assertion of theirs ends the whole test, and with it all
subtests that come later. So those tests of which only a part is applicable (`SPLIT`) are run
subtest by subtest, and every subtest is a row of its own: `0081_admin/do_test_CreateTopics`.

What fails is run again alone, once. If it passes then, it passed, and the page says how it failed
at first: their deadlines of a few seconds are easily missed on a loaded machine.
"""

import hashlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from tests.conformance import kafka_java, kafka_topics
from tests.conformance.broker_process import broker_for
from tests.conformance.judgements import PLAINTEXT, Judgements
from tests.conformance.outcomes import Result
from tests.conformance.security import SASL_SSL
from tests.conformance.suites import KAFKA_VERSION, SuiteError, SuiteRun, git_description, named

JUDGEMENTS: Final = Path(__file__).with_name("judgements_librdkafka.toml")

DEFAULT: Final = "default"
NO_AUTO_CREATE: Final = "noautocreate"
BROKER_SETTINGS: Final[Mapping[str, str]] = {
    "num.partitions": "4",  # tests/scenarios/default.json
    "wal.commit.interval.ms": "10",  # many tests wait for every message before the next
}
REAUTHENTICATION: Final[Mapping[str, str]] = {"connections.max.reauth.ms": "10000"}
"""Where clients log in, they do so again and again."""
SCENARIO_SETTINGS: Final[Mapping[str, Mapping[str, str]]] = {
    DEFAULT: {},
    NO_AUTO_CREATE: {"auto.create.topics.enable": "false"},
}

SPLIT: Final[Mapping[str, Sequence[str]]] = {
    "0061_consumer_lag": ("lag with transactions", "lag without transactions"),
    "0081_admin": (),
    "0135_sasl_credentials": (),
    "0137_barrier_batch_consume": (),
    "0142_reauthentication": (),
}
"""Tests that are run subtest by subtest, by words of their titles or, without, by function."""

TIMEOUT_MULTIPLIER: Final = 2.0
"""Of the timeouts in their tests; times the patience of the run."""
PROCESS_LIMIT_S: Final = 1800.0
"""Of one process, times the patience; their own limits come before, except when all hangs."""
AT_A_TIME: Final = 4
"""Processes; they sleep most of the time. Their own runner takes five tests at a time."""
ALONE: Final = frozenset({"0033"})
"""Numbers that nothing runs beside, nor before: 0033 expects that nobody creates topics again that
it deleted, which clients of other tests do that know of them."""
LONGEST: Final = frozenset({"0113"})
"""Numbers that come first, since all the rest takes no longer than they do."""
STOP_LIMIT_S: Final = 10.0

_CXXFLAGS: Final = "-Wno-deprecated-declarations"
"""RapidJSON 1.1.0 warns with newer compilers, and their check takes a warning for its absence."""
_OLDER_VERSIONS: Final[Mapping[str, str]] = {"0109": "2.0.0"}
"""What some numbers are told of the broker's version, so that they do without Kafka's ACL tool."""
_IN_JAVA: Final = frozenset({"0098"})
"""Numbers of tests that run programs in Java."""
_SCRIPTED: Final = frozenset({"0045", "0052"}) | _IN_JAVA
"""Numbers of tests that call scripts of Kafka. Others do more where they find some."""
_COPIED: Final = ("src", "src-cpp", "tests", "mklove", "packaging", "examples")
_BUILT: Final = ("*.o", "*.d", "*.a", "*.so", "*.so.*", "*.lds", "test-runner", "config.h")


@dataclass(frozen=True, slots=True, kw_only=True)
class LibrdkafkaTest:
    """One line of the table in their test.c."""

    name: str
    flags: frozenset[str]
    """Without TEST_F_; of interest here: LOCAL, KNOWN_ISSUE, MANUAL."""
    scenarios: frozenset[str]
    subtests: Sequence[str] = ()
    """Texts that choose one each (SUBTESTS), if it is one of SPLIT; `function:` for a function."""

    @property
    def number(self) -> str:
        return self.name[:4]

    @property
    def rows(self) -> Sequence[str]:
        """Its names on the page."""
        if not self.subtests:
            return [self.name]
        return [f"{self.name}/{subtest.rstrip(':')}" for subtest in self.subtests]

    @property
    def why_never_run(self) -> str:
        """Why their runner would leave it out against any broker, or an empty text."""
        if "LOCAL" in self.flags:
            return "it talks to no broker (TEST_F_LOCAL)"
        if "KNOWN_ISSUE" in self.flags:
            return "left out by the suite itself as a known issue of the client"
        if "MANUAL" in self.flags:
            return "left out by the suite itself: only for running by hand"
        if not self.scenarios & SCENARIO_SETTINGS.keys():
            return f"only for the scenario {', '.join(sorted(self.scenarios))}"
        return ""

    @property
    def scenario(self) -> str:
        return next(name for name in SCENARIO_SETTINGS if name in self.scenarios)


class Verdict(NamedTuple):
    """What their runner says of one test."""

    result: Result
    why: str
    seconds: float | None


class LibrdkafkaSuite:
    """The suite of a source tree with one group protocol. See `tests.conformance.suites.Suite`."""

    broker_settings: Mapping[str, str] = BROKER_SETTINGS
    """Not of its class where there is more."""

    def __init__(self, source: Path, protocol: str, security: str = PLAINTEXT) -> None:
        """`protocol` is "classic" or "consumer"."""
        self._source = source
        self._protocol = protocol
        self._tests = Path()
        self.security: Final = security
        self._suite = f"librdkafka-{protocol}"
        # The anchor of a title is the name.
        self.name, self.title = named(self._suite, f"librdkafka, {protocol}", security)
        if security == SASL_SSL:
            self.broker_settings = {**BROKER_SETTINGS, **REAUTHENTICATION}
        self.how = (
            f"`TEST_CONSUMER_GROUP_PROTOCOL={protocol} TEST_KAFKA_VERSION={KAFKA_VERSION} TESTS=… "
            f"./test-runner -p1 -L`, number by number; `{NO_AUTO_CREATE}` tests on a second broker."
            " `0081_admin` and other tests of which only a part is applicable are told by subtest."
            " `0109` is told a version without ACLs, which are half of it."
            " Brokers have 4 partitions by default, as the suite starts Kafka, and a commit"
            f" interval of {BROKER_SETTINGS['wal.commit.interval.ms']} ms."
        )

    @property
    def judgements(self) -> Judgements:
        return Judgements.read(JUDGEMENTS, self._suite, security=self.security)

    def version(self) -> str:
        if described := git_description(self._source):
            return described
        header = self._source / "src" / "rdkafka.h"
        if not header.exists():
            return "unknown"
        return version_of(header.read_text(encoding="utf-8"))

    def prepare(self, work: Path) -> None:
        if not (self._source / "tests" / "test.c").is_file():
            raise SuiteError(f"{self._source} has no tests/test.c: it is no source of librdkafka")
        copy = work.parent / "librdkafka"
        self._tests = copy / "tests"
        built = copy / ".built"
        wanted = _fingerprint(self._source)
        if built.exists() and built.read_text(encoding="utf-8") == wanted:
            return
        if copy.exists():
            shutil.rmtree(copy)
        _copy(self._source, copy)
        log = work.parent / "librdkafka-build.log"
        for command in (
            ["./configure", "--disable-debug-symbols"],
            ["make", f"-j{os.cpu_count() or 1}", "libs"],
            ["make", "-C", "tests", f"-j{os.cpu_count() or 1}", "build"],
        ):
            with log.open("a") as output:
                done = subprocess.run(
                    command,
                    cwd=copy,
                    check=False,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "CXXFLAGS": f"{_CXXFLAGS} {os.environ.get('CXXFLAGS', '')}"},
                )
            if done.returncode != 0:
                raise SuiteError(f"`{' '.join(command)}` of librdkafka failed; see {log}")
        built.write_text(wanted, encoding="utf-8")

    def run(self, run: SuiteRun) -> None:
        tests = with_subtests(
            table_of((self._tests / "test.c").read_text(encoding="utf-8")), self._tests
        )
        if not tests:
            raise SuiteError(f"{self._tests / 'test.c'} has no table of tests")
        chosen = set(run.choose(row for test in tests for row in test.rows))
        kafka = run.work / "kafka"
        kafka_topics.install(kafka, None if run.security is None else run.security.librdkafka)
        in_java = {row for test in tests if test.number in _IN_JAVA for row in test.rows}
        if chosen & in_java and (missing := kafka_java.install(kafka)):
            for row in sorted(chosen & in_java):
                run.report(row, Result.NOT_APPLICABLE, missing)
            chosen -= in_java
        jobs = _merged([job for test in tests for job in _jobs(test, chosen)])
        jobs.sort(key=lambda job: (job.number not in ALONE, job.number not in LONGEST))
        alone = sum(job.number in ALONE for job in jobs)
        with ExitStack() as brokers:
            runners = {}
            for scenario in {job.scenario: None for job in jobs}:
                bootstrap = run.bootstrap
                if scenario != DEFAULT:
                    settings = {**self.broker_settings, **SCENARIO_SETTINGS[scenario]}
                    bootstrap = brokers.enter_context(
                        broker_for(run.work / scenario, settings, run.security, run.workers)
                    )
                runners[scenario] = _Runner(
                    directory=self._tests,
                    work=run.work,
                    kafka=kafka,
                    protocol=self._protocol,
                    scenario=scenario,
                    bootstrap=bootstrap,
                    client={} if run.security is None else run.security.librdkafka,
                    patience=run.patience,
                )
                runners[scenario].write_configuration()
            failed = _run_some_at_a_time(run, runners, jobs[:alone], at_a_time=1)
            failed += _run_some_at_a_time(run, runners, jobs[alone:], at_a_time=AT_A_TIME)
            for job, first in failed:
                second = runners[job.scenario].run(job, attempt=2)
                for row in first:
                    _report(run, row, _of_both(first[row], second[row]))
        for test in tests:
            if test.why_never_run:
                for row in test.rows:
                    if row in chosen:
                        run.report(row, Result.NOT_APPLICABLE, test.why_never_run)


def classic(source: Path, security: str = PLAINTEXT) -> LibrdkafkaSuite:
    return LibrdkafkaSuite(source, "classic", security)


def consumer(source: Path, security: str = PLAINTEXT) -> LibrdkafkaSuite:
    return LibrdkafkaSuite(source, "consumer", security)


# --- what their files say ------------------------------------------------------------------------

_TABLE: Final = re.compile(r"^struct test tests\[\] = \{(.*?)^ *\{NULL\}", re.DOTALL | re.MULTILINE)
_ENTRY: Final = re.compile(r"_TEST\((?P<name>\d{4}_\w+),(?P<rest>.*?)(?=_TEST\(|\Z)", re.DOTALL)
_FLAG: Final = re.compile(r"\bTEST_F_(\w+)")
_SCENARIO: Final = re.compile(r'\.scenario = "([^"]*)"')
_FUNCTION: Final = re.compile(r"^(?:[a-z].*?[\s*])??(\w+)\((?!.*;\s*$)")
_SUBTEST: Final = re.compile(r"^\s+SUB_TEST(?:_QUICK)?\(")
_SUMMARY: Final = re.compile(
    r"^\|\s*(?P<name>\d{4}_\w+)\s*\|\s*(?P<state>[A-Z_ ]+?)\s*\|\s*(?P<seconds>[\d.]+)s\s*\|"
    r"(?P<why>.*)$",
    re.MULTILINE,
)
_COLOUR: Final = re.compile(r"\x1b\[\d*m")
_FAILURE: Final = re.compile(
    r'^### Test "(?P<name>\d{4}_\w+)[^"]*" failed at .*\n(?P<why>.*)$', re.MULTILINE
)
_PASSED: Final = re.compile(r"^\[.*\] =+ Test (?P<name>\d{4}_\w+) PASSED =+$", re.MULTILINE)
_VERSION: Final = re.compile(r"#define RD_KAFKA_VERSION\s+0x([0-9a-f]{8})")


def table_of(source: str) -> list[LibrdkafkaTest]:
    """The tests in the table of `source`, their test.c, in its order."""
    table = _TABLE.search(source)
    found = []
    for entry in _ENTRY.finditer(table[1] if table else ""):
        scenario = _SCENARIO.search(entry["rest"])
        found.append(
            LibrdkafkaTest(
                name=entry["name"],
                flags=frozenset(_FLAG.findall(entry["rest"])),
                scenarios=frozenset(scenario[1].split(",") if scenario else [DEFAULT]),
            )
        )
    return found


def with_subtests(tests: Sequence[LibrdkafkaTest], directory: Path) -> list[LibrdkafkaTest]:
    """`tests` with the subtests of those that are run by subtest, read from `directory`."""
    found = []
    for test in tests:
        subtests = list(SPLIT.get(test.name, ()))
        if test.name in SPLIT and not subtests:
            for file in sorted(directory.glob(f"{test.number}-*.c*")):
                functions = subtests_of(file.read_text(encoding="utf-8"))
                subtests += [f"{function}:" for function in functions]
        found.append(replace(test, subtests=tuple(subtests)))
    return found


def subtests_of(source: str) -> list[str]:
    """The functions in `source`, a file of one test, that begin with SUB_TEST."""
    found: dict[str, None] = {}
    function = ""
    for line in source.splitlines():
        if start := _FUNCTION.match(line):
            function = start[1]
        elif _SUBTEST.match(line) and function:
            found[function] = None
    return list(found)


def version_of(header: str) -> str:
    """The release that rdkafka.h is of, such as 2.15.0."""
    found = _VERSION.search(header)
    if found is None:
        return "unknown"
    number = bytes.fromhex(found[1])
    return f"{number[0]}.{number[1]}.{number[2]}"


def verdicts_of(output: str) -> dict[str, Verdict]:
    """What the runner's output says of each test that it ran or left out.

    The summary at its end tells all. It is missing when the runner aborts, as it does when a test
    that failed has left threads behind; then what was written as each test ended has to do.
    """
    output = _COLOUR.sub("", output)
    failures = _failures(output)
    verdicts = {name: Verdict(Result.FAILED, why, None) for name, why in failures.items()}
    for ended in _PASSED.finditer(output):
        verdicts.setdefault(ended["name"], Verdict(Result.PASSED, "", None))
    for row in _SUMMARY.finditer(output):
        name, why = row["name"], row["why"].strip()
        match row["state"]:
            case "PASSED":
                result, why = Result.PASSED, ""
            case "SKIPPED":
                result = Result.NOT_APPLICABLE
            case state:
                result = Result.FAILED
                why = failures.get(name) or why or f"it was {state.lower()} when the runner ended"
        verdicts[name] = Verdict(result, why, float(row["seconds"]))
    return verdicts


def _failures(output: str) -> dict[str, str]:
    """The first failure of each test that failed."""
    failures: dict[str, str] = {}
    for found in _FAILURE.finditer(output):
        failures.setdefault(found["name"], found["why"].strip())
    return failures


def was_run(subtest: str, output: str) -> bool:
    """Whether a subtest that SUBTESTS chose has begun, by the runner's output."""
    title = r"\[ (?=\w)[^\n]*" if subtest else ""
    return re.search(title + re.escape(subtest), _COLOUR.sub("", output)) is not None


# --- running -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """One process of their runner: a number, or one subtest of it, with the rows that it tells."""

    number: str
    scenario: str
    subtest: str
    """As SUBTESTS takes it; empty for all of the number."""
    rows: tuple[str, ...]


def _jobs(test: LibrdkafkaTest, chosen: set[str]) -> list[_Job]:
    if test.why_never_run:
        return []
    return [
        _Job(number=test.number, scenario=test.scenario, subtest=subtest, rows=(row,))
        for row, subtest in zip(test.rows, test.subtests or [""], strict=True)
        if row in chosen
    ]


def _merged(jobs: Sequence[_Job]) -> list[_Job]:
    """Those that one process runs anyway, as one: whole tests of the same number."""
    found: dict[tuple[str, str, str], _Job] = {}
    for job in jobs:
        key = (job.number, job.scenario, job.subtest)
        rows = found[key].rows if key in found else ()
        found[key] = replace(job, rows=(*rows, *job.rows))
    return list(found.values())


def _run_some_at_a_time(
    run: SuiteRun, runners: Mapping[str, "_Runner"], jobs: Sequence[_Job], *, at_a_time: int
) -> list[tuple[_Job, Mapping[str, Verdict]]]:
    """Run all `jobs`, report those of which nothing failed; the others, in their order."""
    failed: dict[_Job, Mapping[str, Verdict]] = {}
    with ThreadPoolExecutor(at_a_time) as workers:
        running = {workers.submit(runners[job.scenario].run, job): job for job in jobs}
        for ended in as_completed(running):
            job, verdicts = running[ended], ended.result()
            if any(verdict.result is Result.FAILED for verdict in verdicts.values()):
                failed[job] = verdicts
                continue
            for row in verdicts:
                _report(run, row, verdicts[row])
    return [(job, failed[job]) for job in jobs if job in failed]


def _report(run: SuiteRun, row: str, verdict: Verdict) -> None:
    run.report(row, verdict.result, verdict.why, seconds=verdict.seconds)


def _of_both(first: Verdict, second: Verdict) -> Verdict:
    if first.result is not Result.FAILED or second.result is Result.FAILED:
        return first
    return Verdict(second.result, f"when it was run again; at first: {first.why}", second.seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runner:
    """Their test-runner, set up for one scenario on one broker."""

    directory: Path
    work: Path
    kafka: Path
    protocol: str
    scenario: str
    bootstrap: str
    client: Mapping[str, str]
    """How to connect."""
    patience: float

    @property
    def configuration(self) -> Path:
        return self.work / f"test-{self.scenario}.conf"

    def write_configuration(self) -> None:
        """Before anything is run."""
        self.configuration.write_text(
            f"metadata.broker.list={self.bootstrap}\n"
            f"test.timeout.multiplier={TIMEOUT_MULTIPLIER * self.patience}\n"
            "test.topic.random=true\n"
            + "".join(f"{key}={value}\n" for key, value in self.client.items()),
            encoding="utf-8",
        )

    def run(self, job: _Job, attempt: int = 1) -> Mapping[str, Verdict]:
        """A verdict for every row of `job`."""
        subtest = re.sub(r"\W+", "_", job.subtest).strip("_")
        name = ".".join(filter(None, [job.number, subtest, self.scenario, str(attempt)]))
        log = self.work / f"{name}.log"
        started = time.monotonic()
        how_it_ended = self._execute(job, log)
        seconds = time.monotonic() - started
        output = log.read_text(encoding="utf-8", errors="replace")
        verdicts = verdicts_of(output)
        found = {}
        for row in job.rows:
            verdict = verdicts.get(row.partition("/")[0])
            if verdict is None:
                verdict = Verdict(Result.FAILED, f"{how_it_ended}; see {log.name}", None)
            elif verdict.result is Result.PASSED and not was_run(job.subtest, output):
                verdict = Verdict(Result.NOT_APPLICABLE, "the test does not call it here", None)
            found[row] = verdict._replace(seconds=verdict.seconds or seconds)
        return found

    def _execute(self, job: _Job, log: Path) -> str:
        """How the process ended, as a sentence."""
        with log.open("w") as output:
            process = subprocess.Popen(
                ["./test-runner", "-p1", "-L"],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment(job),
            )
            try:
                status = process.wait(PROCESS_LIMIT_S * self.patience)
            except subprocess.TimeoutExpired:
                return f"it hung for {PROCESS_LIMIT_S * self.patience:.0f} s"
            finally:
                process.kill()  # harmless after its end
                process.wait(STOP_LIMIT_S)
        if status < 0:
            return f"the runner ended by {signal.Signals(-status).name}"
        return f"the runner ended with status {status}"

    def _environment(self, job: _Job) -> Mapping[str, str]:
        told = {
            **os.environ,
            "LD_LIBRARY_PATH": "../src:../src-cpp",
            "RDKAFKA_TEST_CONF": str(self.configuration),
            "TESTS": job.number,
            "TEST_CONSUMER_GROUP_PROTOCOL": self.protocol,
            "TEST_KAFKA_VERSION": _OLDER_VERSIONS.get(job.number, KAFKA_VERSION),
            "TEST_SCENARIO": self.scenario,
        }
        if job.subtest:
            told["SUBTESTS"] = job.subtest
        if job.number in _SCRIPTED:
            told |= {"KAFKA_PATH": str(self.kafka), "BROKERS": self.bootstrap}
        return told


# --- building ------------------------------------------------------------------------------------


def _fingerprint(source: Path) -> str:
    """Changes when a file that is built changes."""
    digest = hashlib.sha256()
    for file in _files(source):
        facts = file.stat()
        digest.update(f"{file.relative_to(source)} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _files(source: Path) -> Iterator[Path]:
    for name in ("src", "src-cpp", "tests"):
        for pattern in ("*.c", "*.cpp", "*.h", "Makefile"):
            yield from sorted((source / name).rglob(pattern))


def _copy(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for file in source.iterdir():
        if file.is_file() and file.name not in ("Makefile.config", "config.h", "config.cache"):
            shutil.copy2(file, target)
    for name in _COPIED:
        if (source / name).is_dir():
            shutil.copytree(
                source / name, target / name, ignore=shutil.ignore_patterns(*_BUILT), symlinks=True
            )
