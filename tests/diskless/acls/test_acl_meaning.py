"""What a rule means: Kafka's table of implied operations, patterns, principals and hosts."""

import pytest

from diskless.acls.acl_meaning import ALL, Policy, Question, decide
from diskless.authorization import AclOperation, ResourceType
from metadata.acls import AclBinding, PatternType, Permission

Op = AclOperation
RULE = AclBinding(
    ResourceType.TOPIC, "t", PatternType.LITERAL, "User:ann", "*", ALL, Permission.ALLOW
)
ASKED = Question("ann", "10.0.0.1", Op.READ, ResourceType.TOPIC, "t")
IMPLIED = {
    Op.READ: {Op.DESCRIBE},
    Op.WRITE: {Op.DESCRIBE},
    Op.DELETE: {Op.DESCRIBE},
    Op.ALTER: {Op.DESCRIBE},
    Op.ALTER_CONFIGS: {Op.DESCRIBE_CONFIGS},
}


@pytest.mark.parametrize("operation", [ALL, *AclOperation])
def test_what_an_operation_allows(operation: int) -> None:
    rule = RULE._replace(operation=operation)
    allowed = {
        asked
        for asked in AclOperation
        if decide([rule], Policy(), ASKED._replace(operation=asked)).is_allowed
    }
    implied = {*AclOperation} if operation == ALL else IMPLIED.get(AclOperation(operation), set())
    assert allowed == implied | ({*AclOperation} & {operation})


@pytest.mark.parametrize("operation", [ALL, *AclOperation])
def test_a_denial_implies_nothing(operation: int) -> None:
    rules = [RULE, RULE._replace(operation=operation, permission=Permission.DENY)]
    denied = {
        asked
        for asked in AclOperation
        if not decide(rules, Policy(), ASKED._replace(operation=asked)).is_allowed
    }
    assert denied == ({*AclOperation} if operation == ALL else {operation})


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({}, True),
        ({"resource_name": "*"}, True),
        ({"resource_name": "x"}, False),
        ({"resource_name": "tt"}, False),
        ({"resource_name": "t", "pattern_type": PatternType.PREFIXED}, True),
        ({"resource_name": "*", "pattern_type": PatternType.PREFIXED}, False),
        ({"resource_type": ResourceType.GROUP}, False),
        ({"principal": "User:*"}, True),
        ({"principal": "User:bob"}, False),
        ({"principal": "Group:ann"}, False),
        ({"principal": "User:Ann"}, False),
        ({"host": "10.0.0.1"}, True),
        ({"host": "10.0.0.2"}, False),
    ],
)
def test_whom_and_what_a_rule_is_about(changes: dict[str, object], fits: bool) -> None:
    rule = RULE._replace(**changes)  # type: ignore[arg-type]
    decision = decide([rule], Policy(), ASKED)
    assert (decision.is_allowed, decision.rule) == (fits, rule if fits else None)


def test_a_denial_wins_over_whatever_allows() -> None:
    denial = RULE._replace(permission=Permission.DENY, principal="User:*", operation=Op.READ)
    decision = decide([RULE, denial], Policy(), ASKED)
    assert decision == (False, denial, "this rule decides")
    assert decide([RULE, denial], Policy(frozenset({"ann"})), ASKED).is_allowed


def test_what_no_rule_names_is_open_if_that_is_wanted() -> None:
    lenient = Policy(allows_without_acl=True)
    assert decide([], lenient, ASKED).is_allowed
    assert decide([RULE._replace(resource_name="x")], lenient, ASKED).is_allowed
    assert not decide([RULE._replace(principal="User:bob")], lenient, ASKED).is_allowed
    assert not decide([], Policy(), ASKED).is_allowed
