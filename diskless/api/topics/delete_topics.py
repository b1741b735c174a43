"""DeleteTopics, key 20, versions 1-6; version 6 names topics by name or by id.

- The metadata topic cannot be deleted: INVALID_TOPIC_EXCEPTION. (Kafka's internal topics can.)
- A topic is gone when it is answered; the request's timeout is not needed.
- Asks for DELETE on each topic, or on the cluster. Who may not DESCRIBE a topic is not told whether
  there is one of that name, nor the name of the one that has an id.
- Its objects are deleted later, by the file lifecycle.
- A new topic of the same name has a new id, so nothing of the old one is ever served under it.
"""

from typing import Any, Final, NamedTuple
from uuid import UUID

from diskless.api.access import Access
from diskless.api.errors import error_message, kafka_code
from diskless.authorization import AclOperation
from diskless.ports import ClientInfo, TopicAdmin
from diskless.protocol.messages import decode_request, encode_response
from diskless.server.registry import Api, Reply, Request
from metadata.operations import TopicDescription
from wal.errors import DisklessError, InvalidRequest, UnknownPartition, UnknownTopicId

KEY: Final = 20


class _Asked(NamedTuple):
    name: str | None
    topic_id: UUID | None


def api(topics: TopicAdmin, access: Access) -> Api:
    async def answer(version: int, asked: list[_Asked], client: ClientInfo) -> Reply:
        found = [_find(topics, item) for item in asked]
        _refuse(access, client, asked, found)
        # Once each: a request may name a topic twice, or by both of its names.
        doomed = {item.topic_id: item.name for item in found if isinstance(item, TopicDescription)}
        errors: dict[UUID, DisklessError | None] = {}
        if doomed:
            try:
                results = await topics.delete_topics(list(doomed))
                errors = dict(zip(doomed, results, strict=True))
            except DisklessError as error:
                errors = dict.fromkeys(doomed, error)
        rows = []
        for item, topic in zip(asked, found, strict=True):
            outcome: DisklessError | None
            if isinstance(topic, TopicDescription):
                item = _Asked(topic.name, topic.topic_id)
                outcome = errors[topic.topic_id]
            else:
                outcome = topic
            rows.append(
                {
                    "name": item.name,
                    "topic_id": item.topic_id,
                    "error_code": kafka_code(outcome),
                    "error_message": error_message(outcome),
                }
            )
        return [encode_response(KEY, version, {"responses": rows})]

    def handle(request: Request) -> Any:
        body = decode_request(KEY, request.version, request.body)
        if request.version >= 6:
            asked = [_Asked(item.name, item.topic_id) for item in body.topics]
        else:
            asked = [_Asked(name, None) for name in body.topic_names]
        return answer(request.version, asked, request.client)

    return Api(
        key=KEY, name="DeleteTopics", min_version=1, max_version=6, flexible_from=4, handler=handle
    )


def _refuse(
    access: Access,
    client: ClientInfo,
    asked: list[_Asked],
    found: list[TopicDescription | DisklessError],
) -> None:
    """Put errors in the place of topics that may not be deleted, or not be known about."""
    names = [
        topic.name if isinstance(topic, TopicDescription) else item.name
        for item, topic in zip(asked, found, strict=True)
    ]
    known = [name for name in names if name is not None]
    delete, describe = AclOperation.DELETE, AclOperation.DESCRIBE
    refused = access.refused_topics(client, delete, known, or_cluster=delete)
    hidden = access.refused_topics(client, describe, known, or_cluster=delete)
    for at, (item, name) in enumerate(zip(asked, names, strict=True)):
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
