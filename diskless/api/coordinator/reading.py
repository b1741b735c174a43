"""ReadTopic, ReadExtents and ReadOffsets (private APIs 10030 to 10032, version 0) for readers.

Not Kafka APIs, and not listed by ApiVersions; metadata/messages/readers.py has their rows. A reader
takes the records from the object store itself, as the Spark source does. This broker asks the
leaders where it must, so a reader may ask any broker.

- ReadTopic: the id and the partitions of a topic, its configs, where its objects lie, and its typed
  columns.
- ReadExtents: where records lie, from this broker's replica, which may be behind. An offset that it
  has not heard of is looked for at the leader. FindBatches ends an answer by bytes, and behind each
  segment; here it is asked on and on until there are as many extents as BatchesPerPartition says,
  or `EXTENTS_MAX` in all, or `LOOK_UPS_MAX` look-ups were made. With isolation level 1 it ends at
  the last stable offset, and says what is aborted. An entry that came too late for
  that has no extents, no error, and -1 as high watermark: it is to be asked about again.
- ReadOffsets: offsets for timestamps, exact to the record, and strictly consistent.
- Each needs READ on the topics that it names, in name or id.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final
from uuid import UUID

from diskless.api.access import Access
from diskless.api.coordinator.coordinator_operation import (
    Call,
    Refusal,
    RunningOperations,
    coordinator_api,
)
from diskless.api.coordinator.diskless_list_offsets import exact_listing
from diskless.audit.audit_log import UNNOTED, Audit
from diskless.authorization import AclOperation, Authorizer
from diskless.ports import ClientInfo
from diskless.replica.timestamp_search import TimestampSearch
from diskless.server.registry import Api
from metadata import operations as ops
from metadata.clients.coordinator_client import TypedCoordinator
from metadata.messages.find_batches import FindBatchesMessage
from metadata.messages.readers import READ_EXTENTS, READ_OFFSETS, READ_TOPIC
from wal.errors import DisklessError, InvalidRequest, UnknownPartition

TOPICS_MAX: Final = 100
"""Topics that one ReadTopic may name."""

EXTENTS_MAX: Final = 10_000
"""Of one answer: about 1 MiB."""

LOOK_UPS_MAX: Final = 500
"""Of one answer; a segment takes one."""

_INT32_MAX: Final = 2**31 - 1

Names = Callable[[Any], Collection[str]]


def reader_apis(
    client: TypedCoordinator,
    search: TimestampSearch,
    object_store_url: str,
    running: RunningOperations,
    authorizer: Authorizer,
    audit: Audit = UNNOTED,
) -> Sequence[Api]:
    """APIs to be added to a registry. `client` reaches all leaders; the URL holds no secrets."""
    access = Access(authorizer, audit)

    def named(topic_ids: Collection[UUID]) -> Collection[str]:
        topics = map(client.topic_by_id, topic_ids)
        return [topic.name for topic in topics if topic is not None]

    def of_extents(message: FindBatchesMessage) -> Collection[str]:
        return named({request.partition.topic_id for request in message.requests})

    def of_offsets(requests: Sequence[ops.ListOffsets]) -> Collection[str]:
        return named({request.partition.topic_id for request in requests})

    return (
        coordinator_api(
            READ_TOPIC,
            _topics(client, object_store_url),
            running,
            access,
            refusal=_needs_read(access, lambda names: names),
        ),
        coordinator_api(
            READ_EXTENTS,
            _extents(client),
            running,
            access,
            refusal=_needs_read(access, of_extents),
        ),
        coordinator_api(
            READ_OFFSETS,
            exact_listing(client, search),
            running,
            access,
            refusal=_needs_read(access, of_offsets),
        ),
    )


def _needs_read(access: Access, names: Names) -> Refusal:
    """Refuses the whole of a request that names a topic which its sender may not read."""

    def refusal(client: ClientInfo, asked: Any) -> DisklessError | None:
        refused = access.refused_topics(client, AclOperation.READ, names(asked))
        return next(iter(refused.values()), None)

    return refusal


def _extents(client: TypedCoordinator) -> Call[FindBatchesMessage, ops.FoundBatches]:
    async def call(message: FindBatchesMessage, timeout_ms: int) -> Sequence[ops.FoundBatches]:
        answers = []
        extents_left, look_ups_left = EXTENTS_MAX, LOOK_UPS_MAX
        for request in message.requests:
            limit = min(message.batches_per_partition_max, extents_left)
            found: ops.FoundBatches | None = None
            extents: list[ops.Extent] = []
            aborted: dict[ops.AbortedTransaction, None] = {}
            while look_ups_left and len(extents) < limit:
                look_ups_left -= 1
                left = limit - len(extents)
                found = await look_up(request, left, message.isolation, timeout_ms)
                if found.error is not None or not found.extents:
                    break
                extents += found.extents
                # Look-ups behind each other name a transaction that reaches over both.
                aborted |= dict.fromkeys(found.aborted)
                request = request._replace(offset=extents[-1].last_offset + 1)
                is_committed = message.isolation == ops.READ_COMMITTED
                end = found.last_stable_offset if is_committed else found.high_watermark
                if request.offset >= end:
                    break
            if found is None:
                found = ops.FoundBatches()
            elif extents:
                # What was found before an error is found; asking for the rest shows it again.
                found = found._replace(extents=extents, error=None, aborted=tuple(aborted))
            extents_left -= len(extents)
            answers.append(found)
        return answers

    async def look_up(
        request: ops.FindBatches, extents_max: int, isolation: int, timeout_ms: int
    ) -> ops.FoundBatches:
        (found,) = await client.find_batches(
            [request._replace(max_bytes=_INT32_MAX)],
            max_bytes=_INT32_MAX,
            batches_per_partition_max=extents_max,
            isolation=isolation,
            timeout_ms=timeout_ms,
        )
        return found

    return call


def _topics(
    client: TypedCoordinator, object_store_url: str
) -> Call[Sequence[str], ops.ReadableTopic | DisklessError]:
    async def call(
        names: Sequence[str], timeout_ms: int
    ) -> Sequence[ops.ReadableTopic | DisklessError]:
        if len(names) > TOPICS_MAX:
            raise InvalidRequest(f"{len(names)} topics in one request; {TOPICS_MAX} may be")
        return [readable(name) for name in names]

    def readable(name: str) -> ops.ReadableTopic | DisklessError:
        topic = client.topics().get(name)
        if topic is None:
            return UnknownPartition(f"there is no topic {name!r}")
        return ops.ReadableTopic(
            topic_id=topic.topic_id,
            partition_count=topic.partition_count,
            configs=topic.configs,
            object_store_url=object_store_url,
            columns=client.topic_columns(topic.topic_id).columns,
        )

    return call
