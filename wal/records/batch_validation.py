"""Decides which RecordBatches a partition accepts: Kafka's produce checks, in Kafka's order.

Three steps, each for what it costs, all before the batch is appended: `check_header` looks at the
header, `check_contents` needs the sum of the bytes under its CRC, `check_records` opens the
records. They are
pure, and raise for their batch alone; the other partitions of the request are unaffected.

Order matters to clients, which act on the first error they get. It is Apache Kafka's:

    exactly one batch, magic 2          InvalidRecord
    codec known to this Produce version UnsupportedCompression
    base offset 0                       InvalidRecord
    size                                RecordTooLarge
    CRC                                 CorruptBatch
    count, control bit, sequence        InvalidRecord
    transactional bit                   TransactionalIdMissing
    timestamp type and bounds           InvalidTimestamp
    count that its bytes can hold       InvalidRecord
    count that readers can hold         RecordTooLarge
    keys, on compacted topics           KeysMissing

Header and CRC take 2 µs, and 45 µs per MiB. Records are opened (and inflated, under a cap) in two
cases only: the topic is compacted, or it bounds how old a timestamp may be, because the header
tells the largest timestamp of its batch but not the smallest. That takes up to a second, so it
happens in threads (`wal/records/batch_preparation.py`). So a batch whose records contradict its
header is not found here but when it is opened later; the producer vouched for those bytes with the
CRC. Consumers get it as it was sent, and tiering keeps it as it is (tiering/raw_batches.py). What
such a batch costs the others is bounded by its record count, for each record takes an offset and a
row; so a count is refused that the bytes cannot hold.

Where this differs from Apache Kafka: bytes after the batch are refused rather than ignored, so is
the delete-horizon bit, which only a log cleaner may set, and so is a batch of more than
RECORDS_PER_BATCH_MAX records.
"""

from typing import Final, NamedTuple

from wal.coordinates import CREATE_TIME, NO_TIMESTAMP
from wal.crc import Buffer
from wal.errors import (
    CorruptBatch,
    InvalidRecord,
    InvalidTimestamp,
    KeysMissing,
    RecordTooLarge,
    TransactionalIdMissing,
    UnsupportedCompression,
)
from wal.records.compression import CODEC_NAMES, NONE, ZSTD, Inflated
from wal.records.record_batch import (
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    MAGIC_POSITION,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
)

PRODUCE_VERSION_OF_ZSTD: Final = 7
UNBOUNDED_MS: Final = 2**63 - 1
"""Kafka's default of message.timestamp.before.max.ms: any age is accepted."""
INFLATION_MAX: Final = 64
"""A batch that must be opened may inflate to this many times the topic's max.message.bytes."""
INFLATED_BYTES_CEILING: Final = 256 * 1024 * 1024
"""... and never to more than this."""
RECORDS_PER_COMPRESSED_BYTE_MAX: Final = 8
"""Each record has an offset delta that no other record of the batch has, which takes a codec more
than a bit. Measured on records that hold nothing else: zstd 1.8 records a byte at most, the others
0.8, whatever their level."""
RECORDS_PER_BATCH_MAX: Final = 1_000_000
"""What librdkafka can be configured to send at most. Records of 7 bytes stay far below what a batch
may inflate to, but each takes some 200 bytes in columns while it is decoded."""

SPECIAL_BITS: Final = CONTROL_BIT | TRANSACTIONAL_BIT | DELETE_HORIZON_BIT


class TopicRules(NamedTuple):
    """The topic configuration that decides which batches are welcome."""

    max_message_bytes: int
    """Largest batch, compressed, header included."""
    timestamp_type: int
    """CREATE_TIME or LOG_APPEND_TIME; bounds apply to CREATE_TIME alone."""
    timestamp_before_max_ms: int
    """How far a record's timestamp may lie before now; UNBOUNDED_MS for any."""
    timestamp_after_max_ms: int
    """How far a record's timestamp may lie after now."""
    compacted: bool
    """Whether every record needs a key."""


def check_header(
    header: BatchHeader, *, size: int, rules: TopicRules, produce_version: int
) -> None:
    """Check what can be told without summing or opening anything.

    `header` was read from `size` bytes that should hold exactly one RecordBatch; where they are
    fewer than a header, as if zeros followed. Raises: InvalidRecord, UnsupportedCompression,
    RecordTooLarge, CorruptBatch; see the module for their order.
    """
    if size <= MAGIC_POSITION:
        raise InvalidRecord(f"{size} bytes hold no record batch")
    # Batches of the old formats are shorter than our header, so the magic comes first.
    if header.magic != MAGIC_V2:
        raise InvalidRecord(f"magic {header.magic}, only {MAGIC_V2} is accepted")
    if size < HEADER_BYTES:
        raise InvalidRecord(f"{size} bytes hold no whole record batch")
    length_bytes = header.length_bytes
    if length_bytes < HEADER_BYTES:
        raise CorruptBatch(f"the batch gives its length as {length_bytes} bytes")
    if length_bytes > size:
        raise InvalidRecord(f"batch announces {length_bytes} bytes, {size} came")
    if length_bytes < size:
        raise InvalidRecord(f"{size - length_bytes} bytes after the batch, only one may be sent")
    codec = header.attributes & CODEC_MASK
    if codec not in CODEC_NAMES:
        raise UnsupportedCompression(f"codec id {codec}")
    if codec == ZSTD and produce_version < PRODUCE_VERSION_OF_ZSTD:
        raise UnsupportedCompression(f"zstd in Produce version {produce_version}")
    if header.base_offset != 0:
        raise InvalidRecord(f"base offset {header.base_offset} instead of 0")
    if length_bytes > rules.max_message_bytes:
        raise RecordTooLarge(f"batch of {length_bytes} bytes, {rules.max_message_bytes} allowed")


