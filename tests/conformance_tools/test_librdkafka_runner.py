"""The runner of librdkafka's suite, on a little tree whose test-runner does all that can happen."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance import kafka_java, kafka_topics, librdkafka_suite
from tests.conformance.judgements import Judgement, Judgements, Verdict
from tests.conformance.librdkafka_suite import (
    classic,
    consumer,
    subtests_of,
    table_of,
    verdicts_of,
    version_of,
    was_run,
)
from tests.conformance.outcomes import Result
from tests.conformance.suites import KAFKA_VERSION, SuiteError, SuiteRun
from tests.support.clients.jvm import Jars, JvmUnavailable

TABLE = """\
#define _TEST(NAME, FLAGS, ...) {.name = #NAME}

struct test tests[] = {
    {.name = "<MAIN>", .flags = TEST_F_LOCAL},
    _TEST(0001_passes, 0),
    _TEST(0001_local, TEST_F_LOCAL, _THRES(.ucpu = 100.0, .rss = 900.0)),
    _TEST(0002_never_passes, 0, TEST_BRKVER(0, 9, 0, 0)),
    _TEST(0002_shares_the_number,
          0,
          TEST_BRKVER(1, 0, 0, 0)),
#if WITH_SOCKEM
    _TEST(0003_passes_alone, TEST_F_SOCKEM),
#endif
    _TEST(0004_leaves_threads, TEST_F_KNOWN_ISSUE_WIN32),
    _TEST(0004_is_done, 0),
    _TEST(0004_crashes, 0),
    _TEST(0005_is_skipped, 0),
    _TEST(0006_known, TEST_F_KNOWN_ISSUE, .extra = "https://somewhere/529"),
    _TEST(0007_closed, 0, .scenario = "noautocreate"),
    _TEST(0008_old, 0, .scenario = "ak23"),
    _TEST(0009_manual, TEST_F_MANUAL),
    _TEST(0010_acls, 0),
    _TEST(0081_admin, 0, TEST_BRKVER(0, 10, 2, 0)),

    {NULL}};
"""

ADMIN = """\
static void helper(int a) {
        called();
}

static void do_test_Create(const char *what,
                           int a) {
        SUB_TEST_QUICK("%s", what);
}

static void
do_test_Describe(int a) {
        int b = 1;

        SUB_TEST();
}

void do_test_Old(void) {
        SUB_TEST();
}
"""

RUNNER = """\
#!{python}
import os, pathlib, sys

number, subtest = os.environ["TESTS"], os.environ.get("SUBTESTS", "")
assert sys.argv[1:] == ["-p1", "-L"]
assert os.environ["TEST_CONSUMER_GROUP_PROTOCOL"] == "classic"
assert os.environ["TEST_KAFKA_VERSION"] == "{version}"
told = pathlib.Path(os.environ["RDKAFKA_TEST_CONF"]).read_text().splitlines()
bootstrap = told[0].removeprefix("metadata.broker.list=")
assert "test.timeout.multiplier=6.0" in told
scenario = os.environ["TEST_SCENARIO"]
assert (scenario == "default") == (bootstrap == "127.0.0.1:9") == (number != "0007")
state = pathlib.Path(__file__).parents[3] / "state"


def row(name, state, why=""):
    print(f"|\\x1b[32m {{name:40}} | {{state:>10}} |   1.250s \\x1b[0m|{{why}}")


print("Sub tests        : " + subtest)
match number:
    case "0001":
        row("0001_passes", "PASSED")
        row("0001_local", "SKIPPED", "\\x1b[36m Filtered due to negative test flags")
    case "0002":
        print('\\x1b[31m### Test "0002_never_passes (sub:7)" failed at x.c:1:f() at Fri: ###')
        print("one is not two")
        row("0002_never_passes", "FAILED", "\\x1b[31m one is")
        row("0002_shares_the_number", "PASSED")
        sys.exit(1)
    case "0003":
        first = not state.exists()
        state.touch()
        row("0003_passes_alone", "RUNNING" if first else "PASSED")
    case "0004":
        print('### Test "0004_leaves_threads (sub:7)" failed at x.c:1:f() at Fri: ###')
        print("out of luck")
        print('### Test "0004_leaves_threads (sub:7)" failed at x.c:9:f() at Fri: ###\\nthen more')
        print("\\x1b[36m[0004_is_done / 3s] \\x1b[32m===== Test 0004_is_done PASSED =====\\x1b[0m")
        sys.stdout.flush()
        os.abort()
    case "0005":
        row("0005_is_skipped", "SKIPPED", " no JSON")
    case "0007":
        row("0007_closed", "PASSED")
    case "0081":
        if subtest != "do_test_Old:":
            print(f"[ {{subtest}}531: with a queue ]")
        row("0081_admin", "PASSED")
    case _:
        raise AssertionError("is never run")
"""

MAKEFILE = """\
libs:
	@echo built >> libs-built
"""

TESTS_MAKEFILE = """\
build:
	@cp runner test-runner
