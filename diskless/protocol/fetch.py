"""Fetch by hand: requests of many partitions read in one go, records written without a copy.

The response is a list of buffers for a vectored write: small ones made here, and between them the
record buffers exactly as they were handed in.

Versions 4-16: 5 adds log start offsets, 7 sessions, 9 the leader epoch, 11 racks, 12 is flexible,
13 names topics by id, 15 moves the replica id into a tagged field.
Source: FetchRequest.json, FetchResponse.json of Apache Kafka.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from diskless.ports import Buffer, FetchPartition
from diskless.protocol.wire import (
    EMPTY_TAGS,
    INT32,
    NO_UUID,
    Reader,
    array_count,
    string,
    unsigned_varint,
)

FLEXIBLE_FROM: Final = 12
TOPIC_IDS_FROM: Final = 13

INITIAL_SESSION_EPOCH: Final = 0
FINAL_SESSION_EPOCH: Final = -1

_LIMITS: Final = Struct(">iiib")  # max wait, min bytes, max bytes, isolation level
_SESSION: Final = Struct(">ii")  # session id, session epoch

# partition [, current leader epoch], offset [, last fetched epoch][, log start offset], max bytes
_ASKED_4: Final = Struct(">iqi")
_ASKED_5: Final = Struct(">iqqi")
_ASKED_9: Final = Struct(">iiqqi")
_ASKED_12: Final = Struct(">iiqiqi")
_ASKED_12_AND_TAGS: Final = Struct(">iiqiqiB")

# partition, error, high watermark, last stable offset [, log start offset], aborted transactions
# [, preferred read replica], length of records [, tags]
_ROW_4: Final = Struct(">ihqqii")
_ROW_5: Final = Struct(">ihqqqii")
_ROW_11: Final = Struct(">ihqqqiii")
_ROW_12: Final = Struct(">ihqqqBi")
_RESPONSE_START: Final = Struct(">ihi")  # throttle time [, error, session id]
_EMPTY_ROW_12: Final = Struct(">ihqqqBiBB")


class FetchRequest(NamedTuple):
    """`partitions` in the order of the request; `topics` says how they group."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation: int
    session_id: int
    session_epoch: int
    topics: list[tuple[str | UUID, int]]
    """Name or id, and how many of the partitions are its."""
    partitions: list[FetchPartition]
    rack: str


class FetchedRow(NamedTuple):
    """The answer for one partition; nothing here is transactional yet, so LSO = high watermark."""

    partition: int
    error_code: int
    high_watermark: int
    log_start_offset: int
    records: Sequence[Buffer]


def decode_request(version: int, body: bytes) -> FetchRequest:
    """Raises ProtocolError."""
    reader = Reader([body])
    flexible = version >= FLEXIBLE_FROM
    if version < 15:
        reader.int32()  # replica id: followers do not exist here
    max_wait_ms, min_bytes, max_bytes, isolation = reader.unpack(_LIMITS)
    session_id, session_epoch = 0, FINAL_SESSION_EPOCH
    if version >= 7:
        session_id, session_epoch = reader.unpack(_SESSION)
    topics: list[tuple[str | UUID, int]] = []
    partitions: list[FetchPartition] = []
    layout = _asked_layout(version)
    for _ in range(reader.array_count(flexible=flexible, item_bytes_min=2)):
        topic_id, name = _topic(reader, version)
        count = reader.array_count(flexible=flexible, item_bytes_min=layout.size + flexible)
        _read_partitions(reader, body, version, count, topic_id, name, partitions)
        if flexible:
            reader.skip_tags()
        topics.append((name if topic_id is None else topic_id, count))
    if version >= 7:
        _skip_forgotten(reader, version)
    rack = reader.string(flexible=flexible) if version >= 11 else ""
    if flexible:
        reader.skip_tags()
    return FetchRequest(
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation,
        session_id,
        session_epoch,
        topics,
        partitions,
        rack,
    )


def _asked_layout(version: int) -> Struct:
    if version >= 12:
        return _ASKED_12
    if version >= 9:
        return _ASKED_9
    return _ASKED_5 if version >= 5 else _ASKED_4


def _topic(reader: Reader, version: int) -> tuple[UUID | None, str]:
    if version >= TOPIC_IDS_FROM:
        return reader.uuid() or NO_UUID, ""
    return None, reader.string(flexible=version >= FLEXIBLE_FROM)


