"""The groups of one metadata partition, at the broker that leads it.

    GroupRouter ── PartitionGroups ── ClassicGroup (one state machine per group that is in use)
                        │    └─────── OffsetManager
                        └── GroupStore: the metadata partition's log and state

It is a worker of the metadata partition's leader: it runs as long as this broker leads, begins by
reading what groups there are, and ends by telling everybody who waits to look for the next
coordinator. A group that nobody is in or about to come into is *dormant*: only what its next member
has to be told is kept.

How an event goes through it: the group's state machine is called, then its effects are carried out:
answers complete the futures that requests wait for; a state is stored in a task, whose outcome is
the machine's next event. Nothing awaits between an event and its effects, so events of a group are
in order, and so are its stores, because the log keeps the order in which it is called.

Every group has one delayed operation in the purgatory, for the earliest of its deadlines: joins,
syncs, sessions. A heartbeat does not touch it; when it comes too early, it goes to the next one.

A leader whose lease has run out may have been replaced without knowing. It goes on hearing its
members, so that they keep their places should it still lead, but does not confirm them.
"""

import asyncio
import math
import random
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import structlog

from diskless.groups.classic_group import AnswerJoin, AnswerSync, ClassicGroup, GroupState, Store
from diskless.groups.classic_state import (
    StoredClassicGroup,
    decode_classic_group,
    encode_classic_group,
)
from diskless.groups.errors import (
    GroupCoordinatorUnavailable,
    GroupIdNotFound,
    GroupLoading,
    GroupSubscribedToTopic,
    IllegalGeneration,
    InvalidCommitOffsetSize,
    InvalidSessionTimeout,
    NonEmptyGroup,
    NotGroupCoordinator,
    UnknownMember,
)
from diskless.groups.group_store import GroupStore
from diskless.groups.offsets import GroupPartition, OffsetManager, TopicsWith
from diskless.groups.settings import GroupSettings
from diskless.groups.subscription import CONSUMER_PROTOCOL
from diskless.ports import (
    ClientInfo,
    CommitOffsets,
    DescribedGroup,
    FetchedOffsets,
    FetchOffsets,
    GroupHeartbeat,
    JoinedGroup,
    JoinGroup,
    LeavingMember,
    ListedGroup,
    SyncedGroup,
    SyncGroup,
)
from diskless.purgatory import DelayedOperation, Purgatory
from metadata.group_queries import StoredGroup
from metadata.group_records import GroupKind
from wal.clock import Clock, Sleep
from wal.errors import (
    AppendTooLarge,
    CorruptState,
    DisklessError,
    InvalidSettings,
    NotCoordinator,
    OutcomeUnknown,
    Retriable,
)

CLASSIC_TYPE: Final = "classic"

_LOAD_RETRY_S: Final = 1.0
_ALARM_MIN_S: Final = 0.001
"""The event loop's timers are no finer, so an alarm may come that much too early."""

log = structlog.get_logger(__name__)


def as_group_error(error: DisklessError) -> DisklessError:
    """What a failed store means to a member."""
    if isinstance(error, NotCoordinator):
        return NotGroupCoordinator(str(error))
    if isinstance(error, Retriable | OutcomeUnknown):
        # Repeating it is harmless, whether it happened or not.
        return GroupCoordinatorUnavailable(str(error))
    return error


class _Dormant(NamedTuple):
    """A group without members."""

    protocol_type: str
    generation_id: int
    since_ms: int
    """When its last member left; of a group that only has offsets, when it was first seen."""
    is_stored: bool
    """Whether it is there also without offsets."""


class _Alarm(DelayedOperation):
    """Wakes a group at its next deadline."""

    __slots__ = ("_group", "_groups", "at")

    def __init__(self, groups: "PartitionGroups", group: "_LiveGroup", at: float) -> None:
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
class _LiveGroup:
    """A group that is in use."""

    machine: ClassicGroup
    is_stored: bool
    """Whether its next coordinator will know it."""
    has_offsets: bool = False
    """Whether it had any before it came into use, or since."""
    alarm: _Alarm | None = None
    stores_under_way: int = 0


