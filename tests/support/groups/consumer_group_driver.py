"""Drives one KIP-848 group, on a clock that only moves when told to."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from diskless.groups import requests
from diskless.groups.assignors.assignors import ASSIGNORS
from diskless.groups.consumer.consumer_group import ConsumerGroup
from diskless.groups.consumer_state import StoredConsumerGroup
from diskless.groups.group_machine import Assign, Removed, Store
from diskless.loop.long_work import done_at_once
from tests.support.groups.consumer_requests import (
    SETTINGS,
    NumberedTopics,
    consumer_heartbeat,
    consumer_join,
    new_consumer_group,
)
from tests.support.groups.group_requests import CLIENT, join_request, sync_request
from wal.errors import DisklessError

TOPIC = UUID(int=1)
ALL = frozenset(range(4))


class Driver:
    """A group of "topic", which has four partitions; what is to be stored is, unless told not."""

    def __init__(self, **settings: Any) -> None:
        self.topics = NumberedTopics()
        self.topics.create("topic", 4)
        self.settings = replace(SETTINGS, **settings)
        self.group = new_consumer_group(self.topics, self.settings)
        self.now = 100.0
        self.stores = True
        self.assigns = True
        self.stored: list[StoredConsumerGroup] = []
        self.pending: list[Store] = []
        self.assignments: list[Assign] = []
        self.answers: dict[object, Any] = {}
        self.removed: list[Removed] = []
        self.tickets = itertools.count()

    # -- events

    def send(self, request: requests.ConsumerHeartbeat) -> requests.ConsumerHeartbeatAnswer:
        """The answer; None while it waits."""
        ticket = next(self.tickets)
        self.group.consumer_heartbeat(ticket, request, CLIENT, self.now)
        self.settle()
        return self.answers.get(ticket)  # type: ignore[return-value]

    def join(self, member_id: str, *topics: str, **more: Any) -> requests.ConsumerHeartbeatAnswer:
        return self.send(consumer_join(member_id, *topics, **more))

    def beat(
        self, member_id: str, epoch: int, has: Sequence[int] | None = None, **more: Any
    ) -> requests.ConsumerHeartbeatAnswer:
        owned = None if has is None else ({TOPIC: frozenset(has)} if has else {})
        return self.send(consumer_heartbeat(member_id, epoch, owned=owned, **more))

    def join_classic(self, member_id: str = "", **more: Any) -> requests.JoinedGroup:
        ticket = next(self.tickets)
        new_id = f"classic-{ticket}"
        request = join_request(member_id, **more)
        self.group.join(ticket, request, CLIENT, self.now, new_id=new_id)
        self.settle()
        return self.answers.get(ticket)  # type: ignore[return-value]

    def sync(self, member_id: str, generation_id: int, **more: Any) -> requests.SyncedGroup:
        ticket = next(self.tickets)
        self.group.sync(ticket, sync_request(member_id, generation_id, **more), self.now)
        self.settle()
        answer: requests.SyncedGroup = self.answers[ticket]
        return answer

    def store(self, error: DisklessError | None = None) -> None:
        effect = self.pending.pop(0)
        if error is None:
            assert isinstance(effect.group, StoredConsumerGroup)
            self.stored.append(effect.group)
        self.group.stored(effect.serial, error, self.now)
        self.settle()

    def assign(self) -> None:
        effect = self.assignments.pop(0)
        self.group.assigned(effect.serial, done_at_once(effect.steps), self.now)
        self.settle()

    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while self.group.wakes_at <= until:
            self.now = max(self.now, self.group.wakes_at)
            self.group.tick(self.now)
            self.settle()
        self.now = until

    def settle(self) -> None:
        effects = [*self.group.effects]
        self.group.effects.clear()
        for effect in effects:
            if isinstance(effect, Store):
                self.pending.append(effect)
            elif isinstance(effect, Assign):
                assert not self.assignments, "one at a time"
                self.assignments.append(effect)
            elif isinstance(effect, Removed):
                self.removed.append(effect)
            else:
                assert effect.ticket not in self.answers
                self.answers[effect.ticket] = effect.answer
        while self.assigns and self.assignments:
            self.assign()
        while self.stores and self.pending:
            self.store()

    def restarted(self) -> "Driver":
        """With what was stored last."""
        driver = Driver()
        driver.topics, driver.settings, driver.now = self.topics, self.settings, self.now
        driver.group = ConsumerGroup.restored(
            "group",
            self.stored[-1],
            self.now,
            self.topics,
            settings=self.settings,
            assignors=ASSIGNORS,
        )
        return driver

    # -- what it looks like

    def assigned(self, member_id: str) -> set[int]:
        members = {member.member_id: member for member in self.group.snapshot().members}
        return {p for ps in members[member_id].assigned.values() for p in ps}

    @property
    def member_ids(self) -> list[str]:
        return [member.member_id for member in self.group.snapshot().members]

    def share(self) -> tuple[int, int]:
        """Two members, a and b, with two partitions each; their epochs."""
        first = self.join("a")
        self.join("b")
        told = self.beat("a", first.member_epoch, sorted(ALL))
        assert told.assignment is not None
        kept = sorted(told.assignment[TOPIC])
        a = self.beat("a", told.member_epoch, kept)
        b = self.beat("b", self.epoch("b"))
        assert (len(self.assigned("a")), len(self.assigned("b"))) == (2, 2)
        return a.member_epoch, b.member_epoch

    def epoch(self, member_id: str) -> int:
        return next(
            one.member_epoch for one in self.group.snapshot().members if one.member_id == member_id
        )


def refused(answer: requests.ConsumerHeartbeatAnswer, kind: type[DisklessError]) -> bool:
    return isinstance(answer.error, kind) and answer.assignment is None
