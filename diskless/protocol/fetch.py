"""Fetch by hand: reads requests of many partitions in one go, writes records without a copy.

Rows of a request have one size, and so do rows of a response without records; both are read and
written by NumPy, all of them at once. The response is a list of buffers for a vectored write: those
made here, and between them the record buffers exactly as they were handed in.

Versions 4-18: 5 adds log start offsets, 7 sessions, 9 the leader epoch, 11 racks, 12 is flexible,
13 names topics by id, 15 moves the replica id into a tagged field; 17 and 18 add tagged fields that
only followers send.
Source: FetchRequest.json, FetchResponse.json of Apache Kafka.
"""

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

import numpy as np
import numpy.typing as npt

from diskless.fetch.fetch_rows import FetchAnswer, FetchRows, FetchTopic
from diskless.fetch.fetch_sessions import FINAL_EPOCH, NO_SESSION, SessionRequest
from diskless.loop.long_rows import as_list
from diskless.loop.long_work import Steps, done_at_once
from diskless.ports import Buffer
from diskless.protocol.wire import Reader, array_count, string
from metadata.operations import AbortedTransaction
from wal.columns import Int64s
from wal.wire.fields import INT32, NO_TAGS, NO_UUID, UUID_BYTES, uvarint

FLEXIBLE_FROM: Final = 12
TOPIC_IDS_FROM: Final = 13

_LIMITS: Final = Struct(">iiib")  # max wait, min bytes, max bytes, isolation level
_SESSION: Final = Struct(">ii")  # session id, session epoch

_TOPICS_CACHED_MAX: Final = 10_000
"""Topics whose bytes need not be made anew with each poll."""

_PIECES_JOINED: Final = 2_000
"""A long answer is joined on the way."""

_TOPICS_AT_ONCE: Final = 128
"""Topics read between two yields. They take less than a millisecond; a yield costs far less."""

_ASKED_4: Final = (("partition", ">i4"), ("offset", ">i8"), ("max_bytes", ">i4"))
_ASKED_5: Final = (*_ASKED_4[:2], ("log_start_offset", ">i8"), _ASKED_4[2])
_ASKED_9: Final = (_ASKED_4[0], ("leader_epoch", ">i4"), *_ASKED_5[1:])
_ASKED_12: Final = (*_ASKED_9[:3], ("last_fetched_epoch", ">i4"), *_ASKED_9[3:])
_TAG_COUNT: Final = ("tags", "u1")

_ROW_4: Final = (
    ("partition", ">i4"),
    ("error", ">i2"),
    ("high_watermark", ">i8"),
    ("last_stable_offset", ">i8"),
    ("aborted", ">i4"),
    ("length", ">i4"),
)
_ROW_5: Final = (*_ROW_4[:4], ("log_start_offset", ">i8"), *_ROW_4[4:])
_ROW_11: Final = (*_ROW_5[:6], ("preferred_read_replica", ">i4"), _ROW_5[6])
_ROW_12: Final = (
    *_ROW_5[:5],
    ("aborted", "u1"),
    ("preferred_read_replica", ">i4"),
    ("length", "u1"),
    _TAG_COUNT,
)

_ABORTED: Final = Struct(">qq")  # producer id, first offset

_RESPONSE_START: Final = Struct(">ihi")  # throttle time [, error, session id]


class Layout(NamedTuple):
    """Rows of one version."""

    asked: np.dtype[np.void]
    """Of a request; with an empty section of tagged fields in flexible versions."""
    answered: np.dtype[np.void]
    """Of a response, without records."""


def _layout(version: int) -> Layout:
    if version >= FLEXIBLE_FROM:
        return Layout(np.dtype([*_ASKED_12, _TAG_COUNT]), np.dtype([*_ROW_12]))
    if version >= 11:
        return Layout(np.dtype([*_ASKED_9]), np.dtype([*_ROW_11]))
    if version >= 9:
        return Layout(np.dtype([*_ASKED_9]), np.dtype([*_ROW_5]))
    if version >= 5:
        return Layout(np.dtype([*_ASKED_5]), np.dtype([*_ROW_5]))
    return Layout(np.dtype([*_ASKED_4]), np.dtype([*_ROW_4]))


