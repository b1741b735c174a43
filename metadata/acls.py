"""Access control lists as values: one rule of one principal, and a filter that finds rules.

Words and numbers are Kafka's. A rule (Kafka's AclBinding) allows or denies a principal, from one
host or all of them, one operation on the resources that a pattern names:

    LITERAL   the resource of this name; the name `*`: every one
    PREFIXED  every resource whose name begins so

Rules are a set: there is no order among them, and each is there once. What they mean for a client,
deny before allow and what implies what, is the broker's part (diskless/acls/); here they are only
written down, found and counted. Operations and resource types are numbers that nothing here reads,
so one that a later release adds can be stored by this one.

A filter may leave each field open (None, or ANY). Its pattern type MATCH finds the rules that would
be asked about a resource of that name: the literal ones, the wildcards and all prefixes of it.

Source: KIP-11, KIP-290; Kafka's ResourcePatternFilter and AccessControlEntryFilter.
"""

from enum import IntEnum
from typing import Final, NamedTuple

from wal.wire.layouts import Int8

ANY: Final = 1
"""Of a filter: whatever the resource type, the operation or the permission."""
WILDCARD: Final = "*"
"""As a literal name: every resource; as a host: every host."""


class PatternType(IntEnum):
    """How the name of a resource is meant; the first two only in filters."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """What a rule does; the first only in filters."""

    ANY = 1
    DENY = 2
    ALLOW = 3


class AclBinding(NamedTuple):
    """One rule."""

    resource_type: Int8
    resource_name: str
    pattern_type: Int8
    principal: str
    """`User:name`; `User:*` is everybody."""
    host: str
    """An address as the broker sees it, or `*`."""
    operation: Int8
    permission: Int8


class AclFilter(NamedTuple):
    """Which rules are meant."""

    resource_type: Int8 = ANY
    resource_name: str | None = None
    pattern_type: Int8 = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Int8 = ANY
    permission: Int8 = ANY

    def exactly(self) -> AclBinding | None:
        """The only rule that it can find; None: there may be several."""
        if self.resource_name is None or self.principal is None or self.host is None:
            return None
        if ANY in (self.resource_type, self.operation, self.permission):
            return None
        if self.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
            return None
        return AclBinding._make(self)

    def finds(self, rule: AclBinding) -> bool:
        """Whether `rule` is one of those that are meant."""
        return (
            self.resource_type in (ANY, rule.resource_type)
            and self.principal in (None, rule.principal)
            and self.host in (None, rule.host)
            and self.operation in (ANY, rule.operation)
            and self.permission in (ANY, rule.permission)
            and self._names(rule)
        )

    def _names(self, rule: AclBinding) -> bool:
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, rule.pattern_type):
            return False
        if self.resource_name in (None, rule.resource_name):
            return True
        if self.pattern_type != PatternType.MATCH:
            return False
        if rule.pattern_type == PatternType.PREFIXED:
            assert self.resource_name is not None
            return self.resource_name.startswith(rule.resource_name)
        return rule.resource_name == WILDCARD


class DeletedAcls(NamedTuple):
    """The rules that a filter found, which are gone now."""

    rules: tuple[AclBinding, ...] = ()
