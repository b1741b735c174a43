"""DescribeProducers, key 61, version 0: the producers that a partition remembers.

- As this broker has heard, which may be a moment behind the partition's coordinator.
- The most recent PRODUCERS_MAX of a partition. One that was silent for producer.id.expiration.ms is
  forgotten.
- The coordinator epoch of who ended a producer's last transaction is known until the marker is
  rolled.
- The metadata topic has none. `kafka-transactions find-hanging --broker-id` asks about it too, and
  waits until every partition is known.
- Asks for READ on each topic.
"""

from collections.abc import Sequence
from itertools import islice
from operator import attrgetter
from typing import Final

from diskless.api.access import Access, Refused
from diskless.api.errors import error_fields
from diskless.api.topics.named_topics import named_topic, partition_of
from diskless.authorization import AclOperation
from diskless.loop.long_work import Steps, collected, gathered, mapped
from diskless.ports import ActiveProducer, StoredPartitions, TopicAdmin
from diskless.protocol.messages import Fields, decode_request, encode_response
from diskless.server.registry import Api, Deferred, Outcome, ReplySteps, Request
from metadata.operations import METADATA_TOPIC_ID
from wal.errors import DisklessError

KEY: Final = 61

PRODUCERS_MAX: Final = 10_000


def api(topics: TopicAdmin, stored: StoredPartitions, access: Access) -> Api:
    async def partition_row(name: str, index: int, refused: Refused) -> Fields:
        error: DisklessError | None = None
        producers: list[Fields] = []
        try:
            if name in refused:
                raise refused[name]
            partition = partition_of(named_topic(topics, name), index)
            if partition.topic_id != METADATA_TOPIC_ID:
                active = await stored.producers(partition, limit=PRODUCERS_MAX)
                producers = [_producer(producer) for producer in active]
        except DisklessError as failure:
            error = failure
        return {
            "partition_index": index,
            **error_fields(error),
            "active_producers": producers,
        }

    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)
        names = yield from mapped(attrgetter("name"), asked.topics)
        refused = access.refused_topics(request.client, AclOperation.READ, names)
        wanted = yield from collected(
            (topic.name, index) for topic in asked.topics for index in topic.partition_indexes
        )

        def encode(found: Sequence[Fields]) -> ReplySteps:
            left = iter(found)
            rows = (
                {"name": topic.name, "partitions": islice(left, len(topic.partition_indexes))}
                for topic in asked.topics
            )
            return encode_response(KEY, request.version, {"topics": rows})

        found = gathered(lambda row: partition_row(*row, refused), wanted)
        return Deferred(found, encode, None)

    return Api(
        key=KEY, name="DescribeProducers", versions=range(1), flexible_from=0, handler=handle
    )


def _producer(producer: ActiveProducer) -> Fields:
    return {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "last_sequence": producer.last_sequence,
        "last_timestamp": producer.last_append_ms,
        "coordinator_epoch": producer.coordinator_epoch,
        "current_txn_start_offset": producer.first_open_offset,
    }
