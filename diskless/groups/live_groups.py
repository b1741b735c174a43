"""Keeps the groups in use: their machines, the work these want done, and when to wake them.

How an event goes through: the group's state machine is called, then `settle` carries its effects
out: answers complete the futures that requests wait for; a state is stored in a task, whose outcome
is the machine's next event. Nothing awaits between an event and its effects, so events of a group
are in order, and so are its stores: a large state is encoded in slices, but one state of a group at
a time, and the log keeps the order in which it is called. An assignment is worked out at once when
one slice is enough for it, otherwise in a task, slice by slice, while the group serves its members.

Every group has one delayed operation in the purgatory, for the earliest of its deadlines. A
heartbeat does not touch it; when it comes too early, it goes to the next one.

A group that nobody is in or about to come into is *dormant*: only what its next member has to be
told is kept.
"""

import asyncio
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

import structlog

from diskless.groups.assignors.assignment import Targets
from diskless.groups.classic.classic_group import ClassicGroup
from diskless.groups.classic_state import StoredClassicGroup, encode_classic_group
from diskless.groups.consumer.consumer_group import ConsumerGroup
from diskless.groups.consumer_state import encode_in_steps
from diskless.groups.errors import GroupCoordinatorUnavailable, NotGroupCoordinator
from diskless.groups.group_machine import Assign, Removed, Reply, Store
from diskless.groups.group_store import GroupStore
from diskless.logs import Pace
from diskless.loop.long_work import LongWork, Unfinished
from diskless.loop.purgatory import DelayedOperation, Purgatory
from metadata.records.groups import GroupKind
from wal.clock import Clock
from wal.errors import DisklessError, NotCoordinator, OutcomeUnknown, Retriable

_ALARM_MIN_S: Final = 0.001
"""The event loop's timers are no finer, so an alarm may come that much too early."""

GroupMachine = ClassicGroup | ConsumerGroup

log = structlog.get_logger(__name__)


def as_group_error(error: DisklessError) -> DisklessError:
    """Returns what a failed store means to a member."""
    if isinstance(error, NotCoordinator):
        return NotGroupCoordinator(str(error))
    if isinstance(error, Retriable | OutcomeUnknown):
        # Repeating it is harmless, whether it happened or not.
        return GroupCoordinatorUnavailable(str(error))
    return error


class Dormant(NamedTuple):
    """A group without members."""

    kind: GroupKind
    """OFFSETS_ONLY: it is not there but for its offsets."""
    protocol_type: str
    generation_id: int
    since_ms: int
    """When its last member left; of a group that only has offsets, when it was first seen."""

    @property
    def is_stored(self) -> bool:
        """Whether it is there also without offsets."""
        return self.kind is not GroupKind.OFFSETS_ONLY


class _Alarm(DelayedOperation):
    """Wakes a group at its next deadline."""

    __slots__ = ("_group", "_groups", "at")

    def __init__(self, groups: "LiveGroups", group: "LiveGroup", at: float) -> None:
        super().__init__()
        self._groups = groups
        self._group = group
        self.at = at

    def is_satisfied(self) -> bool:
        return False

    def on_complete(self) -> None:
        """Nobody waits for the alarm itself."""

    def on_expiration(self) -> None:
        self._groups.alarm(self._group)


@dataclass(slots=True, eq=False)
class LiveGroup:
    """A group that is in use."""

    machine: GroupMachine
    stored_kind: GroupKind = GroupKind.OFFSETS_ONLY
    """As what its next coordinator will know it, or may."""
    has_offsets: bool = False
    """Whether it had any before it came into use, or since."""
    alarm: _Alarm | None = None
    stores_under_way: int = 0

    @property
    def group_id(self) -> str:
        return self.machine.group_id


