"""Rules of access control as the command line writes them.

    ann READ,WRITE topic:orders        a user, operations, a resource
    '*' DESCRIBE topic:web-*           everybody; every topic whose name begins with web-
    ann READ topic:*                   every topic
    bob ALTER cluster                  the cluster, which has no name

A `*` at the end stands for whatever follows, and alone for everything, as in patterns of names. A
name that really ends in `*`, which a group could have, is not written so: `kafka-acls` can.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from diskless.acls.acl_meaning import ALL, EVERYBODY
from diskless.authorization import CLUSTER_NAME, AclOperation, ResourceType
from metadata.acls import ANY, WILDCARD, AclBinding, AclFilter, PatternType, Permission
from wal.errors import InvalidSettings

_USER: Final = "User:"
_ALL: Final = "ALL"
_CLUSTER: Final = "cluster"
_TYPES: Final = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional-id": ResourceType.TRANSACTIONAL_ID,
    "delegation-token": ResourceType.DELEGATION_TOKEN,
    "user": ResourceType.USER,
}
_TYPE_NAMES: Final = {int(kind): name for name, kind in _TYPES.items()}


class Resource(NamedTuple):
    """What a rule is about."""

    resource_type: ResourceType
    name: str
    pattern_type: PatternType


def principal_of(user: str) -> str:
    """The principal of a user's name, `User:NAME`, or `*` for everybody. Raises InvalidSettings."""
    name = user.removeprefix(_USER)
    if not name:
        raise InvalidSettings(f"{user!r} is no user's name")
    return f"{_USER}{name}"


def operations_of(text: str) -> Sequence[int]:
    """Those of a list with commas, in any case. Raises InvalidSettings."""
    found = []
    for name in text.upper().replace("-", "_").split(","):
        if name == _ALL:
            found.append(ALL)
        elif name in AclOperation.__members__:
            found.append(int(AclOperation[name]))
        else:
            known = ", ".join([*AclOperation.__members__, _ALL])
            raise InvalidSettings(f"{name!r} is no operation; there are {known}")
    return found


def resource_of(text: str) -> Resource:
    """Raises InvalidSettings."""
    kind, colon, name = text.partition(":")
    if kind == _CLUSTER and not colon:
        return Resource(ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL)
    if kind not in _TYPES or not name:
        raise InvalidSettings(
            f"{text!r} is no resource; write topic:NAME, group:NAME or cluster; NAME* stands for "
            "all names that begin so, and * for all"
        )
    if name != WILDCARD and name.endswith(WILDCARD):
        return Resource(_TYPES[kind], name.removesuffix(WILDCARD), PatternType.PREFIXED)
    return Resource(_TYPES[kind], name, PatternType.LITERAL)


def filters_of(
    *,
    user: str | None,
    operations: str | None,
    resource: str | None,
    host: str | None,
    permission: Permission,
    matches: bool,
) -> Sequence[AclFilter]:
    """Filters of the rules about all that is given, one for each operation.

    `matches`: a resource of one name stands for all rules that speak about it, and not only for
    those of just that name. Raises InvalidSettings.
    """
    found = AclFilter(
        principal=None if user is None else principal_of(user), host=host, permission=permission
    )
    if resource is not None:
        kind, name, pattern = resource_of(resource)
        if matches and pattern == PatternType.LITERAL and name != WILDCARD:
            pattern = PatternType.MATCH
        found = found._replace(resource_type=kind, resource_name=name, pattern_type=pattern)
    asked = [ANY] if operations is None else operations_of(operations)
    return [found._replace(operation=operation) for operation in asked]


def resource_text(rule: AclBinding) -> str:
    """What `resource_of` reads."""
    if rule.resource_type == ResourceType.CLUSTER:
        return _CLUSTER
    kind = _TYPE_NAMES.get(rule.resource_type, f"type {rule.resource_type}")
    end = WILDCARD if rule.pattern_type == PatternType.PREFIXED else ""
    return f"{kind}:{rule.resource_name}{end}"


def operation_text(operation: int) -> str:
    """The name of an operation."""
    if operation == ALL:
        return _ALL
    # A rule that a later release has written may be about one that is not known here.
    return AclOperation(operation).name if operation in [*AclOperation] else f"#{operation}"


def user_text(principal: str) -> str:
    """What `principal_of` reads; a principal of another kind as it is."""
    return WILDCARD if principal == EVERYBODY else principal.removeprefix(_USER)


def rule_text(rule: AclBinding) -> str:
    """A rule as a sentence."""
    who = "everybody" if rule.principal == EVERYBODY else user_text(rule.principal)
    may = "may" if rule.permission == Permission.ALLOW else "may not"
    where = "" if rule.host == WILDCARD else f" from {rule.host}"
    return f"{who} {may} {operation_text(rule.operation)} {resource_text(rule)}{where}"
