"""Bounds the memory that answers hold in the whole broker, and how much a Fetch may bring.

Counted are answers on their way (`reserve`: what a Fetch is about to read and what waits to be
handed to its socket) and answers that their socket has not taken (`set_unsent`). A Fetch reserves
when it knows how much it could read, and not while it waits for data; what it does not use goes
back when its answer is built, the rest when the socket has taken it.

Accounts, owners and their shares are those of `diskless.server.memory_budget`. With less left than
it could read a Fetch is granted less, but never less than ANSWER_ALLOWANCE_BYTES (and the reader
gives one whole batch in any case), so consumers go on beside any number of clients that do not
read. A connection that was granted less than it could read is noted: that, and nothing else, is
what "others wait" means for answers (`diskless/server/unread.py`).
"""

from collections.abc import Hashable
from typing import Final

from diskless.server.memory_budget import MemoryBudget
from wal.clock import Clock

ANSWER_ALLOWANCE_BYTES: Final = 64 << 10
"""What a Fetch may bring even when the broker holds too many answers."""


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


class ResponseBudget(MemoryBudget["_Owner"]):
    """Memory of answers, over all connections of a server."""

    def __init__(self, limit_bytes: int, clock: Clock) -> None:
        super().__init__(limit_bytes, _Owner)
        self._clock = clock
        self.reserved_bytes = 0
        self.unsent_bytes = 0
        self._short_at = float("-inf")

    def open(self, owner: Hashable) -> ResponseAccount:
        """The account of a new connection."""
        return ResponseAccount(self, self._owner(owner))

    @property
    def used_bytes(self) -> int:
        return self.unsent_bytes + self.reserved_bytes

    def short_at(self, owner: Hashable) -> float:
        """When a Fetch was last granted less than it could read for lack of memory that `owner`
        holds, on the monotonic clock; -inf: never."""
        known = self._owners.get(owner)
        return max(self._short_at, known.short_at) if known is not None else self._short_at

    def grant(self, owner: "_Owner", wanted_bytes: int, instead_of: int) -> int:
        left = self.limit_bytes - (self.used_bytes - instead_of)
        left_to_owner = owner.limit_bytes - (owner.held_bytes - instead_of)
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

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self.short_at = float("-inf")
