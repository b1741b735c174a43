"""The audit log: what clients changed and were refused, over a socket and into a file."""

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from diskless.audit import audit_log
from diskless.audit.audit_log import AuditLog, Note
from diskless.audit.audit_settings import AuditSettings
from diskless.audit.audit_sinks import audit_sink
from diskless.authorization import AclOperation, AllowEverything, ResourceType
from diskless.ports import ClientInfo
from tests.support.brokers.kafka_fakes import running_broker
from wal.clock import ManualClock
from wal.errors import InvalidSettings

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
READ = AclOperation.READ
CLIENT = ClientInfo(7, "app", "10.0.0.1", "ann", "OUTSIDE", request_id=5)
KEYS = [
    "time", "event", "principal", "host", "listener", "client_id", "connection", "request",
    "mechanism", "operation",
    "resource", "result", "count",
]  # fmt: skip


class Noted:
    """An audit log into a list."""

    def __init__(self) -> None:
        self.notes: list[Note] = []
        self.clock = ManualClock()
        self.log = AuditLog(self.notes.append, self.clock)

    def said(self) -> list[tuple[Any, ...]]:
        return [
            (note["event"], note["operation"], note["resource"], note["count"])
            for note in self.notes
        ]


def test_a_note_says_who_did_what_from_where() -> None:
    noted = Noted()
    noted.log.changed(CLIENT, "CreateTopics", "topic:a")
    (note,) = noted.notes
    assert list(note) == KEYS
    assert dict(note) == {
        "time": "2024-01-01T00:00:00.000+00:00",
        "event": "changed",
        "principal": "User:ann",
        "host": "10.0.0.1",
        "listener": "OUTSIDE",
        "client_id": "app",
        "connection": 7,
        "request": 5,
        "mechanism": "",
        "operation": "CreateTopics",
        "resource": "topic:a",
        "result": "ok",
        "count": 1,
    }


def test_the_first_refusal_is_noted_at_once_and_then_one_a_second() -> None:
    noted = Noted()
    for _ in range(5):
        noted.log.refused(CLIENT, READ, TOPIC, ["a"])
    noted.log.refused(CLIENT, READ, TOPIC, ["b"])
    noted.log.refused(CLIENT._replace(user="bob"), READ, TOPIC, ["a"])
    noted.clock.advance(1)
    noted.log.refused(CLIENT, READ, TOPIC, ["a"])
    assert noted.said() == [
        ("refused", "READ", "topic:a", 1),
        ("refused", "READ", "topic:b", 1),
        ("refused", "READ", "topic:a", 1),
        ("refused", "READ", "topic:a", 5),
    ]
    assert list(noted.notes[0]) == KEYS
    assert noted.notes[0]["result"] == "denied"
    assert noted.log.refusals == {("READ", "TOPIC"): 8}


def test_a_thousand_refused_names_are_a_few_notes_that_count_all() -> None:
    noted = Noted()
    noted.log.refused(CLIENT, READ, GROUP, [f"g{number}" for number in range(1_000)])
    assert len(noted.notes) == audit_log.NAMES_MAX + 1
    assert noted.said()[-1] == ("refused", "READ", "group: others", 1_000 - audit_log.NAMES_MAX)
    assert sum(int(note["count"]) for note in noted.notes) == 1_000


def test_names_that_are_made_up_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "PACES_MAX", 5)
    noted = Noted()
    for number in range(20):
        noted.log.refused(CLIENT, READ, TOPIC, [f"t{number}"])
    assert len(noted.log._paces) == 5
    assert len(noted.notes) == 20


def test_who_comes_and_goes_is_noted_and_paced() -> None:
    noted = Noted()
    nobody = CLIENT._replace(user="ANONYMOUS")
    for _ in range(3):
        noted.log.login_failed(nobody, "PLAIN")
        noted.log.logged_in(CLIENT, "SCRAM-SHA-512", is_again=False)
    noted.log.logged_in(CLIENT, "SCRAM-SHA-512", is_again=True)
    noted.log.logged_out(CLIENT)
    noted.log.rebuilt("root", "/data")
    said = [
        (note["event"], note["principal"], note["operation"], note["result"], note["mechanism"])
        for note in noted.notes
    ]
    assert said == [
        ("login", "User:ANONYMOUS", "login", "failed", "PLAIN"),
        ("login", "User:ann", "login", "ok", "SCRAM-SHA-512"),
        ("login", "User:ann", "reauthenticate", "ok", "SCRAM-SHA-512"),
        ("logout", "User:ann", "logout", "ok", ""),
        ("changed", "User:root", "Rebuild", "ok", ""),
    ]
    noted.clock.advance(1)
    noted.log.login_failed(nobody, "PLAIN")
    assert noted.notes[-1]["count"] == 3


