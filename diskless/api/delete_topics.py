"""DeleteTopics, key 20, versions 1-6; version 6 names topics by name or by id.

- The metadata topic cannot be deleted: INVALID_TOPIC_EXCEPTION. (Kafka's internal topics can.)
- A topic is gone when it is answered; the request's timeout is not needed.
- Its objects are deleted later, by the file lifecycle.
- A new topic of the same name has a new id, so nothing of the old one is ever served under it.
"""

from typing import Any, Final, NamedTuple
from uuid import UUID

from diskless.api.errors import error_message, kafka_code
from diskless.api.registry import Api, Reply, Request
from diskless.ports import TopicAdmin
from diskless.protocol.messages import decode_request, encode_response
from metadata.operations import TopicDescription
from wal.errors import DisklessError, InvalidRequest, UnknownPartition, UnknownTopicId

KEY: Final = 20


class _Asked(NamedTuple):
    name: str | None
    topic_id: UUID | None


def api(topics: TopicAdmin) -> Api:
    async def answer(version: int, asked: list[_Asked]) -> Reply:
        found = [_find(topics, item) for item in asked]
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
        return answer(request.version, asked)

    return Api(
        key=KEY, name="DeleteTopics", min_version=1, max_version=6, flexible_from=4, handler=handle
    )


def _find(topics: TopicAdmin, asked: _Asked) -> TopicDescription | DisklessError:
    if asked.name is not None:
        if asked.topic_id is not None:
            return InvalidRequest("give the name or the id of a topic, not both")
        return topics.topics().get(asked.name) or UnknownPartition(f"no topic {asked.name!r}")
    if asked.topic_id is None:
        return InvalidRequest("give the name or the id of a topic")
    return topics.topic_by_id(asked.topic_id) or UnknownTopicId(f"no topic has {asked.topic_id}")
