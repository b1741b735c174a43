"""CreatePartitions, key 37, versions 0-3: adds partitions to topics, which never shrink.

- `count` is how many partitions the topic has afterwards. It must grow: INVALID_PARTITIONS.
- A manual assignment must have one entry per new partition; its brokers are ignored, since any
  broker serves any partition.
- Asks for ALTER on each topic.
- New partitions may live at other coordinators than the old ones; they can be used when it is
  answered, and the request's timeout is not needed.
- The metadata topic has a partition per coordinator: INVALID_TOPIC_EXCEPTION.
- Keys that were hashed to one partition may go to another one from now on, as in Kafka.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, Final

from diskless.api.access import Access, Refused
from diskless.api.answers import each_answered, with_answers
from diskless.api.errors import InvalidReplicaAssignment, error_fields
from diskless.api.topics.named_topics import changeable_topic, no_topic, topic_of_row
from diskless.authorization import AclOperation
from diskless.loop.long_work import Steps, mapped
from diskless.ports import TopicAdmin
from diskless.protocol.messages import Fields, decode_request, encode_response
from diskless.server.registry import Api, Deferred, Outcome, ReplySteps, Request
from metadata.operations import CreatePartitions
from wal.errors import DisklessError, InvalidPartitions, InvalidRequest, UnknownTopicId

KEY: Final = 37


def api(topics: TopicAdmin, access: Access) -> Api:
    def checked(
        asked: Any, names: Sequence[str], refused: Refused
    ) -> Steps[Sequence[CreatePartitions | DisklessError]]:
        """Returns, of each topic of a request, what to create or why not."""
        named = Counter(names)
        outcomes: list[CreatePartitions | DisklessError] = []
        for item in asked.topics:
            try:
                if named[item.name] > 1:
                    raise InvalidRequest("Duplicate topic name.")
                if item.name in refused:
                    raise refused[item.name]
                outcomes.append(_checked(topics, item))
            except DisklessError as error:
                outcomes.append(error)
            yield
        return outcomes

    async def grown(growths: Sequence[CreatePartitions]) -> Sequence[DisklessError | None]:
        outcomes = await each_answered(topics.create_partitions, growths)
        return [
            no_topic(growth.name) if isinstance(outcome, UnknownTopicId) else outcome
            for growth, outcome in zip(growths, outcomes, strict=True)
        ]

    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)
        names = yield from mapped(attrgetter("name"), asked.topics)
        refused = access.refused_topics(request.client, AclOperation.ALTER, names)
        outcomes = yield from checked(asked, names, refused)
        growths = [outcome for outcome in outcomes if isinstance(outcome, CreatePartitions)]

        def encode(errors: Sequence[DisklessError | None]) -> ReplySteps:
            results: Iterator[Fields] = map(_row, names, with_answers(outcomes, errors))
            if not asked.validate_only:
                results = access.noted(request.client, "CreatePartitions", results, topic_of_row)
            return encode_response(KEY, request.version, {"results": results})

        if asked.validate_only or not growths:
            return (yield from encode([None] * len(growths)))
        request.changes = len(growths)
        known = topics.topics()
        request.changed_partitions = sum(
            growth.partition_count - known[growth.name].partition_count for growth in growths
        )
        return Deferred(grown(growths), encode, None)

    return Api(key=KEY, name="CreatePartitions", versions=range(4), flexible_from=2, handler=handle)


def _row(name: str, error: DisklessError | None) -> Fields:
    return {
        "name": name,
        **error_fields(error),
    }


def _checked(topics: TopicAdmin, item: Any) -> CreatePartitions:
    """What the coordinator is asked to create. Raises the Rejected that names what is wrong."""
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
