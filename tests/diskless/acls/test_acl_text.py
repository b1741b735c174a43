"""Rules as the command line writes them, and back."""

import pytest

from diskless.acls.acl_text import (
    filters_of,
    operations_of,
    principal_of,
    resource_of,
    resource_text,
    rule_text,
    user_text,
)
from metadata.acls import ANY, AclBinding, AclFilter, PatternType, Permission
from wal.errors import InvalidSettings

LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED


@pytest.mark.parametrize(
    ("text", "resource"),
    [
        ("topic:orders", (2, "orders", LITERAL)),
        ("topic:web-*", (2, "web-", PREFIXED)),
        ("topic:*", (2, "*", LITERAL)),
        ("group:g:1", (3, "g:1", LITERAL)),
        ("cluster", (4, "kafka-cluster", LITERAL)),
        ("user:ann", (7, "ann", LITERAL)),
    ],
)
def test_a_resource_is_read_and_written(text: str, resource: tuple[int, str, int]) -> None:
    assert resource_of(text) == resource
    assert resource_text(AclBinding(*resource, "User:u", "*", 3, 3)) == text


@pytest.mark.parametrize("text", ["orders", "topic:", "topics:x", "cluster:x", ""])
def test_what_is_no_resource_is_refused(text: str) -> None:
    with pytest.raises(InvalidSettings, match="is no resource"):
        resource_of(text)


def test_operations_are_read_in_any_case() -> None:
    assert operations_of("read,Describe-Configs,all") == [3, 10, 2]
    with pytest.raises(InvalidSettings, match="READ"):
        operations_of("read,fly")


def test_users_are_read_and_written() -> None:
    assert [principal_of(user) for user in ("ann", "User:ann", "*")] == [
        "User:ann",
        "User:ann",
        "User:*",
    ]
    assert [user_text(principal) for principal in ("User:ann", "User:*", "Group:g")] == [
        "ann",
        "*",
        "Group:g",
    ]
    with pytest.raises(InvalidSettings):
        principal_of("User:")


def test_a_rule_is_a_sentence() -> None:
    rule = AclBinding(2, "web-", PREFIXED, "User:ann", "*", 3, Permission.ALLOW)
    assert rule_text(rule) == "ann may READ topic:web-*"
    denial = rule._replace(permission=Permission.DENY, principal="User:*", host="10.0.0.1")
    assert rule_text(denial) == "everybody may not READ topic:web-* from 10.0.0.1"


@pytest.mark.parametrize(
    ("resource", "matches", "pattern"),
    [
        ("topic:a", True, PatternType.MATCH),
        ("topic:a", False, LITERAL),
        ("topic:a*", True, PREFIXED),
        ("topic:*", True, LITERAL),
    ],
)
def test_how_a_resource_is_looked_for(resource: str, matches: bool, pattern: int) -> None:
    filters = filters_of(
        user="ann",
        operations="read,write",
        resource=resource,
        host=None,
        permission=Permission.ANY,
        matches=matches,
    )
    assert [(one.operation, one.pattern_type, one.principal) for one in filters] == [
        (3, pattern, "User:ann"),
        (4, pattern, "User:ann"),
    ]


def test_nothing_asked_for_is_every_rule() -> None:
    (every,) = filters_of(
        user=None, operations=None, resource=None, host=None, permission=Permission.ANY,
        matches=True,
    )  # fmt: skip
    assert every == AclFilter()
    assert every.operation == ANY