class PartitionGroups:
    """All groups of the metadata partition that `store` belongs to; run `run` while it is led."""

    def __init__(
        self,
        store: GroupStore,
        topics: TopicsWith,
        *,
        belongs_here: Callable[[str], bool],
        settings: GroupSettings,
        purgatory: Purgatory[str],
        clock: Clock,
        rng: random.Random,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`belongs_here`: whether a group id hashes to this metadata partition."""
        self._store = store
        self._belongs_here = belongs_here
        self._settings = settings
        self._purgatory = purgatory
        self._clock = clock
        self._rng = rng
        self._sleep = sleep
        self._offsets = OffsetManager(store, topics, settings=settings, clock=clock)
        self._live: dict[str, _LiveGroup] = {}
        self._dormant: dict[str, _Dormant] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._is_loaded = False

    # -- life -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Read what groups there are, then serve them, until cancelled. Raises InvalidSettings."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                await self._load()
                self._is_loaded = True
                while True:
                    await self._sleep(self._settings.offsets_retention_check_interval_ms / 1000)
                    await self.forget_unused()
        finally:
            self.close()

    @property
    def serves(self) -> bool:
        """Whether this broker leads here; at first it may still be reading the groups."""
        return self._tasks is not None

    def refusal(self) -> DisklessError | None:
        """Why groups cannot be asked about now."""
        if self._is_loaded:
            return None
        if self._tasks is None:
            return NotGroupCoordinator("another broker coordinates the group by now")
        return GroupLoading("the groups are being read")

    async def _load(self) -> None:
        while True:
            live: dict[str, StoredClassicGroup] = {}
            dormant: dict[str, _Dormant] = {}
            try:
                async for stored in self._store.stored_groups():
                    self._refuse_unless_it_belongs_here(stored.group_id)
                    group = _decoded(stored)
                    if group is not None and group.members:
                        live[stored.group_id] = group
                    else:
                        dormant[stored.group_id] = _Dormant(
                            group.protocol_type if group is not None else "",
                            group.generation_id if group is not None else 0,
                            stored.updated_ms,
                            stored.kind != GroupKind.OFFSETS_ONLY,
                        )
            except Retriable as error:
                log.warning("groups cannot be read, trying again", error=str(error))
                await self._sleep(_LOAD_RETRY_S)
                continue
            break
        self._dormant = dormant
        now = self._clock.monotonic()
        for group_id, group in live.items():
            machine = ClassicGroup.restored(
                group_id,
                group,
                now,
                initial_delay_s=self._settings.initial_rebalance_delay_ms / 1000,
                size_max=self._settings.max_size,
            )
            self._live[group_id] = one = _LiveGroup(machine, is_stored=True)
            self._settle(one)

    def _refuse_unless_it_belongs_here(self, group_id: str) -> None:
        """Were it served anyway, its members would be sent where nothing is known of it."""
        if not self._belongs_here(group_id):
            raise InvalidSettings(
                f"diskless.metadata.topic.num.partitions: the offsets of group {group_id!r} were "
                "stored under another number of metadata partitions; set it back"
            )

    def close(self) -> None:
        """Serve no more: everybody who waits is sent elsewhere. `run` does it at its end."""
        self._is_loaded = False
        self._tasks = None
        gone = NotGroupCoordinator("this broker does not coordinate the group any more")
        for group in self._live.values():
            self._disarm(group)
            group.machine.close(gone)
            self._settle(group)
        self._live.clear()
        self._dormant.clear()

    # -- events and their effects ---------------------------------------------------------------

    def _settle(self, group: _LiveGroup) -> None:
        """Do what the group's machine wants done."""
        machine = group.machine
        effects, machine.effects = machine.effects, []
        for effect in effects:
            if isinstance(effect, Store):
                self._begin_store(group, effect)
            else:
                _complete(effect)
        if machine.is_unused and not group.stores_under_way:
            self._put_to_sleep(group)
        elif group.alarm is None or machine.wakes_at < group.alarm.at:
            self._set_alarm(group)

    def _begin_store(self, group: _LiveGroup, effect: Store) -> None:
        assert self._tasks is not None, "groups only change while they are served"
        group.is_stored = True
        group.stores_under_way += 1
        self._tasks.create_task(
            self._carry_out_store(group, effect), name=f"store-group-{group.machine.group_id}"
        )

    async def _carry_out_store(self, group: _LiveGroup, effect: Store) -> None:
        machine = group.machine
        error: DisklessError | None = None
        try:
            await self._store.store_group(
                machine.group_id, GroupKind.CLASSIC, encode_classic_group(effect.group)
            )
        except DisklessError as failure:
            log.warning("group not stored", group=machine.group_id, error=str(failure))
            error = as_group_error(failure)
        group.stores_under_way -= 1
        machine.stored(effect.serial, error, self._clock.monotonic())
        self._settle(group)

    def alarm(self, group: _LiveGroup) -> None:
        """Called by the group's delayed operation."""
        group.alarm = None
        if group.machine.state is GroupState.DEAD:
            return
        group.machine.tick(self._clock.monotonic())
        self._settle(group)

    def _set_alarm(self, group: _LiveGroup) -> None:
        """Wake the group at its next deadline, instead of at the one it was to be woken."""
        self._disarm(group)
        at = group.machine.wakes_at
        if at < math.inf:
            group.alarm = _Alarm(self, group, at)
            timeout_s = max(at - self._clock.monotonic(), _ALARM_MIN_S)
            self._purgatory.try_complete_else_watch(
                group.alarm, [group.machine.group_id], timeout_s
            )

    @staticmethod
    def _disarm(group: _LiveGroup) -> None:
        alarm, group.alarm = group.alarm, None
        if alarm is not None:
            alarm.force_complete()

    def _wake(self, group_id: str) -> _LiveGroup:
        """The group, in use from now on; a new one if there was none."""
        group = self._live.get(group_id)
        if group is None:
            machine = ClassicGroup(
                group_id,
                initial_delay_s=self._settings.initial_rebalance_delay_ms / 1000,
                size_max=self._settings.max_size,
            )
            dormant = self._dormant.pop(group_id, None)
            group = _LiveGroup(machine, is_stored=False)
            if dormant is not None:
                machine.generation_id = dormant.generation_id
                machine.protocol_type = dormant.protocol_type
                group.is_stored = dormant.is_stored
                group.has_offsets = not dormant.is_stored
            self._live[group_id] = group
        return group

    def _put_to_sleep(self, group: _LiveGroup) -> None:
        """Nobody is in the group: keep what has to be remembered, or nothing."""
        machine = group.machine
        self._disarm(group)
        if self._live.get(machine.group_id) is not group:
            return
        del self._live[machine.group_id]
        if group.is_stored or group.has_offsets:
            self._dormant[machine.group_id] = _Dormant(
                machine.protocol_type,
                machine.generation_id,
                self._clock.now_ms(),
                group.is_stored,
            )

    # -- members --------------------------------------------------------------------------------

    def join(self, request: JoinGroup, client: ClientInfo) -> "asyncio.Future[JoinedGroup]":
        """See `diskless.ports.GroupCoordinator`; so for all that follow."""
        answer: asyncio.Future[JoinedGroup] = asyncio.get_running_loop().create_future()
        settings, member_id = self._settings, request.member_id
        error: DisklessError | None = None
        if not (
            settings.min_session_timeout_ms
            <= request.session_timeout_ms
            <= settings.max_session_timeout_ms
        ):
            error = InvalidSessionTimeout(
                f"{request.session_timeout_ms} ms, allowed are {settings.min_session_timeout_ms} "
                f"to {settings.max_session_timeout_ms}"
            )
        elif member_id and request.group_id not in self._live:
            error = UnknownMember("the group has no members")
        if error is not None:
            answer.set_result(JoinedGroup(error=error, member_id=member_id))
            return answer
        group = self._wake(request.group_id)
        group.machine.join(
            answer,
            request,
            client,
            self._clock.monotonic(),
            new_id=self._member_id(request, client),
        )
        self._settle(group)
        return answer

    def _member_id(self, request: JoinGroup, client: ClientInfo) -> str:
        """As Kafka makes them: administrators find the client by it."""
        unique = uuid.UUID(int=self._rng.getrandbits(128), version=4)
        return f"{request.instance_id or client.client_id}-{unique}"

    def sync(self, request: SyncGroup) -> "asyncio.Future[SyncedGroup]":
        answer: asyncio.Future[SyncedGroup] = asyncio.get_running_loop().create_future()
        group = self._live.get(request.group_id)
        if group is None:
            answer.set_result(SyncedGroup(error=UnknownMember("the group has no members")))
        else:
            group.machine.sync(answer, request, self._clock.monotonic())
            self._settle(group)
        return answer

    def heartbeat(self, request: GroupHeartbeat) -> DisklessError | None:
        group = self._live.get(request.group_id)
        if group is None:
            return UnknownMember("the group has no members")
        error = group.machine.heartbeat(
            request.generation_id,
            request.member_id,
            request.instance_id,
            self._clock.monotonic(),
        )
        if error is None and not self._store.certainly_leads():
            error = GroupCoordinatorUnavailable("it is not certain that this broker still leads")
        return error

    def leave(
        self, group_id: str, members: Sequence[LeavingMember]
    ) -> Sequence[DisklessError | None]:
        now = self._clock.monotonic()
        errors: list[DisklessError | None] = []
        for member in members:
            group = self._live.get(group_id)
            if group is None:
                errors.append(UnknownMember("the group has no members"))
                continue
            errors.append(group.machine.leave(member.member_id, member.instance_id, now))
            self._settle(group)
        return errors

    # -- offsets --------------------------------------------------------------------------------

    async def commit_offsets(self, request: CommitOffsets) -> Sequence[DisklessError | None]:
        group = self._live.get(request.group_id)
        error = self._refusal_of_commit(request, group)
        if error is not None:
            return [error] * len(request.offsets)
        if group is not None:
            group.has_offsets = True
        try:
            errors = await self._offsets.commit(
                request.group_id, request.offsets, retention_ms=request.retention_ms
            )
        except AppendTooLarge as failure:
            return [InvalidCommitOffsetSize(str(failure))] * len(request.offsets)
        except DisklessError as failure:
            return [as_group_error(failure)] * len(request.offsets)
        if None in errors:
            self._note_offsets(request.group_id)
        return errors

    def _refusal_of_commit(
        self, request: CommitOffsets, group: _LiveGroup | None
    ) -> DisklessError | None:
        if group is not None:
            error = group.machine.check_commit(
                request.generation_id,
                request.member_id,
                request.instance_id,
                self._clock.monotonic(),
            )
            self._settle(group)
            return error
        if request.generation_id < 0:
            return None
        if request.group_id in self._dormant:
            return UnknownMember("the group has no members")
        if request.knows_member_epochs:
            return GroupIdNotFound(f"no group {request.group_id!r}")
        return IllegalGeneration("there is no such group")

    def _note_offsets(self, group_id: str) -> None:
        """The group has committed something: from now on it is there also without members."""
        if not self._is_loaded:
            return
        live = self._live.get(group_id)
        if live is not None:
            live.has_offsets = True
        elif group_id not in self._dormant:
            self._dormant[group_id] = _Dormant("", 0, self._clock.now_ms(), is_stored=False)

    async def fetch_offsets(self, request: FetchOffsets) -> FetchedOffsets:
        try:
            offsets = await self._offsets.fetch(request.group_id, request.partitions)
        except DisklessError as failure:
            return FetchedOffsets(error=as_group_error(failure))
        return FetchedOffsets(offsets=offsets)

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]]
    ) -> DisklessError | Sequence[DisklessError | None]:
        live = self._live.get(group_id)
        if live is None and group_id not in self._dormant:
            return GroupIdNotFound(f"no group {group_id!r}")
        in_use: frozenset[str] = frozenset()
        if live is not None and live.machine.state is not GroupState.EMPTY:
            if live.machine.protocol_type != CONSUMER_PROTOCOL:
                return NonEmptyGroup("the group has members")
            in_use = frozenset(name for name, _ in partitions if live.machine.reads(name))
        free = [partition for partition in partitions if partition[0] not in in_use]
        try:
            deleted = iter(await self._offsets.delete(group_id, free))
            await self._forget_without_offsets(group_id)
        except DisklessError as failure:
            return as_group_error(failure)
        return [
            GroupSubscribedToTopic(f"the group reads {name}") if name in in_use else next(deleted)
            for name, _ in partitions
        ]

    # -- administration -------------------------------------------------------------------------

    def describe(self, group_id: str) -> DescribedGroup:
        live = self._live.get(group_id)
        if live is not None:
            machine = live.machine
            is_stable = machine.state is GroupState.STABLE
            return DescribedGroup(
                group_id,
                state=machine.state.value,
                protocol_type=machine.protocol_type,
                protocol_name=(machine.protocol_name or "") if is_stable else "",
                members=machine.members(),
            )
        dormant = self._dormant.get(group_id)
        if dormant is not None:
            return DescribedGroup(
                group_id, state=GroupState.EMPTY.value, protocol_type=dormant.protocol_type
            )
        return DescribedGroup(group_id, error=GroupIdNotFound(f"Group {group_id} not found."))

    def list_groups(self) -> Sequence[ListedGroup]:
        """All of them."""
        live = [
            ListedGroup(
                group_id, group.machine.protocol_type, group.machine.state.value, CLASSIC_TYPE
            )
            for group_id, group in self._live.items()
        ]
        dormant = [
            ListedGroup(group_id, group.protocol_type, GroupState.EMPTY.value, CLASSIC_TYPE)
            for group_id, group in self._dormant.items()
        ]
        return live + dormant

    async def delete_group(self, group_id: str) -> DisklessError | None:
        live = self._live.get(group_id)
        if live is None and group_id not in self._dormant:
            return GroupIdNotFound(f"Group {group_id} not found.")
        if live is not None and live.machine.state is not GroupState.EMPTY:
            return NonEmptyGroup("the group has members")
        # Gone from here on: a member that comes meanwhile begins a new group, and what it stores
        # comes after the deletion.
        if live is not None:
            self._put_to_sleep(live)
            live.machine.close(UnknownMember("the group was deleted"))
            self._settle(live)
        dormant = self._dormant.pop(group_id, None)
        assert self._tasks is not None, "groups only change while they are served"
        # As a task, because so are stores: whoever was called first is first in the log.
        deletion = self._tasks.create_task(
            self._carry_out_deletion(group_id), name=f"delete-group-{group_id}"
        )
        error = await deletion
        if error is not None and dormant is not None and group_id not in self._live:
            self._dormant.setdefault(group_id, dormant)
        return error

    async def _carry_out_deletion(self, group_id: str) -> DisklessError | None:
        try:
            await self._store.delete_group(group_id)
        except DisklessError as failure:
            return as_group_error(failure)
        return None

    # -- expiry ---------------------------------------------------------------------------------

    async def forget_unused(self) -> None:
        """Forget old offsets that are not in use, and groups without members and offsets.

        `run` does it every `offsets.retention.check.interval.ms`.
        """
        try:
            for group_id in await self._offsets.expire(self._is_in_use):
                await self._forget_without_offsets(group_id)
            before_ms = self._clock.now_ms() - self._offsets.retention_ms
            for group_id, dormant in [*self._dormant.items()]:
                is_old = dormant.is_stored and dormant.since_ms < before_ms
                if is_old and not await self._offsets.has_any(group_id):
                    await self._forget_stored(group_id, dormant)
        except (Retriable, OutcomeUnknown) as error:
            log.warning("old offsets stay until the next time", error=str(error))

    def _is_in_use(self, committed: GroupPartition) -> bool:
        """Whether old offsets must be kept: somebody is there who reads the topic, or just left."""
        if committed.topic_name is None:
            return False
        live = self._live.get(committed.group_id)
        if live is not None:
            if live.machine.state is GroupState.STABLE:
                return live.machine.reads(committed.topic_name)
            return True
        dormant = self._dormant.get(committed.group_id)
        if dormant is None or not dormant.is_stored:
            return False
        return dormant.since_ms > self._clock.now_ms() - self._offsets.retention_ms

    async def _forget_without_offsets(self, group_id: str) -> None:
        """A group that was only there for its offsets, and has none any more, is gone."""
        dormant = self._dormant.get(group_id)
        if dormant is None or dormant.is_stored or await self._offsets.has_any(group_id):
            return
        if self._dormant.get(group_id) is dormant:
            del self._dormant[group_id]

    async def _forget_stored(self, group_id: str, dormant: _Dormant) -> None:
        if self._dormant.get(group_id) is dormant:
            error = await self.delete_group(group_id)
            log.info("unused group forgotten", group=group_id, error=error and str(error))


def _decoded(stored: StoredGroup) -> StoredClassicGroup | None:
    """What is stored of a classic group; None when there is nothing that could be read."""
    if stored.kind != GroupKind.CLASSIC:
        return None
    try:
        return decode_classic_group(stored.state, stored.group_id)
    except CorruptState as error:
        # Its members join again, as after any expiry; its offsets are not part of this.
        log.error("a stored group cannot be read and begins anew", error=str(error))
        return None


def _complete(effect: AnswerJoin | AnswerSync) -> None:
    answer = effect.ticket
    assert isinstance(answer, asyncio.Future)
    if not answer.done():
        answer.set_result(effect.answer)


def matches(value: str, wanted: Collection[str]) -> bool:
    """Whether a filter lets `value` through; an empty one lets everything through."""
    return not wanted or value.lower() in {one.lower() for one in wanted}
