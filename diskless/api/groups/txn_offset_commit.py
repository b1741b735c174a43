"""TxnOffsetCommit, key 28, versions 0-5: offsets that are committed when a transaction is.

- Version 5 adds the group to the transaction by itself (`transaction.version` 2).
- Durable when it is answered: what waits is there until the transaction ends.
- Who says that he is a member has to be one, of this generation; UNKNOWN_MEMBER_ID,
  ILLEGAL_GENERATION or FENCED_INSTANCE_ID tells him otherwise. Before version 3 nobody says.
- The coordinator of the transactional id says whether the group belongs to the transaction. While
  it cannot be asked, the answer is COORDINATOR_LOAD_IN_PROGRESS, before version 2
  COORDINATOR_NOT_AVAILABLE: producers send the request again.
- A group without members and offsets is not there before the transaction has ended. In Kafka it is,
  and has no offsets.
- Asks for WRITE on the transactional id, READ on the group, and READ on each topic.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from diskless.api.access import Access, allowed_rows
from diskless.api.errors import kafka_code
from diskless.api.groups.offset_rows import answered_topics, asked_offsets
from diskless.api.known_errors import known_error
from diskless.authorization import AclOperation
from diskless.groups.errors import GroupCoordinatorUnavailable, GroupLoading
from diskless.groups.group_router import GroupRouter
from diskless.groups.requests import RETENTION_AS_CONFIGURED, CommitOffset, CommitOffsets
from diskless.loop.long_work import Steps, collected, mapped, started_in_portions
from diskless.protocol.messages import decode_request, encode_response
from diskless.server.registry import Api, Deferred, Outcome, ReplySteps, Request
from diskless.transactions.transaction_router import Producer
from wal.errors import DisklessError

KEY: Final = 28

_ADDED_FROM: Final = 5
_LOADING_FROM: Final = 2
"""The version that knows COORDINATOR_LOAD_IN_PROGRESS."""


def api(groups: GroupRouter, access: Access) -> Api:
    def handle(request: Request) -> Steps[Outcome]:
        version, client = request.version, request.client
        asked = yield from decode_request(KEY, version, request.body)
        offsets = yield from collected(asked_offsets(asked.topics))
        producer = Producer(asked.transactional_id, asked.producer_id, asked.producer_epoch)
        commit = CommitOffsets(
            group_id=asked.group_id,
            generation_id=getattr(asked, "generation_id", -1),
            member_id=getattr(asked, "member_id", ""),
            instance_id=getattr(asked, "group_instance_id", None),
            retention_ms=RETENTION_AS_CONFIGURED,
            knows_member_epochs=True,
            offsets=offsets,
        )

        def code(error: DisklessError | None) -> int:
            if version < _LOADING_FROM and isinstance(error, GroupLoading):
                error = GroupCoordinatorUnavailable(str(error))
            return kafka_code(known_error(KEY, version, error))

        def encode(errors: Sequence[DisklessError | None]) -> ReplySteps:
            topics = answered_topics(asked.topics, map(code, errors))
            return encode_response(KEY, version, {"topics": topics})

        id_refused = access.refused_transactional_id(
            client, AclOperation.WRITE, producer.transactional_id
        )
        refused_all = id_refused or access.refused_group(client, AclOperation.READ, commit.group_id)
        if refused_all is not None:
            return (yield from encode([refused_all] * len(offsets)))
        names = yield from mapped(attrgetter("name"), asked.topics)
        refused = access.refused_topics(client, AclOperation.READ, names)
        rows = allowed_rows(offsets, lambda offset: offset.topic_name, refused)

        def encode_all(errors: Sequence[DisklessError | None]) -> ReplySteps:
            return encode(rows.merged(errors, lambda _, error: error))

        if rows.are_none:
            return (yield from encode_all(()))

        async def committed(some: Sequence[CommitOffset]) -> Sequence[DisklessError | None]:
            return await groups.commit_in_transaction(
                commit._replace(offsets=some), producer, adds=version >= _ADDED_FROM
            )

        return Deferred((yield from started_in_portions(committed, rows.allowed)), encode_all, None)

    return Api(key=KEY, name="TxnOffsetCommit", versions=range(6), flexible_from=3, handler=handle)
