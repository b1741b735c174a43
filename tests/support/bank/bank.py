"""A bank: tellers move money by transactions, readers and clerks read what is committed, all of it
while brokers and clients are killed and paused.

`teller` and `clerk` are programs, processes of their own, so that they can be killed and paused.
`Bank` starts them, reads along, and asks where the partitions end; `books` finds what is wrong with
what they all saw. `programs` is what both programs share: how they are told what to do, and how
they say what happens.

    with Bank(bootstrap, Sizes(), tmp_path) as bank:
        bank.open()
        bank.work(5.0)
        bank.replace_a_teller()
        bank.calm()
        bank.close()
    assert bank.faults() == []
"""

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from confluent_kafka import (
    IsolationLevel,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests.support.bank.books import (
    Balance,
    LogEnd,
    Outcome,
    Transfer,
    balance_faults,
    disagreements,
    late_legs,
    log_end_faults,
    order_faults,
    outcome_faults,
)
from tests.support.bank.programs import BALANCES, CLIENT, TOPIC
from tests.support.bank.readers import ConsumingReader, Reader, TableReader
from tests.support.brokers.live_broker import until
from tests.support.clients.stock_clients import QUIET, TIMEOUT_S

REPOSITORY: Final = Path(__file__).resolve().parents[3]
SEEN_WITHIN_S: Final = 60.0
"""Both legs of a transfer are seen so soon after its commit succeeded."""
OPEN_BEYOND_TIMEOUT_S: Final = 60.0
"""No transaction is open for longer than its timeout and this."""
WATCH_EVERY_S: Final = 0.5
GAP_MAX_S: Final = 3.0
"""Two answers about a partition's end that are further apart: it was led by nobody meanwhile."""
WAKES_AFTER_S: Final = 0.5
SETTLES_WITHIN_S: Final = 180.0
FENCED_WITHIN_S: Final = 240.0
"""A teller that was replaced gets on with its transaction so soon, or gives up."""


class Sizes(NamedTuple):
    """How large a bank is, and how busy."""

    tellers: int = 8
    clerks: int = 2
    accounts: int = 50
    partitions: int = 12
    timeout_ms: int = 10_000
    """Of every transaction."""
    session_ms: int = 10_000
    """Of the clerks in their group."""
    pause_s: float = 0.02
    """Of a teller between two transfers, on average."""
    gather_s: float = 0.1
    """For so long a clerk gathers legs before it books them."""
    tables_every_s: float = 1.0
    """How often tasks of Spark read along, while what they have read is rolled."""


class Program:
    """A teller or a clerk: one life, in a process of its own."""

    def __init__(self, module: str, name: str, orders: Mapping[str, Any], log: Path) -> None:
        self.name = name
        self.events: list[dict[str, Any]] = []
        """What it said so far."""
        self.is_paused = False
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-X", "faulthandler"),
                    *("-m", f"tests.support.bank.{module}", json.dumps(orders)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=REPOSITORY,
            )
        self._reader = threading.Thread(target=self._read, name=f"reads {name}")
        self._reader.start()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def has_said(self, event: str, after: int = 0) -> bool:
        """Whether it has, after its first `after` events."""
        return any(one["event"] == event for one in self.events[after:])

    def ask(self, wish: str) -> None:
        """Of one that may have ended meanwhile."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{wish}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            assert not self.is_running or self._process.wait(TIMEOUT_S) is not None

    def pause(self) -> None:
        self.is_paused = True
        self._process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        self.is_paused = False
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._forget()

    def end(self) -> None:
        """Let it do to its end what it has begun. Fails, saying where it stands, if it does not."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        self.await_end(SETTLES_WITHIN_S)
        self._forget()

    def await_end(self, within_s: float) -> None:
        """Fails, saying where it stands, if it does not end."""
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            # It writes a traceback of every thread to the log, and dies.
            self._process.send_signal(signal.SIGABRT)
            self._forget()
            last = self.events[-5:]
            raise AssertionError(
                f"{self.name} did not end behind {last}; {_tail(self._log)}"
            ) from None

    def _forget(self) -> None:
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        self._process.stdout.close()
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # The last line of one that is killed may be half a line.
            if line.endswith("\n"):
                self.events.append(json.loads(line))


class Watch:
    """Asks again and again where the partitions end, in a thread."""

    def __init__(self, bootstrap: str, partitions: int) -> None:
        self.ends: list[LogEnd] = []
        self._places = [TopicPartition(TOPIC, one) for one in range(partitions)]
        self._stopping = threading.Event()
        self._admin = AdminClient({**CLIENT, "bootstrap.servers": bootstrap}, logger=QUIET)
        self._thread = threading.Thread(target=self._run, name="watch")
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def ask(self) -> Sequence[LogEnd]:
        """Of all partitions whose leader answers."""
        try:
            stable = self._ask(IsolationLevel.READ_COMMITTED)
            highest = self._ask(IsolationLevel.READ_UNCOMMITTED)
        except KafkaException:
            return ()
        now = time.monotonic()
        # One that has no leader now has an offset below 0, and no error.
        return [
            LogEnd(now, partition, stable[partition], highest[partition])
            for partition in stable
            if min(stable[partition], highest[partition]) >= 0
        ]

    def _ask(self, level: IsolationLevel) -> dict[int, int]:
        asked = self._admin.list_offsets(
            {place: OffsetSpec.latest() for place in self._places},
            isolation_level=level,
            request_timeout=5.0,
        )
        return {place.partition: answer.result().offset for place, answer in asked.items()}

    def _run(self) -> None:
        while not self._stopping.wait(WATCH_EVERY_S):
            self.ends += self.ask()


class Bank:
    """All of it on one cluster. Leaving the context kills what still runs."""

    def __init__(self, bootstrap: str, sizes: Sizes, work: Path, seed: int = 7) -> None:
        """`work` is where the programs' complaints go."""
        self._bootstrap = bootstrap
        self._sizes = sizes
        self._log = work / "bank.log"
        self._rng = random.Random(seed)
        self._lives: Counter[str] = Counter()
        self._programs: list[Program] = []
        """All of them, in all their lives."""
        self._staff: dict[str, Program] = {}
        """The latest life of each."""
        self._readers: dict[str, Reader] = {}
        self._watch: Watch | None = None
        self._balances: list[Balance] = []
        self._faults: list[str] = []
        self.troubles: Counter[str] = Counter()
        """What was done to the programs."""

    def open(self) -> None:
        """Make the topics, and start everybody; all are at work when this returns."""
        admin = AdminClient({"bootstrap.servers": self._bootstrap}, logger=QUIET)
        made = admin.create_topics(
            [NewTopic(topic, self._sizes.partitions) for topic in (TOPIC, BALANCES)]
        )
        for topic in made.values():
            topic.result(TIMEOUT_S)
        self._watch = Watch(self._bootstrap, self._sizes.partitions)
        self._readers["first"] = self._reader(TOPIC)
        self._readers["table"] = TableReader(
            self._bootstrap, TOPIC, self._sizes.partitions, self._sizes.tables_every_s
        )
        for number in range(self._sizes.tellers):
            self._start("teller", f"teller-{number}")
        for number in range(self._sizes.clerks):
            self._start("clerk", f"clerk-{number}")
        for program in self._staff.values():
            self._until_ready(program)

    def work(self, seconds: float) -> None:
        """Look after everybody for so long: who was fenced is replaced."""
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            self._tend()
            time.sleep(0.05)

    # Troubles

    def kill_a_teller(self) -> None:
        self._kill("teller")

    def kill_a_clerk(self) -> None:
        self._kill("clerk")

    def pause_a_teller(self, seconds: float) -> None:
        """One that is fenced when it wakes has had its transaction aborted."""
        self._pause("teller", seconds)

    def pause_a_clerk(self, seconds: float) -> None:
        self._pause("clerk", seconds)

    def replace_a_teller(self) -> None:
        """Pause one; it wakes when another has done its work for a while, and is fenced then."""
        self.troubles["replaced teller"] += 1
        zombie = self._one_of("teller")
        # One that begins still would take its place back when it wakes.
        self._until_ready(zombie)
        zombie.pause()
        said = len(zombie.events)
        successor = self._start("teller", zombie.name)
        self._until_ready(successor)
        until(lambda: self._has_done(successor), f"{zombie.name} to do its work anew")
        zombie.wake()
        zombie.await_end(FENCED_WITHIN_S)
        zombie.end()
        if not zombie.has_said("fenced", said):
            self._faults.append(f"{zombie.name} was replaced, and ended as {zombie.events[-3:]}")

    # Ends

    def calm(self) -> None:
        """All rest until nothing is open; there every reader's sum is what it was at first."""
        tellers = [one for one in self._staff.values() if one.name.startswith("teller")]
        rested = {one: len(one.events) for one in tellers}
        for teller in tellers:
            teller.ask("rest")
        until(
            lambda: all(
                one.has_said("rests", before) or not one.is_running
                for one, before in rested.items()
            ),
            "all tellers to rest",
            deadline_s=SETTLES_WITHIN_S,
        )
        ends = self._until_nothing_is_open()
        for name, reader in self._readers.items():
            until(
                partial(reader.has_read_to, ends),
                f"the {name} reader to read to {ends}",
                deadline_s=SETTLES_WITHIN_S,
            )
            total = sum(leg.amount for leg in reader.legs())
            if total != 0:
                self._faults.append(f"the {name} reader has {total} too much at {ends}")
        for teller in tellers:
            teller.ask("go")

    def close(self) -> None:
        """Everybody ends; then a new reader reads it all, and the balances are compared."""
        for name in [name for name in self._staff if name.startswith("teller")]:
            self._staff.pop(name).end()
        ends = self._until_nothing_is_open()
        self._readers["last"] = self._reader(TOPIC)
        for name, reader in self._readers.items():
            until(
                partial(reader.has_read_to, ends),
                f"the {name} reader to read to the end",
                deadline_s=SETTLES_WITHIN_S,
            )
            reader.stop()
        legs = len(self._readers["last"].found)
        balances = self._reader(BALANCES)
        try:
            ends_at = time.monotonic() + SETTLES_WITHIN_S
            while len(balances.found) < legs and time.monotonic() < ends_at:
                self._tend()
                time.sleep(0.02)
            for program in self._staff.values():
                program.end()
            # What a clerk did twice comes after that.
            stable = AdminClient({**CLIENT, "bootstrap.servers": self._bootstrap}, logger=QUIET)
            asked = stable.list_offsets(
                {
                    TopicPartition(BALANCES, one): OffsetSpec.latest()
                    for one in range(self._sizes.partitions)
                }
            )
            last = {place.partition: answer.result().offset for place, answer in asked.items()}
            until(lambda: balances.has_read_to(last), "all balances", deadline_s=SETTLES_WITHIN_S)
        finally:
            balances.stop()
        self._balances = balances.balances()

    def transfers(self) -> list[Transfer]:
        return [transfer for one in self._programs for transfer in transfers_of(one.events)]

    def faults(self) -> list[str]:
        """What is wrong, when it is closed."""
        transfers = self.transfers()
        readers = {name: reader.legs() for name, reader in self._readers.items()}
        assert self._watch is not None
        return [
            *self._faults,
            *(fault for legs in readers.values() for fault in order_faults(legs)),
            *(fault for legs in readers.values() for fault in outcome_faults(transfers, legs)),
            *disagreements(readers),
            *late_legs(transfers, readers["first"], SEEN_WITHIN_S),
            *log_end_faults(
                self._watch.ends,
                self._sizes.timeout_ms / 1_000 + OPEN_BEYOND_TIMEOUT_S,
                GAP_MAX_S,
            ),
            *balance_faults(readers["last"], self._balances),
        ]

    def told(self) -> str:
        """What happened, in one line."""
        outcomes = Counter(transfer.outcome.value for transfer in self.transfers())
        events = [event for one in self._programs for event in one.events]
        said = Counter(event["event"] for event in events)
        why = Counter(event["why"] for event in events if event["event"] == "failed")
        return (
            f"{dict(outcomes)} transfers, {len(self._balances)} balances, {said['failed']} failed "
            f"({dict(why)}), {said['fenced']} fenced, {said['stuck']} stuck; "
            f"{dict(self.troubles)}{self._of_tables()}"
        )

    def _of_tables(self) -> str:
        tables = self._readers.get("table")
        if not isinstance(tables, TableReader):
            return ""
        return f"; {tables.reads} reads of tables, {tables.segments} segments"

    # Staff

    def _start(self, kind: str, name: str) -> Program:
        sizes = self._sizes
        orders: dict[str, Any] = {
            "bootstrap": self._bootstrap,
            "name": name,
            "timeout_ms": sizes.timeout_ms,
        }
        if kind == "teller":
            orders |= {
                "life": self._lives[name],
                "accounts": sizes.accounts,
                "partitions": sizes.partitions,
                "pause_s": sizes.pause_s,
            }
        else:
            orders |= {"session_ms": sizes.session_ms, "gather_s": sizes.gather_s}
        self._lives[name] += 1
        program = Program(kind, name, orders, self._log)
        self._programs.append(program)
        self._staff[name] = program
        return program

    def _until_ready(self, program: Program) -> None:
        until(
            lambda: program.has_said("ready") or not program.is_running,
            f"{program.name} to be ready",
            deadline_s=240.0,
        )

    def _has_done(self, teller: Program) -> bool:
        return sum(one["event"] == "committed" for one in teller.events) >= 2

    def _one_of(self, kind: str) -> Program:
        self._tend()
        names = sorted(name for name in self._staff if name.startswith(kind))
        return self._staff[self._rng.choice(names)]

    def _kill(self, kind: str) -> None:
        self.troubles[f"killed {kind}"] += 1
        program = self._one_of(kind)
        program.kill()
        self._start(kind, program.name)

    def _pause(self, kind: str, seconds: float) -> None:
        self.troubles[f"paused {kind}"] += 1
        program = self._one_of(kind)
        program.pause()
        self.work(seconds)
        program.wake()

    def _tend(self) -> None:
        for name, program in list(self._staff.items()):
            if not program.is_running:
                program.end()
                if not (program.has_said("fenced") or program.has_said("stuck")):
                    self._faults.append(f"{name} ended; {_tail(self._log)}")
                self._start(name.partition("-")[0], name)

    def _reader(self, topic: str) -> Reader:
        return ConsumingReader(self._bootstrap, topic, self._sizes.partitions)

    def _until_nothing_is_open(self) -> Mapping[int, int]:
        """Where the partitions end then."""
        found: dict[int, int] = {}

        def is_so() -> bool:
            assert self._watch is not None
            ends = self._watch.ask()
            found.update((end.partition, end.high_watermark) for end in ends)
            return len(ends) == self._sizes.partitions and all(
                end.last_stable_offset == end.high_watermark for end in ends
            )

        until(
            is_so,
            "every last stable offset to be the high watermark",
            deadline_s=self._sizes.timeout_ms / 1_000 + SETTLES_WITHIN_S,
        )
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for program in self._programs:
            program.kill()
        if self._watch is not None:
            self._watch.stop()
        for reader in self._readers.values():
            if not reader.is_stopped:
                reader.stop()


def transfers_of(events: Sequence[Mapping[str, Any]]) -> list[Transfer]:
    """The transfers of one life of a teller, from what it said."""
    found: dict[str, Transfer] = {}
    for event in events:
        match event["event"]:
            case "began":
                transfer_id = event["id"]
                accounts = (event["accounts"][0], event["accounts"][1])
                # Nothing of it is committed before it asks for that.
                found[transfer_id] = Transfer(
                    transfer_id, Outcome.ABORTED, accounts, event["amount"]
                )
            case "commits":
                _change(found, event["id"], outcome=Outcome.UNKNOWN)
            case "committed":
                _change(found, event["id"], outcome=Outcome.COMMITTED, committed_s=event["at"])
            case "aborted":
                _change(found, event["id"], outcome=Outcome.ABORTED)
    return list(found.values())


def _change(found: dict[str, Transfer], transfer_id: str, **changes: Any) -> None:
    found[transfer_id] = found[transfer_id]._replace(**changes)


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-40:])
