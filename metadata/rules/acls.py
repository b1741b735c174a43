"""Decides access control lists; pure functions over the speculative view.

They are the catalogue's. Rules are a set: creating one that is there, or deleting what no rule
matches, changes nothing and succeeds, so both can be repeated. What a rule says was checked by the
caller (diskless/acls/).
"""

from collections.abc import Sequence
from typing import Final

from metadata.acls import (
    WILDCARD,
    AclBinding,
    AclFilter,
    DeletedAcls,
    PatternType,
    Permission,
)
from metadata.records.acls import AccessControlEntryRecord, RemoveAccessControlEntryRecord
from metadata.rules.commit import Decision
from metadata.state.speculative import SpeculativeView
from wal.errors import DisklessError, PolicyViolation

ACLS_MAX: Final = 10_000
"""Every broker keeps all of them in memory, and a copy is made at every change."""

_EVERYTHING: Final = ((2, WILDCARD), (3, WILDCARD), (4, "kafka-cluster"), (5, WILDCARD))
"""All topics, groups, the cluster, all transactional ids: Kafka's resource types, and names."""
_ALL: Final = 2
_DENY: Final = Permission.DENY


def decide_create_acls(
    view: SpeculativeView, rules: Sequence[AclBinding]
) -> Decision[Sequence[DisklessError | None]]:
    """A record for each rule that was not there; PolicyViolation for those that are too many."""
    records: list[AccessControlEntryRecord] = []
    answer: list[DisklessError | None] = []
    count = len(view.acls())
    for rule in rules:
        if view.has_acl(rule):
            answer.append(None)
        elif count >= ACLS_MAX:
            answer.append(PolicyViolation(f"there are {ACLS_MAX} ACLs already"))
        else:
            count += 1
            view.put_acl(rule, is_there=True)
            records.append(AccessControlEntryRecord(rule=rule))
            answer.append(None)
    return Decision(records, answer)


def decide_delete_acls(
    view: SpeculativeView, filters: Sequence[AclFilter]
) -> Decision[Sequence[DeletedAcls | DisklessError]]:
    """Each filter's rules; one that two filters find is the first one's."""
    records: list[RemoveAccessControlEntryRecord] = []
    answer: list[DeletedAcls | DisklessError] = []
    for wanted in filters:
        gone = _found(view, wanted)
        for rule in gone:
            view.put_acl(rule, is_there=False)
            records.append(RemoveAccessControlEntryRecord(rule=rule))
        answer.append(DeletedAcls(tuple(gone)))
    return Decision(records, answer)


def everything_denied() -> Sequence[AccessControlEntryRecord]:
    """What a log begins with whose rules are lost, those among them that denied something.

    Nobody may do anything who is bound by rules: super users alone can say what is to be.
    """
    return [
        AccessControlEntryRecord(
            rule=AclBinding(kind, name, PatternType.LITERAL, "User:*", WILDCARD, _ALL, _DENY)
        )
        for kind, name in _EVERYTHING
    ]


def _found(view: SpeculativeView, wanted: AclFilter) -> Sequence[AclBinding]:
    exactly = wanted.exactly()
    if exactly is not None:
        return [exactly] if view.has_acl(exactly) else []
    return sorted(filter(wanted.finds, view.acls()))
