"""Finds the coordinator of a group, and reaches it if it is on this broker.

A group belongs to the metadata partition that its id hashes to; the broker that leads that
partition is the group's coordinator. This is what the API layer calls: it passes a
request on to the `PartitionGroups` of that partition when this broker leads it, and otherwise
answers NotGroupCoordinator, whereupon clients ask who does.

Where a group belongs follows from the number of metadata partitions. A broker refuses to coordinate
groups that were stored under another number.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from itertools import chain
from typing import Final, TypeVar

from diskless.groups import requests
from diskless.groups.consumer.consumer_requests import STRING_BYTES_MAX, refused_heartbeat
from diskless.groups.errors import (
    GroupCoordinatorUnavailable,
    GroupLoading,
    InvalidGroupId,
    NotGroupCoordinator,
)
from diskless.groups.group_coordinator import PartitionGroups
from diskless.groups.group_store import GroupStore
from diskless.groups.offsets import TopicsWith
from diskless.groups.settings import GroupSettings
from diskless.loop.long_work import Steps, mapped
from diskless.loop.purgatory import Purgatory
from diskless.ports import ClientInfo, FollowedPartition
from diskless.transactions.errors import TransactionNotKnown
from diskless.transactions.numbered_batches import Numbers, as_producer_error
from diskless.transactions.transaction_router import Producer
from metadata.transaction_operations import (
    AddToTransaction,
    JoinTransaction,
    TransactionGroup,
)
from wal.clock import Clock, Sleep
from wal.errors import DisklessError, InvalidRequest

_Result = TypeVar("_Result")


class GroupRouter:
    """Consumer groups, each at the broker that leads the group's metadata partition.

    Where another broker does, the error is NotGroupCoordinator. Nothing is raised: whatever goes
    wrong is an error in the answer. Answers about what was changed come when it is durable.
    """

    def __init__(
        self,
        partitions: Sequence[FollowedPartition],
        topics: TopicsWith,
        *,
        settings: GroupSettings,
        clock: Clock,
        rng: random.Random,
        numbers: Numbers,
        placed: Callable[[str], int],
        purgatory: Purgatory[str] | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`partitions` are all metadata partitions, by index; `numbers` tells of transactions.

        `placed`: the index of a group's.
        """
        self._numbers = numbers
        self._placed = placed
        self._partitions = partitions
        self._topics = topics
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._sleep = sleep
        self._led: dict[int, PartitionGroups] = {}
        self.purgatory: Final = purgatory or Purgatory[str]("group")

    def led(self, index: int, store: GroupStore) -> PartitionGroups:
        """The worker for the metadata partition `index`, which this broker has come to lead."""
        groups = PartitionGroups(
            store,
            self._topics,
            belongs_here=lambda group_id: self._placed(group_id) == index,
            settings=self._settings,
            purgatory=self.purgatory,
            clock=self._clock,
            rng=self._rng,
            sleep=self._sleep,
        )
        self._led[index] = groups
        return groups

    def offsets_ended(self, index: int, group_ids: Collection[str]) -> None:
        """Ends of transactions have committed offsets of these groups at a metadata partition."""
        groups = self._led.get(index)
        if groups is not None:
            groups.offsets_ended(group_ids)

    def close(self) -> None:
        """Answer everybody who waits, and refuse whatever comes: the broker stops."""
        for groups in self._led.values():
            groups.close()

    # -- the way --------------------------------------------------------------------------------

    def find(self, group_id: str) -> int | DisklessError:
        """Returns the node id of the broker to go to, as far as this one knows."""
        leader = self._partitions[self._placed(group_id)].leader
        if leader is None:
            return GroupCoordinatorUnavailable("nobody leads the group's metadata partition now")
        return leader.broker_id

    def _groups(self, group_id: str) -> PartitionGroups | DisklessError:
        groups = self._led.get(self._placed(group_id))
        if groups is None:
            return NotGroupCoordinator("another broker coordinates the group")
        return groups.refusal() or groups

    # -- members --------------------------------------------------------------------------------

    def join(
        self, request: requests.JoinGroup, client: ClientInfo
    ) -> Awaitable[requests.JoinedGroup]:
        """Answered when the group's next generation begins. A future needs no task to wait."""
        error = _refused_id(request.group_id) or _refused_names(request)
        groups = error or self._groups(request.group_id)
        if isinstance(groups, DisklessError):
            return _at_once(requests.JoinedGroup(error=groups, member_id=request.member_id))
        return groups.join(request, client)

    def sync(self, request: requests.SyncGroup) -> Awaitable[requests.SyncedGroup]:
        """Answered when the leader of the generation has said what is assigned to whom."""
        groups = _refused_id(request.group_id) or self._groups(request.group_id)
        if isinstance(groups, DisklessError):
            return _at_once(requests.SyncedGroup(error=groups))
        return groups.sync(request)

    def heartbeat(
        self, request: requests.GroupHeartbeat
    ) -> DisklessError | Awaitable[DisklessError | None] | None:
        """At once, or when it is certain that this broker still coordinates the group."""
        groups = _refused_id(request.group_id) or self._groups(request.group_id)
        if isinstance(groups, GroupLoading):
            # As Kafka answers: whether the member has its place is known at its next heartbeat, and
            # there are clients that end on any error they do not expect here.
            return None
        return groups if isinstance(groups, DisklessError) else groups.heartbeat(request)

    async def leave(
        self, group_id: str, members: Sequence[requests.LeavingMember]
    ) -> DisklessError | Sequence[DisklessError | None]:
        """The group's error, or the members' in their order."""
        groups = _refused_id(group_id) or self._groups(group_id)
        if isinstance(groups, DisklessError):
            return groups
        return await groups.leave(group_id, members)

    def match_patterns(self, request: requests.ConsumerHeartbeat) -> Steps[object]:
        """Match what has to be matched for this heartbeat; good for as long as the result is kept.

        Raises: InvalidRegularExpression.
        """
        groups = self._groups(request.group_id)
        if isinstance(groups, DisklessError):
            return None
        if refused_heartbeat(request, self._settings.assignors) is not None:
            return None
        return (yield from groups.match_patterns(request))

    def consumer_heartbeat(
        self, request: requests.ConsumerHeartbeat, client: ClientInfo
    ) -> Awaitable[requests.ConsumerHeartbeatAnswer]:
        """Answered at once, or when what the heartbeat has changed is durable."""
        refusal = refused_heartbeat(request, self._settings.assignors)
        groups = refusal or self._groups(request.group_id)
        if isinstance(groups, DisklessError):
            return _at_once(requests.ConsumerHeartbeatAnswer(error=groups))
        return groups.consumer_heartbeat(request, client)

    # -- offsets --------------------------------------------------------------------------------

    async def commit_offsets(
        self, request: requests.CommitOffsets
    ) -> Sequence[DisklessError | None]:
        """By offset, in order."""
        groups = self._groups(request.group_id)
        if isinstance(groups, DisklessError):
            return [groups] * len(request.offsets)
        return await groups.commit_offsets(request)

    async def commit_in_transaction(
        self, request: requests.CommitOffsets, producer: Producer, *, adds: bool = False
    ) -> Sequence[DisklessError | None]:
        """The same, but the offsets are not committed before the producer's transaction is.

        `adds`: whether the group becomes part of the transaction by that.
        """
        error = _refused_id(request.group_id)
        groups = error or self._groups(request.group_id)
        if isinstance(groups, DisklessError):
            return [groups] * len(request.offsets)
        group_id = request.group_id
        if adds:
            group = TransactionGroup(group_id, self._placed(group_id))
            joined = await self._numbers.add(AddToTransaction(*producer, groups=[group]))
        else:
            joined = await self._numbers.ask(JoinTransaction(*producer, groups=[group_id]))
        if joined.error is not None:
            error = as_producer_error(joined.error, adds=adds)
            if isinstance(error, TransactionNotKnown):
                # Clients ask again at this one, and do not look for a coordinator.
                error = GroupLoading(str(error))
            return [error] * len(request.offsets)
        transaction = requests.OffsetTransaction(
            producer.producer_id, producer.producer_epoch, joined.number
        )
        return await self.commit_offsets(request._replace(transaction=transaction))

    async def fetch_offsets(self, request: requests.FetchOffsets) -> requests.FetchedOffsets:
        """Partitions in the order asked for."""
        groups = self._groups(request.group_id)
        if isinstance(groups, DisklessError):
            return requests.FetchedOffsets(error=groups)
        return await groups.fetch_offsets(request)

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]]
    ) -> DisklessError | Sequence[DisklessError | None]:
        """The group's error, or the partitions' in their order."""
        groups = _refused_id(group_id) or self._groups(group_id)
        if isinstance(groups, DisklessError):
            return groups
        return await groups.delete_offsets(group_id, partitions)

    # -- administration -------------------------------------------------------------------------

    async def describe(self, group_id: str) -> requests.DescribedGroup:
        """A classic group."""
        groups = self._groups(group_id)
        if isinstance(groups, DisklessError):
            return requests.DescribedGroup(group_id, error=groups)
        return groups.describe(group_id)

    async def describe_consumer(self, group_id: str) -> requests.DescribedConsumerGroup:
        """A KIP-848 group."""
        groups = self._groups(group_id)
        if isinstance(groups, DisklessError):
            return requests.DescribedConsumerGroup(group_id, error=groups)
        return groups.describe_consumer(group_id)

    def list_groups(
        self, *, states: Collection[str] = (), types: Collection[str] = ()
    ) -> Steps[DisklessError | Sequence[requests.ListedGroup]]:
        """The groups this broker coordinates; nothing given: all. Case does not matter."""
        led = [groups for groups in self._led.values() if groups.serves]
        refusals = (groups.refusal() for groups in led)
        loading = next((refusal for refusal in refusals if refusal is not None), None)
        if loading is not None:
            return loading
        wanted_states = frozenset((yield from mapped(str.lower, states)))
        wanted_types = frozenset((yield from mapped(str.lower, types)))
        found = []
        for listed in chain.from_iterable([groups.list_groups() for groups in led]):
            if _matches(listed.state, wanted_states) and _matches(listed.group_type, wanted_types):
                found.append(listed)
            yield
        return found

    async def delete_group(self, group_id: str) -> DisklessError | None:
        groups = self._groups(group_id)
        if isinstance(groups, DisklessError):
            return groups
        return await groups.delete_group(group_id)


def _refused_id(group_id: str) -> DisklessError | None:
    return None if group_id else InvalidGroupId("an empty group id")


def _refused_names(request: requests.JoinGroup) -> DisklessError | None:
    """Members are told of each other, each in the version that it speaks."""
    if request.instance_id == "":
        return InvalidRequest("an empty instance id")
    names = [request.protocol_type, request.instance_id, request.member_id]
    for name in (*names, *(protocol.name for protocol in request.protocols)):
        if name is not None and len(name.encode()) > STRING_BYTES_MAX:
            return InvalidRequest(f"a name of {len(name.encode())} bytes")
    return None


def _at_once(answer: _Result) -> "asyncio.Future[_Result]":
    future: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()
    future.set_result(answer)
    return future


def _matches(value: str, wanted: frozenset[str]) -> bool:
    """Whether a filter, in lower case, lets `value` through; an empty one lets all through."""
    return not wanted or value.lower() in wanted
