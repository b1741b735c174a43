"""The groups of one metadata partition, at the broker that leads it.

    GroupRouter ── PartitionGroups ── LiveGroups ── ClassicGroup or ConsumerGroup
                        │                 │          (one state machine per group that is in use)
                        ├── OffsetManager │
                        └─────────────────┴── GroupStore: the metadata partition's log and state

It is a worker of the metadata partition's leader: it runs as long as this broker leads, begins by
reading what groups there are, and ends by telling everybody who waits to look for the next
coordinator. Which kind a group is of is the business of diskless/groups/group_kinds.py, what it
commits and fetches that of diskless/groups/group_offsets.py.

A leader whose lease has run out may have been replaced without knowing. It goes on hearing its
members, so that they keep their places should it still lead, but does not confirm them.
"""

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from typing import Final

import structlog

from diskless.groups import requests
from diskless.groups.consumer.consumer_group import ConsumerGroup
from diskless.groups.consumer.consumer_requests import JOIN_EPOCH
from diskless.groups.errors import (
    GroupCoordinatorUnavailable,
    GroupIdNotFound,
    GroupLoading,
    InvalidSessionTimeout,
    NonEmptyGroup,
    NotGroupCoordinator,
    UnknownMember,
)
from diskless.groups.group_descriptions import described, described_consumer, listed
from diskless.groups.group_kinds import GroupKinds, KnownGroup, decoded, dormant
from diskless.groups.group_machine import Confirmed
from diskless.groups.group_offsets import GroupOffsets
from diskless.groups.group_store import GroupStore
from diskless.groups.live_groups import Dormant, LiveGroup, LiveGroups, as_group_error
from diskless.groups.offsets import GroupPartition, OffsetManager, TopicsWith
from diskless.groups.settings import GroupSettings
from diskless.loop.long_work import Steps
from diskless.loop.purgatory import Purgatory
from diskless.ports import ClientInfo
from metadata.records.groups import GroupKind
from wal.clock import Clock, Sleep
from wal.errors import DisklessError, InvalidSettings, OutcomeUnknown, Retriable

_LOAD_RETRY_S: Final = 1.0

