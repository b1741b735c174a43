"""DeleteRecords, key 21, versions 0-2: moves the log start of partitions up to an offset.

- Offset -1 is the high watermark: everything goes. An offset below the log start changes nothing
  and is a success; one above the high watermark is OFFSET_OUT_OF_RANGE.
- A topic whose cleanup.policy lacks `delete` keeps its records: POLICY_VIOLATION.
- Asks for DELETE on each topic.
- The metadata topic is INVALID_TOPIC_EXCEPTION.
- `low_watermark` is the log start afterwards. Any broker takes the request, not only the one that
  Metadata names.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final

from diskless.api.access import Access, Refused
from diskless.api.errors import kafka_code
from diskless.api.topics.named_topics import changeable_topic, partition_of
from diskless.authorization import AclOperation
from diskless.loop.long_rows import as_list
from diskless.loop.long_work import Steps, in_portions, mapped
from diskless.ports import TopicAdmin
from diskless.protocol.messages import decode_request, encode_response
from diskless.server.registry import Api, Deferred, Outcome, ReplySteps, Request
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

    def all_checked(
        asked: Any, refused: Refused
    ) -> Steps[tuple[Sequence[DeleteRecords | DisklessError], Sequence[DeleteRecords]]]:
        """Returns, for each partition, what to delete or why not; and all that is to be deleted."""
        outcomes: list[DeleteRecords | DisklessError] = []
        wanted: list[DeleteRecords] = []
        for topic in asked.topics:
            for item in topic.partitions:
                try:
                    if topic.name in refused:
                        raise refused[topic.name]
                    outcomes.append(deletion := checked(topic.name, item))
                    wanted.append(deletion)
                except DisklessError as error:
                    outcomes.append(error)
                yield
        return as_list(outcomes), wanted

    async def deleted(wanted: Sequence[DeleteRecords]) -> Sequence[DeletedRecords]:
        try:
            return await in_portions(topics.delete_records, wanted)
        except DisklessError as error:
            return [DeletedRecords(error=error)] * len(wanted)

    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)
        names = yield from mapped(attrgetter("name"), asked.topics)
        refused = access.refused_topics(request.client, AclOperation.DELETE, names)
        outcomes, wanted = yield from all_checked(asked, refused)

        def encode(answers: Sequence[DeletedRecords]) -> ReplySteps:
            left, decided = iter(answers), iter(outcomes)
            rows = (
                {
                    "name": topic.name,
                    "partitions": access.noted(
                        request.client,
                        "DeleteRecords",
                        (
                            _partition(item.partition_index, _outcome(next(decided), left))
                            for item in topic.partitions
                        ),
                        partial(_partition_of_row, topic.name),
                    ),
                }
                for topic in asked.topics
            )
            return encode_response(KEY, request.version, {"topics": rows})

        if not wanted:
            return (yield from encode(()))
        return Deferred(deleted(wanted), encode, None)

    return Api(key=KEY, name="DeleteRecords", versions=range(3), flexible_from=2, handler=handle)


def _outcome(
    decided: DeleteRecords | DisklessError, answers: Iterator[DeletedRecords]
) -> DeletedRecords:
    """What became of a partition: why it was refused, or the next of the coordinator's answers."""
    return DeletedRecords(error=decided) if isinstance(decided, DisklessError) else next(answers)


def _partition_of_row(topic: str, row: Mapping[str, int]) -> str:
    """How the audit log names the partition."""
    return f"topic:{topic}-{row['partition_index']}"


def _partition(index: int, outcome: DeletedRecords) -> dict[str, int]:
    return {
        "partition_index": index,
        "low_watermark": -1 if outcome.error is not None else outcome.log_start_offset,
        "error_code": kafka_code(outcome.error),
    }