def _read_partitions(
    reader: Reader,
    body: bytes,
    version: int,
    count: int,
    topic_id: UUID | None,
    name: str,
    out: list[FetchPartition],
) -> None:
    """Append the rows of one topic; `count` was checked to fit into what is left."""
    if version >= 12:
        # Rows are of equal size as long as no tagged field follows any of them, which is so with
        # every client we know: then one call reads them all.
        start = reader.position
        whole = body[start : start + count * _ASKED_12_AND_TAGS.size]
        rows = list(_ASKED_12_AND_TAGS.iter_unpack(whole))
        if any(row[6] for row in rows):
            rows = []
            for _ in range(count):
                rows.append((*reader.unpack(_ASKED_12), 0))
                reader.skip_tags()
        else:
            reader.skip(len(whole))
        out += [
            FetchPartition(topic_id, name, partition, offset, max_bytes, epoch)
            for partition, epoch, offset, _, _, max_bytes, _ in rows
        ]
        return
    for _ in range(count):
        if version >= 9:
            partition, epoch, offset, _, max_bytes = reader.unpack(_ASKED_9)
        elif version >= 5:
            partition, offset, _, max_bytes = reader.unpack(_ASKED_5)
            epoch = -1
        else:
            partition, offset, max_bytes = reader.unpack(_ASKED_4)
            epoch = -1
        out.append(FetchPartition(topic_id, name, partition, offset, max_bytes, epoch))


def _skip_forgotten(reader: Reader, version: int) -> None:
    """Partitions to drop from a session: there are no sessions."""
    flexible = version >= FLEXIBLE_FROM
    for _ in range(reader.array_count(flexible=flexible, item_bytes_min=2)):
        _topic(reader, version)
        reader.skip(reader.array_count(flexible=flexible, item_bytes_min=4) * INT32.size)
        if flexible:
            reader.skip_tags()


def encode_response(
    version: int,
    topics: Sequence[tuple[str | UUID, int]],
    rows: Sequence[FetchedRow],
    *,
    error_code: int = 0,
    read_committed: bool = False,
) -> list[Buffer]:
    """The body of a response as buffers to be written back to back.

    `topics` as in the request, `rows` by position of its partitions. The session id is always 0,
    which tells clients to send full requests.
    """
    flexible = version >= FLEXIBLE_FROM
    out: list[Buffer] = []
    start = _RESPONSE_START.pack(0, error_code, 0)
    pending = [start if version >= 7 else start[: INT32.size]]
    pending.append(array_count(len(topics), flexible=flexible))
    position = 0
    for topic, count in topics:
        pending.append(topic.bytes if isinstance(topic, UUID) else string(topic, flexible=flexible))
        pending.append(array_count(count, flexible=flexible))
        mine = rows[position : position + count]
        if flexible:
            pending = _append_compact_rows(mine, 1 if read_committed else 0, pending, out)
            pending.append(EMPTY_TAGS)
        else:
            pending = _append_rows(version, mine, 0 if read_committed else -1, pending, out)
        position += count
    if flexible:
        pending.append(EMPTY_TAGS)
    if pending:
        out.append(b"".join(pending))
    return out


def _append_compact_rows(
    rows: Sequence[FetchedRow], aborted: int, pending: list[bytes], out: list[Buffer]
) -> list[bytes]:
    """Flexible rows. `pending` collects small pieces until records come between; returns it."""
    pack_empty = _EMPTY_ROW_12.pack
    for partition, error_code, high_watermark, log_start_offset, records in rows:
        if not records:
            pending.append(
                pack_empty(
                    partition,
                    error_code,
                    high_watermark,
                    high_watermark,
                    log_start_offset,
                    aborted,
                    -1,
                    1,
                    0,
                )
            )
            continue
        pending.append(
            _ROW_12.pack(
                partition,
                error_code,
                high_watermark,
                high_watermark,
                log_start_offset,
                aborted,
                -1,
            )
        )
        pending.append(unsigned_varint(sum(map(len, records)) + 1))
        out.append(b"".join(pending))
        out += records
        pending = [EMPTY_TAGS]
    return pending


def _append_rows(
    version: int, rows: Sequence[FetchedRow], aborted: int, pending: list[bytes], out: list[Buffer]
) -> list[bytes]:
    """As `_append_compact_rows`, for the versions before 12."""
    for partition, error_code, high_watermark, log_start_offset, records in rows:
        length = sum(map(len, records)) if records else 0
        start = (partition, error_code, high_watermark, high_watermark)
        if version >= 11:
            pending.append(_ROW_11.pack(*start, log_start_offset, aborted, -1, length))
        elif version >= 5:
            pending.append(_ROW_5.pack(*start, log_start_offset, aborted, length))
        else:
            pending.append(_ROW_4.pack(*start, aborted, length))
        if length:
            out.append(b"".join(pending))
            out += records
            pending = []
    return pending