def check_contents(
    header: BatchHeader,
    actual_crc: int,
    *,
    rules: TopicRules,
    now_ms: int,
    has_transactional_id: bool = False,
) -> None:
    """Check the CRC, and what the header says that only means something if the CRC is right.

    `actual_crc` is that of the batch's bytes from 21 on. `has_transactional_id`: whether the
    request names one, without which no batch may belong to a transaction. Raises: CorruptBatch,
    InvalidRecord, TransactionalIdMissing, InvalidTimestamp, RecordTooLarge.
    """
    if actual_crc != header.crc:
        raise CorruptBatch(
            f"batch carries CRC {header.crc:#010x}, its bytes have {actual_crc:#010x}"
        )
    attributes, record_count = header.attributes, header.record_count
    if record_count <= 0 or header.last_offset_delta + 1 != record_count:
        raise InvalidRecord(
            f"{record_count} records with a last offset delta of {header.last_offset_delta}"
        )
    if attributes & SPECIAL_BITS:
        if attributes & CONTROL_BIT:
            raise InvalidRecord("clients may not write control batches")
        if attributes & DELETE_HORIZON_BIT:
            raise InvalidRecord("clients may not set a delete horizon")
        if not has_transactional_id:
            raise TransactionalIdMissing("a transactional batch, and a request without the id")
        if header.producer_id < 0:
            raise InvalidRecord("a transactional batch without a producer id")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise InvalidRecord(
            f"base sequence {header.base_sequence} of producer id {header.producer_id}"
        )
    if attributes & TIMESTAMP_TYPE_BIT:
        raise InvalidTimestamp("clients may not set the timestamp type to LogAppendTime")
    if rules.timestamp_type == CREATE_TIME:
        earliest_ms = now_ms - rules.timestamp_before_max_ms
        latest_ms = now_ms + rules.timestamp_after_max_ms
        base_ms, max_ms = header.base_timestamp_ms, header.max_timestamp_ms
        if not (earliest_ms <= base_ms <= latest_ms and earliest_ms <= max_ms <= latest_ms):
            # One of them is refused, or says that there is none.
            _check_timestamp(base_ms, rules, now_ms)
            _check_timestamp(max_ms, rules, now_ms)
    records_bytes = header.length_bytes - HEADER_BYTES
    if record_count * RECORD_BYTES_MIN > records_bytes or record_count > RECORDS_PER_BATCH_MAX:
        _check_count(header)


def opens_records(rules: TopicRules) -> bool:
    """Whether batches of such a topic need `check_records`."""
    return rules.compacted or _bounds_age(rules)


def inflated_bytes_max(rules: TopicRules) -> int:
    """The bytes that a batch of such a topic may inflate to."""
    return min(rules.max_message_bytes * INFLATION_MAX, INFLATED_BYTES_CEILING)


def check_records(
    header: BatchHeader, data: Buffer, records: Inflated, *, rules: TopicRules, now_ms: int
) -> None:
    """Check the keys and timestamps of the batch `data`, inflated to `records`; for threads.

    Raises: CorruptBatch, InvalidTimestamp, KeysMissing.
    """
    # Imported here: NumPy and Arrow take longer to load than the rest of the broker, and most
    # brokers never open a batch.
    from wal.records.record_columns import LocatedBatch
    from wal.records.record_scan import OpenedBatch, inspect_records

    batch = LocatedBatch(data, 0, CREATE_TIME, NO_TIMESTAMP)
    facts = inspect_records(OpenedBatch(batch, header, records))
    if _bounds_age(rules):
        _check_timestamp(facts.timestamp_min_ms, rules, now_ms)
        _check_timestamp(facts.timestamp_max_ms, rules, now_ms)
    if rules.compacted and facts.null_key_count:
        raise KeysMissing(
            f"{facts.null_key_count} of {facts.record_count} records have no key, the topic is"
            " compacted",
            facts.null_key_positions,
        )


def _bounds_age(rules: TopicRules) -> bool:
    return rules.timestamp_type == CREATE_TIME and rules.timestamp_before_max_ms < UNBOUNDED_MS


def _check_timestamp(timestamp_ms: int, rules: TopicRules, now_ms: int) -> None:
    if timestamp_ms == NO_TIMESTAMP:
        return
    if timestamp_ms - now_ms > rules.timestamp_after_max_ms:
        raise InvalidTimestamp(f"timestamp {timestamp_ms} lies too far after now, {now_ms}")
    if now_ms - timestamp_ms > rules.timestamp_before_max_ms:
        raise InvalidTimestamp(f"timestamp {timestamp_ms} lies too far before now, {now_ms}")


def _check_count(header: BatchHeader) -> None:
    """Refuse a count that cannot be true, or is too large to open; looks at nothing but numbers.

    Not asked about a count that even records without a codec can have.
    """
    records_bytes = header.length_bytes - HEADER_BYTES
    if header.attributes & CODEC_MASK == NONE:
        count_max = records_bytes // RECORD_BYTES_MIN
    else:
        count_max = records_bytes * RECORDS_PER_COMPRESSED_BYTE_MAX
    if header.record_count > count_max:
        raise InvalidRecord(
            f"{header.record_count} records in {records_bytes} bytes of"
            f" {CODEC_NAMES[header.codec]} data"
        )
    if header.record_count > RECORDS_PER_BATCH_MAX:
        # Kafka's producers take this error as the advice to split the batch and send its parts.
        raise RecordTooLarge(
            f"batch of {header.record_count} records, {RECORDS_PER_BATCH_MAX} allowed"
        )
