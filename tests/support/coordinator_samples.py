"""Hypothesis strategies for what is asked of coordinators, and for what they answer.

    SAMPLES["DisklessListOffsets"].requests
    SAMPLES["DisklessListOffsets"].answer      one answer, such as survives encoding

`draw_answers` draws as many answers as a request has entries.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from hypothesis import strategies as st

from metadata import operations as ops
from metadata.messages import brokers as own
from metadata.messages.codec import Operation
from metadata.messages.commit_file import COMMIT_FILE, COMMIT_FILES_AT, CommitFileMessage
from metadata.messages.coordinator import (
    CREATE_PARTITIONS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    DESCRIBE_FILES,
    LIST_OFFSETS,
    DescribeFilesMessage,
)
from metadata.messages.errors import COORDINATOR_CODES, REQUEST_TIMED_OUT, UNKNOWN_SERVER_ERROR
from metadata.messages.find_batches import FIND_BATCHES, FindBatchesMessage
from metadata.messages.shapes import Addressed
from wal.coordinates import BatchExtent, TopicIdPartition
from wal.errors import DisklessError

INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT16 = st.integers(-(2**15), 2**15 - 1)
INT8 = st.integers(-(2**7), 2**7 - 1)
NATURAL = st.integers(0, 2**31 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)

# Few topics and partitions, so that a request has the same one several times.
TOPIC_IDS = st.sampled_from([UUID(int=number << 64 | 5) for number in (1, 2, 2**63)])
PARTITIONS = st.builds(TopicIdPartition, TOPIC_IDS, st.sampled_from([0, 1, 2**31 - 1]))

ERRORS = st.builds(
    lambda kind, text: kind(text),
    st.sampled_from(
        [
            row.kind
            for row in COORDINATOR_CODES
            if row.code not in (UNKNOWN_SERVER_ERROR, REQUEST_TIMED_OUT)
        ]
    ),
    TEXT.filter(bool),
)
"""Of the classes that come back as themselves whatever was asked."""

BATCHES = st.builds(
    BatchExtent,
    PARTITIONS,
    byte_offset=NATURAL,
    length_bytes=NATURAL,
    record_count=st.integers(1, 2**31 - 1),
    crc=st.integers(0, 2**32 - 1),
    max_timestamp_ms=INT64,
    timestamp_type=st.just(1),
    producer_id=st.integers(-1, 2**63 - 1),
    producer_epoch=INT16,
    base_sequence=st.integers(-1, 2**31 - 1),
    request_id=INT32,
)
WAL_EXTENTS = st.builds(
    ops.WalExtent, TEXT, INT64, INT64, INT64, INT64, INT64, INT64, st.integers(0, 1), INT64
)
SEGMENT_EXTENTS = st.builds(ops.SegmentExtent, TEXT, INT64, INT64, INT64, INT64)
CONFIGS = st.dictionaries(TEXT, TEXT, max_size=3)
FLOAT64 = st.floats(allow_nan=False)
QUOTA_ENTITIES = st.dictionaries(TEXT, st.none() | TEXT, max_size=3).map(
    lambda parts: tuple(sorted(parts.items()))
)


def _optional_error(success: st.SearchStrategy[Any], make: Any) -> st.SearchStrategy[Any]:
    return success | ERRORS.map(make)


class Samples(NamedTuple):
    operation: Operation[Any, Any]
    requests: st.SearchStrategy[Any]
    answer: st.SearchStrategy[Any]


def _lists(entries: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(entries, max_size=5)


def _files(batches: st.SearchStrategy[Any]) -> st.SearchStrategy[ops.CommitFile]:
    return st.builds(
        ops.CommitFile,
        object_key=TEXT,
        file_size_bytes=INT64,
        uploader_broker_id=INT32,
        batches=batches,
        object_format=INT8,
        owner_ids=st.lists(INT32, max_size=3).map(tuple),
    )


_SAMPLES: Final = [
    Samples(
        CREATE_PARTITIONS,
        _lists(
            st.builds(ops.CreatePartitions, topic_id=TOPIC_IDS, name=TEXT, partition_count=INT32),
        ),
        st.none() | ERRORS,
    ),
    Samples(DELETE_TOPICS, _lists(TOPIC_IDS), st.none() | ERRORS),
    Samples(
        COMMIT_FILE,
        st.builds(CommitFileMessage, _files(_lists(BATCHES)), refused=st.just({})),
        _optional_error(
            st.builds(ops.BatchCommit, INT64, INT64, INT64, st.booleans(), st.none()),
            lambda error: ops.BatchCommit(error=error),
        ),
    ),
    Samples(
        COMMIT_FILES_AT,
        # Without batches, so that any answer fits; batches are the same bytes as in COMMIT_FILE.
        st.builds(Addressed, INT32, _lists(_files(st.just([])))),
        _optional_error(st.just(ops.CommittedFile([])), lambda error: ops.CommittedFile([], error)),
    ),
    Samples(
        DELETE_RECORDS,
        _lists(st.builds(ops.DeleteRecords, PARTITIONS, INT64)),
        st.builds(ops.DeletedRecords, INT64, st.none() | ERRORS),
    ),
    Samples(
        LIST_OFFSETS,
        _lists(st.builds(ops.ListOffsets, PARTITIONS, INT64)),
        st.builds(
            ops.ListedOffset,
            INT64,
            INT64,
            extent=st.none(),
            log_start_offset=st.just(-1),
            error=st.none() | ERRORS,
        ),
    ),
    Samples(
        FIND_BATCHES,
        st.builds(
            FindBatchesMessage,
            _lists(st.builds(ops.FindBatches, PARTITIONS, INT64, INT32)),
            INT32,
            INT32,
            st.booleans(),
        ),
        st.builds(
            ops.FoundBatches,
            INT64,
            INT64,
            st.lists(WAL_EXTENTS | SEGMENT_EXTENTS, max_size=3),
            st.none() | ERRORS,
        ),
    ),
    Samples(
        DESCRIBE_FILES,
        st.builds(DescribeFilesMessage, _lists(TEXT), st.none() | st.integers(0, 2**31 - 1)),
        st.builds(ops.DescribedFile, st.booleans(), st.none() | ERRORS),
    ),
    Samples(
        own.CREATE_TOPICS,
        _lists(
            st.builds(
                ops.CreateTopic,
                name=TEXT,
                partition_count=INT32,
                configs=CONFIGS,
                topic_id=st.none() | TOPIC_IDS,
            )
        ),
        ERRORS
        | st.builds(
            ops.TopicDescription,
            topic_id=TOPIC_IDS,
            name=TEXT,
            partition_count=INT32,
            configs=CONFIGS,
            assignments=st.dictionaries(INT32, INT32, max_size=3),
        ),
    ),
    Samples(
        own.ALLOCATE_PRODUCER_IDS,
        st.none(),
        ERRORS
        | st.builds(
            lambda start, count: range(start, start + count),
            st.integers(0, 2**62),
            st.integers(1, 2**31 - 1),
        ),
    ),
    Samples(
        own.TOMBSTONE_FILES,
        st.builds(Addressed, INT32, _lists(TEXT)),
        st.builds(ops.Tombstone, st.booleans(), st.none() | ERRORS),
    ),
    Samples(
        own.HAND_OVER_FILES,
        st.builds(
            Addressed,
            INT32,
            _lists(
                st.builds(
                    ops.HandedFile,
                    object_key=TEXT,
                    object_format=INT8,
                    file_size_bytes=INT64,
                    owner_ids=st.lists(INT32, max_size=3).map(tuple),
                )
            ),
        ),
        st.none() | ERRORS,
    ),
    Samples(
        own.CREATE_PARTITIONS_AT,
        st.builds(
            Addressed,
            INT32,
            _lists(
                st.builds(
                    ops.CreatePartitionsAt,
                    topic_id=TOPIC_IDS,
                    name=TEXT,
                    partitions=st.lists(INT32, max_size=3).map(tuple),
                )
            ),
        ),
        st.none() | ERRORS,
    ),
    Samples(
        own.DELETE_TOPICS_AT,
        st.builds(Addressed, INT32, _lists(TOPIC_IDS)),
        st.none() | ERRORS,
    ),
    Samples(
        own.REGISTER_BROKER,
        st.builds(ops.RegisteredBroker, INT32, TEXT, INT32, TEXT, TOPIC_IDS),
        st.none() | ERRORS,
    ),
    Samples(
        own.PLAN_SEGMENTS_HERE,
        st.builds(ops.PlanSegments, st.booleans(), INT32),
        ERRORS
        | st.builds(
            ops.PlannedSegments,
            st.lists(
                st.builds(
                    ops.SegmentPlan,
                    partition=PARTITIONS,
                    topic_name=TEXT,
                    object_key=TEXT,
                    base_offset=INT64,
                    last_offset=INT64,
                    extents=st.lists(WAL_EXTENTS, max_size=3).map(tuple),
                ),
                max_size=3,
            ).map(tuple),
            TEXT,
        ),
    ),
    Samples(
        own.COMMIT_SEGMENTS_HERE,
        _lists(
            st.builds(
                ops.RolledSegment,
                partition=PARTITIONS,
                object_key=TEXT,
                base_offset=INT64,
                last_offset=INT64,
                object_bytes=INT64,
                crc32c=st.integers(0, 2**32 - 1),
                record_count=INT64,
                max_timestamp_ms=INT64,
            )
        ),
        st.builds(ops.SegmentCommit, st.booleans(), st.none() | ERRORS),
    ),
    Samples(
        own.ALTER_TOPIC_CONFIGS,
        _lists(
            st.builds(ops.AlterTopicConfigs, topic_id=TOPIC_IDS, before=CONFIGS, configs=CONFIGS)
        ),
        st.builds(ops.AlteredTopicConfigs, st.booleans(), CONFIGS, st.none() | ERRORS),
    ),
    Samples(
        own.ALTER_CLIENT_QUOTAS,
        _lists(
            st.builds(
                ops.AlterClientQuotas,
                entity=QUOTA_ENTITIES,
                changes=st.dictionaries(TEXT, st.none() | FLOAT64, max_size=3),
            )
        ),
        st.none() | ERRORS,
    ),
]

SAMPLES: Final = {samples.operation.name: samples for samples in _SAMPLES}


def draw_answers(data: st.DataObject, samples: Samples, request: Any) -> Sequence[Any]:
    count = samples.operation.count(request)
    return data.draw(st.lists(samples.answer, min_size=count, max_size=count), label="answers")


def told(answer: Any) -> Any:
    """The answer with its error as (class, text), so that answers can be compared."""
    if isinstance(answer, DisklessError):
        return type(answer), str(answer)
    if getattr(answer, "error", None) is not None:
        return answer._replace(error=(type(answer.error), str(answer.error)))
    return answer