log = structlog.get_logger(__name__)


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
        self._topics = topics
        self._belongs_here = belongs_here
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._sleep = sleep
        self._offsets = OffsetManager(store, topics, settings=settings, clock=clock)
        self._groups = LiveGroups(
            store,
            purgatory=purgatory,
            clock=clock,
            on_settled=lambda group: self._kinds.downgrade_if_all_are_classic(group),
        )
        self._kinds = GroupKinds(self._groups, topics, settings=settings, clock=clock)
        self._group_offsets = group_offsets = GroupOffsets(self._groups, self._offsets, clock)
        # What is asked about offsets, as it is.
        self.commit_offsets = group_offsets.commit
        self.fetch_offsets = group_offsets.fetch
        self.delete_offsets = group_offsets.delete
        self._ended_meanwhile: set[str] = set()
        """Groups whose offsets have changed while the groups were read."""
        self._is_loaded = False

    # -- life -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Read what groups there are, then serve them, until cancelled. Raises InvalidSettings."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._groups.tasks = tasks
                await self._load()
                self._is_loaded = True
                self._group_offsets.note(self._ended_meanwhile)
                while True:
                    await self._sleep(self._settings.offsets_retention_check_interval_ms / 1000)
                    await self.forget_unused()
        finally:
            self.close()

    @property
    def serves(self) -> bool:
        """Whether this broker leads here; at first it may still be reading the groups."""
        return self._groups.tasks is not None

    def refusal(self) -> DisklessError | None:
        """Why groups cannot be asked about now."""
        if self._is_loaded:
            return None
        if self._groups.tasks is None:
            return NotGroupCoordinator("another broker coordinates the group by now")
        return GroupLoading("the groups are being read")

    async def _load(self) -> None:
        while True:
            live: dict[str, KnownGroup] = {}
            unused: dict[str, Dormant] = {}
            try:
                async for stored in self._store.stored_groups():
                    self._refuse_unless_it_belongs_here(stored.group_id)
                    group = decoded(stored)
                    if group is not None and group.members:
                        live[stored.group_id] = group
                    else:
                        unused[stored.group_id] = dormant(stored, group)
            except Retriable as error:
                log.warning("groups cannot be read, trying again", error=str(error))
                await self._sleep(_LOAD_RETRY_S)
                continue
            break
        self._groups.dormant.update(unused)
        for group_id, group in live.items():
            self._groups.restore(self._kinds.restored(group_id, group))

    def _refuse_unless_it_belongs_here(self, group_id: str) -> None:
        """Were it served anyway, its members would be sent where nothing is known of it."""
        if not self._belongs_here(group_id):
            raise InvalidSettings(
                f"the offsets of group {group_id!r} are at another coordinator than its name says"
            )

    def offsets_ended(self, group_ids: Collection[str]) -> None:
        """The end of a transaction has committed offsets of these groups."""
        if self._is_loaded:
            self._group_offsets.note(group_ids)
        else:
            self._ended_meanwhile.update(group_ids)

    def close(self) -> None:
        """Serve no more: everybody who waits is sent elsewhere. `run` does it at its end."""
        self._is_loaded = False
        self._groups.close(
            NotGroupCoordinator("this broker does not coordinate the group any more")
        )

    # -- members --------------------------------------------------------------------------------

    def join(
        self, request: requests.JoinGroup, client: ClientInfo
    ) -> "asyncio.Future[requests.JoinedGroup]":
        """See `GroupRouter`; so for all that follow."""
        answer: asyncio.Future[requests.JoinedGroup] = asyncio.get_running_loop().create_future()
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
        elif member_id and request.group_id not in self._groups:
            error = UnknownMember("the group has no members")
        if error is not None:
            answer.set_result(requests.JoinedGroup(error=error, member_id=member_id))
            return answer
        group = self._kinds.classic(request.group_id)
        group.machine.join(
            answer,
            request,
            client,
            self._clock.monotonic(),
            new_id=self._member_id(request, client),
        )
        self._groups.settle(group)
        return answer

    def _member_id(self, request: requests.JoinGroup, client: ClientInfo) -> str:
        """As Kafka makes them: administrators find the client by it."""
        return f"{request.instance_id or client.client_id}-{self._unique_id()}"

    def _unique_id(self) -> str:
        return str(uuid.UUID(int=self._rng.getrandbits(128), version=4))

    def sync(self, request: requests.SyncGroup) -> "asyncio.Future[requests.SyncedGroup]":
        answer: asyncio.Future[requests.SyncedGroup] = asyncio.get_running_loop().create_future()
        group = self._groups.get(request.group_id)
        if group is None:
            answer.set_result(requests.SyncedGroup(error=UnknownMember("the group has no members")))
        else:
            group.machine.sync(answer, request, self._clock.monotonic())
            self._groups.settle(group)
        return answer

    def heartbeat(
        self, request: requests.GroupHeartbeat
    ) -> DisklessError | Awaitable[DisklessError | None] | None:
        """At once, or when the log was asked whether this broker still leads."""
        group = self._groups.get(request.group_id)
        if group is None:
            return UnknownMember("the group has no members")
        error = group.machine.heartbeat(
            request.generation_id,
            request.member_id,
            request.instance_id,
            self._clock.monotonic(),
        )
        self._groups.settle(group)
        if error is None and not self._store.certainly_leads():
            return self._uncertainty()
        return error

    async def _uncertainty(self) -> DisklessError | None:
        """None when nobody else has led until this call."""
        try:
            await self._store.confirm_leadership()
        except DisklessError as error:
            return GroupCoordinatorUnavailable(
                f"it is not certain that this broker still leads: {error}"
            )
        return None

    async def leave(
        self, group_id: str, members: Sequence[requests.LeavingMember]
    ) -> DisklessError | Sequence[DisklessError | None]:
        now = self._clock.monotonic()
        errors: list[DisklessError | None] = []
        for member in members:
            group = self._groups.get(group_id)
            if group is None:
                errors.append(UnknownMember("the group has no members"))
                continue
            errors.append(group.machine.leave(member.member_id, member.instance_id, now))
            if group.machine.kind is GroupKind.CLASSIC:
                self._groups.settle(group)
        group = self._groups.get(group_id)
        if group is None:
            return errors
        confirmed: asyncio.Future[Confirmed] = asyncio.get_running_loop().create_future()
        group.machine.confirm(confirmed)
        self._groups.settle(group)
        return (await confirmed).error or errors

    def match_patterns(self, request: requests.ConsumerHeartbeat) -> Steps[object]:
        """Match the patterns that this heartbeat brings and those that its group needs for it.

        What was matched is remembered for as long as the result is kept, or a group has the
        pattern. Raises: InvalidRegularExpression.
        """
        group = self._groups.get(request.group_id)
        machine = None if group is None else group.machine
        patterns: set[str] = set()
        if isinstance(machine, ConsumerGroup):
            patterns |= machine.patterns_to_match()
        elif request.member_epoch != JOIN_EPOCH:
            return None
        if request.topic_pattern and request.member_epoch >= JOIN_EPOCH:
            patterns.add(request.topic_pattern)
        compiled = [self._topics.pattern(pattern) for pattern in patterns]
        for one in compiled:
            yield from one.match(self._topics.topics().keys())
        return compiled

    def consumer_heartbeat(
        self, request: requests.ConsumerHeartbeat, client: ClientInfo
    ) -> Awaitable[requests.ConsumerHeartbeatAnswer]:
        answer: asyncio.Future[requests.ConsumerHeartbeatAnswer] = (
            asyncio.get_running_loop().create_future()
        )
        try:
            group = self._group_of_heartbeat(request)
        except DisklessError as error:
            answer.set_result(requests.ConsumerHeartbeatAnswer(error=error))
            return answer
        machine = group.machine
        assert isinstance(machine, ConsumerGroup)
        if not request.member_id:
            request = request._replace(member_id=self._unique_id())
        machine.consumer_heartbeat(answer, request, client, self._clock.monotonic())
        is_refused = answer.done()
        self._groups.settle(group)
        if is_refused or self._store.certainly_leads():
            return answer
        return self._when_certain(answer)

    async def _when_certain(
        self, answer: "asyncio.Future[requests.ConsumerHeartbeatAnswer]"
    ) -> requests.ConsumerHeartbeatAnswer:
        error = await self._uncertainty()
        return await answer if error is None else requests.ConsumerHeartbeatAnswer(error=error)

    def _group_of_heartbeat(self, request: requests.ConsumerHeartbeat) -> LiveGroup:
        """Raises what refuses it."""
        group = self._groups.get(request.group_id)
        if request.member_epoch != JOIN_EPOCH:
            if group is None or group.machine.kind is not GroupKind.CONSUMER:
                # Never "no such group": clients take that for final, and would not join anew.
                raise UnknownMember("the group has no members of this kind")
            return group
        group = self._kinds.consumer(request.group_id)
        if group.machine.kind is GroupKind.CLASSIC:
            self._kinds.upgrade(group, request)
        return group

    # -- administration -------------------------------------------------------------------------

    def describe(self, group_id: str) -> requests.DescribedGroup:
        return described(self._groups, group_id)

    def describe_consumer(self, group_id: str) -> requests.DescribedConsumerGroup:
        default = self._settings.assignors[0]
        return described_consumer(self._groups, self._topics, group_id, default_assignor=default)

    def list_groups(self) -> Iterator[requests.ListedGroup]:
        return listed(self._groups)

    async def delete_group(self, group_id: str) -> DisklessError | None:
        live = self._groups.get(group_id)
        if live is None and group_id not in self._groups.dormant:
            return GroupIdNotFound(f"Group {group_id} not found.")
        if live is not None and not live.machine.is_empty:
            return NonEmptyGroup("the group has members")
        # Gone from here on: a member that comes meanwhile begins a new group, and what it stores
        # comes after the deletion.
        if live is not None:
            self._groups.put_to_sleep(live)
            live.machine.close(UnknownMember("the group was deleted"))
            self._groups.settle(live)
        dormant = self._groups.dormant.pop(group_id, None)
        tasks = self._groups.tasks
        assert tasks is not None, "groups only change while they are served"
        # As a task, because so are stores: what was called first is first in the log.
        deletion = tasks.create_task(
            self._carry_out_deletion(group_id), name=f"delete-group-{group_id}"
        )
        error = await deletion
        if error is not None and dormant is not None and group_id not in self._groups:
            self._groups.dormant.setdefault(group_id, dormant)
        return error

    async def _carry_out_deletion(self, group_id: str) -> DisklessError | None:
        try:
            async with self._groups.encoding(group_id):
                pass
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
                await self._group_offsets.forget_without_offsets(group_id)
            before_ms = self._offsets.steady_ms - self._offsets.retention_ms
            for group_id, dormant in [*self._groups.dormant.items()]:
                is_old = dormant.is_stored and dormant.since_ms < before_ms
                if is_old and not await self._offsets.has_any(group_id):
                    await self._forget_stored(group_id, dormant)
        except (Retriable, OutcomeUnknown) as error:
            log.warning("old offsets stay until the next time", error=str(error))

    def _is_in_use(self, committed: GroupPartition) -> bool:
        """Whether old offsets must be kept: somebody is there who reads the topic, or just left."""
        if committed.topic_name is None:
            return False
        live = self._groups.get(committed.group_id)
        if live is not None:
            return live.machine.keeps_offsets(committed.topic_name)
        dormant = self._groups.dormant.get(committed.group_id)
        if dormant is None or not dormant.is_stored:
            return False
        return dormant.since_ms > self._offsets.steady_ms - self._offsets.retention_ms

    async def _forget_stored(self, group_id: str, dormant: Dormant) -> None:
        if self._groups.dormant.get(group_id) is dormant:
            error = await self.delete_group(group_id)
            log.info("unused group forgotten", group=group_id, error=error and str(error))
