"""Deciding whole files gives what deciding batch by batch gives: few in a loop, many as columns."""

from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.operations import CommitFile
from metadata.records.file_committed import CommittedBatch, FileCommittedRecord, RefusedBatch
from metadata.records.records import decode_record, encode_record
from metadata.rules.commit import decide_commit, producers_of
from metadata.rules.commit_request import check_commit
from metadata.state.image import CommittedImage, PartitionState, ProducerKey
from metadata.state.producer_state import (
    RECORDS_UNCHECKED_MAX,
    ProducerBatch,
    ProducerWindow,
    check_sequence,
    pack_window,
    unpack_window,
    with_batch,
)
from metadata.state.speculative import SpeculativeView
from tests.support.samples.commit_samples import (
    COLUMNS,
    EXPIRATION_MS,
    FEW,
    KEY,
    KNOWN,
    NOW_MS,
    OTHER_KEY,
    SETTINGS,
    both_ways,
    deciding,
)
from wal.batch_extents import BatchExtents
from wal.coordinates import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchExtent,
    ByteOffset,
    ObjectKey,
    Offset,
    TopicIdPartition,
)
from wal.errors import OutOfOrderSequence, Rejected, StaleProducerEpoch, UnknownPartition

MAX = 2**31 - 1
CODES = {UnknownPartition: 3, OutOfOrderSequence: 45, StaleProducerEpoch: 47}

UNKNOWN = [TopicIdPartition(UUID(int=2), 7), TopicIdPartition(UUID(int=3), 0)]


class Expected(NamedTuple):
    """What one-by-one deciding comes to."""

    accepted: list[CommittedBatch]
    refused: list[RefusedBatch]
    high_watermarks: dict[TopicIdPartition, int]
    windows: dict[ProducerKey, ProducerWindow]


def one_by_one(
    request: CommitFile,
    partitions: dict[TopicIdPartition, PartitionState],
    windows: dict[ProducerKey, ProducerWindow],
) -> Expected:
    """Kafka's rules and the KIP's, without any haste."""
    ends = {name: state.high_watermark for name, state in partitions.items()}
    expected = Expected([], [], ends, dict(windows))
    for position, batch in enumerate(request.batches):
        state = partitions.get(batch.partition)
        if state is None:
            expected.refused.append(RefusedBatch(position, CODES[UnknownPartition]))
            continue
        base = ends[batch.partition]
        if batch.producer_id >= 0:
            key = (state.id, batch.producer_id)
            window = expected.windows.get(key)
            verdict = check_sequence(
                window,
                epoch=batch.producer_epoch,
                base_sequence=batch.base_sequence,
                last_sequence=batch.last_sequence,
                now_ms=NOW_MS,
                expiration_ms=EXPIRATION_MS,
            )
            if isinstance(verdict, ProducerBatch):
                expected.refused.append(
                    RefusedBatch(
                        position,
                        0,
                        verdict.base_offset,
                        verdict.append_time_ms,
                        state.log_start_offset,
                    )
                )
                continue
            if verdict is not None:
                expected.refused.append(RefusedBatch(position, CODES[verdict]))
                continue
            appended = ProducerBatch(batch.base_sequence, batch.last_sequence, base, NOW_MS)
            expected.windows[key] = with_batch(window, batch.producer_epoch, appended)
        ends[batch.partition] = base + batch.record_count
        expected.accepted.append(
            CommittedBatch(
                batch.partition,
                position,
                2,
                batch.byte_offset,
                batch.length_bytes,
                Offset(base),
                Offset(base + batch.record_count - 1),
                NOW_MS,
                batch.max_timestamp_ms,
                batch.timestamp_type,
                batch.producer_id,
                batch.producer_epoch,
                batch.base_sequence,
                batch.last_sequence,
            )
        )
    return expected


# --- what a file may bring -----------------------------------------------------------------------

near = st.integers(-4, 4).map(lambda number: number & MAX)