def test_what_clients_may_change_all_the_time_is_paced() -> None:
    noted = Noted()
    for _ in range(3):
        noted.log.changed(CLIENT, "OffsetCommit", "group:g", is_often=True)
    noted.clock.advance(1)
    noted.log.changed(CLIENT, "OffsetCommit", "group:g", is_often=True)
    assert [said[-1] for said in noted.said()] == [1, 3]


def test_a_file_has_a_json_object_a_line_and_is_its_owners(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with audit_sink(AuditSettings(path=str(path))) as sink:
        log = AuditLog(sink, ManualClock())
        log.changed(CLIENT._replace(client_id='a"\n{}'), "CreateTopics", "topic:ü")
    path.rename(tmp_path / "audit.jsonl.1")
    with audit_sink(AuditSettings(path=str(path))) as sink:
        log = AuditLog(sink, ManualClock())
        log.changed(CLIENT, "DeleteTopics", "topic:ü")
        log.changed(CLIENT, "DeleteTopics", "topic:a")
    lines = [*(tmp_path / "audit.jsonl.1").read_text("utf-8").splitlines()]
    lines += path.read_text("utf-8").splitlines()
    notes = [json.loads(line) for line in lines]
    assert [note["operation"] for note in notes] == ["CreateTopics", *["DeleteTopics"] * 2]
    assert notes[0]["client_id"] == 'a"\n{}'
    assert all(list(note) == KEYS for note in notes)
    assert path.stat().st_mode & 0o777 == 0o600


def test_standard_output_can_be_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    with audit_sink(AuditSettings(path="-")) as sink:
        AuditLog(sink, ManualClock()).changed(CLIENT, "CreateTopics", "topic:a")
    assert json.loads(capsys.readouterr().out)["resource"] == "topic:a"


def test_a_file_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    with (
        pytest.raises(InvalidSettings, match=r"audit\.log\.file"),
        audit_sink(AuditSettings(path=str(tmp_path / "no" / "audit"))),
    ):
        pass


class DenyingClosed:
    """Denies whatever is called "closed", and one operation on the cluster."""

    def denied(
        self,
        client: ClientInfo,
        operation: AclOperation,
        resource_type: ResourceType,
        names: Iterable[str],
    ) -> Collection[str]:
        if resource_type == CLUSTER:
            return () if operation == AclOperation.ALTER else {*names}
        return {name for name in names if name.startswith("closed")}

    def denied_everywhere(
        self, client: ClientInfo, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        return False

    def version(self) -> int:
        return 0


def new_topic(name: str) -> Mapping[str, Any]:
    return {
        "name": name,
        "num_partitions": 1,
        "replication_factor": 1,
        "assignments": [],
        "configs": [],
    }


RULE = {
    "resource_type": 2,
    "resource_name": "t",
    "resource_pattern_type": 3,
    "principal": "User:ann",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
ALL_RULES = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


async def test_changes_are_noted_and_nothing_that_was_not_changed() -> None:
    noted = Noted()
    async with running_broker(audit=noted.log, authorizer=AllowEverything()) as broker:
        client = await broker.connect()
        topics = [new_topic("a"), new_topic("a:"), new_topic("b")]
        await client.ask(19, 7, topics=topics, validate_only=True)
        await client.ask(19, 7, topics=topics, validate_only=False)
        grown = [{"name": name, "count": 2, "assignments": None} for name in ("a", "none")]
        await client.ask(37, 3, topics=grown, validate_only=False)
        change = [{"name": "retention.ms", "value": "5", "config_operation": 0}]
        altered = [{"resource_type": 2, "resource_name": "a", "configs": change}]
        await client.ask(44, 1, resources=altered, validate_only=True)
        await client.ask(44, 1, resources=altered, validate_only=False)
        await client.ask(33, 2, resources=altered, validate_only=False)
        entity = [
            {"entity_type": "user", "entity_name": None},
            {"entity_type": "client-id", "entity_name": "c"},
        ]
        quota = {"key": "producer_byte_rate", "value": 5.0, "remove": False}
        await client.ask(49, 1, entries=[{"entity": entity, "ops": [quota]}], validate_only=False)
        await client.ask(30, 3, creations=[RULE, {**RULE, "principal": "x"}])
        await client.ask(31, 3, filters=[ALL_RULES])
        gone = [{"name": name, "topic_id": None} for name in ("b", "none")]
        await client.ask(20, 6, topics=gone)
    assert noted.said() == [
        ("changed", "CreateTopics", "topic:a", 1),
        ("changed", "CreateTopics", "topic:b", 1),
        ("changed", "CreatePartitions", "topic:a", 1),
        ("changed", "IncrementalAlterConfigs", "topic:a", 1),
        ("changed", "AlterConfigs", "topic:a", 1),
        ("changed", "AlterClientQuotas", "quota:client-id=c, user=(default)", 1),
        ("changed", "CreateAcls", "acl:ann may READ topic:t", 1),
        ("changed", "DeleteAcls", "acl:ann may READ topic:t", 1),
        ("changed", "DeleteTopics", "topic:b", 1),
    ]
    assert {note["principal"] for note in noted.notes} == {"User:ANONYMOUS"}


async def test_refusals_are_noted_and_what_is_left_out_of_a_list_is_not() -> None:
    noted = Noted()
    async with running_broker(audit=noted.log, authorizer=DenyingClosed()) as broker:
        broker.topics.add("open")
        broker.topics.add("closed")
        client = await broker.connect()
        await client.ask(3, 9, topics=None, include_cluster_authorized_operations=True)
        await client.ask(75, 0, topics=[], response_partition_limit=9, cursor=None)
        await client.ask(22, 4, transactional_id=None)
        assert noted.notes == []
        await client.ask(3, 9, topics=[{"name": "closed"}, {"name": "open"}])
        topics = [new_topic("closed-1"), new_topic("open-1")]
        await client.ask(19, 7, topics=topics, validate_only=False)
        await client.ask(29, 3, **ALL_RULES)
    assert noted.said() == [
        ("refused", "DESCRIBE", "topic:closed", 1),
        ("refused", "CREATE", "topic:closed-1", 1),
        ("changed", "CreateTopics", "topic:open-1", 1),
        ("refused", "DESCRIBE", "cluster", 1),
    ]
    assert sum(noted.log.refusals.values()) == 3


def test_what_is_left_out_is_counted_by_what_it_stands_for() -> None:
    noted = Noted()
    many = [f"t{number}" for number in range(audit_log.NAMES_MAX + 30)]
    for _ in range(2):
        noted.log.refused(CLIENT, READ, TOPIC, many)
    noted.clock.advance(1.0)
    noted.log.refused(CLIENT, READ, TOPIC, many)
    others = [count for _, _, resource, count in noted.said() if resource == "topic: others"]
    assert others == [30, 60]


def test_notes_of_another_process_have_one_pace_with_those_of_this_one() -> None:
    here, there = Noted(), Noted()
    here.log.refused(CLIENT, READ, TOPIC, ["a"])
    there.log.refused(CLIENT, READ, TOPIC, ["a"])
    there.log.logged_in(CLIENT, "PLAIN", is_again=False)
    there.log.changed(CLIENT, "CreateTopics", "topic:a")
    for note in there.notes:
        here.log.forwarded(note)
    assert here.said() == [
        ("refused", "READ", "topic:a", 1),
        ("login", "login", "", 1),
        ("changed", "CreateTopics", "topic:a", 1),
    ]
    here.log.logged_in(CLIENT, "PLAIN", is_again=False)
    here.clock.advance(1.0)
    here.log.refused(CLIENT, READ, TOPIC, ["a"])
    here.log.logged_in(CLIENT, "PLAIN", is_again=False)
    assert here.said()[3:] == [("refused", "READ", "topic:a", 2), ("login", "login", "", 2)]
