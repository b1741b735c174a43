"""ListOffsets, key 2, versions 1-9: where a log begins and ends, and offsets by time.

- Linearisable over all brokers, and exact to the record for timestamps.
- With isolation level 1 (read_committed), the latest offset is the last stable one, and a record at
  or above it is as if it were not there.
- A segment is what Kafka calls tiered: the latest tiered offset (-5) is the last one that is in a
  segment, -1 when there is none; the earliest local offset (-4) is the first one that is not.
- The metadata topic is answered from what this broker has applied, which may be behind its leader.
- Asks for DESCRIBE on each topic.
- The leader epoch is always 0.
- Version 10 would make kafka-python take this for a Kafka 4; it adds a timeout that is not needed.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from diskless.api.access import Access, allowed_rows
from diskless.api.errors import UnsupportedVersion, kafka_code
from diskless.authorization import AclOperation
from diskless.loop.long_work import Steps, collected, in_portions, mapped
from diskless.ports import (
    LEADER_EPOCH,
    ListOffsetsPartition,
    ListOffsetsResult,
    ReplicaManager,
)
from diskless.protocol.messages import decode_request, encode_response
from diskless.server.registry import Api, Deferred, Outcome, ReplySteps, Request
from metadata.operations import LATEST_TIERED_TIMESTAMP, READ_UNCOMMITTED
from wal.errors import DisklessError

KEY: Final = 2


def api(manager: ReplicaManager, access: Access) -> Api:
    def handle(request: Request) -> Steps[Outcome]:
        version = request.version
        asked = yield from decode_request(KEY, version, request.body)
        partitions = yield from collected(
            ListOffsetsPartition(
                topic.name,
                item.partition_index,
                item.timestamp,
                getattr(item, "current_leader_epoch", -1),
            )
            for topic in asked.topics
            for item in topic.partitions
        )

        names = yield from mapped(attrgetter("name"), asked.topics)
        refused = access.refused_topics(request.client, AclOperation.DESCRIBE, names)
        rows = allowed_rows(partitions, topic_of, refused)

        def encode(results: Sequence[ListOffsetsResult]) -> ReplySteps:
            answers = iter(rows.merged(results, refused_row))
            topics = (
                {
                    "name": topic.name,
                    "partitions": (
                        _partition(item.partition_index, next(answers)) for item in topic.partitions
                    ),
                }
                for topic in asked.topics
            )
            return encode_response(KEY, version, {"topics": topics})

        def refuse(error: DisklessError) -> ReplySteps:
            return encode([ListOffsetsResult(error=error)] * len(rows.allowed))

        isolation = getattr(asked, "isolation_level", READ_UNCOMMITTED)
        return Deferred(_answer(manager, rows.allowed, isolation, request), encode, refuse)

    return Api(key=KEY, name="ListOffsets", versions=range(1, 10), flexible_from=6, handler=handle)


def topic_of(partition: ListOffsetsPartition) -> str:
    return partition.topic_name


def refused_row(_: ListOffsetsPartition, error: DisklessError) -> ListOffsetsResult:
    return ListOffsetsResult(error=error)


async def _answer(
    manager: ReplicaManager,
    partitions: Sequence[ListOffsetsPartition],
    isolation: int,
    request: Request,
) -> Sequence[ListOffsetsResult]:
    """Ask the replica manager for every timestamp that there is."""

    async def answered(some: Sequence[ListOffsetsPartition]) -> Sequence[ListOffsetsResult]:
        wanted = [item for item in some if item.timestamp >= LATEST_TIERED_TIMESTAMP]
        if not wanted:
            return [_refused(item.timestamp) for item in some]
        found = await manager.list_offsets(wanted, isolation=isolation, client=request.client)
        if len(wanted) == len(some):
            return found
        left = iter(found)
        return [
            _refused(item.timestamp) if item.timestamp < LATEST_TIERED_TIMESTAMP else next(left)
            for item in some
        ]

    return await in_portions(answered, partitions)


def _refused(timestamp: int) -> ListOffsetsResult:
    return ListOffsetsResult(error=UnsupportedVersion(f"special timestamp {timestamp}"))


def _partition(partition: int, result: ListOffsetsResult) -> dict[str, int]:
    if result.error is not None:
        result = ListOffsetsResult(error=result.error)
    return {
        "partition_index": partition,
        "error_code": kafka_code(result.error),
        "timestamp": result.timestamp_ms,
        "offset": result.offset,
        "leader_epoch": LEADER_EPOCH if result.offset >= 0 else -1,
    }