@st.composite
def files(draw: st.DrawFn) -> CommitFile:
    """Batches of a few partitions, grouped or not, whose producers mostly go on in sequence."""
    partitions = draw(st.lists(st.sampled_from(KNOWN + UNKNOWN), min_size=1, max_size=4))
    if draw(st.booleans()):
        partitions.sort()
    following: dict[tuple[TopicIdPartition, int], tuple[int, int]] = {}
    batches: list[BatchExtent] = []
    position = 16
    for partition in partitions:
        for _ in range(draw(st.integers(1, 4))):
            if batches and draw(st.integers(0, 7)) == 0:
                again = draw(st.sampled_from(batches))
                batches.append(again._replace(byte_offset=ByteOffset(position)))
                position += again.length_bytes
                continue
            producer = draw(st.sampled_from([NO_PRODUCER_ID, 0, 1]))
            records = draw(st.integers(1, 3) | st.sampled_from([RECORDS_UNCHECKED_MAX, MAX]))
            epoch, sequence = NO_PRODUCER_EPOCH, NO_SEQUENCE
            if producer >= 0:
                epoch, sequence = draw(st.integers(0, 2)), draw(near)
                if draw(st.integers(0, 3)):
                    epoch, sequence = following.get((partition, producer), (epoch, sequence))
                following[partition, producer] = (epoch, (sequence + records) & MAX)
            batches.append(
                BatchExtent(
                    partition=partition,
                    byte_offset=ByteOffset(position),
                    length_bytes=draw(st.integers(1, 9)),
                    record_count=records,
                    crc=draw(st.integers(0, 2**32 - 1)),
                    max_timestamp_ms=draw(st.integers(-1, 99)),
                    timestamp_type=draw(st.integers(0, 1)),
                    producer_id=producer,
                    producer_epoch=epoch,
                    base_sequence=sequence,
                    request_id=0,
                )
            )
            position += batches[-1].length_bytes + draw(st.integers(0, 1))
    return CommitFile(
        object_key=KEY, file_size_bytes=position, uploader_broker_id=1, batches=batches
    )


windows_before = st.builds(
    lambda epoch, base, counts, age_ms: _window(epoch, base, counts, age_ms),
    st.integers(0, 2),
    near,
    st.lists(st.integers(1, 3) | st.just(MAX), min_size=1, max_size=5),
    st.sampled_from([0, EXPIRATION_MS, EXPIRATION_MS + 1]),
)


def _window(epoch: int, base: int, counts: list[int], age_ms: int) -> ProducerWindow:
    window: ProducerWindow | None = None
    for offset, count in enumerate(counts):
        last = (base + count - 1) & MAX
        window = with_batch(window, epoch, ProducerBatch(base, last, offset, NOW_MS - age_ms))
        base = (last + 1) & MAX
    assert window is not None
    return window


befores = st.dictionaries(
    st.tuples(st.integers(10, 13), st.integers(0, 1)),
    windows_before,
    max_size=5,
)
partition_states = st.tuples(*[st.tuples(st.integers(0, 9), st.integers(0, 9)) for _ in KNOWN]).map(
    lambda offsets: {
        partition: PartitionState(10 + number, 1, partition.partition, start, start + more)
        for number, (partition, (start, more)) in enumerate(zip(KNOWN, offsets, strict=True))
    }
)


def view_of(
    partitions: dict[TopicIdPartition, PartitionState], windows: dict[ProducerKey, ProducerWindow]
) -> SpeculativeView:
    image = CommittedImage(producers_max=100)
    image.partitions.update(partitions)
    image.producers.update((key, pack_window(window)) for key, window in windows.items())
    return SpeculativeView(image)


def known_windows(
    view: SpeculativeView, keys: set[ProducerKey]
) -> dict[ProducerKey, ProducerWindow]:
    states = {key: view.producer(key) for key in keys if view.knows_producer(key)}
    return {key: unpack_window(state) for key, state in states.items() if state is not None}


