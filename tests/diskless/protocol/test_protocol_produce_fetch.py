"""The hand-written Produce and Fetch codecs, held to kio's, whole and cut, and to bad bytes."""

import io
import random
import struct
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from diskless.fetch.fetch_rows import FetchAnswer, FetchTopic
from diskless.loop.long_work import done_at_once
from diskless.ports import FetchPartition, FetchResult
from diskless.protocol import batch_scan, fetch, produce
from diskless.protocol.batch_scan import scanned_batches
from diskless.protocol.wire import ITEMS_MAX, ProtocolError, Reader
from metadata.batch_commits import BatchCommits
from metadata.operations import AbortedTransaction, BatchCommit
from tests.support.profiles import examples
from tests.support.samples.kio_entities import entities, promoted, smallest
from wal.chunks.buffer import BufferPool, ChainCutter, FragmentChain
from wal.crc import crc32c
from wal.errors import DisklessError
from wal.records.record_batch import unchecked_header
from wal.wire.fields import NO_UUID, uvarint

PRODUCE_VERSIONS = range(3, 14)
FETCH_VERSIONS = range(4, 19)

few_examples = examples(0.25)


def _written(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def _chain(pool: BufferPool, data: bytes, piece_bytes: int) -> FragmentChain:
    """`data` in fragments that each hold `piece_bytes` of it."""
    fragments, views = [], []
    for start in range(0, len(data), piece_bytes):
        piece = data[start : start + piece_bytes]
        fragment = pool.get(len(piece))
        fragment.view[: len(piece)] = piece
        fragments.append(fragment)
        views.append(fragment.view[: len(piece)])
    return FragmentChain(fragments, views, sum(map(len, views)))


def _topic_of(topic: Any, version: int) -> str | UUID:
    return (topic.topic_id or NO_UUID) if version >= 13 else topic.name


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@few_examples
@given(data=st.data())
def test_a_produce_request_is_cut_into_slices_of_its_fragments(version, data):
    entity = data.draw(entities(load_request_schema(0, version)))
    trailing = data.draw(st.binary(max_size=3))
    pool = BufferPool(1 << 20)
    frame = _chain(pool, _written(entity) + trailing, data.draw(st.integers(1, 400)))
    before = pool.statistics()
    asked = done_at_once(produce.decode_request(version, frame, Reader(frame.views())))
    assert pool.statistics() == before, "nothing may be allocated for a request's records"

    assert asked.transactional_id == entity.transactional_id
    assert asked.acks == entity.acks
    assert asked.timeout_ms == entity.timeout // timedelta(milliseconds=1)
    assert asked.batches.topics == [
        (_topic_of(topic, version), len(topic.partition_data)) for topic in entity.topic_data
    ]
    expected = [
        (_topic_of(topic, version), part.index, part.records)
        for topic in entity.topic_data
        for part in topic.partition_data
    ]
    assert _found(asked.batches) == expected
    frame.release()
    assert pool.statistics().in_use_bytes == 0


def _found(batches):
    """(topic, partition, bytes) of each; whose checksums and headers are looked at, too."""
    named = [topic.named for topic in batches.topics for _ in range(topic.batch_count)]
    found = []
    cutter = ChainCutter(batches.frame)
    for name, batch in zip(named, scanned_batches(batches.rows), strict=True):
        records = None
        if batch.size >= 0:
            records = b"".join(cutter.parts(batch.position, batch.size))
            assert batch.is_summed == (batch.size > 0)
            assert batch.actual_crc == crc32c(records[21:])
            assert batch.header == unchecked_header([records])
        found.append((name, batch.partition, records))
    return found


@few_examples
@given(data=st.data())
def test_a_produce_request_of_the_future_is_read_without_its_new_fields(data):
    entity = data.draw(entities(load_request_schema(0, 9)))
    pool = BufferPool(1 << 20)
    frame = _chain(pool, _written(promoted(entity)), 64)
    asked = done_at_once(produce.decode_request(9, frame, Reader(frame.views())))
    assert [name for name, _, _ in _found(asked.batches)] == [
        topic.name for topic in entity.topic_data for _ in topic.partition_data
    ]


def test_very_many_partitions_are_decoded_and_encoded_in_slices():
    count = 10 * produce.PARTITIONS_AT_ONCE
    partition = struct.pack(">ii", 3, 5) + b"batch"
    body = struct.pack(">hhi", -1, 1, 30_000)
    body += struct.pack(">ih1si", 1, 1, b"t", count) + partition * count
    pool = BufferPool(1 << 20)
    frame = _chain(pool, body, 1000)
    steps = produce.decode_request(3, frame, Reader(frame.views()))
    for _ in range(9):
        next(steps)
    steps.close()  # the client is gone: nothing is left of it
    asked = done_at_once(produce.decode_request(3, frame, Reader(frame.views())))
    assert [records for _, _, records in _found(asked.batches)] == [b"batch"] * count
    frame.release()
    assert pool.statistics().in_use_bytes == 0

    rows = [*map(produce.row_packer(3), [3] * count, range(count), [-1] * count, [0] * count)]
    steps = produce.encode_response(3, asked.batches.topics, rows)
    for _ in range(9):
        next(steps)
    whole = done_at_once(produce.encode_response(3, asked.batches.topics, rows))
    assert done_at_once(steps) == whole


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_a_produce_request_cut_anywhere_is_an_error(version):
    schema = load_request_schema(0, version)
    body = _written(promoted(smallest(schema)) if version >= 9 else smallest(schema))
    pool = BufferPool(1 << 20)
    for end in range(len(body)):
        frame = _chain(pool, body[:end], 7)
        with pytest.raises(ProtocolError):
            done_at_once(produce.decode_request(version, frame, Reader(frame.views())))
        frame.release()
    assert pool.statistics().in_use_bytes == 0


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@few_examples
@given(data=st.data())
def test_a_produce_response_is_written_as_kio_reads_it(version, data):
    rows = data.draw(
        st.lists(
            st.builds(
                produce.ProducedRow,
                st.integers(0, 2**31 - 1),
                st.sampled_from([0, 2, 3, 56, 87, -1]),
                st.integers(-1, 2**63 - 1),
                st.sampled_from([-1, 1_700_000_000_123]),
                st.integers(-1, 2**63 - 1),
                st.none() | st.text(max_size=300),
                st.just(()),
            ),
            max_size=6,
        )
    )
    rows = [
        row._replace(refused_records=data.draw(st.lists(st.integers(0, 2**31 - 1), max_size=3)))
        if row.error_message is not None
        else row
        for row in rows
    ]
    cut = data.draw(st.integers(0, len(rows)))
    names: tuple[str | UUID, str | UUID] = ("first", "second-ü")
    if version >= 13:
        names = (UUID(int=1), UUID(int=2**127))
    topics = list(zip(names, (cut, len(rows) - cut), strict=True))
    encoded = [produce.encode_row(version, row) for row in rows]
    body = done_at_once(produce.encode_response(version, topics, encoded))
    read, size = entity_reader(load_response_schema(0, version))(body, 0)
    assert size == len(body)
    assert read.throttle_time == timedelta(0)
    assert [
        (_topic_of(topic, version), len(topic.partition_responses)) for topic in read.responses
    ] == topics
    parts = [part for topic in read.responses for part in topic.partition_responses]
    for row, part in zip(rows, parts, strict=True):
        assert (part.index, part.error_code, part.base_offset) == row[:3]
        if row.log_append_time_ms == -1:
            assert part.log_append_time is None
        else:
            at = datetime.fromtimestamp(row.log_append_time_ms / 1000, UTC)
            assert abs(part.log_append_time - at) < timedelta(milliseconds=1)
        if version >= 5:
            assert part.log_start_offset == row.log_start_offset
        if version >= 8:
            assert [
                (error.batch_index, error.batch_index_error_message) for error in part.record_errors
            ] == [(position, None) for position in row.refused_records]
            assert part.error_message == row.error_message


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_the_row_of_an_appended_batch_is_packed_as_any_row_is(version):
    for fields in ((7, 5, -1, 3), (2**31 - 1, 2**63 - 1, 1_700_000_000_123, 0)):
        row = produce.ProducedRow(fields[0], 0, *fields[1:])
        assert produce.row_packer(version)(*fields) == produce.encode_row(version, row)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_the_rows_of_appended_batches_are_packed_as_each_of_them_is(version):
    pack = produce.row_packer(version)
    fields = [(7, 5, -1, 3), (2**31 - 1, 2**63 - 1, 1_700_000_000_123, 0), (0, 0, 1, 2)]
    partitions, *numbers = (np.array(column) for column in zip(*fields, strict=True))
    commits = BatchCommits(
        **dict(zip(BatchCommit._fields, numbers, strict=False)),
        is_duplicate=np.zeros(3, np.bool_),
        errors={},
    )
    topics = [("t", 1), ("empty", 0), ("u", 2)] if version < 13 else [(UUID(int=1), 3)]
    rows = produce.appended_rows(version, partitions, commits)
    body = done_at_once(produce.encode_response(version, topics, rows))
    one_by_one = done_at_once(
        produce.encode_response(version, topics, [pack(*each) for each in fields])
    )
    assert body == one_by_one


@pytest.mark.parametrize("version", [3, 9])
@few_examples
@given(sizes=st.lists(st.integers(-1, 300), max_size=40), piece_bytes=st.integers(1, 2000))
def test_rows_are_the_same_however_the_request_is_fragmented(version, sizes, piece_bytes):
    """Batches that lie whole in a fragment are read in another way than those that do not."""
    flexible = version >= produce.FLEXIBLE_FROM
    content = random.Random(len(sizes)).randbytes(300)
    parts = [uvarint(0)] if flexible else [struct.pack(">h", -1)]
    parts.append(struct.pack(">hi", -1, 30_000))
    parts += (uvarint(2), uvarint(2)) if flexible else (struct.pack(">ih", 1, 1),)
    parts.append(b"t")
    parts.append(uvarint(len(sizes) + 1) if flexible else struct.pack(">i", len(sizes)))
    for partition, size in enumerate(sizes):
        parts.append(struct.pack(">i", partition))
        parts.append(uvarint(size + 1) if flexible else struct.pack(">i", size))
        parts.append(content[: max(size, 0)])
        # A tag of the future behind each third one.
        parts.append((b"\1\7\1!" if partition % 3 == 2 else b"\0") if flexible else b"")
    body = b"".join(parts) + (b"\0\0" if flexible else b"")
    pool = BufferPool(1 << 20)
    whole, pieces = _chain(pool, body, 4096), _chain(pool, body, piece_bytes)
    asked = [
        done_at_once(produce.decode_request(version, frame, Reader(frame.views()))).batches
        for frame in (whole, pieces)
    ]
    assert asked[0].rows == asked[1].rows
    assert [(partition, records) for _, partition, records in _found(asked[1])] == [
        (partition, None if size < 0 else content[:size]) for partition, size in enumerate(sizes)
    ]


def test_a_request_of_much_to_be_summed_is_read_in_slices(monkeypatch):
    monkeypatch.setattr(batch_scan, "SUMMED_BYTES", 100)
    partition = struct.pack(">ii", 3, 60) + bytes(60)
    body = struct.pack(">hhi", -1, 1, 30_000)
    body += struct.pack(">ih1si", 1, 1, b"t", 5) + partition * 5
    pool = BufferPool(1 << 20)
    frame = _chain(pool, body, 1000)
    steps = produce.decode_request(3, frame, Reader(frame.views()))
    next(steps)
    next(steps)
    asked = done_at_once(steps)
    assert [partition for _, partition, _ in _found(asked.batches)] == [3] * 5
    frame.release()


def _asked(version: int, entity: Any) -> list[FetchPartition]:
    return [
        FetchPartition(
            (topic.topic_id or NO_UUID) if version >= 13 else None,
            "" if version >= 13 else topic.topic,
            part.partition,
            part.fetch_offset,
            part.partition_max_bytes,
            getattr(part, "current_leader_epoch", -1),
        )
        for topic in entity.topics
        for part in topic.partitions
    ]


def _fetch_topic(version: int, topic: Any) -> FetchTopic:
    if version >= 13:
        return FetchTopic(topic.topic_id or NO_UUID, "")
    return FetchTopic(None, topic.topic)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@few_examples
@given(data=st.data())
def test_a_fetch_request_is_read_as_kio_wrote_it(version, data):
    entity = data.draw(entities(load_request_schema(1, version)))
    from_the_future = version >= 12 and data.draw(st.booleans())
    body = _written(promoted(entity) if from_the_future else entity)
    asked = done_at_once(fetch.decode_request(version, body + data.draw(st.binary(max_size=3))))
    assert list(asked.session.rows) == _asked(version, entity)
    assert asked.session.topics == [
        (_fetch_topic(version, topic), len(topic.partitions)) for topic in entity.topics
    ]
    assert [(topic, gone.tolist()) for topic, gone in asked.session.forgotten] == [
        (_fetch_topic(version, topic), list(topic.partitions))
        for topic in getattr(entity, "forgotten_topics_data", ())
    ]
    assert asked.max_wait_ms == entity.max_wait // timedelta(milliseconds=1)
    assert (asked.min_bytes, asked.max_bytes) == (entity.min_bytes, entity.max_bytes)
    assert asked.isolation == entity.isolation_level
    assert asked.session.session_id == getattr(entity, "session_id", 0)
    assert asked.session.epoch == getattr(entity, "session_epoch", -1)
    assert asked.rack == getattr(entity, "rack_id", "")


def _many_rows(version: int, counts: list[int]) -> bytes:
    """A request for the first so many partitions of each of some topics."""
    schema = load_request_schema(1, version)
    kind = schema.__dataclass_fields__["topics"].type.__args__[0]
    part = kind.__dataclass_fields__["partitions"].type.__args__[0]
    topics = tuple(
        kind(
            **({"topic_id": UUID(int=number)} if version >= 13 else {"topic": f"t{number}"}),
            partitions=tuple(
                part(partition=index, fetch_offset=index * 3, partition_max_bytes=number)
                for index in range(count)
            ),
        )
        for number, count in enumerate(counts, 1)
    )
    return _written(replace(smallest(schema), topics=topics))


@pytest.mark.parametrize("version", [13, 18])
@pytest.mark.parametrize("count", [1, 126, 127, 128, 16_382, 16_383])
def test_a_fetch_request_of_many_partitions_is_read_whatever_their_number(version, count):
    asked = done_at_once(fetch.decode_request(version, _many_rows(version, [count, 0, 3])))
    expected = [
        (UUID(int=number), index, index * 3, number)
        for number, rows in ((1, count), (2, 0), (3, 3))
        for index in range(rows)
    ]
    assert [(row.topic_id, *row[2:5]) for row in asked.session.rows] == expected
    assert [count for _, count in asked.session.topics] == [count, 0, 3]


@pytest.mark.parametrize("version", [12, 18])
def test_a_fetch_of_many_topics_is_read_and_answered_in_steps(version):
    steps = fetch.decode_request(version, _many_rows(version, [1] * 1_000))
    assert sum(1 for _ in steps) >= 7
    topics = [(FetchTopic(UUID(int=number), ""), 1) for number in range(1_000)]
    answer = FetchAnswer.of([FetchResult(None, 0, 0)] * 1_000)
    nothing = np.zeros(1_000, np.int64)
    assert sum(1 for _ in fetch.encode_response(version, topics, nothing, answer, nothing)) >= 7


@pytest.mark.parametrize("counts", [[ITEMS_MAX], [60_000, 50_000]])
def test_a_fetch_request_of_too_many_partitions_is_refused(counts):
    row = struct.pack(">iiqiqiB", 0, 0, 0, 0, 0, 0, 0)
    topics = b"".join(bytes(16) + uvarint(count + 1) + row * count + b"\0" for count in counts)
    body = bytes(13 + 8) + uvarint(len(counts) + 1) + topics + b"\1\1\0"
    with pytest.raises(ProtocolError, match="more than"):
        done_at_once(fetch.decode_request(18, body))


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_a_fetch_request_cut_anywhere_is_an_error(version):
    schema = load_request_schema(1, version)
    bodies = [_written(smallest(schema))]
    if version >= 12:
        bodies.append(_written(promoted(smallest(schema))))
    for body in bodies:
        for end in range(len(body)):
            with pytest.raises(ProtocolError):
                done_at_once(fetch.decode_request(version, body[:end]))


@pytest.mark.parametrize("version", [4, 7, 11, 12, 18])
@few_examples
@given(garbage=st.binary(max_size=150))
def test_garbage_is_a_fetch_or_produce_request_or_a_protocol_error(version, garbage):
    try:
        done_at_once(fetch.decode_request(version, garbage))
    except ProtocolError:
        pass
    pool = BufferPool(1 << 20)
    frame = _chain(pool, garbage, 10)
    try:
        steps = produce.decode_request(min(version, 11), frame, Reader(frame.views()))
        asked = done_at_once(steps)
        done_at_once(produce.release(asked.batches))
    except ProtocolError:
        pass
    frame.release()
    assert pool.statistics().in_use_bytes == 0


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@few_examples
@given(data=st.data())
def test_a_fetch_response_is_written_as_kio_reads_it(version, data):
    buffers = st.lists(st.binary(min_size=1, max_size=40).map(memoryview), max_size=3)
    offsets = st.integers(0, 2**63 - 1)
    aborted = st.builds(AbortedTransaction, offsets, offsets, offsets)
    rows = data.draw(
        st.lists(
            st.tuples(
                st.integers(0, 2**31 - 1),
                st.sampled_from([0, 0, 1, 3, 100]),
                st.integers(-1, 2**63 - 1),
                st.integers(-1, 2**63 - 1),
                buffers,
                st.integers(-1, 2**63 - 1),
                st.lists(aborted, max_size=3),
            ),
            max_size=6,
        )
    )
    rows = [(*row[:4], [] if row[1] else row[4], *row[5:]) for row in rows]
    cut = data.draw(st.integers(0, len(rows)))
    if version >= 13:
        names = [FetchTopic(data.draw(st.uuids()), "") for _ in range(2)]
    else:
        names = [FetchTopic(None, "one"), FetchTopic(None, "two-ü")]
    topics = [(names[0], cut), (names[1], len(rows) - cut)]
    read_committed = data.draw(st.booleans())
    session_id = data.draw(st.integers(0, 2**31 - 1))
    answer = FetchAnswer.of(
        [
            FetchResult(
                DisklessError() if error else None,
                high_watermark,
                start,
                records,
                stable,
                told if records and read_committed else (),
            )
            for _, error, high_watermark, start, records, stable, told in rows
        ]
    )
    out = done_at_once(
        fetch.encode_response(
            version,
            topics,
            np.array([row[0] for row in rows], np.int64),
            answer,
            np.array([row[1] for row in rows], np.int64),
            read_committed=read_committed,
            session_id=session_id,
        )
    )
    handed_in = [buffer for row in rows for buffer in row[4]]
    kept = [buffer for buffer in out if isinstance(buffer, memoryview)]
    assert len(kept) == len(handed_in)
    assert all(one is other for one, other in zip(kept, handed_in, strict=True))

    body = b"".join(out)
    read, size = entity_reader(load_response_schema(1, version))(body, 0)
    assert size == len(body)
    for (name, count), topic in zip(topics, read.responses, strict=True):
        assert _fetch_topic(version, topic) == name
        assert len(topic.partitions) == count
    parts = [part for topic in read.responses for part in topic.partitions]
    for row, part in zip(rows, parts, strict=True):
        partition, error, high_watermark, start, records, stable, told = row
        assert (part.partition_index, part.error_code) == (partition, error)
        assert part.high_watermark == (-1 if error else high_watermark)
        assert part.last_stable_offset == (-1 if error else stable)
        assert part.records == b"".join(records)
        if read_committed:
            found = [(one.producer_id, one.first_offset) for one in part.aborted_transactions]
            assert found == [one[:2] for one in told if records]
        else:
            assert part.aborted_transactions is None
        if version >= 5:
            assert part.log_start_offset == (-1 if error else start)
        if version >= 11:
            assert part.preferred_read_replica == -1
    if version >= 7:
        assert (read.error_code, read.session_id) == (0, session_id)


def test_a_refused_fetch_session_names_its_error_on_top():
    (body,) = fetch.encode_refusal(12, 70)
    read, _ = entity_reader(load_response_schema(1, 12))(body, 0)
    assert (read.error_code, read.session_id, read.responses) == (70, 0, ())
