"""DeleteRecords, key 21, versions 0-2: the log start of partitions moves up to an offset.

- Offset -1 is the high watermark: everything goes. An offset below the log start changes nothing
  and is a success; one above the high watermark is OFFSET_OUT_OF_RANGE.
- A topic whose cleanup.policy lacks `delete` keeps its records: POLICY_VIOLATION.
- Asks for DELETE on each topic.
- The metadata topic is INVALID_TOPIC_EXCEPTION.
- `low_watermark` is the log start afterwards. Any broker takes the request, not only the one that
  Metadata names.
"""

from collections.abc import Awaitable
from typing import Any, Final

from diskless.api.access import Access, Refused
from diskless.api.errors import kafka_code
from diskless.api.topics.named_topics import changeable_topic, partition_of
from diskless.authorization import AclOperation
from diskless.ports import TopicAdmin
from diskless.protocol.messages import decode_request, encode_response
from diskless.server.registry import Api, Reply, Request
from diskless.topics.topic_config_entries import TopicConfigs
from diskless.topics.topic_configs import list_items
from metadata.operations import DeletedRecords, DeleteRecords
from wal.errors import DisklessError, OffsetOutOfRange, PolicyViolation

KEY: Final = 21

_HIGH_WATERMARK: Final = -1


def api(topics: TopicAdmin, configs: TopicConfigs, access: Access) -> Api:
    def checked(name: str, item: Any) -> DeleteRecords:
        """Raises the Rejected that names what is wrong."""
        topic = changeable_topic(topics, name)
        partition = partition_of(topic, item.partition_index)
        if "delete" not in list_items(configs.value(topic.configs, "cleanup.policy")):
            raise PolicyViolation(f"cleanup.policy of {name} does not have 'delete'")
        if item.offset < _HIGH_WATERMARK:
            raise OffsetOutOfRange(f"offset {item.offset}")
        return DeleteRecords(partition, item.offset)

    async def answer(version: int, asked: Any, refused: Refused) -> Reply:
        outcomes: dict[tuple[int, int], DeletedRecords] = {}
        wanted: dict[tuple[int, int], DeleteRecords] = {}
        for at, topic in enumerate(asked.topics):
            for index, item in enumerate(topic.partitions):
                try:
                    if topic.name in refused:
                        raise refused[topic.name]
                    wanted[at, index] = checked(topic.name, item)
                except DisklessError as error:
                    outcomes[at, index] = DeletedRecords(error=error)
        if wanted:
            try:
                deleted = await topics.delete_records([*wanted.values()])
                outcomes.update(zip(wanted, deleted, strict=True))
            except DisklessError as error:
                outcomes.update(dict.fromkeys(wanted, DeletedRecords(error=error)))
        rows = [
            {
                "name": topic.name,
                "partitions": [
                    _partition(item.partition_index, outcomes[at, index])
                    for index, item in enumerate(topic.partitions)
                ],
            }
            for at, topic in enumerate(asked.topics)
        ]
        return [encode_response(KEY, version, {"topics": rows})]

    def handle(request: Request) -> Awaitable[Reply]:
        asked = decode_request(KEY, request.version, request.body)
        names = [topic.name for topic in asked.topics]
        refused = access.refused_topics(request.client, AclOperation.DELETE, names)
        return answer(request.version, asked, refused)

    return Api(
        key=KEY, name="DeleteRecords", min_version=0, max_version=2, flexible_from=2, handler=handle
    )


def _partition(index: int, outcome: DeletedRecords) -> dict[str, int]:
    return {
        "partition_index": index,
        "low_watermark": -1 if outcome.error is not None else outcome.log_start_offset,
        "error_code": kafka_code(outcome.error),
    }