@both_ways
@given(files(), partition_states, befores)
def test_a_file_is_decided_as_if_batch_by_batch(
    way: str,
    request_: CommitFile,
    partitions: dict[TopicIdPartition, PartitionState],
    windows: dict[ProducerKey, ProducerWindow],
) -> None:
    view = view_of(partitions, windows)
    with deciding(way):
        commit = check_commit(request_, SETTINGS)
    assert isinstance(commit.batches, BatchExtents) == (way == COLUMNS)
    unknown = view.unknown_producers(producers_of(commit, view))
    view.finish_look_up({}, dict.fromkeys(unknown))
    decision = decide_commit(
        view, commit, now_ms=NOW_MS, wall_ms=NOW_MS, steady_ms=NOW_MS, settings=SETTINGS
    )
    (record,) = decision.records
    assert isinstance(record, FileCommittedRecord)
    expected = one_by_one(request_, partitions, windows)
    assert list(record.batches) == expected.accepted
    assert list(record.refused) == expected.refused
    assert decode_record(bytes(encode_record(record))) == record
    for partition, end in expected.high_watermarks.items():
        state = view.partition(partition)
        assert state == partitions[partition]._replace(high_watermark=end)
    assert known_windows(view, {*expected.windows, *windows}) == expected.windows

    answers = decision.answer
    assert len(answers) == len(request_.batches)
    for batch in expected.accepted:
        answer = answers[batch.position]
        assert (answer.base_offset, answer.log_append_time_ms) == (batch.base_offset, NOW_MS)
        assert answer.log_start_offset == partitions[batch.partition].log_start_offset
        assert (answer.error, answer.is_duplicate) == (None, False)
    for refused in expected.refused:
        answer = answers[refused.position]
        if refused.error_code:
            assert answer.error is not None
            assert CODES[type(answer.error)] == refused.error_code
        else:
            assert answer[:4] == (*refused[2:], True)


@both_ways
@given(files(), files(), partition_states, befores)
def test_what_is_pending_counts_as_if_it_were_committed(
    way: str,
    first: CommitFile,
    second: CommitFile,
    partitions: dict[TopicIdPartition, PartitionState],
    windows: dict[ProducerKey, ProducerWindow],
) -> None:
    """The view after the first file is the state that the second one finds."""
    second = CommitFile(
        object_key=OTHER_KEY,
        file_size_bytes=second.file_size_bytes,
        uploader_broker_id=2,
        batches=second.batches,
    )
    view = view_of(partitions, windows)
    after: list[Expected] = []
    for group, request in enumerate((first, second)):
        view.group = group
        with deciding(way):
            commit = check_commit(request, SETTINGS)
        view.start_look_up()
        unknown = view.unknown_producers(producers_of(commit, view))
        view.finish_look_up({}, dict.fromkeys(unknown))
        decision = decide_commit(
            view, commit, now_ms=NOW_MS, wall_ms=NOW_MS, steady_ms=NOW_MS, settings=SETTINGS
        )
        (record,) = decision.records
        assert isinstance(record, FileCommittedRecord)
        expected = one_by_one(request, partitions, windows)
        assert list(record.batches) == expected.accepted
        assert list(record.refused) == expected.refused
        partitions = {
            name: state._replace(high_watermark=expected.high_watermarks[name])
            for name, state in partitions.items()
        }
        windows = expected.windows
        after.append(expected)


@both_ways
def test_a_partition_that_came_or_went_after_the_look_up_is_noticed(way: str) -> None:
    batch = BatchExtent(KNOWN[0], ByteOffset(16), 9, 1, 0, 0, 0, 5, 0, 0, 0)
    request = CommitFile(
        object_key=KEY,
        file_size_bytes=99,
        uploader_broker_id=1,
        batches=[batch, batch._replace(partition=KNOWN[1], byte_offset=ByteOffset(25))],
    )
    there = {KNOWN[0]: PartitionState(10, 1, 0), KNOWN[1]: PartitionState(11, 1, 1)}
    with deciding(way):
        commit = check_commit(request, SETTINGS)
    assert list(producers_of(commit, view_of({}, {}))) == []
    assert list(producers_of(commit, view_of({KNOWN[0]: there[KNOWN[0]]}, {}))) == [(10, 5)]
    assert list(producers_of(commit, view_of(there, {}))) == [(10, 5), (11, 5)]
    gone = view_of({KNOWN[1]: there[KNOWN[1]]}, {})
    assert list(producers_of(commit, gone)) == [(11, 5)]
    gone.finish_look_up({}, {(10, 5): None, (11, 5): None})
    (record,) = decide_commit(
        gone, commit, now_ms=NOW_MS, wall_ms=NOW_MS, steady_ms=NOW_MS, settings=SETTINGS
    ).records
    assert isinstance(record, FileCommittedRecord)
    assert [entry.partition for entry in record.batches] == [KNOWN[1]]
    assert list(record.refused) == [RefusedBatch(0, CODES[UnknownPartition])]


