"""OffsetFetch, key 9, versions 1-9: how far groups have read; from version 8 on of many at once.

- Version 10 (topics by id) is not served.
- There are no transactions, so every offset is stable.
- A leader epoch above ours (0), which an offset copied from another cluster may have, is answered
  as ours: clients would believe it more than our Metadata.
"""

import asyncio
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final

from diskless.api.errors import kafka_code
from diskless.api.registry import Api, Deferred, Reply, Request
from diskless.ports import FetchedOffset, FetchedOffsets, FetchOffsets, GroupCoordinator
from diskless.protocol.messages import Fields, decode_request, encode_response

KEY: Final = 9

_ERROR_OF_GROUP_FROM: Final = 2
_MANY_GROUPS_FROM: Final = 8


def api(groups: GroupCoordinator) -> Api:
    def handle(request: Request) -> Deferred:
        version = request.version
        asked = decode_request(KEY, version, request.body)
        has_many = version >= _MANY_GROUPS_FROM
        require_stable = getattr(asked, "require_stable", False)
        wanted = [
            FetchOffsets(
                group_id=group.group_id,
                member_id=getattr(group, "member_id", None),
                member_epoch=getattr(group, "member_epoch", -1),
                partitions=_partitions(group.topics),
                require_stable=require_stable,
            )
            for group in (asked.groups if has_many else [asked])
        ]

        def encode(found: Sequence[FetchedOffsets]) -> Reply:
            answers = [
                _group(group, offsets, says_error_once=version >= _ERROR_OF_GROUP_FROM)
                for group, offsets in zip(wanted, found, strict=True)
            ]
            values = {"groups": answers} if has_many else answers[0]
            return [encode_response(KEY, version, values)]

        return Deferred(asyncio.gather(*map(groups.fetch_offsets, wanted)), encode, None)

    return Api(
        key=KEY, name="OffsetFetch", min_version=1, max_version=9, flexible_from=6, handler=handle
    )


def _partitions(topics: Sequence[Any] | None) -> Sequence[tuple[str, int]] | None:
    if topics is None:
        return None
    return [(topic.name, index) for topic in topics for index in topic.partition_indexes]


def _group(asked: FetchOffsets, found: FetchedOffsets, *, says_error_once: bool) -> Fields:
    offsets = found.offsets
    if found.error is not None:
        partitions = [] if says_error_once else asked.partitions or []
        offsets = [FetchedOffset(*partition, error=found.error) for partition in partitions]
    return {
        "group_id": asked.group_id,
        "topics": [*_topics(offsets)],
        "error_code": kafka_code(found.error),
    }


def _topics(offsets: Sequence[FetchedOffset]) -> Iterator[Fields]:
    for name, of_topic in groupby(offsets, key=lambda offset: offset.topic_name):
        yield {
            "name": name,
            "partitions": [
                {
                    "partition_index": offset.partition,
                    "committed_offset": offset.offset,
                    "committed_leader_epoch": offset.leader_epoch,
                    "metadata": offset.metadata,
                    "error_code": kafka_code(offset.error),
                }
                for offset in of_topic
            ],
        }
