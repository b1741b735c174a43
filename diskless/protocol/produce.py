"""Produce by hand: reads a request where it lies in the received frame and copies no records.

A Produce frame may be 100 MiB of records and some bytes of structure. The decoder reads the
structure where it lies, in whatever fragments the socket delivered, and makes a row of each batch
(diskless/protocol/batch_scan.py), which says where in the frame it is.

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

import numpy as np

from diskless.loop.long_work import Steps
from diskless.ports import ProducedBatches, ProducedTopic
from diskless.protocol.batch_scan import SCANNED, scan_partitions
from diskless.protocol.wire import Reader, array_count, nullable_string, string
from metadata.batch_commits import BatchCommits
from wal.chunks.buffer import ChainCutter, FragmentChain
from wal.columns import Int64s, row_type
from wal.records.batch_preparation import SUMMED_AT_ONCE_BYTES
from wal.wire.fields import INT32, NO_TAGS, NO_UUID

PARTITIONS_AT_ONCE: Final = 64
"""Decoded between two yields, or encoded where it is done one by one: a quarter of a millisecond.
"""

FLEXIBLE_FROM: Final = 9
TOPIC_IDS_FROM: Final = 13

_ACKS_AND_TIMEOUT: Final = Struct(">hi")

# partition, error, base offset, log append time [, log start offset]
_ROW_3: Final = Struct(">ihqq")
_ROW_5: Final = Struct(">ihqqq")
_NO_MESSAGE_8: Final = b"\0\0\0\0\xff\xff"
"""No record errors and a null text, behind a row from version 8 on."""
_NO_MESSAGE_9: Final = b"\1\0" + NO_TAGS


class ProduceRequest(NamedTuple):
    """A request, but for what its header says."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    batches: ProducedBatches


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
    """Read a request from where `reader` stands in `frame`, which the caller goes on to own.

    Raises ProtocolError.
    """
    flexible = version >= FLEXIBLE_FROM
    cutter = ChainCutter(frame)
    topics: list[ProducedTopic] = []
    rows: list[bytes] = []
    left = PARTITIONS_AT_ONCE
    transactional_id = reader.nullable_string(flexible=flexible)
    acks, timeout_ms = reader.unpack(_ACKS_AND_TIMEOUT)
    for _ in range(reader.array_count(flexible=flexible, item_bytes_min=2)):
        named: str | UUID
        if version >= TOPIC_IDS_FROM:
            named = reader.topic_id() or NO_UUID
        else:
            named = reader.string(flexible=flexible)
        count = missing = reader.array_count(flexible=flexible, item_bytes_min=5)
        topics.append(ProducedTopic(named, count))
        left -= 1
        while True:
            if left <= 0:
                yield
                left = PARTITIONS_AT_ONCE
            if not missing:
                break
            some = scan_partitions(
                cutter,
                reader,
                min(missing, left),
                flexible=flexible,
                summed_bytes_max=SUMMED_AT_ONCE_BYTES,
            )
            rows.append(some)
            scanned = len(some) // SCANNED.size
            # Fewer than asked for: their checksums took the time of more.
            left = left - scanned if scanned == min(missing, left) else 0
            missing -= scanned
        if flexible:
            reader.skip_tags()
    if flexible:
        reader.skip_tags()
    batches = ProducedBatches(topics, rows[0] if len(rows) == 1 else b"".join(rows), frame)
    return ProduceRequest(transactional_id, acks, timeout_ms, batches)


def encode_response(
    version: int,
    topics: Sequence[ProducedTopic],
    rows: "Iterable[bytes] | EqualRows",
    *,
    throttle_ms: int = 0,
) -> Steps[bytes]:
    """The body of a response; `topics` as in the request, `rows` by position of its batches.

    `rows` are encoded, and taken as they are needed.
    """
    flexible = version >= FLEXIBLE_FROM
    out = [array_count(len(topics), flexible=flexible)]
    left = PARTITIONS_AT_ONCE
    next_rows = iter(()) if isinstance(rows, EqualRows) else iter(rows)
    first = 0
    for name, count in topics:
        out.append(name.bytes if isinstance(name, UUID) else string(name, flexible=flexible))
        out.append(array_count(count, flexible=flexible))
        if isinstance(rows, EqualRows):
            out.append(rows.between(first, first + count))
            first += count
            count = 0
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


class EqualRows(NamedTuple):
    """Rows of one length, back to back."""

    data: bytes
    row_bytes: int

    def between(self, start: int, end: int) -> bytes:
        return self.data[start * self.row_bytes : end * self.row_bytes]


def appended_rows(version: int, partitions: Int64s, commits: BatchCommits) -> EqualRows:
    """The rows of batches that were all appended, as `encode_row` makes each."""
    kind = _row_type(version)
    rows = np.zeros(len(commits), kind)
    rows["partition"] = partitions
    rows["base_offset"] = commits.base_offset
    rows["log_append_time_ms"] = commits.log_append_time_ms
    if version >= 5:
        rows["log_start_offset"] = commits.log_start_offset
        end = _no_message(version)
        if end:
            rows["end"] = np.void(end)
    return EqualRows(rows.tobytes(), kind.itemsize)


@cache
def _row_type(version: int) -> np.dtype[np.void]:
    names = "partition error base_offset log_append_time_ms"
    if version < 5:
        return row_type(_ROW_3, names)
    end = _no_message(version)
    if not end:
        return row_type(_ROW_5, f"{names} log_start_offset")
    return row_type(Struct(f"{_ROW_5.format}{len(end)}s"), f"{names} log_start_offset end")


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
