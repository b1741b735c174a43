"""What pending operations have written over the committed state; see state/speculative.py."""

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Absent:
    """The type of ABSENT; None in an overlay means 'deleted'."""


ABSENT: Final = Absent()


class Overlay(Generic[_Key, _Value]):
    """Values written by pending operations; None = deleted by one.

    There is one dictionary per group that wrote anything, oldest first, so that a group leaves in
    one step. Only a few are pending at a time, and often none: who asks often looks at `groups`
    first, which is no call.
    """

    __slots__ = ("groups",)

    def __init__(self) -> None:
        self.groups: Final[list[tuple[int, dict[_Key, _Value | None]]]] = []
        """What each group has written, with its number."""

    def get(self, key: _Key) -> _Value | Absent | None:
        for _, written in reversed(self.groups):
            if key in written:
                return written[key]
        return ABSENT

    def put(self, key: _Key, value: _Value | None, group: int) -> None:
        self.of(group)[key] = value

    def of(self, group: int) -> dict[_Key, _Value | None]:
        """Returns what `group` writes, to be added to; no older group writes after it."""
        if not self.groups or self.groups[-1][0] != group:
            self.groups.append((group, {}))
        return self.groups[-1][1]

    def items(self) -> Iterator[tuple[_Key, _Value | None]]:
        merged: dict[_Key, _Value | None] = {}
        for _, written in self.groups:
            merged.update(written)
        yield from merged.items()

    def retire(self, applied_group: int) -> list[dict[_Key, _Value | None]]:
        """Drop and return what the groups up to `applied_group` have written, oldest first."""
        retired = []
        while self.groups and self.groups[0][0] <= applied_group:
            retired.append(self.groups.pop(0)[1])
        return retired

    def clear(self) -> None:
        self.groups.clear()
