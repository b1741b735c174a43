"""Kafka's own command line tools and Java clients, run by tests.

    with kafka_tools("4.3.0") as tools:
        listed = tools.run("org.apache.kafka.tools.TopicCommand", "--list", ...).stdout
        with tools.start("org.apache.kafka.tools.VerifiableConsumer", ...) as consumer:
            consumer.wait_for(lambda line: "partitions_assigned" in line)

Maven resolves the jars once, from the small project files in tests/jvm, into build/jvm; the name of
a directory there is the hash of what was asked for. Where Java, its compiler or Maven are missing,
or the jars are neither there nor to be had, `JvmUnavailable` says which: such tests are skipped.

`run` goes to one warm process per `KafkaTools` (tests/jvm/ToolRunner.java); `start` is a process of
its own, for what runs until it is stopped and for the few tools that keep static state. Both have a
deadline, and a process that misses it shows the stacks of its threads before it is killed.
"""

import hashlib
import os
import queue
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Final, NamedTuple, Self

import pytest

REPOSITORY: Final = Path(__file__).resolve().parents[3]
SOURCES: Final = REPOSITORY / "tests" / "jvm"
CACHE: Final = REPOSITORY / "build" / "jvm"

KAFKA_VERSIONS: Final = ("3.9.2", "4.3.0")
"""The last line that still speaks to brokers before 2.1, and the newest one."""

NEWEST: Final = tuple(
    pytest.param(version, marks=() if version == KAFKA_VERSIONS[-1] else pytest.mark.exhaustive)
    for version in KAFKA_VERSIONS
)
"""For tests in which another release shows nothing new: `make test` runs the newest. The matrix of
clients and the tests of the administrator always run all."""

SCALA_VERSION: Final = "2.13"

DEADLINE_S: Final = 240.0
"""How long one tool may take; far beyond what it does take on a loaded machine."""

RESOLVE_DEADLINE_S: Final = 300.0
"""Tens of megabytes on a first run, over whatever line there is."""

SHORT_RUN: Final = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)
"""For a JVM of a few seconds on few cores: no optimising compiler, one collector thread, and the
classes of released jars are not verified, which is a tenth of what a start of Spark takes."""

# Warnings of the clients go to standard error, where the tests look for them.
_JAVA_OPTIONS: Final = (
    *SHORT_RUN,
    "-Xmx256m",
    "-Dfile.encoding=UTF-8",
    "-Duser.language=en",
    "-Duser.timezone=UTC",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showThreadName=false",
)


class JvmUnavailable(Exception):
    """What is missing for these tests on this machine; they are skipped."""


class Finished(NamedTuple):
    """How a tool ended."""

    status: int
    stdout: str
    stderr: str

    @property
    def lines(self) -> list[str]:
        """Standard output without blank lines."""
        return [line for line in self.stdout.splitlines() if line.strip()]


class Jars(NamedTuple):
    """What Maven resolved."""

    directory: Path
    properties: Mapping[str, str]
    """Those of the candidate that could be had."""

    @property
    def paths(self) -> list[Path]:
        return sorted(self.directory.glob("*.jar"))


# Resolving


@cache
def java_command() -> str:
    """The `java` that Spark would find. Raises JvmUnavailable unless it is 17 or newer."""
    found = subprocess.run(
        [REPOSITORY / "scripts" / "need-java"], check=False, capture_output=True, text=True
    )
    if found.returncode != 0:
        raise JvmUnavailable(found.stderr.splitlines()[0])
    return _beside_java("java")


def resolve(project: str, candidates: Sequence[Mapping[str, str]]) -> Jars:
    """The jars of tests/jvm/`project`, with the first properties that Maven finds all jars for.

    Raises JvmUnavailable when it finds them for none.
    """
    found = _resolve(project, tuple(tuple(sorted(each.items())) for each in candidates))
    if isinstance(found, JvmUnavailable):
        raise found
    return found


@cache
def _resolve(
    project: str, candidates: tuple[tuple[tuple[str, str], ...], ...]
) -> Jars | JvmUnavailable:
    """Asks Maven once: where there is no network, it takes its time to say so."""
    pom = SOURCES / project
    asked = hashlib.sha256(pom.read_bytes() + repr(candidates).encode()).hexdigest()[:16]
    target = CACHE / f"{pom.stem}-{asked}"
    chosen = target / "properties"
    if not chosen.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        try:
            _download(pom, candidates, target)
        except JvmUnavailable as missing:
            return missing
    properties = dict(line.split("=", 1) for line in chosen.read_text().splitlines())
    return Jars(target, properties)


