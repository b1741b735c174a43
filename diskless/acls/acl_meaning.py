"""What a rule of access control means: which rule decides a question, and why.

A question is whether a user at a host may do an operation to one resource. The rules, as in Kafka:

1. Super users may. The brokers of the cluster may do CLUSTER_ACTION, and nothing else.
2. A DENY rule that fits refuses, whatever else there is.
3. An ALLOW rule that fits allows. READ, WRITE, DELETE and ALTER allow DESCRIBE as well;
   ALTER_CONFIGS allows DESCRIBE_CONFIGS. A DENY implies nothing: who may not READ may still
   DESCRIBE.
4. Without a rule that fits, the answer is no; with `allow.everyone.if.no.acl.found` it is yes
   where no rule names the resource, whoever and whatever that rule is about.

5. READ of the topic that shows the metadata log asks for DESCRIBE_CONFIGS on the cluster besides:
   who reads it reads of all topics, groups and users.

A rule fits when its resource pattern names the resource, its principal is `User:` and the name, or
`User:*`, its host is that address or `*`, and its operation is the one asked about, ALL, or for an
ALLOW one that implies it.

This module goes through rules one by one and says everything about the answer; `diskless acl
explain` shows it. `acl_index` gives the same answers for many names at once, and a test holds one
to the other.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from diskless.authorization import BROKER_USER, CLUSTER_NAME, AclOperation, ResourceType
from metadata.acls import WILDCARD, AclBinding, PatternType, Permission
from metadata.operations import METADATA_TOPIC

ALL: Final = 2
"""Kafka's number of the operation that stands for all."""

EVERYBODY: Final = "User:*"

_DESCRIBING: Final = (
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.DELETE,
    AclOperation.ALTER,
)
_IMPLYING: Final[Mapping[int, Sequence[int]]] = {
    AclOperation.DESCRIBE: _DESCRIBING,
    AclOperation.DESCRIBE_CONFIGS: (AclOperation.ALTER_CONFIGS,),
}


class Policy(NamedTuple):
    """What is configured beside the rules."""

    super_users: Collection[str] = frozenset()
    """Names, without `User:`."""
    allows_without_acl: bool = False


class Question(NamedTuple):
    """Whether `user`, at `host`, may do it."""

    user: str
    host: str
    operation: int
    resource_type: int
    name: str


class Decision(NamedTuple):
    """The answer, the rule that it is due to, and what is said about it."""

    is_allowed: bool
    rule: AclBinding | None
    why: str


READS_METADATA: Final = (AclOperation.READ, ResourceType.TOPIC, METADATA_TOPIC)
SEES_CONFIGS: Final = (AclOperation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME)
"""What is asked besides of who wants to read the metadata log."""

_METADATA_WHY: Final = (
    f"to read {METADATA_TOPIC}, which tells of all topics and groups, one must be allowed "
    "DESCRIBE_CONFIGS on the cluster"
)


def operations_deciding(permission: Permission, operation: int) -> Sequence[int]:
    """Returns the operations of rules of this permission that speak about `operation`."""
    implying = _IMPLYING.get(operation, ()) if permission == Permission.ALLOW else ()
    return (operation, ALL, *implying)


def names_resource(rule: AclBinding, resource_type: int, name: str) -> bool:
    """Whether the pattern of the rule names the resource."""
    if rule.resource_type != resource_type:
        return False
    if rule.pattern_type == PatternType.PREFIXED:
        return name.startswith(rule.resource_name)
    return rule.resource_name in (name, WILDCARD)


def fits(rule: AclBinding, asked: Question) -> bool:
    """Whether the rule speaks about what is asked."""
    return (
        names_resource(rule, asked.resource_type, asked.name)
        and rule.principal in (f"User:{asked.user}", EVERYBODY)
        and rule.host in (asked.host, WILDCARD)
        and asked.operation in _decided(rule)
    )


def decide(rules: Collection[AclBinding], policy: Policy, asked: Question) -> Decision:
    """The answer; of several rules that give it, the first in their order."""
    decision = _decide(rules, policy, asked)
    if not decision.is_allowed or asked[2:] != READS_METADATA:
        return decision
    besides = _decide(rules, policy, Question(asked.user, asked.host, *SEES_CONFIGS))
    return decision if besides.is_allowed else besides._replace(why=_METADATA_WHY)


def _decide(rules: Collection[AclBinding], policy: Policy, asked: Question) -> Decision:
    if asked.user in policy.super_users:
        return Decision(True, None, f"{asked.user} is one of super.users")
    if is_cluster_action(asked.user, asked.operation, asked.resource_type):
        return Decision(True, None, "the brokers of the cluster may do that among each other")
    about = sorted(rule for rule in rules if names_resource(rule, *asked[3:]))
    fitting = [rule for rule in about if fits(rule, asked)]
    for permission, is_allowed in ((Permission.DENY, False), (Permission.ALLOW, True)):
        for rule in fitting:
            if rule.permission == permission:
                return Decision(is_allowed, rule, "this rule decides")
    if about or not policy.allows_without_acl:
        return Decision(False, None, "no rule allows it")
    return Decision(True, None, "no rule names it, and allow.everyone.if.no.acl.found is true")


def can_anybody_alter(rules: Iterable[AclBinding], policy: Policy) -> bool:
    """Whether there is anybody, seen before or not, who may change the rules."""
    if policy.super_users:
        return True
    about = [rule for rule in rules if names_resource(rule, ResourceType.CLUSTER, CLUSTER_NAME)]
    # Whoever is in no rule, as far as names can say it.
    someone = [("", "")] + [
        (
            "" if rule.principal == EVERYBODY else rule.principal.removeprefix("User:"),
            "" if rule.host == WILDCARD else rule.host,
        )
        for rule in about
    ]
    return any(
        decide(
            about,
            policy,
            Question(user, host, AclOperation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME),
        ).is_allowed
        for user, host in someone
    )


def is_cluster_action(user: str, operation: int, resource_type: int) -> bool:
    """Whether a broker asks for what brokers may do by being of the cluster."""
    return (
        user == BROKER_USER
        and operation == AclOperation.CLUSTER_ACTION
        and resource_type == ResourceType.CLUSTER
    )


def _decided(rule: AclBinding) -> Collection[int]:
    """The operations that a rule allows or denies."""
    if rule.operation == ALL:
        return [*AclOperation]
    implied = [
        operation
        for operation, implying in _IMPLYING.items()
        if rule.permission == Permission.ALLOW and rule.operation in implying
    ]
    return [rule.operation, *implied]
