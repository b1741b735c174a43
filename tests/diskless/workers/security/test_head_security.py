"""What the head does for all workers together: it counts failed log-ins, and writes notes."""

import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from diskless.audit import audit_log
from diskless.audit.audit_log import AuditLog
from diskless.authorization import BROKER_USER, AclOperation, ResourceType
from diskless.listeners.endpoints import Endpoint
from diskless.listeners.listeners import Listener
from diskless.ports import ANONYMOUS, ClientInfo
from diskless.sasl.failure_delay import FailureDelay
from diskless.workers import line
from diskless.workers.doors import CLIENT, Note
from diskless.workers.head_line import HeadLine
from diskless.workers.line import Line
from diskless.workers.security.head_security import HeadSecurity, cannot_be
from diskless.workers.security.line_notes import NOTE_BYTES_PER_S_MAX, LineNotes, decode_note
from tests.support.loops.until import until
from wal.clock import ManualClock
from wal.security.security_protocol import SecurityProtocol

WRITE, TOPIC = AclOperation.WRITE, ResourceType.TOPIC


def client(connection: int, user: str = "ann", **more: Any) -> ClientInfo:
    return ClientInfo(connection, "app", "10.0.0.1", user, "OUTSIDE", **more)


class Head:
    """A head's part in security, and lines to workers."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.notes: list[audit_log.Note] = []
        self.audit = AuditLog(self.notes.append, self.clock)
        self.security = HeadSecurity(self.audit, FailureDelay(100, self.clock))
        self._lines: list[tuple[Line, HeadLine]] = []

    def worker(self) -> HeadLine:
        ours, theirs = socket.socketpair()

        def received(kind: int, content: memoryview) -> None:
            answer = self.security.answer(kind, content)
            if answer is not None:
                end.send(answer)

        async def page() -> bytes:
            return b""

        end = Line(ours, received, lambda: None)
        worker = HeadLine(theirs, metadata_partitions=1, page=page, ended=lambda status: None)
        self._lines.append((end, worker))
        return worker

    def close(self) -> None:
        for end, worker in self._lines:
            end.close()
            worker.take()


@pytest.fixture
async def head() -> AsyncIterator[Head]:
    head = Head()
    yield head
    head.close()


def test_a_client_that_cannot_be_is_refused_whatever_a_worker_says() -> None:
    def listener(name: str, protocol: SecurityProtocol, rank: int | None = None) -> Listener:
        return Listener(
            name=name,
            protocol=protocol,
            address=("127.0.0.1", 1),
            socket=None,
            advertised=Endpoint(name, "h", 1),
            inter_broker_rank=rank,
        )

    listeners = {
        "PLAIN": listener("PLAIN", SecurityProtocol.PLAINTEXT, 1),
        "SASL": listener("SASL", SecurityProtocol.SASL_SSL),
        "BROKERS": listener("BROKERS", SecurityProtocol.SASL_SSL, 0),
    }
    allowed = {
        (name, user)
        for name in (*listeners, "OTHER", "")
        for user in ("ann", ANONYMOUS, BROKER_USER, "")
        if cannot_be(Note(CLIENT, "10.0.0.1", user, name, 1), listeners) is None
    }
    assert allowed == {
        ("PLAIN", "ann"),
        ("PLAIN", ANONYMOUS),
        ("SASL", "ann"),
        ("BROKERS", "ann"),
        ("BROKERS", BROKER_USER),
    }


async def test_failures_of_an_address_are_one_row_through_whichever_worker_they_come(
    head: Head,
) -> None:
    first, second = head.worker(), head.worker()
    delays = [
        await worker.hold_back("10.0.0.1") for worker in (first, second, second, first, second)
    ]
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6]
    assert await first.hold_back("10.0.0.2") == 0.1
    second.succeeded("10.0.0.1")
    assert await second.hold_back("10.0.0.1") == 0.1


async def test_what_one_worker_refuses_again_and_again_and_others_too_is_noted_once_a_second(
    head: Head,
) -> None:
    workers = [head.worker(), head.worker()]
    logs = [AuditLog(LineNotes(worker.send, head.clock), head.clock) for worker in workers]

    def refuse() -> None:
        for number, log in enumerate(logs):
            for _ in range(5):
                log.refused(client(number), WRITE, TOPIC, ["a"])

    refuse()
    # What a worker says after its notes is answered after them.
    for worker in workers:
        await worker.hold_back("x")
    assert [note["count"] for note in head.notes] == [1]
    head.clock.advance(1.0)
    refuse()
    for worker in workers:
        await worker.hold_back("x")
    # One of the second worker before, and five of either.
    assert [note["count"] for note in head.notes] == [1, 1 + 5]
    head.audit.refused(client(7), WRITE, TOPIC, ["a"])
    assert len(head.notes) == 2, "the head's own refusals have no pace of their own"
    head.clock.advance(1.0)
    refuse()
    for worker in workers:
        await worker.hold_back("x")
    assert sum(int(note["count"]) for note in head.notes) >= 3 * 5 + 2


async def test_log_ins_and_changes_come_to_the_log_as_they_were_noted(head: Head) -> None:
    worker = head.worker()
    log = AuditLog(LineNotes(worker.send, head.clock), head.clock)
    log.logged_in(client(5 << 32), "PLAIN", is_again=False)
    log.login_failed(client(6 << 32, ANONYMOUS), "PLAIN")
    log.logged_out(client(5 << 32))
    log.changed(client(5 << 32, request_id=3), "CreateTopics", 'topic:a\n"ä')
    log.changed(client(5 << 32, request_id=4), "CreateTopics", 'topic:a\n"ä')
    await until(lambda: len(head.notes) == 5)
    told = [(note["event"], note["connection"] >> 32, note["result"]) for note in head.notes]  # type: ignore[operator]
    assert told == [
        ("login", 5, "ok"),
        ("login", 6, "failed"),
        ("logout", 5, "ok"),
        ("changed", 5, "ok"),
        ("changed", 5, "ok"),
    ]
    assert head.notes[-1]["resource"] == 'topic:a\n"ä'


def test_who_is_refused_a_thousand_names_keeps_no_log_in_out_of_the_log() -> None:
    clock = ManualClock()
    sent: list[audit_log.Note] = []

    def send(message: bytes) -> None:
        assert message[4] == line.NOTE
        sent.append(decode_note(message[5:]))

    notes = LineNotes(send, clock)
    log = AuditLog(notes, clock)
    for number in range(10_000):
        log.refused(client(1), WRITE, TOPIC, [f"topic {number}"])
    log.logged_in(client(2, "bob"), "TLS", is_again=False)
    log.changed(client(2, "bob"), "CreateTopics", "topic:b")
    size = sum(len(json.dumps(note)) for note in sent if note["event"] == "refused")
    assert size <= NOTE_BYTES_PER_S_MAX
    assert [note["event"] for note in sent[-2:]] == ["login", "changed"]
    assert notes.left_out == 10_000 - (len(sent) - 2)
    assert log.refusals["WRITE", "TOPIC"] == 10_000
    clock.advance(1.0)
    before = len(sent)
    log.refused(client(1), WRITE, TOPIC, ["another"])
    assert len(sent) == before + 1


async def test_an_answer_that_nobody_waits_for_any_more_is_no_harm(head: Head) -> None:
    worker = head.worker()
    waiting = worker.hold_back("10.0.0.1")
    waiting.send(None)
    waiting.close()
    assert await worker.hold_back("10.0.0.1") == 0.2
