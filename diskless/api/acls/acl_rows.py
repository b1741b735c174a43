"""Holds what the APIs for rules of access control share: who may, and rules as rows of messages.

Whoever may DESCRIBE the cluster may see all rules, and whoever may ALTER it may change them. That
is asked first. Then a broker without an authorizer says SECURITY_DISABLED, as Kafka does: rules
that nobody asks would look like protection.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from diskless.api.access import Access
from diskless.api.errors import SecurityDisabled
from diskless.authorization import AclOperation
from diskless.ports import AclAdmin, ClientInfo
from diskless.protocol.messages import Fields
from metadata.acls import AclBinding, AclFilter
from wal.errors import DisklessError

Asked = TypeVar("Asked", AclBinding, AclFilter)


def refusal(
    access: Access, acls: AclAdmin | None, client: ClientInfo, operation: AclOperation
) -> DisklessError | None:
    """Returns why the whole request is refused, or None if it is not."""
    refused = access.refused_cluster(client, operation)
    if refused is None and acls is None:
        return SecurityDisabled("this broker has no authorizer: set authorizer=acl")
    return refused


def checked(check: Callable[[Asked], Asked], asked: Asked) -> Asked | DisklessError:
    """What `check` returns or raises, for an answer that goes on with the other rows."""
    try:
        return check(asked)
    except DisklessError as error:
        return error


def rule_of(row: Any) -> AclBinding:
    """The rule of a row of CreateAcls."""
    return AclBinding(
        row.resource_type,
        row.resource_name,
        row.resource_pattern_type,
        row.principal,
        row.host,
        row.operation,
        row.permission_type,
    )


def filter_of(row: Any) -> AclFilter:
    """The filter of a row of DeleteAcls, or of a DescribeAcls."""
    return AclFilter(
        row.resource_type_filter,
        row.resource_name_filter,
        row.pattern_type_filter,
        row.principal_filter,
        row.host_filter,
        row.operation,
        row.permission_type,
    )


def resource_fields(rule: AclBinding) -> Fields:
    """What a rule is about."""
    return {
        "resource_type": rule.resource_type,
        "resource_name": rule.resource_name,
        "pattern_type": rule.pattern_type,
    }


def entry_fields(rule: AclBinding) -> Fields:
    """Whom a rule is for, and what it says."""
    return {
        "principal": rule.principal,
        "host": rule.host,
        "operation": rule.operation,
        "permission_type": rule.permission,
    }