"""


def plant(tree: Path) -> Path:
    for name, text in {
        "configure": "#!/bin/sh\n",
        "Makefile": MAKEFILE,
        "src/rdkafka.h": "#define RD_KAFKA_VERSION 0x020f01ff\n",
        "tests/Makefile": TESTS_MAKEFILE,
        "tests/test.c": TABLE,
        "tests/0081-admin.c": ADMIN,
        "tests/old.o": "from another build",
        "tests/runner": RUNNER.format(python=sys.executable, version=KAFKA_VERSION),
    }.items():
        file = tree / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)
    return tree


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return plant(tmp_path / "source")


@pytest.fixture
def run(tmp_path: Path) -> SuiteRun:
    work = tmp_path / "work" / "librdkafka-classic"
    work.mkdir(parents=True)
    return SuiteRun(
        suite="librdkafka-classic",
        bootstrap="127.0.0.1:9",
        work=work,
        patience=3,
        judgements=Judgements(
            entries=(Judgement(patterns=("*acls",), verdict=Verdict.NOT_APPLICABLE, why="none"),)
        ),
    )


def state_of(source: Path) -> dict[Path, tuple[int, int, int, int]]:
    """What writing changes of each file: reading one may change only when it was last read."""
    found = {file: file.stat() for file in source.rglob("*")}
    return {
        file: (stat.st_ino, stat.st_mode, stat.st_size, stat.st_mtime_ns)
        for file, stat in found.items()
    }


def test_every_test_of_the_table_comes_to_something(source: Path, run: SuiteRun) -> None:
    before = state_of(source)
    suite = classic(source)
    suite.prepare(run.work)
    suite.run(run)
    found = {outcome.test: (outcome.result, outcome.why) for outcome in run.outcomes}
    assert len(found) == len(run.outcomes)
    assert found == {
        "0001_passes": (Result.PASSED, ""),
        "0001_local": (Result.NOT_APPLICABLE, "it talks to no broker (TEST_F_LOCAL)"),
        "0002_never_passes": (Result.FAILED, "one is not two"),
        "0002_shares_the_number": (Result.PASSED, ""),
        "0003_passes_alone": (
            Result.PASSED,
            "when it was run again; at first: it was running when the runner ended",
        ),
        "0004_leaves_threads": (Result.FAILED, "out of luck"),
        "0004_is_done": (Result.PASSED, ""),
        "0004_crashes": (
            Result.FAILED,
            "the runner ended by SIGABRT; see 0004.default.1.log",
        ),
        "0005_is_skipped": (Result.NOT_APPLICABLE, "no JSON"),
        "0006_known": (
            Result.NOT_APPLICABLE,
            "left out by the suite itself as a known issue of the client",
        ),
        "0007_closed": (Result.PASSED, ""),
        "0008_old": (Result.NOT_APPLICABLE, "only for the scenario ak23"),
        "0009_manual": (
            Result.NOT_APPLICABLE,
            "left out by the suite itself: only for running by hand",
        ),
        "0010_acls": (Result.NOT_APPLICABLE, "none"),
        "0081_admin/do_test_Create": (Result.PASSED, ""),
        "0081_admin/do_test_Describe": (Result.PASSED, ""),
        "0081_admin/do_test_Old": (Result.NOT_APPLICABLE, "the test does not call it here"),
    }
    assert state_of(source) == before, "it is only read"


def test_a_test_that_hangs_is_ended(
    source: Path, run: SuiteRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(librdkafka_suite, "PROCESS_LIMIT_S", 0.01)
    (source / "tests" / "runner").write_text("#!/bin/sh\nexec sleep 100\n")
    run.is_wanted = lambda test: test == "0001_passes"
    suite = classic(source)
    suite.prepare(run.work)
    suite.run(run)
    (outcome,) = run.outcomes
    assert outcome.result is Result.FAILED
    assert outcome.why.startswith("it hung for 0 s")


def test_what_is_built_already_is_built_again_only_when_the_source_changes(
    source: Path, run: SuiteRun
) -> None:
    built = run.work.parent / "librdkafka" / "libs-built"
    for suite in (classic(source), consumer(source)):
        suite.prepare(run.work)
        assert built.read_text() == "built\n"
        assert not (built.parent / "tests" / "old.o").exists()
        built.write_text("built\n")
    built.write_text("long ago\n")
    classic(source).prepare(run.work)
    assert built.read_text() == "long ago\n"
    (source / "src" / "rdkafka.h").write_text("#define RD_KAFKA_VERSION 0x02100000\n")
    classic(source).prepare(run.work)
    assert built.read_text() == "built\n"


def test_a_tree_that_does_not_build_is_refused_each_time(source: Path, run: SuiteRun) -> None:
    (source / "Makefile").write_text("libs:\n\tfalse\n")
    for _ in range(2):
        with pytest.raises(SuiteError, match=r"`make -j\d+ libs` of librdkafka failed; see "):
            classic(source).prepare(run.work)


def test_a_tree_without_the_suite_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="no source of librdkafka"):
        classic(tmp_path).prepare(tmp_path / "work")


def test_a_suite_without_a_table_of_tests_is_refused(source: Path, run: SuiteRun) -> None:
    (source / "tests" / "test.c").write_text("int main() {}\n")
    suite = classic(source)
    suite.prepare(run.work)
    with pytest.raises(SuiteError, match="no table of tests"):
        suite.run(run)


def test_the_version_is_that_of_the_source(source: Path, tmp_path: Path) -> None:
    assert classic(source).version() == "2.15.1"
    assert classic(tmp_path).version() == "unknown"
    assert version_of("") == "unknown"


def test_both_protocols_read_the_judgements() -> None:
    for make in (classic, consumer):
        suite = make(Path())
        assert not suite.judgements.is_applicable("0171_share_consumer_consume")
        assert suite.judgements.is_applicable("0001_multiobj")


def test_the_table_is_read_as_the_compiler_reads_it() -> None:
    tests = {test.name: test for test in table_of(TABLE)}
    assert len(tests) == TABLE.count("_TEST(0")
    assert tests["0001_local"].flags == {"LOCAL"}
    assert tests["0004_leaves_threads"].flags == {"KNOWN_ISSUE_WIN32"}
    assert tests["0007_closed"].scenarios == {"noautocreate"}
    assert table_of("") == []


def test_functions_with_subtests_are_found_in_their_order() -> None:
    assert subtests_of(ADMIN) == ["do_test_Create", "do_test_Describe", "do_test_Old"]


def test_a_subtest_was_run_when_its_title_was_written() -> None:
    output = "Sub tests        : f:\n\x1b[36m[0081_admin / 0.1s] \x1b[35m[ g:12: f or g ]\n"
    assert was_run("g:", output)
    assert was_run("f or g", output)
    assert not was_run("f:", output)
    assert was_run("", output)


def test_output_without_a_summary_has_no_verdicts() -> None:
    assert verdicts_of("Assertion `0' failed.\n") == {}


def test_their_script_for_topics_is_ours_in_other_words(tmp_path: Path) -> None:
    assert kafka_topics.arguments_of_diskless(
        shlex.split(
            '--bootstrap-server h:1 --create --topic "t" --replication-factor 1 --partitions 2 '
            "--config a=b --config c=d"
        )
    ) == shlex.split("topic create t --bootstrap h:1 --partitions 2 --config a=b --config c=d")
    assert kafka_topics.arguments_of_diskless(
        shlex.split("--bootstrap-server h:1 --alter --topic t --partitions 4")
    ) == shlex.split("topic alter t --bootstrap h:1 --partitions 4")
    assert kafka_topics.arguments_of_diskless(
        shlex.split("--bootstrap-server h:1 --delete --topic t")
    ) == shlex.split("topic delete t --bootstrap h:1")

    kafka_topics.install(tmp_path)
    script = [tmp_path / "bin" / "kafka-topics.sh", "--bootstrap-server", "127.0.0.1:1"]
    done = subprocess.run(
        [*script, "--delete", "--topic", "t"], check=False, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert re.search(r"127\.0\.0\.1:1\b", done.stderr)


def test_their_programs_in_java_find_their_own_classes_and_kafkas_jars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jars = tmp_path / "build" / "jars"
    jars.mkdir(parents=True)
    monkeypatch.setattr(kafka_java, "java_command", lambda: "echo")
    monkeypatch.setattr(kafka_java, "resolve", lambda *_: Jars(jars, {}))
    home = tmp_path / "a kafka"
    for _ in range(2):
        assert kafka_java.install(home) == ""
    assert (home / "libs").resolve() == jars
    ran = subprocess.run(
        [home / "bin" / "kafka-run-class.sh", "TheirClass", "an argument"],
        check=True,
        capture_output=True,
        text=True,
        env={"CLASSPATH": "/their/classes"},
    )
    assert ran.stdout.endswith(f"-cp /their/classes:{home}/libs/* TheirClass an argument\n")


def test_without_java_it_is_said_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> str:
        raise JvmUnavailable("no java")

    monkeypatch.setattr(kafka_java, "java_command", missing)
    assert kafka_java.install(tmp_path / "kafka") == "no java"
    assert not (tmp_path / "kafka").exists()


def test_their_script_logs_in_where_the_suite_does(tmp_path: Path) -> None:
    words = shlex.split("--command-config f --bootstrap-server h:1 --delete --topic t")
    told = shlex.split("topic delete t --bootstrap h:1 --command-config f")
    assert kafka_topics.arguments_of_diskless(words) == told

    kafka_topics.install(tmp_path, {"security.protocol": "sasl_ssl", "sasl.password": "p w"})
    properties = tmp_path / "client.properties"
    assert properties.read_text() == "security.protocol=sasl_ssl\nsasl.password=p w\n"
    assert properties.stat().st_mode & 0o077 == 0
    assert f"--command-config {properties}" in (tmp_path / "bin" / "kafka-topics.sh").read_text()
