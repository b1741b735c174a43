"""Fetch, key 1, versions 4-18: records of partitions from given offsets on.

- Sessions (KIP-227) are diskless/fetch/fetch_sessions.py's: what a session leaves out of a request
  is read as well, and what has not changed is left out of its answer.
- Asks for READ on each topic, in each request of a session anew.
- A parked Fetch ends early when another answer of its connection waits behind it.
- The broker's own `fetch.max.bytes` caps the answer; one whole batch is given in any case.
- read_committed ends at the last stable offset, and its answer lists the aborted transactions of
  its records. read_uncommitted gets no such list. Both get markers.
- A consumer that says it is in another rack (version 11 and above) is sent to a broker there by a
  preferred read replica (diskless/cluster/reader_routing.py). Never a diverging epoch or a leader
  hint.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from diskless.api.access import Access, topic_name
from diskless.api.errors import kafka_code
from diskless.authorization import AclOperation
from diskless.cluster.reader_routing import ReaderRouting
from diskless.fetch.fetch_rows import (
    NO_ERRORS,
    FetchAnswer,
    FetchRows,
    FetchTopic,
    RowErrors,
    SessionTopics,
)
from diskless.fetch.fetch_sessions import FetchSessions, SentPartitions
from diskless.loop.long_work import Steps, mapped
from diskless.ports import ClientInfo, FetchResult, ReplicaManager, TopicAdmin
from diskless.protocol.fetch import (
    FLEXIBLE_FROM,
    VERSIONS,
    FetchRequest,
    decode_request,
    encode_refusal,
    encode_response,
)
from diskless.server.registry import Api, Deferred, Outcome, ReplySteps, Request
from metadata.operations import READ_COMMITTED
from wal.columns import Int64s
from wal.errors import DisklessError

KEY: Final = 1


def api(
    manager: ReplicaManager,
    topics: TopicAdmin,
    sessions: FetchSessions,
    routing: ReaderRouting,
    access: Access,
) -> Api:
    def handle(request: Request) -> Steps[Outcome]:
        version = request.version
        asked = yield from decode_request(version, request.body)
        try:
            context = sessions.begin(asked.session)
        except DisklessError as error:
            return encode_refusal(version, kafka_code(error))
        refused = yield from _refused(access, request.client, context.rows, topics)
        rows = context.rows.without(refused)

        def encode(results: Sequence[FetchResult]) -> ReplySteps:
            answer = FetchAnswer.of(results).at(readers).among(refused)
            return _reply(version, asked, context.sent(answer))

        def refuse(error: DisklessError) -> ReplySteps:
            return encode(FetchAnswer.refused(len(rows), error))

        readers = yield from routing.elsewhere(asked.rack, rows, request.client)
        if refused and not rows:
            return (yield from encode(()))
        if readers:
            return Deferred(manager.bounds(rows), encode, refuse)
        max_bytes = max(asked.max_bytes, 0)
        answer = manager.fetch(
            rows,
            max_wait_ms=max(asked.max_wait_ms, 0),
            min_bytes=min(max(asked.min_bytes, 0), max_bytes),
            max_bytes=max_bytes,
            isolation=asked.isolation,
            client=request.client,
            wake=request.wake,
            reserve=request.reserve,
            read_turn=request.read_turn,
        )
        return Deferred(answer, encode, refuse)

    return Api(
        key=KEY,
        name="Fetch",
        versions=VERSIONS,
        flexible_from=FLEXIBLE_FROM,
        handler=handle,
        starts_in_turn=True,
    )


def _refused(
    access: Access, client: ClientInfo, rows: FetchRows, topics: TopicAdmin
) -> Steps[RowErrors]:
    """What is refused, because of its topic."""
    if not isinstance(rows.topics, SessionTopics):
        names = (name for topic in rows.topics if (name := _name(topic, topics)) is not None)
        refused = access.refused_topics(client, AclOperation.READ, names)
    else:
        # A consumer of 1,000 topics asks for the same ones in every request.
        grant = access.grant(client)
        if grant == rows.topics.granted:
            return NO_ERRORS
        known = [name for topic in rows.topics if (name := _name(topic, topics)) is not None]
        refused = access.refused_topics(client, AclOperation.READ, known)
        # Of a topic that is not known here yet nothing was asked.
        if not refused and len(known) == len(rows.topics):
            rows.topics.granted = grant
    if not refused:
        return NO_ERRORS
    # All for one reason: the right to READ is missing.
    error = next(iter(refused.values()))
    is_refused = yield from mapped(lambda topic: _name(topic, topics) in refused, rows.topics)
    wrong = np.flatnonzero(np.array(is_refused)[rows.topic_of])
    return RowErrors(wrong, np.zeros(len(wrong), np.int64), [error])


def _name(topic: FetchTopic, topics: TopicAdmin) -> str | None:
    return topic.name if topic.topic_id is None else topic_name(topic.topic_id, topics)


def _reply(version: int, asked: FetchRequest, sent: SentPartitions) -> ReplySteps:
    return encode_response(
        version,
        sent.topics,
        sent.partitions,
        sent.answer,
        _error_codes(sent.answer),
        session_id=sent.session_id,
        read_committed=asked.isolation == READ_COMMITTED,
    )


def _error_codes(answer: FetchAnswer) -> Int64s:
    codes = np.zeros(len(answer), np.int64)
    errors = answer.errors
    if errors:
        codes[errors.rows] = np.array([*map(kafka_code, errors.kinds)])[errors.which]
    return codes