@given(files(), files(), partition_states, befores)
def test_both_ways_come_to_the_same(
    first: CommitFile,
    second: CommitFile,
    partitions: dict[TopicIdPartition, PartitionState],
    windows: dict[ProducerKey, ProducerWindow],
) -> None:
    """To the byte: the digest, the record, the answer and as it is stored, the view afterwards."""
    second = replace(second, object_key=OTHER_KEY)
    came_to: list[list[object]] = []
    for way in (FEW, COLUMNS):
        view = view_of(partitions, windows)
        came_to.append([])
        for group, request in enumerate((first, second, first)):
            view.group = group
            with deciding(way):
                commit = check_commit(request, SETTINGS)
            view.start_look_up()
            view.finish_look_up(
                {}, dict.fromkeys(view.unknown_producers(producers_of(commit, view)))
            )
            decision = decide_commit(
                view, commit, now_ms=NOW_MS, wall_ms=NOW_MS, steady_ms=NOW_MS, settings=SETTINGS
            )
            answers = [(answer[:4], str(answer.error)) for answer in decision.answer]
            records = [bytes(encode_record(record)) for record in decision.records]
            came_to[-1] += [commit.digest, answers, records, view.file(request.object_key)]
            keys = {(id_, producer) for id_ in range(10, 14) for producer in (0, 1)}
            came_to[-1].append(
                {key: view.producer(key) for key in keys if view.knows_producer(key)}
            )
            came_to[-1].append(view.partitions(KNOWN))
    assert came_to[0] == came_to[1]


@pytest.mark.parametrize(
    "change",
    [
        {"byte_offset": -1},
        {"byte_offset": 100},
        {"byte_offset": 2**63 - 1},
        {"byte_offset": 2**63},
        {"length_bytes": 0},
        {"length_bytes": 85},
        {"record_count": 0},
        {"record_count": 2**31},
        {"crc": -1},
        {"crc": 2**32},
        {"timestamp_type": 2},
        {"partition": TopicIdPartition(UUID(int=1), -1)},
        {"partition": TopicIdPartition(UUID(int=1), 2**31)},
        {"producer_epoch": -1},
        {"producer_epoch": 2**15},
        {"base_sequence": -1},
        {"base_sequence": 2**31},
        {"producer_id": -1, "producer_epoch": -(2**15) - 1},
        {"max_timestamp_ms": 2**63},
        {"request_id": 2**64},
    ],
    ids=str,
)
@both_ways
def test_numbers_that_no_batch_of_the_object_has_are_rejected(
    way: str, change: dict[str, object]
) -> None:
    batch = BatchExtent(KNOWN[0], ByteOffset(16), 9, 1, 0, 0, 0, 5, 0, 0, 0)
    sound = CommitFile(object_key=KEY, file_size_bytes=100, uploader_broker_id=1, batches=[batch])
    damaged = batch._replace(**change)  # type: ignore[arg-type]
    with deciding(way):
        check_commit(sound, SETTINGS)
    with deciding(way), pytest.raises(Rejected):
        check_commit(
            CommitFile(
                object_key=KEY, file_size_bytes=100, uploader_broker_id=1, batches=[damaged]
            ),
            SETTINGS,
        )


def test_the_digest_is_over_every_number_that_the_content_has() -> None:
    """And stays what it was: a chunk recovered by a newer release is committed again with it."""
    batch = BatchExtent(KNOWN[0], ByteOffset(16), 9, 1, 7, 8, 1, 5, 2, 3, 4)
    sound = CommitFile(
        object_key=ObjectKey(KEY), file_size_bytes=100, uploader_broker_id=1, batches=[batch]
    )
    digest = check_commit(sound, SETTINGS).digest
    assert digest.hex() == "7321fee76b4a22f7cdc9b1e5fca1f36b"
    for name in BatchExtent._fields:
        value = getattr(batch, name)
        other = KNOWN[1] if name == "partition" else 0 if name == "timestamp_type" else value + 1
        changed = CommitFile(
            object_key=KEY,
            file_size_bytes=100,
            uploader_broker_id=1,
            batches=[batch._replace(**{name: other})],
        )
        assert check_commit(changed, SETTINGS).digest != digest, name
