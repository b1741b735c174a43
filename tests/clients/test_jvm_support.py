"""What the tests of Java clients do where something is missing, and when a tool misbehaves."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clients import jvm
from tests.support.clients.jvm import (
    KAFKA_VERSIONS,
    JvmUnavailable,
    KafkaTools,
    java_command,
    resolve,
)

pytestmark = [pytest.mark.clients, pytest.mark.jvm]

NOBODY = "127.0.0.1:9"
"""Where no broker is: the discard port, which nothing serves any more."""


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A machine on which nothing was resolved or looked for yet; its directory of programs."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setattr(jvm, "CACHE", tmp_path / "jvm")
    java_command.cache_clear()
    jvm._resolve.cache_clear()
    yield programs
    java_command.cache_clear()
    jvm._resolve.cache_clear()


def install(programs: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Maven that does what `script` says with the target directory in $directory."""
    maven = programs / "mvn"
    maven.write_text(
        "#!/bin/sh\n"
        'for argument; do case "$argument" in -DoutputDirectory=*) directory=${argument#*=};;'
        " esac; done\n" + script
    )
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")


def test_without_java_the_reason_says_so(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fresh / "nowhere"))
    with pytest.raises(JvmUnavailable, match="Java 17 or newer is needed"):
        KafkaTools(KAFKA_VERSIONS[0])


def test_without_maven_the_reason_says_so(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(fresh))
    with pytest.raises(JvmUnavailable, match=r"Maven \(mvn\) is needed once.*kafka-pom.xml"):
        resolve("kafka-pom.xml", [{"kafka.version": "1"}])


def test_what_maven_could_not_bring_is_told_and_leaves_nothing(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(fresh, 'touch "$directory/half.jar"; echo "[ERROR] no route"; exit 1', monkeypatch)
    with pytest.raises(JvmUnavailable, match=r"kafka-pom\.xml: no route"):
        resolve("kafka-pom.xml", [{"kafka.version": "1"}])
    assert list(jvm.CACHE.iterdir()) == []


def test_maven_is_not_asked_twice_for_what_it_could_not_bring(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(fresh, f"echo asked >> {fresh}/log; exit 1", monkeypatch)
    for _ in range(2):
        with pytest.raises(JvmUnavailable):
            resolve("kafka-pom.xml", [{"kafka.version": "1"}])
    assert (fresh / "log").read_text().splitlines() == ["asked"]


def test_the_first_candidate_that_can_be_had_is_kept(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_two = 'case "$*" in *-Dv=2*) touch "$directory/two.jar";; *) exit 1;; esac'
    install(fresh, only_two, monkeypatch)
    candidates = [{"v": "1"}, {"v": "2"}, {"v": "3"}]
    jars = resolve("spark-pom.xml", candidates)
    assert (jars.properties, [path.name for path in jars.paths]) == ({"v": "2"}, ["two.jar"])

    # Another process needs no Maven for it any more.
    jvm._resolve.cache_clear()
    install(fresh, "exit 1", monkeypatch)
    assert resolve("spark-pom.xml", candidates) == jars


def test_a_tool_that_ends_its_process_or_takes_too_long_spoils_no_other(tools: KafkaTools) -> None:
    with pytest.raises(AssertionError, match="ended its whole process"):
        tools.run("ToolRunner")  # finds no request, and ends
    waits = ("pattern", NOBODY, "group", "none.*", "1")
    with pytest.raises(AssertionError, match="missed its deadline"):
        tools.run("ClientScenarios", *waits, timeout_s=2)
    missing = tools.run("ToolOfNobody")
    assert (missing.status, missing.stdout) == (1, "")
    assert "ClassNotFoundException" in missing.stderr


def test_a_process_that_fails_tells_what_it_wrote(tools: KafkaTools) -> None:
    with tools.start("ClientScenarios", "no such scenario", NOBODY) as process:
        with pytest.raises(AssertionError, match="IllegalArgumentException"):
            process.wait_for(lambda line: True)
        finished = process.finish()
    assert finished.status == 1
    assert "no such scenario" in finished.stderr
