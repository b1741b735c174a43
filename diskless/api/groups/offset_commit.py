"""OffsetCommit, key 8, versions 2-9: how far a group has read; durable when it is answered.

- Version 10 (topics by id) is not served.
- Asks for READ on the group, and on each topic.
- A retention time (versions 2-4) counts for the offsets of that request.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from diskless.api.access import Access, allowed_rows
from diskless.api.errors import kafka_code
from diskless.authorization import AclOperation
from diskless.ports import CommitOffset, CommitOffsets, GroupCoordinator
from diskless.protocol.messages import decode_request, encode_response
from diskless.server.registry import Api, Deferred, Reply, Request
from wal.errors import DisklessError

KEY: Final = 8

_MEMBER_EPOCHS_FROM: Final = 9
_MS: Final = timedelta(milliseconds=1)
_AS_CONFIGURED: Final = timedelta(milliseconds=-1)


def api(groups: GroupCoordinator, access: Access) -> Api:
    def handle(request: Request) -> Deferred | Reply:
        version = request.version
        asked = decode_request(KEY, version, request.body)
        commit = CommitOffsets(
            group_id=asked.group_id,
            generation_id=asked.generation_id_or_member_epoch,
            member_id=asked.member_id,
            instance_id=getattr(asked, "group_instance_id", None),
            retention_ms=getattr(asked, "retention_time", _AS_CONFIGURED) // _MS,
            knows_member_epochs=version >= _MEMBER_EPOCHS_FROM,
            offsets=[
                CommitOffset(
                    topic.name,
                    item.partition_index,
                    item.committed_offset,
                    getattr(item, "committed_leader_epoch", -1),
                    item.committed_metadata or "",
                )
                for topic in asked.topics
                for item in topic.partitions
            ],
        )

        def encode(errors: Sequence[DisklessError | None]) -> Reply:
            codes = map(kafka_code, errors)
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
            return [encode_response(KEY, version, {"topics": topics})]

        group_refused = access.refused_group(request.client, AclOperation.READ, commit.group_id)
        if group_refused is not None:
            return encode([group_refused] * len(commit.offsets))
        names = {topic.name for topic in asked.topics}
        refused = access.refused_topics(request.client, AclOperation.READ, names)
        rows = allowed_rows(commit.offsets, lambda offset: offset.topic_name, refused)

        def encode_all(errors: Sequence[DisklessError | None]) -> Reply:
            return encode(rows.merged(errors, lambda _, error: error))

        if rows.are_none:
            return encode_all(())
        commit = commit._replace(offsets=rows.allowed)
        return Deferred(groups.commit_offsets(commit), encode_all, None)

    return Api(
        key=KEY, name="OffsetCommit", min_version=2, max_version=9, flexible_from=8, handler=handle
    )
