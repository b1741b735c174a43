"""Bounds the memory that answers hold in the whole broker, and how much a Fetch may bring.

Counted are answers on their way (`reserve`: what a Fetch is about to read and what waits to be
handed to its socket) and answers that their socket has not taken (`set_unsent`). A Fetch reserves
when it knows how much it could read, and not while it waits for data; what it does not use goes
back when its answer is built, the rest when the socket has taken it.

Every connection has an account, and every account an owner, as in `diskless.server.request_budget`.
All owners together hold the limit, one of them half of it: clients that do not read leave the other
half to others. With less left than it could read a Fetch is granted less, but never less than
ANSWER_ALLOWANCE_BYTES (and the reader gives one whole batch in any case), so consumers go on beside
any number of clients that do not read. A connection that was granted less than it could read is
noted: that, and nothing else, is what "others wait" means for answers
(`diskless/server/unread.py`).
"""

from collections.abc import Hashable, Mapping
from typing import Final
from weakref import WeakValueDictionary

from wal.clock import Clock

ANSWER_ALLOWANCE_BYTES: Final = 64 << 10
"""What a Fetch may bring even when the broker holds too many answers."""

_SHARES: Final = 2
"""An owner holds at most the limit divided by this."""


class ResponseAccount:
    """The answers of one connection. Made by `ResponseBudget.open`."""

    __slots__ = ("_budget", "_owner", "reserved_bytes", "unsent_bytes")

    def __init__(self, budget: "ResponseBudget", owner: "_Owner") -> None:
        self._budget = budget
        self._owner = owner
        self.reserved_bytes = 0
        self.unsent_bytes = 0

    def grant(self, wanted_bytes: int, *, instead_of: int) -> int:
        """Returns how much of `wanted_bytes` may be read, where `instead_of` was reserved before.

        The caller reserves it.
        """
        return self._budget.grant(self._owner, wanted_bytes, instead_of)

    def reserve(self, change: int) -> None:
        """Add `change`, which may be negative, to what is reserved."""
        self.reserved_bytes += change
        self._owner.held_bytes += change
        self._budget.reserved_bytes += change

    def set_unsent(self, size: int) -> None:
        """The socket was handed answers and has not taken `size` bytes of them."""
        change = size - self.unsent_bytes
        self.unsent_bytes = size
        self._owner.held_bytes += change
        self._budget.unsent_bytes += change


class ResponseBudget:
    """Memory of answers, over all connections of a server."""

    def __init__(self, limit_bytes: int, clock: Clock) -> None:
        self.limit_bytes = limit_bytes
        self._clock = clock
        self._owners: WeakValueDictionary[Hashable, _Owner] = WeakValueDictionary()
        self.reserved_bytes = 0
        self.unsent_bytes = 0
        self._short_at = float("-inf")

    def open(self, owner: Hashable) -> ResponseAccount:
        """The account of a new connection."""
        known = self._owners.get(owner)
        if known is None:
            known = self._owners[owner] = _Owner()
        return ResponseAccount(self, known)

    @property
    def owner_limit_bytes(self) -> int:
        return self.limit_bytes // _SHARES

    def held_by(self, owner: Hashable) -> int:
        """By all connections of `owner`."""
        known = self._owners.get(owner)
        return known.held_bytes if known is not None else 0

    def is_above(self, owner: Hashable, part: float, *, freed: Mapping[Hashable, int]) -> bool:
        """Whether all, or the connections of `owner`, hold more than `part` of what they may.

        Without what is about to be `freed`, by owner.
        """
        held_bytes = self.unsent_bytes + self.reserved_bytes - sum(freed.values())
        return (
            held_bytes > part * self.limit_bytes
            or self.held_by(owner) - freed.get(owner, 0) > part * self.owner_limit_bytes
        )

    def short_at(self, owner: Hashable) -> float:
        """When a Fetch was last granted less than it could read for lack of memory that `owner`
        holds, on the monotonic clock; -inf: never."""
        known = self._owners.get(owner)
        return max(self._short_at, known.short_at) if known is not None else self._short_at

    def grant(self, owner: "_Owner", wanted_bytes: int, instead_of: int) -> int:
        left = self.limit_bytes - (self.unsent_bytes + self.reserved_bytes - instead_of)
        left_to_owner = self.owner_limit_bytes - (owner.held_bytes - instead_of)
        granted = min(wanted_bytes, max(min(left, left_to_owner), ANSWER_ALLOWANCE_BYTES))
        if granted < wanted_bytes:
            now = self._clock.monotonic()
            if left < wanted_bytes:
                self._short_at = now
            if left_to_owner < wanted_bytes:
                owner.short_at = now
        return granted


class _Owner:
    """What all connections of one owner hold."""

    def __init__(self) -> None:
        self.held_bytes = 0
        self.short_at = float("-inf")
