"""Rules of access control at the coordinator: a set, durable, bounded, found by Kafka's filters."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.acls import ANY, AclBinding, AclFilter, DeletedAcls, PatternType, Permission
from metadata.rules import acls as acl_rules
from metadata.rules.acls import decide_create_acls, decide_delete_acls
from metadata.state.image import CommittedImage
from metadata.state.speculative import SpeculativeView
from tests.support.coordinators.coordinator_bench import (
    CoordinatorBench,
    MemoryMetadataLog,
    running_coordinator,
)
from wal.errors import CommitFailed, PolicyViolation

TOPIC, GROUP = 2, 3
READ, WRITE = 3, 4
ALLOW, DENY = Permission.ALLOW, Permission.DENY
LITERAL, PREFIXED, MATCH = PatternType.LITERAL, PatternType.PREFIXED, PatternType.MATCH

ON_A = AclBinding(TOPIC, "a", LITERAL, "User:u", "*", READ, ALLOW)
ON_ALL = ON_A._replace(resource_name="*")
ON_PREFIX = AclBinding(TOPIC, "a", PREFIXED, "User:v", "10.0.0.1", WRITE, DENY)
ON_GROUP = AclBinding(GROUP, "a", LITERAL, "User:u", "*", READ, ALLOW)
RULES = frozenset({ON_A, ON_ALL, ON_PREFIX, ON_GROUP})


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, RULES),
        ({"resource_type": TOPIC}, {ON_A, ON_ALL, ON_PREFIX}),
        ({"resource_name": "a"}, {ON_A, ON_PREFIX, ON_GROUP}),
        ({"resource_name": "a", "pattern_type": LITERAL}, {ON_A, ON_GROUP}),
        ({"resource_name": "a", "pattern_type": PREFIXED}, {ON_PREFIX}),
        ({"resource_name": "a", "pattern_type": MATCH}, RULES),
        ({"resource_name": "ab", "pattern_type": MATCH}, {ON_ALL, ON_PREFIX}),
        ({"resource_name": "b", "pattern_type": MATCH}, {ON_ALL}),
        ({"resource_name": "*"}, {ON_ALL}),
        ({"pattern_type": MATCH}, RULES),
        ({"pattern_type": PREFIXED}, {ON_PREFIX}),
        ({"principal": "User:v"}, {ON_PREFIX}),
        ({"principal": "User:*"}, set()),
        ({"host": "*"}, {ON_A, ON_ALL, ON_GROUP}),
        ({"host": "10.0.0.1"}, {ON_PREFIX}),
        ({"operation": READ}, {ON_A, ON_ALL, ON_GROUP}),
        ({"permission": DENY}, {ON_PREFIX}),
        ({"resource_type": GROUP, "operation": WRITE}, set()),
    ],
)
def test_a_filter_finds_what_kafkas_finds(
    wanted: Mapping[str, Any], found: set[AclBinding]
) -> None:
    assert {*filter(AclFilter(**wanted).finds, RULES)} == found


@given(
    st.sampled_from(sorted(RULES)),
    st.builds(
        AclFilter,
        resource_type=st.sampled_from([ANY, TOPIC, GROUP]),
        resource_name=st.sampled_from([None, "a", "*"]),
        pattern_type=st.sampled_from(PatternType),
        principal=st.sampled_from([None, "User:u", "User:v"]),
        host=st.sampled_from([None, "*", "10.0.0.1"]),
        operation=st.sampled_from([ANY, READ, WRITE]),
        permission=st.sampled_from(Permission),
    ),
)
def test_a_filter_that_can_find_one_rule_finds_just_that(
    rule: AclBinding, wanted: AclFilter
) -> None:
    exactly = wanted.exactly()
    if exactly is not None:
        assert wanted.finds(rule) == (exactly == rule)
    else:
        others = [rule._replace(host="h"), rule._replace(principal="User:x")]
        others += [rule._replace(resource_name="b"), rule._replace(operation=9)]
        others += [rule._replace(resource_type=9), rule._replace(permission=9)]
        others += [rule._replace(pattern_type=7 - rule.pattern_type)]
        assert not wanted.finds(rule) or any(map(wanted.finds, others))


async def test_rules_are_there_when_they_are_created_and_gone_when_they_are_deleted(
    bench: CoordinatorBench, log: MemoryMetadataLog
) -> None:
    coordinator = bench.coordinator
    assert await coordinator.catalogue.create_acls([ON_A, ON_PREFIX, ON_A]) == [None, None, None]
    assert coordinator.replica.acls() == {ON_A, ON_PREFIX}
    written = len(log.records())
    before = coordinator.replica.acls()
    assert await coordinator.catalogue.create_acls([ON_A]) == [None]
    nobodys = [AclFilter(principal="User:w")]
    assert await coordinator.catalogue.delete_acls(nobodys) == [DeletedAcls()]
    assert len(log.records()) == written, "what changes nothing writes nothing"
    assert coordinator.replica.acls() is before
    asked = [AclFilter(principal="User:u"), AclFilter(), AclFilter._make(ON_A)]
    assert await coordinator.catalogue.delete_acls(asked) == [
        DeletedAcls((ON_A,)),
        DeletedAcls((ON_PREFIX,)),
        DeletedAcls(),
    ]
    assert not coordinator.replica.acls()


async def test_rules_that_could_not_be_appended_are_not_in_force(
    bench: CoordinatorBench, log: MemoryMetadataLog
) -> None:
    log.failures.append(CommitFailed("the disk is full"))
    with pytest.raises(CommitFailed):
        await bench.coordinator.catalogue.create_acls([ON_A])
    assert not bench.coordinator.replica.acls()
    assert await bench.coordinator.catalogue.create_acls([ON_A]) == [None]


def test_there_are_only_so_many_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_rules, "ACLS_MAX", 2)
    view = SpeculativeView(CommittedImage(producers_max=1))
    answer = decide_create_acls(view, [ON_A, ON_ALL, ON_A, ON_PREFIX]).answer
    assert answer[:3] == [None, None, None]
    assert isinstance(answer[3], PolicyViolation)
    assert decide_delete_acls(view, [AclFilter._make(ON_A)]).answer == [DeletedAcls((ON_A,))]
    assert decide_create_acls(view, [ON_PREFIX]).answer == [None]


async def test_rules_are_there_after_a_restart_from_the_log(tmp_path: Path) -> None:
    log = MemoryMetadataLog()
    async with running_coordinator(tmp_path / "one", log) as bench:
        await bench.coordinator.catalogue.create_acls(sorted(RULES))
        await bench.coordinator.catalogue.delete_acls([AclFilter(resource_type=GROUP)])
    async with running_coordinator(tmp_path / "two", log) as bench:
        assert bench.coordinator.replica.acls() == RULES - {ON_GROUP}
