"""Divides a limit of memory over the connections of a server, by owner.

Every connection has an account, and every account an owner: at present its address. All owners
together hold at most the limit, and one of them at most half of it, with all its connections:
clients that do not read, or send too much, leave the other half to others.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from typing import Final, Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

_SHARES: Final = 2
"""An owner holds at most the limit divided by this."""


class Holder(Protocol):
    """What all connections of one owner hold."""

    held_bytes: int


_Holder = TypeVar("_Holder", bound=Holder)


class MemoryBudget(ABC, Generic[_Holder]):
    """What owners hold; a class that inherits from it says what that is, and who waits for it."""

    def __init__(self, limit_bytes: int, holder: Callable[[int], _Holder]) -> None:
        """`holder` is what an owner begins with, given its own limit."""
        self.limit_bytes = limit_bytes
        self.owner_limit_bytes = limit_bytes // _SHARES
        self._new_holder = holder
        self._owners: WeakValueDictionary[Hashable, _Holder] = WeakValueDictionary()
        """For as long as an account, or a buffer that was lent to one, refers to them."""

    @property
    @abstractmethod
    def used_bytes(self) -> int:
        """By all connections of all owners."""

    def held_by(self, owner: Hashable) -> int:
        """By all connections of `owner`."""
        known = self._owners.get(owner)
        return known.held_bytes if known is not None else 0

    def is_above(self, owner: Hashable, part: float, *, freed: Mapping[Hashable, int]) -> bool:
        """Whether all, or the connections of `owner`, hold more than `part` of what they may.

        Without what is about to be `freed`, by owner.
        """
        return (
            self.used_bytes - sum(freed.values()) > part * self.limit_bytes
            or self.held_by(owner) - freed.get(owner, 0) > part * self.owner_limit_bytes
        )

    def _owner(self, owner: Hashable) -> _Holder:
        known = self._owners.get(owner)
        if known is None:
            known = self._owners[owner] = self._new_holder(self.owner_limit_bytes)
        return known
