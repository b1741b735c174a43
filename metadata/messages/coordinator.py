"""KIP-1164's operations as bytes, field by field as in its schemas, version 0.

     93 CreatePartitions     96 DeleteRecords     98 FindBatches (metadata/messages/find_batches.py)
     94 DeleteTopics         97 ListOffsets      100 DescribeFiles
     95 CommitFile (metadata/messages/commit_file.py)

metadata/messages/codec.py has what they have in common, docs/coordinator-api.md the fields of all.
What we add is in tagged fields from 10000 up, so that clients that know the KIP alone can still ask
and be answered. Here they are one in the request of DescribeFiles, and one in each partition of an
answer of ListOffsets:

    10000 CoordinatorId int32     -1 (all that are led where it arrives) when left out
    10000 LastStableOffset int64  -1 when left out: there is an error
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from metadata.messages.codec import Address, MessageReader, Operation, RequestShape, Steps
from metadata.messages.commit_file import COMMIT_FILE
from metadata.messages.find_batches import FIND_BATCHES
from metadata.messages.shapes import (
    ERROR,
    OBJECT_KEY,
    TOPIC_ID,
    TagSection,
    by_partition,
    keyed,
    listed,
    partitioned,
    read_entries,
    write_entries,
)
from metadata.operations import (
    CreatePartitions,
    DeletedRecords,
    DeleteRecords,
    DescribedFile,
    ListedOffset,
    ListOffsets,
)
from wal.coordinates import ObjectKey
from wal.errors import DisklessError, UnknownFile
from wal.wire.fields import INT32, INT64, NO_TAGS, tag_section
from wal.wire.layouts import closed, fields_of, layout

COORDINATOR_ID_TAG: Final = 10_000
LAST_STABLE_TAG: Final = 10_000

_INT64: Final = struct.Struct(">q")

CREATE_PARTITIONS: Final[Operation[Sequence[CreatePartitions], DisklessError | None]] = Operation(
    key=93,
    name="DisklessCreatePartitions",
    address=Address.CATALOGUE,
    request=listed(layout(CreatePartitions, "topic_id", "name", "partition_count")),
    answers=keyed(lambda topics: [topic.topic_id for topic in topics], TOPIC_ID, ERROR),
)

DELETE_TOPICS: Final[Operation[Sequence[UUID], DisklessError | None]] = Operation(
    key=94,
    name="DisklessDeleteTopics",
    address=Address.CATALOGUE,
    request=listed(closed(TOPIC_ID)),
    answers=keyed(lambda topic_ids: topic_ids, TOPIC_ID, ERROR),
)

DELETE_RECORDS: Final[Operation[Sequence[DeleteRecords], DeletedRecords]] = Operation(
    key=96,
    name="DisklessDeleteRecords",
    address=Address.BY_PARTITION,
    request=partitioned(DeleteRecords, _INT64),
    answers=by_partition(fields_of(DeletedRecords, error=ERROR)),
    at=lambda coordinator, requests: coordinator.delete_records(requests),
    failed=lambda error: DeletedRecords(error=error),
)


def _last_stable(answer: ListedOffset) -> bytes:
    if answer.last_stable_offset == -1:
        return NO_TAGS
    return tag_section({LAST_STABLE_TAG: INT64.pack(answer.last_stable_offset)})


def _with_last_stable(answer: ListedOffset, reader: MessageReader) -> ListedOffset:
    for tag, content in reader.tags():
        if tag == LAST_STABLE_TAG:
            answer = answer._replace(last_stable_offset=content.int64())
    return answer


LIST_OFFSETS: Final[Operation[Sequence[ListOffsets], ListedOffset]] = Operation(
    key=97,
    name="DisklessListOffsets",
    address=Address.BY_PARTITION,
    request=partitioned(ListOffsets, _INT64),
    # An extent has no place in an answer: who answers looks into it first.
    answers=by_partition(
        fields_of(ListedOffset, "error", "timestamp_ms", "offset", error=ERROR),
        TagSection(_last_stable, _with_last_stable),
    ),
    at=lambda coordinator, requests: coordinator.list_offsets(requests),
    failed=lambda error: ListedOffset(error=error),
    changes_state=False,
)


class DescribeFilesMessage(NamedTuple):
    """A DescribeFiles request; `coordinator` None: all that are led where it arrives."""

    keys: Sequence[ObjectKey]
    coordinator: int | None = None


_KEY: Final = closed(OBJECT_KEY)


def _write_describe_files(message: DescribeFilesMessage, parts: list[bytes]) -> Mapping[int, bytes]:
    write_entries(_KEY, message.keys, parts)
    if message.coordinator is None:
        return {}
    return {COORDINATOR_ID_TAG: INT32.pack(message.coordinator)}


def _read_describe_files(reader: MessageReader) -> Steps[tuple[DescribeFilesMessage, int]]:
    keys = yield from read_entries(_KEY, reader)
    timeout_ms, tags = reader.request_end()
    named = tags[COORDINATOR_ID_TAG].int32() if COORDINATOR_ID_TAG in tags else -1
    return DescribeFilesMessage(keys, None if named == -1 else named), timeout_ms


def _described(key: ObjectKey, answers: Sequence[DescribedFile]) -> DescribedFile:
    known = [answer for answer in answers if answer.error is None]
    if any(answer.has_live_batches for answer in known):
        return DescribedFile(has_live_batches=True)
    for answer in answers:
        if answer.error is not None and not isinstance(answer.error, UnknownFile):
            return answer
    return known[0] if known else DescribedFile(error=UnknownFile(f"nobody knows {key}"))


DESCRIBE_FILES: Final[Operation[DescribeFilesMessage, DescribedFile]] = Operation(
    key=100,
    name="DisklessDescribeFiles",
    address=Address.NAMED,
    request=RequestShape(
        _write_describe_files,
        _read_describe_files,
        lambda message: message.keys,
        lambda message, keys: message._replace(keys=keys),
    ),
    answers=keyed(
        lambda message: message.keys,
        OBJECT_KEY,
        fields_of(DescribedFile, "error", "has_live_batches", error=ERROR),
    ),
    at=lambda coordinator, message: coordinator.describe_files(message.keys),
    merged=lambda message, answers: list(map(_described, message.keys, zip(*answers, strict=True))),
    failed=lambda error: DescribedFile(error=error),
    changes_state=False,
    is_repeated=False,
)

OF_THE_KIP: Final[Sequence[Operation[Any, Any]]] = (
    CREATE_PARTITIONS,
    DELETE_TOPICS,
    COMMIT_FILE,
    DELETE_RECORDS,
    LIST_OFFSETS,
    FIND_BATCHES,
    DESCRIBE_FILES,
)
