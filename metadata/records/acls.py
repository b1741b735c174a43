"""Metadata records about access control: a rule is there from here on, or is gone. Catalogue only.

They are framed and encoded like all metadata records (metadata/records/records.py) and applied by
metadata/apply/apply_control.py. Kafka's records of these names give each rule an id; here a rule is
what it says.

    1030 AccessControlEntry        ResourceType int8, ResourceName string, PatternType int8,
                                   Principal string, Host string, Operation int8, Permission int8
    1031 RemoveAccessControlEntry  the same

Encoding raises ValueError or struct.error for a number that its field cannot hold; decoding raises
nothing but CorruptLog.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from metadata.acls import AclBinding


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessControlEntryRecord:
    """The rule was not there, and is now."""

    rule: AclBinding


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveAccessControlEntryRecord:
    """The rule was there, and is gone."""

    rule: AclBinding


AclRecord = AccessControlEntryRecord | RemoveAccessControlEntryRecord

ACL_RECORDS: Final[Mapping[int, type[Any]]] = {
    1030: AccessControlEntryRecord,
    1031: RemoveAccessControlEntryRecord,
}
