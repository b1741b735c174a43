"""OffsetFetch, key 9, versions 1-9: how far groups have read; from version 8 on of many at once.

- Version 10 (topics by id) is not served.
- Asks for DESCRIBE on each group, and on each topic. Asked for all topics, it leaves out those that
  may not be described.
- Where stable offsets are required, a partition of which an open transaction has written an offset
  is UNSTABLE_OFFSET_COMMIT.
- A leader epoch above ours (0), which an offset copied from another cluster may have, is answered
  as ours: clients would believe it more than our Metadata.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final

from diskless.api.access import Access, Refused, allowed_rows
from diskless.api.errors import kafka_code
from diskless.authorization import AclOperation
from diskless.groups.group_router import GroupRouter
from diskless.groups.requests import FetchedOffset, FetchedOffsets, FetchOffsets
from diskless.loop.long_work import Steps, collected, gathered
from diskless.ports import ClientInfo
from diskless.protocol.messages import Fields, decode_request, encode_response
from diskless.server.registry import Api, Deferred, Outcome, ReplySteps, Request
from wal.errors import DisklessError

KEY: Final = 9

_ERROR_OF_GROUP_FROM: Final = 2
_MANY_GROUPS_FROM: Final = 8


def api(groups: GroupRouter, access: Access) -> Api:
    async def fetched(asked: FetchOffsets, refused: Refused, client: ClientInfo) -> FetchedOffsets:
        """The offsets of one group, as far as `client` may know them."""
        if asked.group_id in refused:
            return FetchedOffsets(error=refused[asked.group_id])
        if asked.partitions is None:
            found = await groups.fetch_offsets(asked)
            names = {offset.topic_name for offset in found.offsets}
            hidden = access.hidden_topics(client, AclOperation.DESCRIBE, names)
            known = [offset for offset in found.offsets if offset.topic_name not in hidden]
            return found._replace(offsets=known)
        names = {name for name, _ in asked.partitions}
        hidden = access.refused_topics(client, AclOperation.DESCRIBE, names)
        rows = allowed_rows(asked.partitions, lambda partition: partition[0], hidden)
        if rows.are_none:
            found = FetchedOffsets()
        else:
            found = await groups.fetch_offsets(asked._replace(partitions=rows.allowed))
        if found.error is not None:
            return found
        return found._replace(offsets=rows.merged(found.offsets, _refused_offset))

    def handle(request: Request) -> Steps[Outcome]:
        version = request.version
        asked = yield from decode_request(KEY, version, request.body)
        has_many = version >= _MANY_GROUPS_FROM
        require_stable = getattr(asked, "require_stable", False)
        wanted = []
        for group in asked.groups if has_many else [asked]:
            partitions = yield from _partitions(group.topics)
            wanted.append(
                FetchOffsets(
                    group_id=group.group_id,
                    member_id=getattr(group, "member_id", None),
                    member_epoch=getattr(group, "member_epoch", -1),
                    partitions=partitions,
                    require_stable=require_stable,
                )
            )
            yield

        def encode(found: Sequence[FetchedOffsets]) -> ReplySteps:
            answers = (
                _group(group, offsets, says_error_once=version >= _ERROR_OF_GROUP_FROM)
                for group, offsets in zip(wanted, found, strict=True)
            )
            values: Fields = {"groups": answers} if has_many else next(answers)
            return encode_response(KEY, version, values)

        names = [group.group_id for group in wanted]
        refused = access.refused_groups(request.client, AclOperation.DESCRIBE, names)
        found = gathered(lambda group: fetched(group, refused, request.client), wanted)
        return Deferred(found, encode, None)

    return Api(key=KEY, name="OffsetFetch", versions=range(1, 10), flexible_from=6, handler=handle)


def _partitions(topics: Sequence[Any] | None) -> Steps[Sequence[tuple[str, int]] | None]:
    if topics is None:
        return None
    return (
        yield from collected(
            (topic.name, index) for topic in topics for index in topic.partition_indexes
        )
    )


def _refused_offset(partition: tuple[str, int], error: DisklessError) -> FetchedOffset:
    return FetchedOffset(*partition, error=error)


def _group(asked: FetchOffsets, found: FetchedOffsets, *, says_error_once: bool) -> Fields:
    offsets = found.offsets
    if found.error is not None:
        partitions = [] if says_error_once else asked.partitions or []
        offsets = [FetchedOffset(*partition, error=found.error) for partition in partitions]
    return {
        "group_id": asked.group_id,
        "topics": _topics(offsets),
        "error_code": kafka_code(found.error),
    }


def _topics(offsets: Sequence[FetchedOffset]) -> Iterator[Fields]:
    for name, of_topic in groupby(offsets, key=lambda offset: offset.topic_name):
        yield {
            "name": name,
            "partitions": (
                {
                    "partition_index": offset.partition,
                    "committed_offset": offset.offset,
                    "committed_leader_epoch": offset.leader_epoch,
                    "metadata": offset.metadata,
                    "error_code": kafka_code(offset.error),
                }
                for offset in of_topic
            ),
        }
