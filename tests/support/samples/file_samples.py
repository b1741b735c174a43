"""FileCommitted records of any columns."""

from uuid import UUID

from hypothesis import strategies as st

from metadata.records.file_committed import (
    CommittedBatch,
    FileCommittedRecord,
    RefusedBatch,
)
from tests.support.samples.typed_samples import INT8, INT16, INT32, INT64, TEXT, values_of
from wal.coordinates import TopicIdPartition

committed_batches = values_of(
    CommittedBatch,
    {
        (CommittedBatch, "partition"): st.builds(
            TopicIdPartition,
            st.sampled_from([UUID(int=number) for number in range(3)]),
            st.integers(0, 3) | INT32,
        ),
        **{(CommittedBatch, name): INT8 for name in ("magic", "timestamp_type")},
        **{
            (CommittedBatch, name): INT32
            for name in ("position", "byte_offset", "byte_size", "base_sequence", "last_sequence")
        },
        (CommittedBatch, "producer_epoch"): INT16,
    },
)

refused_batches = st.builds(RefusedBatch, INT32, INT16, INT64, INT64, INT64)

files = st.builds(
    FileCommittedRecord,
    object_key=TEXT,
    object_format=INT8,
    file_size=INT64,
    uploader_broker_id=INT32,
    owner_ids=st.lists(INT32, max_size=3).map(tuple),
    committed_at_ms=INT64,
    batches=st.lists(committed_batches, max_size=8).map(tuple),
    refused=st.lists(refused_batches, max_size=3).map(tuple),
    request_digest=st.binary(min_size=16, max_size=16),
)