def _download(pom: Path, candidates: tuple[tuple[tuple[str, str], ...], ...], target: Path) -> None:
    """Put jars and `properties` into `target`, all of them or nothing."""
    maven = shutil.which("mvn")
    if maven is None:
        raise JvmUnavailable(f"Maven (mvn) is needed once, to bring the jars of {pom.name}")
    # Half of Maven's processor time is the optimising compiler's.
    options = f"-XX:TieredStopAtLevel=1 {os.environ.get('MAVEN_OPTS', '')}"
    reason = ""
    by_hand = ""
    for candidate in candidates:
        settings = [f"-D{key}={value}" for key, value in candidate]
        by_hand = f"mvn --file tests/jvm/{pom.name} {' '.join(settings)} dependency:resolve"
        with tempfile.TemporaryDirectory(dir=CACHE) as name:
            command = [
                *(maven, "--batch-mode", "--quiet", "--file", str(pom)),
                *settings,
                "dependency:copy-dependencies",
                *(f"-DoutputDirectory={name}", "-DincludeScope=runtime"),
            ]
            try:
                finished = subprocess.run(
                    command,
                    check=False,
                    capture_output=True,
                    text=True,
                    timeout=RESOLVE_DEADLINE_S,
                    env={**os.environ, "MAVEN_OPTS": options},
                )
            except subprocess.TimeoutExpired:
                reason = f"not within {RESOLVE_DEADLINE_S:.0f} s"
                continue
            if finished.returncode != 0:
                told = [line for line in finished.stdout.splitlines() if "[ERROR]" in line]
                reason = told[0].partition("[ERROR] ")[2] if told else finished.stderr
                continue
            chosen = "\n".join(f"{key}={value}" for key, value in candidate)
            Path(name, "properties").write_text(chosen)
            _publish(name, target)
            return
    raise JvmUnavailable(
        f"Maven cannot bring the jars of {pom.name}: {reason[:200]} (to bring them: {by_hand})"
    )


def java_program(
    project: str,
    properties: Mapping[str, str],
    sources: str | None,
    main_class: str,
    *arguments: str,
) -> "JavaProcess":
    """Starts a program of tests/jvm/`sources`, or of the jars, with those of tests/jvm/`project`.

    Raises JvmUnavailable when something is missing.
    """
    java = java_command()
    jars = resolve(project, [properties]).directory
    path = f"{jars}/*"
    if sources is not None:
        path = f"{_compiled(jars, SOURCES / sources)}:{path}"
    return JavaProcess([java, *_JAVA_OPTIONS, "-cp", path, main_class, *arguments])


@cache
def _compiled(jars: Path, directory: Path = SOURCES) -> Path:
    """A directory with the classes of `directory`, compiled against `jars`."""
    sources = sorted(directory.glob("*.java"))
    content = b"".join(source.read_bytes() for source in sources)
    target = jars / f"classes-{hashlib.sha256(content).hexdigest()[:16]}"
    if target.exists():
        return target
    compiler = shutil.which(_beside_java("javac"))
    if compiler is None:
        raise JvmUnavailable("a Java compiler is needed (a JDK: javac); here is only a runtime")
    with tempfile.TemporaryDirectory(dir=jars) as name:
        options = ["-nowarn", "-proc:none", "-encoding", "UTF-8", "-cp", f"{jars}/*", "-d", name]
        finished = subprocess.run(
            [compiler, "-J-XX:TieredStopAtLevel=1", *options, *map(str, sources)],
            check=False,
            capture_output=True,
            text=True,
            timeout=RESOLVE_DEADLINE_S,
        )
        assert finished.returncode == 0, finished.stderr
        _publish(name, target)
    return target


def _publish(directory: str, target: Path) -> None:
    """Move to where others look, in one step. Another test run may have been faster: fine."""
    try:
        Path(directory).rename(target)
    except OSError:
        if not target.is_dir():
            raise


def _beside_java(command: str) -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / command) if home else command


# Running


