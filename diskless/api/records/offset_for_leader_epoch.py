"""OffsetForLeaderEpoch, key 23, versions 2-4: where a leader epoch ends.

Clients ask this when they think that a log may have been cut: it never is. There is one leader
epoch, which has never ended, so its end is the end of the log, strictly consistent as in
ListOffsets: a stale answer would tell a consumer that is ahead of it that its records are gone.
Asks for DESCRIBE on each topic, or for CLUSTER_ACTION.
Epochs that never were are answered with -1 and -1, as in Kafka.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from diskless.api.access import Access, allowed_rows
from diskless.api.errors import kafka_code
from diskless.api.records.list_offsets import refused_row, topic_of
from diskless.authorization import AclOperation
from diskless.loop.long_work import Steps, collected, in_portions, mapped
from diskless.ports import (
    LEADER_EPOCH,
    ListOffsetsPartition,
    ListOffsetsResult,
    ReplicaManager,
)
from diskless.protocol.messages import Fields, decode_request, encode_response
from diskless.server.registry import Api, Deferred, Outcome, ReplySteps, Request
from metadata.operations import LATEST_TIMESTAMP, READ_UNCOMMITTED
from wal.errors import DisklessError

KEY: Final = 23

_UNDEFINED: Final = -1


def api(manager: ReplicaManager, access: Access) -> Api:
    def handle(request: Request) -> Steps[Outcome]:
        version = request.version
        asked = yield from decode_request(KEY, version, request.body)
        partitions = yield from collected(
            ListOffsetsPartition(
                topic.topic, item.partition, LATEST_TIMESTAMP, item.current_leader_epoch
            )
            for topic in asked.topics
            for item in topic.partitions
        )
        names = yield from mapped(attrgetter("topic"), asked.topics)

        refused = access.refused_topics(
            request.client,
            AclOperation.DESCRIBE,
            names,
            or_cluster=AclOperation.CLUSTER_ACTION,
        )
        rows = allowed_rows(partitions, topic_of, refused)

        def encode(results: Sequence[ListOffsetsResult]) -> ReplySteps:
            answers = iter(rows.merged(results, refused_row))
            topics = (
                {
                    "topic": topic.topic,
                    "partitions": (
                        _partition(item.partition, item.leader_epoch, next(answers))
                        for item in topic.partitions
                    ),
                }
                for topic in asked.topics
            )
            return encode_response(KEY, version, {"topics": topics})

        def refuse(error: DisklessError) -> ReplySteps:
            return encode([ListOffsetsResult(error=error)] * len(rows.allowed))

        if rows.are_none:
            return (yield from encode(()))
        found = in_portions(
            lambda some: manager.list_offsets(
                some, isolation=READ_UNCOMMITTED, client=request.client
            ),
            rows.allowed,
        )
        return Deferred(found, encode, refuse)

    return Api(
        key=KEY, name="OffsetForLeaderEpoch", versions=range(2, 5), flexible_from=4, handler=handle
    )


def _partition(partition: int, leader_epoch: int, result: ListOffsetsResult) -> Fields:
    is_known = result.error is None and leader_epoch == LEADER_EPOCH
    return {
        "error_code": kafka_code(result.error),
        "partition": partition,
        "leader_epoch": LEADER_EPOCH if is_known else _UNDEFINED,
        "end_offset": result.offset if is_known else _UNDEFINED,
    }
