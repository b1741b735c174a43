"""DescribeAcls, CreateAcls, DeleteAcls over a socket: Kafka's filters, rows and errors."""

from collections.abc import Mapping
from typing import Any

import pytest

from diskless.authorization import AllowEverything
from metadata.acls import AclBinding
from tests.support.brokers.kafka_fakes import FakeAcls, running_broker
from wal.errors import CommitFailed, PolicyViolation

ON_T = AclBinding(2, "t", 3, "User:ann", "*", 3, 3)
WRITE_T = ON_T._replace(operation=4)
ON_PREFIX = ON_T._replace(pattern_type=4, principal="User:bob", permission=2)
ON_GROUP = ON_T._replace(resource_type=3, resource_name="g")
DESCRIBE, CREATE, DELETE = 29, 30, 31


def creation(rule: AclBinding, **changes: Any) -> Mapping[str, Any]:
    return {
        "resource_type": rule.resource_type,
        "resource_name": rule.resource_name,
        "resource_pattern_type": rule.pattern_type,
        "principal": rule.principal,
        "host": rule.host,
        "operation": rule.operation,
        "permission_type": rule.permission,
        **changes,
    }


def filtering(**changes: Any) -> Mapping[str, Any]:
    return {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
        **changes,
    }


def acls(*rules: AclBinding) -> FakeAcls:
    fake = FakeAcls()
    fake.known = frozenset(rules)
    return fake


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_rules_are_made_found_and_deleted(version: int) -> None:
    async with running_broker(acls=acls()) as broker:
        client = await broker.connect()
        rules = [ON_T, WRITE_T, ON_PREFIX, ON_GROUP]
        made = await client.ask(CREATE, version, creations=[*map(creation, rules)])
        assert [(row.error_code, row.error_message) for row in made.results] == [(0, None)] * 4
        found = await client.ask(DESCRIBE, version, **filtering(resource_type_filter=2))
        assert (found.error_code, found.error_message) == (0, None)
        assert [
            (row.resource_type, row.resource_name, row.pattern_type, len(row.acls))
            for row in found.resources
        ] == [(2, "t", 3, 2), (2, "t", 4, 1)]
        (entry,) = found.resources[1].acls
        assert (entry.principal, entry.host) == ("User:bob", "*")
        assert (entry.operation, entry.permission_type) == (3, 2)
        filters = [
            filtering(principal_filter="User:bob"),
            filtering(resource_name_filter="nothing"),
            filtering(resource_name_filter="t", pattern_type_filter=3),
        ]
        gone = await client.ask(DELETE, version, filters=filters)
        assert [row.error_code for row in gone.filter_results] == [0, 0, 0]
        assert [len(row.matching_acls) for row in gone.filter_results] == [1, 0, 2]
        matching = gone.filter_results[0].matching_acls[0]
        assert (matching.error_code, matching.resource_name, matching.pattern_type) == (0, "t", 4)
        assert broker.acls.known == {ON_GROUP}


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_without_an_authorizer_rules_are_disabled(version: int) -> None:
    async with running_broker(authorizer=None) as broker:
        client = await broker.connect()
        found = await client.ask(DESCRIBE, version, **filtering())
        assert (found.error_code, found.resources) == (54, ())
        made = await client.ask(CREATE, version, creations=[creation(ON_T)] * 2)
        assert [row.error_code for row in made.results] == [54, 54]
        gone = await client.ask(DELETE, version, filters=[filtering()])
        assert [row.error_code for row in gone.filter_results] == [54]


@pytest.mark.parametrize(
    "wrong",
    [
        {"resource_type": 0},
        {"resource_type": 1},
        {"resource_type": 99},
        {"resource_name": ""},
        {"resource_type": 4, "resource_name": "t"},
        {"resource_name": "x" * 1_001},
        {"resource_pattern_type": 1},
        {"resource_pattern_type": 2},
        {"resource_pattern_type": 9},
        {"principal": "ann"},
        {"principal": "User:"},
        {"principal": ":ann"},
        {"host": ""},
        {"operation": 0},
        {"operation": 1},
        {"operation": 99},
        {"permission_type": 1},
        {"permission_type": -1},
    ],
)
async def test_a_rule_that_cannot_be_is_refused_alone(wrong: Mapping[str, Any]) -> None:
    async with running_broker(acls=acls()) as broker:
        client = await broker.connect()
        rows = [creation(ON_T, **wrong), creation(WRITE_T)]
        made = await client.ask(CREATE, 3, creations=rows)
        assert [row.error_code for row in made.results] == [42, 0]
        assert made.results[0].error_message
        assert broker.acls.known == {WRITE_T}


@pytest.mark.parametrize(
    "wrong",
    [
        {"resource_type_filter": 0},
        {"resource_type_filter": 99},
        {"pattern_type_filter": 0},
        {"pattern_type_filter": 5},
        {"operation": 0},
        {"operation": 99},
        {"permission_type": 0},
        {"permission_type": 4},
    ],
)
async def test_a_filter_that_cannot_be_is_refused_alone(wrong: Mapping[str, Any]) -> None:
    async with running_broker(acls=acls(ON_T)) as broker:
        client = await broker.connect()
        found = await client.ask(DESCRIBE, 3, **filtering(**wrong))
        assert (found.error_code, found.resources) == (42, ())
        gone = await client.ask(DELETE, 3, filters=[filtering(**wrong), filtering()])
        assert [row.error_code for row in gone.filter_results] == [42, 0]
        assert [len(row.matching_acls) for row in gone.filter_results] == [0, 1]


@pytest.mark.parametrize(
    ("error", "code"), [(PolicyViolation("full"), 44), (CommitFailed("disk"), 56)]
)
async def test_what_the_coordinator_refuses_is_each_rows_error(error: Any, code: int) -> None:
    fake = acls(ON_T)
    fake.error = error
    async with running_broker(acls=fake, authorizer=AllowEverything()) as broker:
        client = await broker.connect()
        made = await client.ask(CREATE, 3, creations=[creation(ON_T)] * 2)
        assert [row.error_code for row in made.results] == [code, code]
        gone = await client.ask(DELETE, 3, filters=[filtering()] * 2)
        assert [row.error_code for row in gone.filter_results] == [code, code]


async def test_nothing_asked_is_nothing_answered() -> None:
    async with running_broker(acls=acls()) as broker:
        client = await broker.connect()
        assert (await client.ask(CREATE, 3, creations=[])).results == ()
        assert (await client.ask(DELETE, 3, filters=[])).filter_results == ()
        assert broker.acls.calls == []