class JavaProcess:
    """One JVM whose standard output is read line by line."""

    def __init__(self, command: Sequence[str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `stop`
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.seen: list[str] = []
        """All lines so far that a call of this class has looked at."""
        self._reader = threading.Thread(target=self._read, name="java-output")
        self._reader.start()

    @property
    def stderr(self) -> str:
        """What it wrote there so far."""
        return os.pread(self._errors.fileno(), 1 << 20, 0).decode()

    def wait_for(self, wanted: Callable[[str], bool], timeout_s: float = DEADLINE_S) -> str:
        """The next line that is `wanted`. Fails when none comes."""
        ends_at = time.monotonic() + timeout_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, ends_at - time.monotonic()))
            except queue.Empty:
                seen = self.seen[-20:]
                raise AssertionError(f"no such line among {seen}: {self._stacks()}") from None
            if line is None:
                self._lines.put(None)  # for who asks next
            assert line is not None, f"ended after {self.seen[-20:]}: {self.stderr[-4000:]}"
            self.seen.append(line)
            if wanted(line):
                return line

    def write(self, text: str) -> None:
        """Bytes for its standard input, at once."""
        assert self._process.stdin is not None
        self._process.stdin.write(text.encode())
        self._process.stdin.flush()

    def close_input(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def finish(self, timeout_s: float = DEADLINE_S) -> Finished:
        """Wait for its end."""
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end: {self._stacks()}") from None
        self._drain()
        return Finished(status, "\n".join(self.seen), self.stderr)

    def stop(self) -> Finished:
        """SIGTERM, as `kill` sends it, unless it has ended; then `finish`."""
        self._process.terminate()
        return self.finish()

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.kill()
        self._reader.join()
        self._errors.close()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.decode().rstrip("\n"))
        self._lines.put(None)

    def _drain(self) -> None:
        self._reader.join()
        while (line := self._lines.get()) is not None:
            self.seen.append(line)

    def _stacks(self) -> str:
        self._process.send_signal(signal.SIGQUIT)
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._drain()
        return "\n".join(self.seen[-200:]) + self.stderr[-4000:]


class KafkaTools:
    """One version of Kafka's Java code."""

    def __init__(self, version: str, *options: str) -> None:
        """`options` are Java's own. Raises JvmUnavailable when something is missing."""
        self.version = version
        java = java_command()
        jars = resolve("kafka-pom.xml", [{"kafka.version": version}]).directory
        path = f"{_compiled(jars)}:{jars}/*"
        self._command = [java, *_JAVA_OPTIONS, *options, "-cp", path]
        self._runner: _Runner | None = None

    @property
    def is_4(self) -> bool:
        return not self.version.startswith("3.")

    def run(
        self,
        main_class: str,
        *arguments: str,
        stdin: bytes = b"",
        timeout_s: float = DEADLINE_S,
    ) -> Finished:
        """Run one tool to its end, whatever that is."""
        if self._runner is None:
            self._runner = _Runner([*self._command, "ToolRunner"])
        try:
            return self._runner.run(main_class, arguments, stdin, timeout_s)
        except BaseException:
            # What is left of its answer must not be taken for that of the next tool.
            self.close()
            raise

    def start(self, main_class: str, *arguments: str) -> JavaProcess:
        """A process of its own. Leaving its context kills it, if it still runs."""
        return JavaProcess([*self._command, main_class, *arguments])

    def close(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()


@contextmanager
def kafka_tools(version: str) -> Iterator[KafkaTools]:
    """Raises JvmUnavailable when something is missing."""
    tools = KafkaTools(version)
    try:
        yield tools
    finally:
        tools.close()


class _Runner:
    """The process of tests/jvm/ToolRunner.java."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None
        )

    def run(
        self, main_class: str, arguments: Sequence[str], stdin: bytes, timeout_s: float
    ) -> Finished:
        # The watch ends the process, which ends the read below: no thread is left behind.
        watch = threading.Timer(timeout_s, self._process.send_signal, [signal.SIGKILL])
        watch.start()
        try:
            self._ask(main_class, arguments, stdin)
            status = _INT.unpack(self._read(_INT.size))[0]
            stdout, stderr = (
                self._read(_INT.unpack(self._read(_INT.size))[0]).decode() for _ in range(2)
            )
        finally:
            watch.cancel()
        return Finished(status, stdout, stderr)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(DEADLINE_S)
        except BrokenPipeError:
            pass  # it has ended by itself, before it read everything
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()

    def _ask(self, main_class: str, arguments: Sequence[str], stdin: bytes) -> None:
        pipe: IO[bytes] | None = self._process.stdin
        assert pipe is not None
        pipe.write(_utf(main_class) + _INT.pack(len(arguments)))
        pipe.write(b"".join(map(_utf, arguments)) + _INT.pack(len(stdin)) + stdin)
        pipe.flush()

    def _read(self, size: int) -> bytes:
        assert self._process.stdout is not None
        content = self._process.stdout.read(size)
        assert len(content) == size, "the tool missed its deadline, or ended its whole process"
        return content


_INT: Final = struct.Struct(">i")


def _utf(text: str) -> bytes:
    """As Java's DataInput.readUTF reads it; the same as UTF-8 for the characters in use here."""
    encoded = text.encode()
    return struct.pack(">H", len(encoded)) + encoded
