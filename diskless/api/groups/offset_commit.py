"""OffsetCommit, key 8, versions 2-9: how far a group has read; durable when it is answered.

- Version 10 (topics by id) is not served.
- Asks for READ on the group, and on each topic.
- A retention time (versions 2-4) counts for the offsets of that request. One beyond what a time can
  hold lasts for ever, where Kafka's sum overflows and the offsets go at once.
"""

from collections.abc import Sequence
from datetime import timedelta
from operator import attrgetter
from typing import Final

from diskless.api.access import Access, allowed_rows
from diskless.api.errors import kafka_code
from diskless.api.groups.offset_rows import answered_topics, asked_offsets
from diskless.authorization import AclOperation
from diskless.groups.group_router import GroupRouter
from diskless.groups.requests import RETENTION_AS_CONFIGURED, CommitOffset, CommitOffsets
from diskless.loop.long_work import Steps, collected, mapped, started_in_portions
from diskless.protocol.messages import decode_request, encode_response
from diskless.server.registry import Api, Deferred, Outcome, ReplySteps, Request
from wal.errors import DisklessError

KEY: Final = 8

_MEMBER_EPOCHS_FROM: Final = 9
_MS: Final = timedelta(milliseconds=1)
_AS_CONFIGURED: Final = timedelta(milliseconds=RETENTION_AS_CONFIGURED)


def api(groups: GroupRouter, access: Access) -> Api:
    def handle(request: Request) -> Steps[Outcome]:
        version = request.version
        asked = yield from decode_request(KEY, version, request.body)
        offsets = yield from collected(asked_offsets(asked.topics))
        commit = CommitOffsets(
            group_id=asked.group_id,
            generation_id=asked.generation_id_or_member_epoch,
            member_id=asked.member_id,
            instance_id=getattr(asked, "group_instance_id", None),
            retention_ms=getattr(asked, "retention_time", _AS_CONFIGURED) // _MS,
            knows_member_epochs=version >= _MEMBER_EPOCHS_FROM,
            offsets=offsets,
        )

        def encode(errors: Sequence[DisklessError | None]) -> ReplySteps:
            topics = answered_topics(asked.topics, map(kafka_code, errors))
            return encode_response(KEY, version, {"topics": topics})

        group_refused = access.refused_group(request.client, AclOperation.READ, commit.group_id)
        if group_refused is not None:
            return (yield from encode([group_refused] * len(commit.offsets)))
        names = yield from mapped(attrgetter("name"), asked.topics)
        refused = access.refused_topics(request.client, AclOperation.READ, names)
        rows = allowed_rows(commit.offsets, lambda offset: offset.topic_name, refused)

        def encode_all(errors: Sequence[DisklessError | None]) -> ReplySteps:
            if not commit.member_id and None in errors:
                # Somebody who is no member of it: offsets are reset, or kept by a program that
                # commits in every poll.
                group = f"group:{commit.group_id}"
                access.audit.changed(request.client, "OffsetCommit", group, is_often=True)
            return encode(rows.merged(errors, lambda _, error: error))

        if rows.are_none:
            return (yield from encode_all(()))

        async def committed(some: Sequence[CommitOffset]) -> Sequence[DisklessError | None]:
            return await groups.commit_offsets(commit._replace(offsets=some))

        return Deferred((yield from started_in_portions(committed, rows.allowed)), encode_all, None)

    return Api(key=KEY, name="OffsetCommit", versions=range(2, 10), flexible_from=8, handler=handle)
