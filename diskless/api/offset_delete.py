"""OffsetDelete, key 47, version 0: a group forgets what it committed of some partitions.

A topic that the group reads is GROUP_SUBSCRIBED_TO_TOPIC; a group with members of another kind than
consumers is NON_EMPTY_GROUP.
"""

from collections.abc import Sequence
from typing import Final

from diskless.api.errors import kafka_code
from diskless.api.registry import Api, Deferred, Reply, Request
from diskless.ports import GroupCoordinator
from diskless.protocol.messages import Fields, decode_request, encode_response
from wal.errors import DisklessError

KEY: Final = 47


def api(groups: GroupCoordinator) -> Api:
    def handle(request: Request) -> Deferred:
        asked = decode_request(KEY, request.version, request.body)
        partitions = [
            (topic.name, item.partition_index)
            for topic in asked.topics
            for item in topic.partitions
        ]

        def encode(deleted: DisklessError | Sequence[DisklessError | None]) -> Reply:
            values: Fields
            if isinstance(deleted, DisklessError):
                values = {"error_code": kafka_code(deleted), "topics": []}
            else:
                codes = map(kafka_code, deleted)
                topics = [
                    {
                        "name": topic.name,
                        "partitions": [
                            {"partition_index": item.partition_index, "error_code": next(codes)}
                            for item in topic.partitions
                        ],
                    }
                    for topic in asked.topics
                ]
                values = {"error_code": 0, "topics": topics}
            return [encode_response(KEY, request.version, values)]

        return Deferred(groups.delete_offsets(asked.group_id, partitions), encode, None)

    return Api(
        key=KEY,
        name="OffsetDelete",
        min_version=0,
        max_version=0,
        flexible_from=None,
        handler=handle,
    )
