"""CreatePartitions, key 37, versions 0-3: topics grow; they never shrink.

- `count` is how many a topic shall have in all. As many as it has, or fewer: INVALID_PARTITIONS.
- A manual assignment must have one entry per new partition; its brokers are ignored, since any
  broker serves any partition.
- Asks for ALTER on each topic.
- New partitions may live at other coordinators than the old ones; they can be used when it is
  answered, and the request's timeout is not needed.
- The metadata topic has a partition per coordinator: INVALID_TOPIC_EXCEPTION.
- Keys that were hashed to one partition may go to another one from now on, as in Kafka.
"""

from collections import Counter
from collections.abc import Awaitable
from typing import Any, Final

from diskless.api.access import Access, Refused
from diskless.api.errors import InvalidReplicaAssignment, error_message, kafka_code
from diskless.api.topics.named_topics import changeable_topic, no_topic
from diskless.authorization import AclOperation
from diskless.ports import TopicAdmin
from diskless.protocol.messages import decode_request, encode_response
from diskless.server.registry import Api, Reply, Request
from metadata.operations import CreatePartitions
from wal.errors import DisklessError, InvalidPartitions, InvalidRequest, UnknownTopicId

KEY: Final = 37


def api(topics: TopicAdmin, access: Access) -> Api:
    async def answer(version: int, asked: Any, refused: Refused) -> Reply:
        named = Counter(item.name for item in asked.topics)
        outcomes: dict[int, DisklessError | None] = {}
        growths: dict[int, CreatePartitions] = {}
        for index, item in enumerate(asked.topics):
            try:
                if named[item.name] > 1:
                    raise InvalidRequest("Duplicate topic name.")
                if item.name in refused:
                    raise refused[item.name]
                growths[index] = _checked(topics, item)
            except DisklessError as error:
                outcomes[index] = error
        if growths and not asked.validate_only:
            try:
                grown = await topics.create_partitions([*growths.values()])
                for index, outcome in zip(growths, grown, strict=True):
                    is_gone = isinstance(outcome, UnknownTopicId)
                    outcomes[index] = no_topic(growths[index].name) if is_gone else outcome
            except DisklessError as error:
                outcomes.update(dict.fromkeys(growths, error))
        results = [
            {
                "name": item.name,
                "error_code": kafka_code(outcomes.get(index)),
                "error_message": error_message(outcomes.get(index)),
            }
            for index, item in enumerate(asked.topics)
        ]
        return [encode_response(KEY, version, {"results": results})]

    def handle(request: Request) -> Awaitable[Reply]:
        asked = decode_request(KEY, request.version, request.body)
        names = [item.name for item in asked.topics]
        refused = access.refused_topics(request.client, AclOperation.ALTER, names)
        return answer(request.version, asked, refused)

    return Api(
        key=KEY,
        name="CreatePartitions",
        min_version=0,
        max_version=3,
        flexible_from=2,
        handler=handle,
    )


def _checked(topics: TopicAdmin, item: Any) -> CreatePartitions:
    """What the coordinator shall create. Raises the Rejected that names what is wrong."""
    topic = changeable_topic(topics, item.name)
    have, wanted = topic.partition_count, item.count
    if wanted == have:
        raise InvalidPartitions(f"Topic already has {have} partition(s).")
    if wanted < have:
        raise InvalidPartitions(
            f"The topic {item.name} currently has {have} partition(s); {wanted} would not be an "
            "increase."
        )
    if wanted > topics.max_partition_count:
        raise InvalidPartitions(
            f"{wanted} partitions: there may be {topics.max_partition_count} at most"
        )
    if item.assignments is not None and len(item.assignments) != wanted - have:
        raise InvalidReplicaAssignment(
            f"Attempted to add {wanted - have} additional partition(s), but only "
            f"{len(item.assignments)} assignment(s) were specified."
        )
    return CreatePartitions(topic_id=topic.topic_id, name=topic.name, partition_count=wanted)
