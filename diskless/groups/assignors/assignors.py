"""Lists the assignors of partitions that a group's members can ask for."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from diskless.groups.assignors.assignment import Assignor, MemberSubscription, TopicPartitions
from diskless.groups.assignors.range_assignor import RangeAssignor
from diskless.groups.assignors.uniform_assignor import UniformAssignor

__all__ = ("ASSIGNORS", "DEFAULT_ASSIGNOR", "Assignor", "MemberSubscription", "TopicPartitions")

_ALL: Final[tuple[Assignor, ...]] = (UniformAssignor(), RangeAssignor())

ASSIGNORS: Final[Mapping[str, Assignor]] = MappingProxyType({one.name: one for one in _ALL})
"""By name, the default first."""

DEFAULT_ASSIGNOR: Final = UniformAssignor.name
