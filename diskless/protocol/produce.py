"""Produce by hand: cuts a request into shared slices of the received frame and copies nothing.

A Produce frame may be 100 MiB of records and some bytes of structure. The decoder reads the
structure where it lies, in whatever fragments the socket delivered, and gives out each partition's
records as a slice that shares those fragments.

Or it is nothing but structure, a hundred thousand partitions of it. So decoder and encoder are
steps (`diskless.loop.long_work`), which yield after every `PARTITIONS_AT_ONCE`.

Versions 3-13: 5 adds the log start offset to the answer, 8 the error messages, 9 is flexible, 13
names topics by id.
Source: ProduceRequest.json, ProduceResponse.json of Apache Kafka.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import islice
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from diskless.loop.long_work import Steps, done_at_once
from diskless.ports import AppendBatch
from diskless.protocol.wire import ProtocolError, Reader, array_count, nullable_string, string
from wal.chunks.buffer import ChainCutter, FragmentChain
from wal.wire.fields import INT32, NO_TAGS, NO_UUID

PARTITIONS_AT_ONCE: Final = 64
"""Decoded or encoded between two yields: a quarter of a millisecond."""

FLEXIBLE_FROM: Final = 9
TOPIC_IDS_FROM: Final = 13

_ACKS_AND_TIMEOUT: Final = Struct(">hi")
_PARTITION_AND_LENGTH: Final = Struct(">ii")

# partition, error, base offset, log append time [, log start offset]
_ROW_3: Final = Struct(">ihqq")
_ROW_5: Final = Struct(">ihqqq")
_NO_MESSAGE_8: Final = b"\0\0\0\0\xff\xff"
"""No record errors and a null text, behind a row from version 8 on."""
_NO_MESSAGE_9: Final = b"\1\0" + NO_TAGS


class ProduceRequest(NamedTuple):
    """`batches` in the order of the request; `topics` says how they group."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[str | UUID, int]]
    """As the request names it, and how many of the batches are its."""
    batches: list[AppendBatch]


class ProducedRow(NamedTuple):
    """The answer for one partition."""

    partition: int
    error_code: int
    base_offset: int
    log_append_time_ms: int
    log_start_offset: int
    error_message: str | None = None
    refused_records: Sequence[int] = ()
    """Positions in the batch; only beside an error message."""


def decode_request(version: int, frame: FragmentChain, reader: Reader) -> Steps[ProduceRequest]:
    """Read a request from where `reader` stands in `frame`; the slices share its fragments.

    The caller owns the slices, and keeps owning `frame`. Raises ProtocolError, with all slices
    released; they are, too, when the steps are closed on the way.
    """
    flexible = version >= FLEXIBLE_FROM
    batches: list[AppendBatch] = []
    cutter = ChainCutter(frame)
    topic_id: UUID | None = None
    name = ""
    left = PARTITIONS_AT_ONCE
    try:
        transactional_id = reader.nullable_string(flexible=flexible)
        acks, timeout_ms = reader.unpack(_ACKS_AND_TIMEOUT)
        topics: list[tuple[str | UUID, int]] = []
        for _ in range(reader.array_count(flexible=flexible, item_bytes_min=2)):
            if version >= TOPIC_IDS_FROM:
                topic_id = reader.topic_id() or NO_UUID
            else:
                name = reader.string(flexible=flexible)
            count = reader.array_count(flexible=flexible, item_bytes_min=5)
            for _ in range(count):
                if not left:
                    yield
                    left = PARTITIONS_AT_ONCE
                left -= 1
                if flexible:
                    partition, length = reader.int32(), reader.uvarint() - 1
                else:
                    partition, length = reader.unpack(_PARTITION_AND_LENGTH)
                records = None
                if length >= 0:
                    records = cutter.share(reader.pass_over(length), length)
                elif length < -1:
                    raise ProtocolError(f"{length} bytes")
                # Half the time of a call of the NamedTuple.
                batches.append(tuple.__new__(AppendBatch, (topic_id, name, partition, records)))
                if flexible:
                    reader.skip_tags()
            if flexible:
                reader.skip_tags()
            topics.append((name if topic_id is None else topic_id, count))
            if not left:
                yield
                left = PARTITIONS_AT_ONCE
            left -= 1
        if flexible:
            reader.skip_tags()
    except (ProtocolError, GeneratorExit):
        done_at_once(release(batches))
        raise
    return ProduceRequest(transactional_id, acks, timeout_ms, topics, batches)


def release(batches: Sequence[AppendBatch]) -> Steps[None]:
    """Give back the slices of batches that will not be appended."""
    for position, batch in enumerate(batches):
        if position and position % PARTITIONS_AT_ONCE == 0:
            yield
        if batch.records is not None:
            batch.records.release()


def encode_response(
    version: int,
    topics: Sequence[tuple[str | UUID, int]],
    rows: Iterable[bytes],
    *,
    throttle_ms: int = 0,
) -> Steps[bytes]:
    """The body of a response; `topics` as in the request, `rows` by position of its batches.

    `rows` are encoded, and taken as they are needed.
    """
    flexible = version >= FLEXIBLE_FROM
    out = [array_count(len(topics), flexible=flexible)]
    left = PARTITIONS_AT_ONCE
    next_rows = iter(rows)
    for name, count in topics:
        out.append(name.bytes if isinstance(name, UUID) else string(name, flexible=flexible))
        out.append(array_count(count, flexible=flexible))
        while count:
            some = min(count, left)
            out += islice(next_rows, some)
            count -= some
            left -= some
            if not left:
                yield
                left = PARTITIONS_AT_ONCE
        if flexible:
            out.append(NO_TAGS)
        left -= 1
        if left <= 0:
            yield
            left = PARTITIONS_AT_ONCE
    out.append(INT32.pack(throttle_ms))
    if flexible:
        out.append(NO_TAGS)
    return b"".join(out)


@cache
def row_packer(version: int) -> Callable[[int, int, int, int], bytes]:
    """Returns what makes the row of an appended batch, as `encode_row` would in twice the time.

    Its arguments: partition, base offset, log append time, log start offset.
    """
    if version < 5:
        return lambda partition, base, time, start: _ROW_3.pack(partition, 0, base, time)
    end = _no_message(version)
    pack = _ROW_5.pack
    return lambda partition, base, time, start: pack(partition, 0, base, time, start) + end


def encode_row(version: int, row: ProducedRow) -> bytes:
    """Any row, as a version has it."""
    if version < 5:
        return _ROW_3.pack(*row[:4])
    if version < 8 or row.error_message is None:
        return _ROW_5.pack(*row[:5]) + _no_message(version)
    return _row_with_message(row, flexible=version >= FLEXIBLE_FROM)


def _no_message(version: int) -> bytes:
    if version >= FLEXIBLE_FROM:
        return _NO_MESSAGE_9
    return _NO_MESSAGE_8 if version >= 8 else b""


def _row_with_message(row: ProducedRow, *, flexible: bool) -> bytes:
    return (
        _ROW_5.pack(*row[:5])
        + _record_errors(row.refused_records, flexible=flexible)
        + nullable_string(row.error_message, flexible=flexible)
        + (NO_TAGS if flexible else b"")
    )


def _record_errors(positions: Sequence[int], *, flexible: bool) -> bytes:
    """BatchIndexAndErrorMessage of each, with no message: that of the batch says it."""
    rest = nullable_string(None, flexible=flexible) + (NO_TAGS if flexible else b"")
    return array_count(len(positions), flexible=flexible) + b"".join(
        INT32.pack(position) + rest for position in positions
    )
