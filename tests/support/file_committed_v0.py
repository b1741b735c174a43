"""FileCommitted as releases before version 1 wrote it; the product only reads it."""

import struct
from itertools import groupby

from metadata.records.file_committed import (
    COMMITTED_AT_TAG,
    COMMITTED_BATCH,
    POSITIONS_TAG,
    REFUSED_TAG,
    REQUEST_DIGEST_TAG,
    FileCommittedRecord,
)
from wal.wire.fields import INT8, INT32, INT64, NO_TAGS, compact_string, tag_section, uvarint

REFUSED_BATCH = struct.Struct(">ihqqqB")
"""One refused batch and its empty tag section."""
assert REFUSED_BATCH.size == 31


def encode_file_committed_0(record: FileCommittedRecord) -> bytes:
    """Frame included."""
    topics: list[bytes] = []
    topic_count = 0
    for topic_id, batches_of_topic in groupby(record.batches, lambda batch: batch[0][0]):
        topic_count += 1
        partitions: list[bytes] = []
        partition_count = 0
        for index, group in groupby(batches_of_topic, lambda batch: batch[0][1]):
            partition_count += 1
            batches = [COMMITTED_BATCH.pack(*batch[2:], 0) for batch in group]
            partitions += (INT32.pack(index), uvarint(len(batches) + 1), *batches, NO_TAGS)
        topics += (topic_id.bytes, uvarint(partition_count + 1), *partitions, NO_TAGS)
    fields = {COMMITTED_AT_TAG: INT64.pack(record.committed_at_ms)}
    positions = [batch.position for batch in record.batches]
    if positions != list(range(len(positions))):
        count = len(positions)
        fields[POSITIONS_TAG] = uvarint(count + 1) + struct.pack(f">{count}i", *positions)
    if record.refused:
        fields[REFUSED_TAG] = uvarint(len(record.refused) + 1) + b"".join(
            [REFUSED_BATCH.pack(*refused, 0) for refused in record.refused]
        )
    fields[REQUEST_DIGEST_TAG] = record.request_digest
    return b"".join(
        (
            *map(uvarint, (1, 102, 0)),
            compact_string(record.object_key),
            INT8.pack(record.object_format),
            INT64.pack(record.file_size),
            INT32.pack(record.uploader_broker_id),
            uvarint(len(record.owner_ids) + 1),
            *map(INT32.pack, record.owner_ids),
            uvarint(topic_count + 1),
            *topics,
            tag_section(fields),
        )
    )
