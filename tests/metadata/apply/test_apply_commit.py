"""Rows that FileCommitted records become: coalesced, counted, and only if they fit the state.

A leader applies the few batches of a small file in a loop, whoever reads its record applies them as
columns: all tests take both ways.
"""

import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from metadata.apply.apply_commit import COALESCED_BYTES_MAX
from metadata.metadata_settings import CoordinatorSettings
from metadata.operations import CommitFile
from metadata.records.file_committed import CommittedBatch, FileCommittedRecord, RefusedBatch
from metadata.records.records import MetadataRecord
from metadata.rules.commit import check_commit, decide_commit, producers_of
from metadata.state.producer_state import unpack_window
from metadata.state.speculative import SpeculativeView
from tests.support.coordinators.applied_state import AppliedState, applied_state
from tests.support.profiles import examples, seeds
from wal.columns import FEW_MAX
from wal.coordinates import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchExtent,
    ByteOffset,
    Offset,
    TopicIdPartition,
)
from wal.errors import CorruptState, StorageFailed

both_ways = pytest.mark.parametrize("as_leader", [True, False], ids=["leads", "reads"])


@pytest.fixture(params=[True, False], ids=["leads", "reads"])
async def applied(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[AppliedState]:
    async with applied_state(tmp_path, as_leader=request.param) as state:
        yield state


def with_batches(
    record: FileCommittedRecord, batches: Sequence[CommittedBatch]
) -> FileCommittedRecord:
    return replace(record, batches=tuple(batches))


def back_to_back(record: FileCommittedRecord) -> FileCommittedRecord:
    """The same batches without a byte between them."""
    placed = []
    position = 16
    for batch in record.batches:
        placed.append(batch._replace(byte_offset=ByteOffset(position)))
        position += batch.byte_size
    return with_batches(record, placed)


class Row(NamedTuple):
    """The columns of `batches` that coalescing makes."""

    partition: int
    last_offset: int
    base_offset: int
    file: int
    byte_offset: int
    byte_size: int
    batch_count: int
    timestamp_type: int
    append_time_ms: int
    max_timestamp_ms: int


async def rows(applied: AppliedState) -> list[Row]:
    return [Row(*values[:-1]) for values in (await applied.rows())["batches"]]  # type: ignore[arg-type]


def coalesced(applied: AppliedState, file_id: int, batches: Sequence[CommittedBatch]) -> list[Row]:
    """One batch after the other, as metadata/apply/apply_commit.py tells the rule."""
    made: list[Row] = []
    previous: CommittedBatch | None = None
    for batch in batches:
        row = made[-1] if made else None
        if (
            row is not None
            and previous is not None
            and previous.partition == batch.partition
            and batch.byte_offset == row.byte_offset + row.byte_size
            and batch.timestamp_type == row.timestamp_type
            and batch.log_append_time_ms == row.append_time_ms
            and row.byte_size + batch.byte_size <= COALESCED_BYTES_MAX
        ):
            made[-1] = row._replace(
                last_offset=batch.last_offset,
                byte_size=row.byte_size + batch.byte_size,
                batch_count=row.batch_count + 1,
                max_timestamp_ms=max(row.max_timestamp_ms, batch.max_timestamp_ms),
            )
        else:
            made.append(
                Row(
                    applied.partition(batch.partition).id,
                    batch.last_offset,
                    batch.base_offset,
                    file_id,
                    batch.byte_offset,
                    batch.byte_size,
                    1,
                    batch.timestamp_type,
                    batch.log_append_time_ms,
                    batch.max_timestamp_ms,
                )
            )
        previous = batch
    return sorted(made)


half = COALESCED_BYTES_MAX // 2
sent = st.tuples(
    st.integers(0, 2),
    st.integers(1, 4),
    st.sampled_from([1, 7, half - 1, half, half + 1, COALESCED_BYTES_MAX, 3 * half]),
    st.integers(-1, 9),
)
flags = st.lists(
    st.tuples(st.booleans(), st.integers(0, 1), st.integers(0, 1)), min_size=12, max_size=12
)


@both_ways
@examples(0.6, allow=[HealthCheck.function_scoped_fixture])
@given(batches=st.lists(sent, min_size=1, max_size=12), varied=flags)
async def test_neighbours_become_one_row_up_to_its_limit(
    tmp_path_factory: pytest.TempPathFactory,
    as_leader: bool,
    batches: list[tuple[int, int, int, int]],
    varied: list[tuple[bool, int, int]],
) -> None:
    """In any order of partitions, with and without gaps, with changes of what a row has once."""
    directory = tmp_path_factory.mktemp("state")
    async with applied_state(directory, as_leader=as_leader) as applied:
        partitions = await applied.topic(3)
        record = applied.file(*[(partitions[place], *rest) for place, *rest in batches])
        placed = []
        position = 16
        for batch, (has_gap, kind, later) in zip(record.batches, varied, strict=False):
            position += has_gap
            placed.append(
                batch._replace(
                    byte_offset=ByteOffset(position),
                    timestamp_type=kind,
                    log_append_time_ms=batch.log_append_time_ms + later,
                )
            )
            position += batch.byte_size
        record = replace(with_batches(record, placed), file_size=position)
        file_id = applied.image.next_offset
        await applied.apply(record)
        assert await rows(applied) == coalesced(applied, file_id, placed)
        assert await applied.violations() == []


async def test_a_partition_that_comes_again_in_a_file_goes_on_where_it_was(
    applied: AppliedState,
) -> None:
    one, two = await applied.topic(2)
    record = back_to_back(
        applied.file((one, 2, 10, 0), (two, 3, 10, 0), (one, 4, 10, 0), (one, 1, 10, 0))
    )
    await applied.apply(record)
    assert [(row.base_offset, row.last_offset, row.batch_count) for row in await rows(applied)] == [
        (0, 1, 1),
        (2, 6, 2),
        (0, 2, 1),
    ]
    assert applied.partition(one).high_watermark == 7
    assert applied.partition(one).live_bytes == 30
    assert await applied.violations() == []


async def test_files_of_one_transaction_build_on_each_other(applied: AppliedState) -> None:
    (partition,) = await applied.topic()
    first = applied.file((partition, 3, 10, 0), producer=5)
    follows = first.batches[0]._replace(
        base_offset=Offset(3), last_offset=Offset(5), base_sequence=3, last_sequence=5
    )
    second = replace(with_batches(first, [follows]), object_key=applied.key())
    await applied.apply(first, second)
    assert applied.partition(partition).high_watermark == 6
    state = applied.image.producers[applied.partition(partition).id, 5]
    assert [batch.base_offset for batch in unpack_window(state).batches] == [0, 3]
    assert await applied.violations() == []


async def test_rows_and_the_applied_position_are_durable_together_or_not_at_all(
    applied: AppliedState, monkeypatch: pytest.MonkeyPatch
) -> None:
    (partition,) = await applied.topic()
    before = await applied.rows()

    def refuse(*_: object, **__: object) -> None:
        raise StorageFailed("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr("metadata.apply.transaction.write_applied", refuse)
        with pytest.raises(StorageFailed):
            await applied.apply(applied.file((partition, 3, 10, 0)))
    assert await applied.rows() == before
    await applied.apply(applied.file((partition, 3, 10, 0)))
    assert await applied.violations() == []


async def test_producers_are_the_same_whether_files_come_together_or_alone(
    applied: AppliedState, tmp_path: Path
) -> None:
    (partition,) = await applied.topic()
    base = applied.file((partition, 1, 10, 0), producer=5)
    files = []
    for number in range(9):
        batch = base.batches[0]._replace(
            base_offset=Offset(number),
            last_offset=Offset(number),
            producer_id=number % 2,
            base_sequence=number // 2,
            last_sequence=number // 2,
        )
        files.append(replace(with_batches(base, [batch]), object_key=applied.key()))
    await applied.apply(*files)
    async with applied_state(tmp_path / "other") as other:
        await other.topic()
        for file in files:
            await other.apply(file)
        assert await other.rows() == await applied.rows()
        assert other.image.state_hash == applied.image.state_hash
        assert other.image.producers == applied.image.producers


def next_batch(
    rng: random.Random, partitions: Sequence[TopicIdPartition], following: dict[object, int]
) -> BatchExtent:
    """A batch that mostly goes on in its producer's sequence; its place is given later."""
    partition = rng.choice(partitions)
    producer = rng.choice([NO_PRODUCER_ID, 5, 6])
    sequence = NO_SEQUENCE
    if producer >= 0:
        sequence = following.get((partition, producer), 0) - (rng.random() < 0.2)
        following[partition, producer] = max(sequence, 0) + 2
    return BatchExtent(
        partition=partition,
        byte_offset=ByteOffset(0),
        length_bytes=rng.choice([1, 90, half, half + 1]),
        record_count=2,
        crc=0,
        max_timestamp_ms=rng.randrange(100),
        timestamp_type=rng.randrange(2),
        producer_id=producer,
        producer_epoch=0 if producer >= 0 else NO_PRODUCER_EPOCH,
        base_sequence=max(sequence, 0) if producer >= 0 else NO_SEQUENCE,
        request_id=0,
    )


@pytest.mark.parametrize("seed", seeds(12))
async def test_who_leads_and_who_reads_the_log_have_the_same_state(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    """Whatever was decided, with files of few and of many batches in one transaction."""
    rng = random.Random(seed)
    one, two = (tmp_path_factory.mktemp(name) for name in ("leads", "reads"))
    async with applied_state(one, as_leader=True) as leads, applied_state(two) as reads:
        partitions = await leads.topic(3)
        await reads.topic(3)
        unknown = partitions[0]._replace(partition=9)
        following: dict[object, int] = {}
        for _ in range(3):
            view = SpeculativeView(leads.image)
            records: list[MetadataRecord] = []
            for _ in range(rng.randint(1, 3)):
                batches = []
                position = 16
                for _ in range(rng.choice([1, 3, FEW_MAX, FEW_MAX + 4])):
                    batch = next_batch(rng, [*partitions, unknown], following)
                    batches.append(batch._replace(byte_offset=ByteOffset(position)))
                    position += batch.length_bytes + (rng.random() < 0.2)
                commit = check_commit(
                    CommitFile(
                        object_key=leads.key(),
                        file_size_bytes=position,
                        uploader_broker_id=1,
                        batches=batches,
                    ),
                    CoordinatorSettings(),
                )
                missing = view.unknown_producers(producers_of(commit, view))
                view.finish_look_up({}, dict.fromkeys(missing))
                now_ms = leads.clock.now_ms()
                records += decide_commit(
                    view,
                    commit,
                    now_ms=now_ms,
                    wall_ms=now_ms,
                    steady_ms=now_ms,
                    settings=CoordinatorSettings(),
                ).records
            await leads.apply(*records)
            await reads.apply(*records)
            assert await leads.rows() == await reads.rows()
            assert leads.image.state_hash == reads.image.state_hash
            assert leads.image.producers == reads.image.producers
            assert leads.image.partitions == reads.image.partitions
        assert await leads.violations() == []


def moved(batch: CommittedBatch, offset: int) -> CommittedBatch:
    return batch._replace(
        base_offset=Offset(batch.base_offset + offset),
        last_offset=Offset(batch.last_offset + offset),
    )


@pytest.mark.parametrize("which", [0, 1, 2, 3])
@pytest.mark.parametrize("offset", [-1, 1])
async def test_an_offset_that_is_not_the_next_one_contradicts_the_state(
    applied: AppliedState, which: int, offset: int
) -> None:
    one, two = await applied.topic(2)
    record = applied.file((one, 2, 10, 0), (one, 2, 10, 0), (two, 2, 10, 0), (one, 2, 10, 0))
    batches = [*record.batches]
    batches[which] = moved(batches[which], offset)
    before = applied.image.next_offset
    name: TopicIdPartition = batches[which].partition
    with pytest.raises(CorruptState, match=f"{name}: record commits"):
        await applied.apply(with_batches(record, batches))
    assert applied.image.next_offset == before
    assert await applied.count("batches") == 0


async def test_a_batch_that_ends_before_it_starts_contradicts_the_state(
    applied: AppliedState,
) -> None:
    (partition,) = await applied.topic()
    record = applied.file((partition, 1, 10, 0))
    empty = record.batches[0]._replace(last_offset=Offset(-1))
    with pytest.raises(CorruptState, match=r"record commits 0\.\.-1"):
        await applied.apply(with_batches(record, [empty]))


@pytest.mark.parametrize(("positions", "refused"), [((0, 0), 2), ((0, 1), 1), ((1, 2), 3)])
async def test_a_record_must_answer_every_batch_once(
    applied: AppliedState, positions: tuple[int, int], refused: int
) -> None:
    (partition,) = await applied.topic()
    record = applied.file((partition, 1, 10, 0), (partition, 1, 10, 0))
    batches = [
        batch._replace(position=position)
        for batch, position in zip(record.batches, positions, strict=True)
    ]
    wrong = replace(with_batches(record, batches), refused=(RefusedBatch(refused, 3),))
    with pytest.raises(CorruptState, match="not one answer for each of 3 batches"):
        await applied.apply(wrong)


async def test_a_partition_that_nobody_created_contradicts_the_state(applied: AppliedState) -> None:
    (partition,) = await applied.topic()
    record = applied.file((partition, 1, 10, 0))
    nowhere = record.batches[0]._replace(partition=partition._replace(partition=9))
    with pytest.raises(CorruptState, match="unknown partition"):
        await applied.apply(with_batches(record, [nowhere]))


async def test_the_same_file_twice_contradicts_the_state(applied: AppliedState) -> None:
    (partition,) = await applied.topic()
    record = applied.file((partition, 1, 10, 0))
    again = with_batches(record, [moved(record.batches[0], 1)])
    await applied.apply(record)
    with pytest.raises(CorruptState, match="committed twice"):
        await applied.apply(again)
    new = replace(again, object_key=applied.key())
    with pytest.raises(CorruptState):
        await applied.apply(new, with_batches(new, [moved(again.batches[0], 1)]))