class LiveGroups:
    """All groups of one metadata partition."""

    def __init__(
        self,
        store: GroupStore,
        *,
        purgatory: Purgatory[str],
        clock: Clock,
        on_settled: Callable[[LiveGroup], None],
    ) -> None:
        """`on_settled` is called when a group has nothing more to be done for the moment."""
        self._store = store
        self._purgatory = purgatory
        self._clock = clock
        self._on_settled = on_settled
        self._live: dict[str, LiveGroup] = {}
        self._long_work = LongWork(clock.monotonic)
        self._encoding: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._removals = Pace()
        self.dormant: dict[str, Dormant] = {}
        self.tasks: asyncio.TaskGroup | None = None
        """Where stores run; None: nothing may change."""

    def get(self, group_id: str) -> LiveGroup | None:
        return self._live.get(group_id)

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._live

    def __iter__(self) -> Iterator[LiveGroup]:
        return iter(self._live.values())

    # -- coming into use and out of it ----------------------------------------------------------

    def restore(self, machine: GroupMachine) -> LiveGroup:
        """A group that was stored with members."""
        group = self._live[machine.group_id] = LiveGroup(machine, stored_kind=machine.kind)
        self.settle(group)
        return group

    def wake(self, machine: GroupMachine) -> LiveGroup:
        """A group comes into use that was dormant, or not there."""
        group = LiveGroup(machine)
        dormant = self.dormant.pop(machine.group_id, None)
        if dormant is not None:
            group.stored_kind = dormant.kind
            group.has_offsets = not dormant.is_stored
        self._live[machine.group_id] = group
        return group

    def convert(self, group: LiveGroup, machine: GroupMachine, error: DisklessError) -> None:
        """The group goes on as another kind; who waits for something is answered `error`."""
        before = group.machine
        self._disarm(group)
        before.close(error)
        self._carry_out(group, before)
        group.machine = machine

    def put_to_sleep(self, group: LiveGroup) -> None:
        """Nobody is in the group: keep what has to be remembered, or nothing."""
        machine = group.machine
        self._disarm(group)
        if self._live.get(machine.group_id) is not group:
            return
        del self._live[machine.group_id]
        if group.stored_kind is not GroupKind.OFFSETS_ONLY or group.has_offsets:
            self.dormant[machine.group_id] = Dormant(
                group.stored_kind,
                machine.protocol_type,
                machine.generation_id,
                self._clock.now_ms(),
            )

    def close(self, error: DisklessError) -> None:
        """Everybody who waits is answered `error`; nothing is left."""
        self.tasks = None
        for group in self._live.values():
            self._disarm(group)
            group.machine.close(error)
            self._carry_out(group, group.machine)
        self._live.clear()
        self.dormant.clear()

    # -- effects --------------------------------------------------------------------------------

    def settle(self, group: LiveGroup) -> None:
        """Do what the group's machine wants done."""
        machine = group.machine
        self._carry_out(group, machine)
        if machine.is_closed:
            return
        if machine.is_unused and not group.stores_under_way:
            self.put_to_sleep(group)
            return
        if group.alarm is None or machine.wakes_at < group.alarm.at:
            self._set_alarm(group)
        self._on_settled(group)

    def _carry_out(self, group: LiveGroup, machine: GroupMachine) -> None:
        while machine.effects:
            effects = [*machine.effects]
            machine.effects.clear()
            for effect in effects:
                if isinstance(effect, Store):
                    self._begin_store(group, machine, effect)
                elif isinstance(effect, Assign):
                    self._begin_assign(group, machine, effect)
                elif isinstance(effect, Removed):
                    self._tell_removed(machine, effect)
                else:
                    _complete(effect)

    def _tell_removed(self, machine: GroupMachine, effect: Removed) -> None:
        # Clients can cause as many of these as they like.
        suppressed = self._removals.take_turn(self._clock.monotonic())
        if suppressed is not None:
            log.info(
                "member removed",
                group=machine.group_id,
                member_id=effect.member_id,
                reason=effect.reason,
                state=machine.state_name,
                generation=machine.generation_id,
                suppressed=suppressed,
            )

    def encoding(self, group_id: str) -> asyncio.Lock:
        """Held while a state of the group is encoded, so that what is written stays in order."""
        return self._encoding.setdefault(group_id, asyncio.Lock())

    def _begin_store(self, group: LiveGroup, machine: GroupMachine, effect: Store) -> None:
        assert self.tasks is not None, "groups only change while they are served"
        group.stores_under_way += 1
        self.tasks.create_task(
            self._carry_out_store(group, machine, effect), name=f"store-group-{machine.group_id}"
        )

    async def _carry_out_store(
        self, group: LiveGroup, machine: GroupMachine, effect: Store
    ) -> None:
        error: DisklessError | None = None
        try:
            async with self.encoding(machine.group_id):
                state = (
                    encode_classic_group(effect.group)
                    if isinstance(effect.group, StoredClassicGroup)
                    else await self._long_work.run(encode_in_steps(effect.group))
                )
            await self._store.store_group(machine.group_id, machine.kind, state)
            group.stored_kind = machine.kind
        except DisklessError as failure:
            if isinstance(failure, OutcomeUnknown):
                group.stored_kind = machine.kind
            log.warning("group not stored", group=machine.group_id, error=str(failure))
            error = as_group_error(failure)
        group.stores_under_way -= 1
        machine.stored(effect.serial, error, self._clock.monotonic())
        self._carry_out(group, machine)
        self.settle(group)

    def _begin_assign(self, group: LiveGroup, machine: GroupMachine, effect: Assign) -> None:
        targets = self._long_work.begin(effect.steps)
        if not isinstance(targets, Unfinished):
            machine.assigned(effect.serial, targets, self._clock.monotonic())
            return
        assert self.tasks is not None, "groups only change while they are served"
        self.tasks.create_task(
            self._carry_out_assign(group, machine, effect.serial, targets),
            name=f"assign-group-{machine.group_id}",
        )

    async def _carry_out_assign(
        self,
        group: LiveGroup,
        machine: GroupMachine,
        serial: int,
        unfinished: Unfinished[Targets],
    ) -> None:
        targets = await self._long_work.finish(unfinished)
        machine.assigned(serial, targets, self._clock.monotonic())
        self._carry_out(group, machine)
        self.settle(group)

    # -- alarms ---------------------------------------------------------------------------------

    def alarm(self, group: LiveGroup) -> None:
        """Called by the group's delayed operation."""
        group.alarm = None
        if group.machine.is_closed:
            return
        group.machine.tick(self._clock.monotonic())
        self.settle(group)

    def _set_alarm(self, group: LiveGroup) -> None:
        """Wake the group at its next deadline, instead of at the one it was to be woken."""
        self._disarm(group)
        at = group.machine.wakes_at
        if at < math.inf:
            group.alarm = _Alarm(self, group, at)
            timeout_s = max(at - self._clock.monotonic(), _ALARM_MIN_S)
            self._purgatory.try_complete_else_watch(group.alarm, [group.group_id], timeout_s)

    @staticmethod
    def _disarm(group: LiveGroup) -> None:
        alarm, group.alarm = group.alarm, None
        if alarm is not None:
            alarm.force_complete()


def _complete(effect: Reply) -> None:
    answer = effect.ticket
    assert isinstance(answer, asyncio.Future)
    if not answer.done():
        answer.set_result(effect.answer)
