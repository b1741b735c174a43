"""The committed offsets of groups that are in use, dormant, or only there for their offsets.

The group's state machine says who may commit and fetch; the `OffsetManager` says what may be
committed. A group comes to be there with its first committed offset, if it
has no members, and is gone with the last.

Offsets of a transaction wait at the metadata partition until the transaction ends, and are
committed then or dropped. As in Kafka, a member that is stable or not may write them, and so may
somebody who does not say who he is; a fetch that wants what is stable is told to come again; and
what waits keeps the offset before it from being forgotten as old.
"""

from collections.abc import Collection, Sequence
from operator import itemgetter

from diskless.groups import requests
from diskless.groups.errors import (
    GroupIdNotFound,
    GroupSubscribedToTopic,
    IllegalGeneration,
    InvalidCommitOffsetSize,
    NonEmptyGroup,
    StaleMemberEpoch,
    UnknownMember,
)
from diskless.groups.live_groups import Dormant, LiveGroup, LiveGroups, as_group_error
from diskless.groups.offsets import DELETED_AT_ONCE, OffsetManager
from diskless.loop.long_work import each, in_portions
from metadata.records.groups import GroupKind
from wal.clock import Clock
from wal.errors import AppendTooLarge, DisklessError


class GroupOffsets:
    """The offsets of the groups of one metadata partition."""

    def __init__(self, groups: LiveGroups, offsets: OffsetManager, clock: Clock) -> None:
        self._groups = groups
        self._offsets = offsets
        self._clock = clock

    async def commit(self, request: requests.CommitOffsets) -> Sequence[DisklessError | None]:
        """See `GroupRouter`; so for all that follow."""
        group = self._groups.get(request.group_id)
        error = self._refusal_of_commit(request, group)
        if error is not None:
            return [error] * len(request.offsets)
        is_visible = request.transaction is None
        if group is not None and is_visible:
            group.has_offsets = True
        try:
            errors = await self._offsets.commit(
                request.group_id,
                request.offsets,
                retention_ms=request.retention_ms,
                transaction=request.transaction,
            )
        except AppendTooLarge as failure:
            return [InvalidCommitOffsetSize(str(failure))] * len(request.offsets)
        except DisklessError as failure:
            return [as_group_error(failure)] * len(request.offsets)
        if None in errors and is_visible:
            self.note([request.group_id])
        return errors

    def _refusal_of_commit(
        self, request: requests.CommitOffsets, group: LiveGroup | None
    ) -> DisklessError | None:
        is_transactional = request.transaction is not None
        if group is not None:
            error = group.machine.check_commit(
                request.generation_id,
                request.member_id,
                request.instance_id,
                self._clock.monotonic(),
                knows_member_epochs=request.knows_member_epochs,
                is_transactional=is_transactional,
            )
            self._groups.settle(group)
            if is_transactional and isinstance(error, StaleMemberEpoch):
                # The one that producers know.
                return IllegalGeneration(str(error))
            return error
        if request.generation_id < 0:
            return None
        if request.group_id in self._groups.dormant:
            return UnknownMember("the group has no members")
        if request.knows_member_epochs and not is_transactional:
            return GroupIdNotFound(f"no group {request.group_id!r}")
        return IllegalGeneration("there is no such group")

    def note(self, group_ids: Collection[str]) -> None:
        """These have committed something: from now on they are there also without members."""
        if self._groups.tasks is None:
            return
        for group_id in group_ids:
            live = self._groups.get(group_id)
            if live is not None:
                live.has_offsets = True
            elif group_id not in self._groups.dormant:
                self._groups.dormant[group_id] = Dormant(
                    GroupKind.OFFSETS_ONLY, "", 0, self._clock.now_ms()
                )

    async def fetch(self, request: requests.FetchOffsets) -> requests.FetchedOffsets:
        if request.member_id is not None and request.member_epoch >= 0:
            group = self._groups.get(request.group_id)
            error = (
                UnknownMember("the group has no members")
                if group is None
                else group.machine.check_fetch(request.member_id, request.member_epoch)
            )
            if error is not None:
                return requests.FetchedOffsets(error=error)
        try:
            offsets = await self._offsets.fetch(
                request.group_id, request.partitions, require_stable=request.require_stable
            )
        except DisklessError as failure:
            return requests.FetchedOffsets(error=as_group_error(failure))
        return requests.FetchedOffsets(offsets=offsets)

    async def delete(
        self, group_id: str, partitions: Sequence[tuple[str, int]]
    ) -> DisklessError | Sequence[DisklessError | None]:
        names = {*await each(itemgetter(0), partitions)}
        live = self._groups.get(group_id)
        if live is None and group_id not in self._groups.dormant:
            return GroupIdNotFound(f"no group {group_id!r}")
        in_use: frozenset[str] = frozenset()
        if live is not None and not live.machine.is_empty:
            if not live.machine.may_delete_offsets():
                return NonEmptyGroup("the group has members")
            in_use = frozenset(name for name in names if live.machine.reads(name))

        async def deleted(some: Sequence[tuple[str, int]]) -> Sequence[DisklessError | None]:
            free = [partition for partition in some if partition[0] not in in_use]
            left = iter(await self._offsets.delete(group_id, free))
            return [
                GroupSubscribedToTopic(f"the group reads {name}") if name in in_use else next(left)
                for name, _ in some
            ]

        try:
            errors = await in_portions(deleted, partitions, DELETED_AT_ONCE)
            await self.forget_without_offsets(group_id)
        except DisklessError as failure:
            return as_group_error(failure)
        return errors

    async def forget_without_offsets(self, group_id: str) -> None:
        """A group that was only there for its offsets, and has none any more, is gone."""
        dormant = self._groups.dormant.get(group_id)
        if dormant is None or dormant.is_stored or await self._offsets.has_any(group_id):
            return
        if self._groups.dormant.get(group_id) is dormant:
            del self._groups.dormant[group_id]
