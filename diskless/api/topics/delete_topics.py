"""DeleteTopics, key 20, versions 1-6: deletes topics; version 6 names them by name or by id.

- The metadata topic cannot be deleted: INVALID_TOPIC_EXCEPTION. (Kafka's internal topics can.)
- A topic is gone when it is answered; the request's timeout is not needed.
- Asks for DELETE on each topic, or on the cluster. Who may not DESCRIBE a topic is not told whether
  there is one of that name, nor the name of the one that has an id.
- Its objects are deleted later, by the file lifecycle.
- A new topic of the same name has a new id, so nothing of the old one is ever served under it.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from diskless.api.access import Access
from diskless.api.answers import each_answered
from diskless.api.errors import error_fields
from diskless.api.topics.named_topics import topic_of_row
from diskless.authorization import AclOperation
from diskless.loop.long_work import Steps, collected
from diskless.ports import ClientInfo, TopicAdmin
from diskless.protocol.messages import Fields, decode_request, encode_response
from diskless.server.registry import Api, Deferred, Outcome, ReplySteps, Request
from metadata.operations import TopicDescription
from wal.errors import DisklessError, InvalidRequest, UnknownPartition, UnknownTopicId

KEY: Final = 20


class _Asked(NamedTuple):
    name: str | None
    topic_id: UUID | None


def api(topics: TopicAdmin, access: Access) -> Api:
    async def deleted(doomed: Sequence[UUID]) -> Mapping[UUID, DisklessError | None]:
        return dict(zip(doomed, await each_answered(topics.delete_topics, doomed), strict=True))

    def handle(request: Request) -> Steps[Outcome]:
        body = yield from decode_request(KEY, request.version, request.body)
        if request.version >= 6:
            asked = yield from collected(_Asked(item.name, item.topic_id) for item in body.topics)
        else:
            asked = yield from collected(_Asked(name, None) for name in body.topic_names)
        found = yield from collected(_find(topics, item) for item in asked)
        yield from _refuse(access, request.client, asked, found)
        # Once each: a request may name a topic twice, or by both of its names.
        once: dict[UUID, int] = {}
        for item in found:
            if isinstance(item, TopicDescription):
                once[item.topic_id] = item.partition_count
            yield
        doomed = [*once]
        request.changes, request.changed_partitions = len(once), sum(once.values())

        def encode(errors: Mapping[UUID, DisklessError | None]) -> ReplySteps:
            answered = (_row(*row, errors) for row in zip(asked, found, strict=True))
            rows = access.noted(request.client, "DeleteTopics", answered, topic_of_row)
            return encode_response(KEY, request.version, {"responses": rows})

        if not doomed:
            return (yield from encode({}))
        return Deferred(deleted(doomed), encode, None)

    return Api(key=KEY, name="DeleteTopics", versions=range(1, 7), flexible_from=4, handler=handle)


def _row(
    asked: _Asked,
    found: TopicDescription | DisklessError,
    errors: Mapping[UUID, DisklessError | None],
) -> Fields:
    error: DisklessError | None
    if isinstance(found, TopicDescription):
        asked = _Asked(found.name, found.topic_id)
        error = errors[found.topic_id]
    else:
        error = found
    return {
        "name": asked.name,
        "topic_id": asked.topic_id,
        **error_fields(error),
    }


def _refuse(
    access: Access,
    client: ClientInfo,
    asked: list[_Asked],
    found: list[TopicDescription | DisklessError],
) -> Steps[None]:
    """Put errors in the place of topics that may not be deleted, or not be known about."""
    names = yield from collected(
        topic.name if isinstance(topic, TopicDescription) else item.name
        for item, topic in zip(asked, found, strict=True)
    )
    known = yield from collected(name for name in names if name is not None)
    delete, describe = AclOperation.DELETE, AclOperation.DESCRIBE
    refused = access.refused_topics(client, delete, known, or_cluster=delete)
    hidden = access.hidden_topics(client, describe, known, or_cluster=delete)
    for at, (item, name) in enumerate(zip(asked, names, strict=True)):
        yield
        if name is None or isinstance(found[at], InvalidRequest):
            continue
        error = refused.get(name) if isinstance(found[at], TopicDescription) else None
        if item.name is not None:
            error = hidden.get(name, error)
        elif error is not None:
            asked[at] = _Asked(None if name in hidden else name, item.topic_id)
        if error is not None:
            found[at] = error


def _find(topics: TopicAdmin, asked: _Asked) -> TopicDescription | DisklessError:
    if asked.name is not None:
        if asked.topic_id is not None:
            return InvalidRequest("give the name or the id of a topic, not both")
        return topics.topics().get(asked.name) or UnknownPartition(f"no topic {asked.name!r}")
    if asked.topic_id is None:
        return InvalidRequest("give the name or the id of a topic")
    return topics.topic_by_id(asked.topic_id) or UnknownTopicId(f"no topic has {asked.topic_id}")
