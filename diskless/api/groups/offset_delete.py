"""OffsetDelete, key 47, version 0: deletes what a group committed of some partitions.

A topic that the group reads is GROUP_SUBSCRIBED_TO_TOPIC; a group with members of another kind than
consumers is NON_EMPTY_GROUP. Asks for DELETE on the group, and for READ on each topic.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from diskless.api.access import Access, allowed_rows
from diskless.api.errors import kafka_code
from diskless.authorization import AclOperation
from diskless.groups.group_router import GroupRouter
from diskless.loop.long_work import Steps, collected, mapped
from diskless.protocol.messages import Fields, decode_request, encode_response
from diskless.server.registry import Api, Deferred, Outcome, ReplySteps, Request
from wal.errors import DisklessError

KEY: Final = 47


def api(groups: GroupRouter, access: Access) -> Api:
    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)
        partitions = yield from collected(
            (topic.name, item.partition_index)
            for topic in asked.topics
            for item in topic.partitions
        )
        client = request.client
        names = yield from mapped(attrgetter("name"), asked.topics)
        group_refused = access.refused_group(client, AclOperation.DELETE, asked.group_id)
        refused = access.refused_topics(client, AclOperation.READ, names)
        rows = allowed_rows(partitions, lambda partition: partition[0], refused)

        def encode(deleted: DisklessError | Sequence[DisklessError | None]) -> ReplySteps:
            values: Fields
            if isinstance(deleted, DisklessError):
                values = {"error_code": kafka_code(deleted), "topics": []}
            else:
                codes = map(kafka_code, rows.merged(deleted, lambda _, error: error))
                topics = (
                    {
                        "name": topic.name,
                        "partitions": (
                            {"partition_index": item.partition_index, "error_code": next(codes)}
                            for item in topic.partitions
                        ),
                    }
                    for topic in asked.topics
                )
                values = {"error_code": 0, "topics": topics}
                access.audit.changed(client, "OffsetDelete", f"group:{asked.group_id}")
            return encode_response(KEY, request.version, values)

        if group_refused is not None or rows.are_none:
            return (yield from encode(group_refused or ()))
        return Deferred(groups.delete_offsets(asked.group_id, rows.allowed), encode, None)

    return Api(key=KEY, name="OffsetDelete", versions=range(1), flexible_from=None, handler=handle)
