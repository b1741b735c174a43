"""A classic group with a clock, and a store that works at once unless it is held."""

import itertools
from collections.abc import Sequence
from typing import Any

from diskless.groups.classic.classic_group import ClassicGroup
from diskless.groups.classic.rebalance import GroupState
from diskless.groups.classic_state import StoredClassicGroup
from diskless.groups.group_machine import Removed, Store
from diskless.groups.requests import GroupProtocol, JoinedGroup, SyncedGroup
from tests.support.groups.group_requests import CLIENT, join_request, sync_request

A = b"to a"
B = b"to b"


class Bench:
    """A group, a clock, and a store that works at once unless it is held."""

    def __init__(self, *, initial_delay_s: float = 0.0, size_max: int = 100) -> None:
        self.options = {"initial_delay_s": initial_delay_s, "size_max": size_max}
        self.group = ClassicGroup("group", initial_delay_s=initial_delay_s, size_max=size_max)
        self.now = 0.0
        self.answers: dict[str, JoinedGroup | SyncedGroup] = {}
        """By ticket; asked for once."""
        self.stored: list[StoredClassicGroup] = []
        self.held: list[Store] | None = None
        self.removed: list[Removed] = []
        self._ids = itertools.count(1)
        self._tickets = itertools.count()

    def settle(self) -> None:
        effects = [*self.group.effects]
        self.group.effects.clear()
        for effect in effects:
            if isinstance(effect, Removed):
                self.removed.append(effect)
            elif not isinstance(effect, Store):
                assert effect.ticket not in self.answers
                self.answers[str(effect.ticket)] = effect.answer
            elif self.held is not None:
                self.held.append(effect)
            else:
                self.stored.append(effect.group)
                self.group.stored(effect.serial, None, self.now)
                self.settle()

    def ask_join(self, member_id: str = "", **fields: Any) -> str:
        """The ticket of a join; ids are m-1, m-2, … in the order in which they are given."""
        ticket = f"join-{next(self._tickets)}"
        new_id = f"m-{next(self._ids)}" if not member_id else ""
        fields.setdefault("needs_member_id", False)
        request = join_request(member_id, **fields)
        self.group.join(ticket, request, CLIENT, self.now, new_id=new_id)
        self.settle()
        return ticket

    def ask_sync(self, member_id: str, assignments: Any = None, **fields: Any) -> str:
        ticket = f"sync-{next(self._tickets)}"
        generation_id = fields.pop("generation_id", self.group.generation_id)
        request = sync_request(member_id, generation_id, assignments, **fields)
        self.group.sync(ticket, request, self.now)
        self.settle()
        return ticket

    def joined(self, ticket: str) -> JoinedGroup:
        answer = self.answers[ticket]
        assert isinstance(answer, JoinedGroup)
        return answer

    def synced(self, ticket: str) -> SyncedGroup:
        answer = self.answers[ticket]
        assert isinstance(answer, SyncedGroup)
        return answer

    def is_parked(self, ticket: str) -> bool:
        return ticket not in self.answers

    def heartbeat(self, member_id: str, instance_id: str | None = None, **fields: int) -> Any:
        generation_id = fields.get("generation_id", self.group.generation_id)
        return self.group.heartbeat(generation_id, member_id, instance_id, self.now)

    def leave(self, member_id: str, instance_id: str | None = None) -> Any:
        error = self.group.leave(member_id, instance_id, self.now)
        self.settle()
        return error

    def commit(
        self, generation_id: int, member_id: str = "", instance_id: str | None = None
    ) -> Any:
        return self.group.check_commit(generation_id, member_id, instance_id, self.now)

    def advance(self, seconds: float) -> None:
        until = self.now + seconds
        while self.group.wakes_at <= until:
            self.now = max(self.now, self.group.wakes_at)
            self.group.tick(self.now)
            self.settle()
        self.now = until

    def stable_pair(self, **fields: Any) -> None:
        """m-1 leads, m-2 follows; both have an assignment."""
        self.ask_join(**fields)
        second = self.ask_join(**fields)
        self.ask_join("m-1", **fields)
        assert self.joined(second).generation_id == self.group.generation_id
        self.ask_sync("m-1", {"m-1": A, "m-2": B})
        self.ask_sync("m-2")
        assert self.group.state is GroupState.STABLE

    def stable_statics(self, **fields: Any) -> None:
        """As `stable_pair`, of static members i-1 and i-2."""
        self.ask_join(instance_id="i-1", **fields)
        self.ask_join(instance_id="i-2", **fields)
        self.ask_join("m-1", instance_id="i-1", **fields)
        self.ask_sync("m-1", {"m-1": A, "m-2": B}, instance_id="i-1")
        self.ask_sync("m-2", instance_id="i-2")
        assert self.group.state is GroupState.STABLE

    def assignments(self) -> dict[str, bytes]:
        return {member.member_id: member.assignment for member in self.group.members()}


def protocols(*names: str) -> Sequence[GroupProtocol]:
    return [GroupProtocol(name, b"") for name in names]
