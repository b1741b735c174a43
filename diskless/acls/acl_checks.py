"""Says which rules and filters can be asked for: what Kafka refuses is refused, with its errors.

A rule says who, what and where in full; a filter may leave each of it open. Both are made of the
numbers of a request, among which may be some that no Kafka has. A rule about an operation that its
resource does not have is taken, as by Kafka: it never fits.
"""

from typing import Final

from diskless.acls.acl_meaning import ALL
from diskless.authorization import CLUSTER_NAME, AclOperation, ResourceType
from metadata.acls import ANY, AclBinding, AclFilter, PatternType, Permission
from wal.errors import InvalidRequest

NAME_BYTES_MAX: Final = 1_000
"""Of a resource, a principal or a host: four times what a topic's name can have."""

_RESOURCES: Final = frozenset(ResourceType)
_OPERATIONS: Final = frozenset({ALL, *AclOperation})
_PATTERNS: Final = frozenset({PatternType.LITERAL, PatternType.PREFIXED})
_PERMISSIONS: Final = frozenset({Permission.ALLOW, Permission.DENY})


def check_rule(rule: AclBinding) -> AclBinding:
    """`rule`, if there can be such a one. Raises InvalidRequest."""
    if rule.resource_type not in _RESOURCES:
        raise InvalidRequest(f"there are no ACLs of resource type {rule.resource_type}")
    if rule.pattern_type not in _PATTERNS:
        raise InvalidRequest(f"an ACL cannot have the pattern type {rule.pattern_type}")
    if rule.operation not in _OPERATIONS:
        raise InvalidRequest(f"an ACL cannot have the operation {rule.operation}")
    if rule.permission not in _PERMISSIONS:
        raise InvalidRequest(f"an ACL cannot have the permission type {rule.permission}")
    if not rule.resource_name:
        raise InvalidRequest("the name of a resource is empty")
    if rule.resource_type == ResourceType.CLUSTER and rule.resource_name != CLUSTER_NAME:
        raise InvalidRequest(f"the cluster's only name is {CLUSTER_NAME}")
    kind, colon, name = rule.principal.partition(":")
    if not (kind and colon and name):
        raise InvalidRequest(f"the principal {rule.principal!r} is not TYPE:NAME, as in User:ann")
    if not rule.host:
        raise InvalidRequest("the host is empty; * stands for all")
    _check_lengths(rule.resource_name, rule.principal, rule.host)
    return rule


def check_filter(wanted: AclFilter) -> AclFilter:
    """`wanted`, if there can be such a one. Raises InvalidRequest."""
    if wanted.resource_type not in _RESOURCES | {ANY}:
        raise InvalidRequest(f"a filter of the unknown resource type {wanted.resource_type}")
    if wanted.pattern_type not in [*PatternType]:
        raise InvalidRequest(f"a filter of the unknown pattern type {wanted.pattern_type}")
    if wanted.operation not in _OPERATIONS | {ANY}:
        raise InvalidRequest(f"a filter of the unknown operation {wanted.operation}")
    if wanted.permission not in [*Permission]:
        raise InvalidRequest(f"a filter of the unknown permission type {wanted.permission}")
    _check_lengths(wanted.resource_name or "", wanted.principal or "", wanted.host or "")
    return wanted


def _check_lengths(*texts: str) -> None:
    for text in texts:
        if len(text.encode()) > NAME_BYTES_MAX:
            raise InvalidRequest(f"an ACL with a name of more than {NAME_BYTES_MAX} bytes")