VERSIONS: Final = range(4, 19)
_LAYOUTS: Final = {version: _layout(version) for version in VERSIONS}
assert [_LAYOUTS[version].asked.itemsize for version in (4, 5, 9, 12)] == [16, 24, 28, 33]
assert [_LAYOUTS[version].answered.itemsize for version in (4, 5, 11, 12)] == [30, 38, 42, 37]


class FetchRequest(NamedTuple):
    """What is read, how much of it, and for how long it may wait."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation: int
    session: SessionRequest
    rack: str


def decode_request(version: int, body: bytes) -> Steps[FetchRequest]:
    """Decodes a request, in steps of some topics each. Raises ProtocolError."""
    reader = Reader([body])
    flexible = version >= FLEXIBLE_FROM
    if version < 15:
        reader.int32()  # replica id: followers do not exist here
    max_wait_ms, min_bytes, max_bytes, isolation = reader.unpack(_LIMITS)
    session_id, session_epoch = NO_SESSION, FINAL_EPOCH
    if version >= 7:
        session_id, session_epoch = reader.unpack(_SESSION)
    topics, rows = yield from _asked(reader, body, version)
    forgotten = (yield from _forgotten(reader, version)) if version >= 7 else ()
    rack = reader.string(flexible=flexible) if version >= 11 else ""
    if flexible:
        reader.skip_tags()
    session = SessionRequest(
        session_id,
        session_epoch,
        version >= TOPIC_IDS_FROM,
        topics,
        _columns(topics, rows, has_epochs=version >= 9),
        forgotten,
    )
    return FetchRequest(max_wait_ms, min_bytes, max_bytes, isolation, session, rack)


def _columns(
    topics: Sequence[tuple[FetchTopic, int]],
    rows: npt.NDArray[np.void],
    *,
    has_epochs: bool,
) -> FetchRows:
    if has_epochs:
        leader_epochs = rows["leader_epoch"].astype(np.int64)
    else:
        leader_epochs = np.full(len(rows), -1, np.int64)
    return FetchRows(
        as_list([topic for topic, _ in topics]),
        np.repeat(np.arange(len(topics)), [count for _, count in topics]),
        rows["partition"].astype(np.int64),
        rows["offset"].astype(np.int64),
        rows["max_bytes"].astype(np.int64),
        leader_epochs,
    )


def _asked(
    reader: Reader, body: bytes, version: int
) -> Steps[tuple[list[tuple[FetchTopic, int]], npt.NDArray[np.void]]]:
    """The topics with how many rows each has, and all rows."""
    flexible = version >= FLEXIBLE_FROM
    layout = _LAYOUTS[version].asked
    topic_count = reader.array_count(flexible=flexible, item_bytes_min=2)
    if version >= TOPIC_IDS_FROM:
        plain = yield from _plain_topics(body, reader.consumed, topic_count)
        if plain is not None:
            reader.count_items(len(plain.rows))
            reader.pass_over(plain.end - reader.consumed)
            return plain.topics, plain.rows
    topics: list[tuple[FetchTopic, int]] = []
    rows: list[bytes] = []
    for number in range(topic_count):
        topic = _topic(reader, version)
        count = reader.array_count(flexible=flexible, item_bytes_min=layout.itemsize)
        rows.append((yield from _rows(reader, body, layout, count)))
        if number % _TOPICS_AT_ONCE == 0:
            yield
        if flexible:
            reader.skip_tags()
        topics.append((topic, count))
    rows = as_list(rows)
    return as_list(topics), np.frombuffer(b"".join(rows), layout)


class _PlainTopics(NamedTuple):
    topics: list[tuple[FetchTopic, int]]
    rows: npt.NDArray[np.void]
    end: int
    """Where in the body they end."""


def _plain_topics(body: bytes, position: int, count: int) -> Steps[_PlainTopics | None]:
    """Topics by id without any tagged fields, as every client sends them; None: look closer.

    A consumer of 1,000 topics names them all in each poll, and a `Reader` takes ten times as long.
    """
    topics: list[tuple[FetchTopic, int]] = []
    rows: list[bytes] = []
    layout = _LAYOUTS[TOPIC_IDS_FROM].asked
    size, last = layout.itemsize, len(body) - 1
    for number in range(count):
        if number % _TOPICS_AT_ONCE == 0:
            yield
        named = position + UUID_BYTES
        if named >= last:
            return None
        start = named + 1
        row_count = body[named]
        if row_count >= 0x80:
            row_count += (body[start] - 1) << 7
            if body[start] >= 0x80:
                return None
            start += 1
        end = start + (row_count - 1) * size
        if not start <= end <= last or body[end]:
            return None
        topics.append((_by_id(body[position:named]), row_count - 1))
        rows.append(body[start:end])
        position = end + 1
    found = np.frombuffer(b"".join(rows), layout)
    return None if found["tags"].any() else _PlainTopics(topics, found, position)


@lru_cache(_TOPICS_CACHED_MAX)
def _by_id(topic_id: bytes) -> FetchTopic:
    return FetchTopic(UUID(bytes=topic_id), "")


def _topic(reader: Reader, version: int) -> FetchTopic:
    if version >= TOPIC_IDS_FROM:
        return FetchTopic(reader.topic_id() or NO_UUID, "")
    return FetchTopic(None, reader.string(flexible=version >= FLEXIBLE_FROM))


def _rows(reader: Reader, body: bytes, layout: np.dtype[np.void], count: int) -> Steps[bytes]:
    """The rows of one topic back to back; `count` was checked to fit into what is left."""
    start = reader.consumed
    rows = body[start : start + count * layout.itemsize]
    if "tags" not in (layout.names or ()) or not np.frombuffer(rows, layout)["tags"].any():
        reader.pass_over(len(rows))
        return rows
    # Rows of consumers have no tagged fields, with every client we know; here they are dropped.
    size = layout.itemsize - len(NO_TAGS)
    parts = []
    for _ in range(count):
        parts += [bytes(reader.take(size)), NO_TAGS]
        reader.skip_tags()
        yield
    return b"".join(parts)


def _forgotten(reader: Reader, version: int) -> Steps[Sequence[tuple[FetchTopic, Int64s]]]:
    flexible = version >= FLEXIBLE_FROM
    forgotten = []
    for number in range(reader.array_count(flexible=flexible, item_bytes_min=2)):
        topic = _topic(reader, version)
        count = reader.array_count(flexible=flexible, item_bytes_min=INT32.size)
        partitions = np.frombuffer(reader.take(count * INT32.size), ">i4").astype(np.int64)
        if number % _TOPICS_AT_ONCE == 0:
            yield
        if flexible:
            reader.skip_tags()
        forgotten.append((topic, partitions))
    return forgotten


def encode_response(
    version: int,
    topics: Sequence[tuple[FetchTopic, int]],
    partitions: Int64s,
    answer: FetchAnswer,
    error_codes: Int64s,
    *,
    error_code: int = 0,
    session_id: int = NO_SESSION,
    read_committed: bool = False,
) -> Steps[list[Buffer]]:
    """The body of a response as buffers to be written back to back, in steps of some topics each.

    `topics` says how the rows of the columns group. Rows with an error have no offsets. Aborted
    transactions are told to readers of committed records alone.
    """
    flexible = version >= FLEXIBLE_FROM
    rows = _answered_rows(version, partitions, answer, error_codes, read_committed)
    data = memoryview(rows.tobytes())
    # What follows the length of the records, which is replaced where there are any.
    size = rows.itemsize
    tail = size - (2 if flexible else INT32.size)
    fields = rows.dtype.fields
    assert fields is not None
    aborted_at = int(fields["aborted"][1])
    aborted_end = aborted_at + (1 if flexible else INT32.size)
    with_records = iter([*answer.records.items(), (len(rows), ())])
    next_row, records = next(with_records)

    out: list[Buffer] = []
    start = _RESPONSE_START.pack(0, error_code, session_id)
    pending: list[Buffer] = [start if version >= 7 else start[: INT32.size]]
    pending.append(array_count(len(topics), flexible=flexible))
    row = 0
    for number, (topic, count) in enumerate(topics):
        if number % _TOPICS_AT_ONCE == 0:
            if len(pending) > _PIECES_JOINED:
                out.append(b"".join(pending))
                pending = []
            yield
        pending.append(_named(topic, count, flexible))
        end = row + count
        while next_row < end:
            position, start_of_row = row * size, next_row * size
            if next_row in answer.aborted:
                pending.append(data[position : start_of_row + aborted_at])
                pending.append(_aborted(answer.aborted[next_row], flexible))
                position = start_of_row + aborted_end
            pending.append(data[position : start_of_row + tail])
            length = sum(map(len, records))
            pending.append(uvarint(length + 1) if flexible else INT32.pack(length))
            out.append(b"".join(pending))
            out += records
            pending = [NO_TAGS] if flexible else []
            row = next_row + 1
            next_row, records = next(with_records)
        pending.append(data[row * size : end * size])
        row = end
        if flexible:
            pending.append(NO_TAGS)
    if flexible:
        pending.append(NO_TAGS)
    if any(map(len, pending)):
        out.append(b"".join(pending))
    return out


def _aborted(transactions: Sequence[AbortedTransaction], flexible: bool) -> bytes:
    """The array that readers of committed records leave out batches by."""
    tags = NO_TAGS if flexible else b""
    rows = [_ABORTED.pack(one.producer_id, one.first_offset) + tags for one in transactions]
    return array_count(len(rows), flexible=flexible) + b"".join(rows)


@lru_cache(_TOPICS_CACHED_MAX)
def _named(topic: FetchTopic, count: int, flexible: bool) -> bytes:
    """A topic, and how many rows follow."""
    if topic.topic_id is not None:
        name = topic.topic_id.bytes
    else:
        name = string(topic.name, flexible=flexible)
    return name + array_count(count, flexible=flexible)


def encode_refusal(version: int, error_code: int) -> list[Buffer]:
    """A response that says nothing but what is wrong with the request as a whole."""
    nothing = np.zeros(0, np.int64)
    answer = FetchAnswer(nothing, nothing, {}, {}, last_stable_offsets=nothing)
    return done_at_once(
        encode_response(version, [], nothing, answer, nothing, error_code=error_code)
    )


def _answered_rows(
    version: int,
    partitions: Int64s,
    answer: FetchAnswer,
    error_codes: Int64s,
    read_committed: bool,
) -> npt.NDArray[np.void]:
    """The rows of a response as if none had records."""
    flexible = version >= FLEXIBLE_FROM
    layout = _LAYOUTS[version].answered
    names = layout.names or ()
    rows = np.zeros(len(partitions), layout)
    rows["partition"] = partitions
    high_watermarks, log_start_offsets = answer.high_watermarks, answer.log_start_offsets
    last_stable_offsets = answer.last_stable_offsets
    if answer.errors:
        rows["error"] = error_codes
        high_watermarks = np.where(error_codes, -1, high_watermarks)
        last_stable_offsets = np.where(error_codes, -1, last_stable_offsets)
        log_start_offsets = np.where(error_codes, -1, log_start_offsets)
    rows["high_watermark"] = high_watermarks
    rows["last_stable_offset"] = last_stable_offsets
    if "log_start_offset" in names:
        rows["log_start_offset"] = log_start_offsets
    # As if no transaction were aborted: an empty array where somebody asked for them, else null.
    rows["aborted"] = (1 if read_committed else 0) if flexible else (0 if read_committed else -1)
    if "preferred_read_replica" in names:
        rows["preferred_read_replica"] = -1
        rows["preferred_read_replica"][[*answer.readers]] = [*answer.readers.values()]
    rows["length"] = 1 if flexible else 0
    return rows
