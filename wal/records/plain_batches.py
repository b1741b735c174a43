"""Finds the batches of a request that pass the checks of batch_validation.py, as columns.

Nearly all do. What is said of the others, and in which order it is looked at, is for the checks of
one batch alone to say: who is not found here goes through them, and may pass. So each error is
described once, and this file only has to be no more generous than those checks.
"""

import numpy as np
import numpy.typing as npt

from wal.columns import Rows
from wal.coordinates import CREATE_TIME
from wal.records.batch_validation import (
    PRODUCE_VERSION_OF_ZSTD,
    RECORDS_PER_BATCH_MAX,
    SPECIAL_BITS,
    TopicRules,
)
from wal.records.compression import CODEC_NAMES, ZSTD
from wal.records.record_batch import (
    CODEC_MASK,
    HEADER_BYTES,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    TIMESTAMP_TYPE_BIT,
)

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


def are_plain(
    scanned: Rows, *, rules: TopicRules, produce_version: int, now_ms: int
) -> npt.NDArray[np.bool_]:
    """Which batches may be appended as they are: summed, of no transaction, and right.

    `scanned` has columns named as the fields of `BatchHeader`, `size` (of the records field),
    `actual_crc` and `is_summed`. The rules must not ask for the records to be opened.
    """
    attributes = scanned["attributes"]
    length = scanned["length_bytes"]
    counts = scanned["record_count"].astype(np.int64)
    codec_max = max(CODEC_NAMES)
    if produce_version < PRODUCE_VERSION_OF_ZSTD:
        codec_max = ZSTD - 1
    plain: npt.NDArray[np.bool_] = (
        (length == scanned["size"])
        & (length >= HEADER_BYTES)
        & (length <= rules.max_message_bytes)
        & (scanned["magic"] == MAGIC_V2)
        & (attributes & CODEC_MASK <= codec_max)
        & (attributes & (SPECIAL_BITS | TIMESTAMP_TYPE_BIT) == 0)
        & (scanned["base_offset"] == 0)
        & (scanned["is_summed"] != 0)
        & (scanned["crc"] == scanned["actual_crc"])
        & (counts > 0)
        & (counts == scanned["last_offset_delta"] + np.int64(1))
        & ((scanned["producer_id"] < 0) | (scanned["base_sequence"] >= 0))
        # A codec may do with less, which is looked into for each batch.
        & (counts * RECORD_BYTES_MIN <= length - HEADER_BYTES)
        & (counts <= RECORDS_PER_BATCH_MAX)
    )
    if rules.timestamp_type == CREATE_TIME:
        earliest_ms = max(now_ms - rules.timestamp_before_max_ms, _INT64_MIN)
        latest_ms = min(now_ms + rules.timestamp_after_max_ms, _INT64_MAX)
        for name in ("base_timestamp_ms", "max_timestamp_ms"):
            plain &= (scanned[name] >= earliest_ms) & (scanned[name] <= latest_ms)
    return plain
