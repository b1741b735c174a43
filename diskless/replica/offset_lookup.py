"""ListOffsets: where a log begins, ends, or has the first record of some time.

The coordinator answers for its partitions, and `TimestampSearch` makes that exact to the record.
The metadata topic answers for itself.
"""

from collections.abc import Sequence

from diskless.ports import LEADER_EPOCH, ClientInfo, ListOffsetsPartition, ListOffsetsResult
from diskless.replica.metadata_topic import LogPartition, MetadataTopic
from diskless.replica.served_topics import ServedTopics, Target
from diskless.replica.timestamp_search import TimestampSearch
from metadata import operations as ops
from metadata.clients.coordinator_client import Coordinator
from wal.coordinates import TopicIdPartition
from wal.errors import DisklessError, FencedLeaderEpoch, InvalidRequest, UnknownLeaderEpoch


class OffsetLookup:
    """Looks offsets up; errors belong to one partition each."""

    def __init__(
        self,
        topics: ServedTopics,
        coordinator: Coordinator,
        search: TimestampSearch,
        metadata_topic: MetadataTopic,
    ) -> None:
        self._topics = topics
        self._coordinator = coordinator
        self._search = search
        self._metadata_topic = metadata_topic

    async def list_offsets(
        self, requests: Sequence[ListOffsetsPartition], *, isolation: int, client: ClientInfo
    ) -> Sequence[ListOffsetsResult]:
        """See `diskless.ports.ReplicaManager.list_offsets`."""
        targets: list[Target | DisklessError] = []
        for request in requests:
            try:
                topic = self._topics.with_partition(request.topic_name, None, request.partition)
                _check_leader_epoch(request.current_leader_epoch)
                if request.timestamp < ops.LATEST_TIERED_TIMESTAMP:
                    raise InvalidRequest(f"no such special timestamp: {request.timestamp}")
                targets.append(self._topics.target(topic, request.partition))
            except DisklessError as error:
                targets.append(error)
        wanted = [
            ops.ListOffsets(target, request.timestamp)
            for request, target in zip(requests, targets, strict=True)
            if isinstance(target, TopicIdPartition)
        ]
        answers = iter(await self._coordinator.list_offsets(wanted) if wanted else ())
        results = []
        for request, target in zip(requests, targets, strict=True):
            if isinstance(target, TopicIdPartition):
                listed = next(answers)
                found = await self._search.exact(
                    request.timestamp, listed, client=client.connection_id
                )
                if isolation == ops.READ_COMMITTED:
                    found = _committed(request.timestamp, found, listed.last_stable_offset)
                results.append(found)
            elif isinstance(target, LogPartition):
                results.append(await self._metadata_topic.list_offset(target, request.timestamp))
            else:
                results.append(ListOffsetsResult(error=target))
        return results


def _committed(
    timestamp: int, found: ListOffsetsResult, last_stable_offset: int
) -> ListOffsetsResult:
    """The answer to a reader of committed records, who may not see what is not stable yet."""
    if found.error is not None:
        return found
    if timestamp == ops.LATEST_TIMESTAMP:
        return found._replace(offset=last_stable_offset)
    is_search = timestamp >= 0 or timestamp == ops.MAX_TIMESTAMP
    return ListOffsetsResult() if is_search and found.offset >= last_stable_offset else found


def _check_leader_epoch(current: int) -> None:
    if current in (-1, LEADER_EPOCH):
        return
    if current > LEADER_EPOCH:
        raise UnknownLeaderEpoch(f"leader epoch {current} is ahead of {LEADER_EPOCH}")
    raise FencedLeaderEpoch(f"leader epoch {current} is behind {LEADER_EPOCH}")
