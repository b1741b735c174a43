"""Notes: their bytes, what they say of an object, and that a recovered chunk keeps them."""

import contextlib
import errno
import os
import random
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.chunks.write_path import (
    A0,
    A1,
    B0,
    SETTINGS,
    TOPIC_A,
    TOPIC_B,
    batch_bytes,
    object_bytes,
    object_range,
    sealed,
)
from wal.chunks.batch_rows import BATCH_ROW
from wal.chunks.chunk import CHUNK_HEADER_BYTES, RECORD_HEAD_BYTES
from wal.chunks.chunk_directory import ChunkDirectory
from wal.chunks.object_notes import (
    COMMITTED,
    DUPLICATE,
    GIVEN_UP,
    NO_NOTES,
    NOTES_KEPT_MAX,
    REFUSED,
    BatchOutcome,
    BatchOutcomes,
    CommitJournal,
    CommitNote,
    Floor,
    NotedRun,
    ObjectNotes,
    TopicFacts,
    decode_notes,
    encode_notes,
    note_commit,
)
from wal.chunks.sealed_chunk import SealedChunk
from wal.chunks.wal_object import WalObjectBody, WalObjectReader
from wal.clock import ManualClock
from wal.coordinates import BatchExtent, ByteOffset, TopicIdPartition
from wal.crc import Buffer
from wal.disk import SYSTEM_DISK, Disk, SystemDisk
from wal.errors import CorruptObject
from wal.fd_cache import FdCache
from wal.stores.memory_store import MemoryStore
from wal.ulid import STEP_BACK_MAX_MS, encode_ulid, mint_ulid, ulid_timestamp_ms

FACTS = {
    TOPIC_A: TopicFacts("flights", 6, (("retention.ms", "1000"),)),
    TOPIC_B: TopicFacts("høst", 1),
}
BATCHES = [
    (A0, batch_bytes(b"a0-1", record_count=2)),
    (A0, batch_bytes(b"a0-2", record_count=3)),
    (A1, batch_bytes(b"a1-1")),
    (B0, batch_bytes(b"b0-1", record_count=4)),
]
ONE_APPEND = CHUNK_HEADER_BYTES + RECORD_HEAD_BYTES + BATCH_ROW.size * len(BATCHES)
"""The bytes of an index with all of them, before the notes."""

_ulids = st.integers(0, (1 << 128) - 1).map(encode_ulid)
_times = st.integers(-(1 << 40), 1 << 40)
_committed = st.builds(
    CommitNote,
    ulid=_ulids,
    runs=st.lists(
        st.one_of(
            st.just(NotedRun(-1, 0)),
            st.builds(
                NotedRun, st.integers(1 << 40, (1 << 63) - 2), _times, st.integers(0, 1 << 40)
            ),
        ),
        max_size=5,
    ).map(tuple),
    exceptions=st.dictionaries(st.integers(0, 60_000), st.sampled_from([DUPLICATE, REFUSED])),
    outcome=st.just(COMMITTED),
)
_facts = st.builds(
    TopicFacts,
    name=st.text(max_size=20),
    partition_count=st.integers(0, 1 << 31),
    configs=st.lists(st.tuples(st.text(max_size=9), st.text(max_size=9)), max_size=3).map(tuple),
)
_notes = st.builds(
    ObjectNotes,
    topics=st.dictionaries(st.uuids(), _facts, max_size=4),
    commits=st.lists(
        st.one_of(_committed, _ulids.map(lambda ulid: CommitNote(ulid, outcome=GIVEN_UP))),
        max_size=4,
    ).map(tuple),
    floors=st.lists(
        st.builds(Floor, st.integers(1 << 40, 1 << 62), st.integers(0, 1 << 40)), max_size=4
    ).map(tuple),
)


@given(_notes)
def test_notes_read_back_as_they_were_written(notes: ObjectNotes) -> None:
    assert decode_notes(encode_notes(notes), "object") == notes


@given(st.one_of(st.binary(), st.tuples(_notes, st.binary(max_size=3)).map(
    lambda pair: encode_notes(pair[0]) + pair[1])))  # fmt: skip
def test_garbage_is_no_notes(data: bytes) -> None:
    with contextlib.suppress(CorruptObject):
        decode_notes(data, "object")


def extent(partition: TopicIdPartition, record_count: int) -> BatchExtent:
    return BatchExtent(partition, ByteOffset(64), 61, record_count, 0, 0, 0, -1, -1, -1, 0)


EXTENTS = [extent(A0, 2), extent(A0, 3), extent(A0, 1), extent(A1, 4), extent(B0, 1)]


def test_a_note_gives_back_the_answer_to_every_batch() -> None:
    outcomes = [
        BatchOutcome(100, 7, 90),
        BatchOutcome(exception=DUPLICATE),
        BatchOutcome(102, 7, 90),
        BatchOutcome(exception=REFUSED),
        BatchOutcome(0, 9),
    ]
    note = note_commit("0" * 26, EXTENTS, outcomes)
    assert note is not None
    again = decode_notes(encode_notes(ObjectNotes({}, [note])), "x").commits[0]
    assert again.outcomes(EXTENTS) == outcomes


def test_offsets_that_do_not_follow_each_other_are_not_noted() -> None:
    outcomes = [BatchOutcome(100, 7), BatchOutcome(103, 7), *[BatchOutcome(0, 7)] * 3]
    assert note_commit("0" * 26, EXTENTS, outcomes) is None
    assert note_commit("0" * 26, EXTENTS[:1], [BatchOutcome(100, 7, 101)]) is None


def test_an_object_that_was_given_up_has_no_offsets() -> None:
    note = CommitNote("0" * 26, outcome=GIVEN_UP)
    assert {outcome.exception for outcome in note.outcomes(EXTENTS)} == {REFUSED}


@pytest.mark.parametrize(
    "note",
    [
        CommitNote("0" * 26, (NotedRun(0, 0),)),
        CommitNote("0" * 26, (NotedRun(-1, 0), NotedRun(0, 0), NotedRun(0, 0))),
    ],
)
def test_a_note_of_another_object_is_refused(note: CommitNote) -> None:
    with pytest.raises(CorruptObject):
        note.outcomes(EXTENTS)


def test_a_journal_forgets_the_oldest_and_takes_back_what_was_not_carried() -> None:
    journal = CommitJournal()
    notes = [CommitNote(encode_ulid(number)) for number in range(NOTES_KEPT_MAX + 3)]
    for note in notes:
        journal.add(note)
    taken = journal.take()
    assert taken == notes[3:]
    assert journal.take() == []
    later = CommitNote(encode_ulid(1 << 100))
    journal.add(later)
    journal.give_back(taken)
    assert journal.take() == [*taken[1:], later]


# --- in chunks and objects ------------------------------------------------------------------------


def directory(
    path: Path, journal: CommitJournal | None = None, *, disk: Disk = SYSTEM_DISK,
    facts: dict[UUID, TopicFacts] = FACTS, floors: dict[TopicIdPartition, Floor] | None = None,
) -> ChunkDirectory:  # fmt: skip
    return ChunkDirectory(
        path,
        settings=SETTINGS,
        clock=ManualClock(),
        rng=random.Random(1),
        fd_cache=FdCache(64),
        broker_id=7,
        disk=disk,
        topics=facts.get,
        floors=(lambda partitions: [*map(floors.get, partitions)]) if floors else None,
        commits=journal,
    )


def content(chunk: SealedChunk) -> bytes:
    return object_bytes(WalObjectBody(chunk, chunk.plan))


async def notes_of(chunk: SealedChunk) -> ObjectNotes:
    store = MemoryStore(clock=ManualClock())
    await store.put(chunk.object_key, WalObjectBody(chunk, chunk.plan))
    index = await WalObjectReader(store).verify(chunk.object_key)
    assert index.extents == chunk.plan.extents
    return index.notes


async def test_an_object_names_its_topics_and_tells_of_earlier_commits(tmp_path: Path) -> None:
    journal = CommitJournal()
    earlier = CommitNote(encode_ulid(5), (NotedRun(10, 20),))
    journal.add(earlier)
    chunks = directory(tmp_path, journal)
    chunks.recover()
    assert await notes_of(sealed(chunks, BATCHES)) == ObjectNotes(FACTS, (earlier,))
    assert await notes_of(sealed(chunks, BATCHES[:1])) == ObjectNotes({TOPIC_A: FACTS[TOPIC_A]})


async def test_an_object_says_where_its_partitions_logs_were(tmp_path: Path) -> None:
    chunks = directory(tmp_path, floors={A0: Floor(70, 10), B0: Floor(0)})
    chunks.recover()
    assert (await notes_of(sealed(chunks, BATCHES))).floors == (Floor(70, 10), None, Floor(0))


def test_a_recovered_chunk_has_the_notes_it_was_sealed_with(tmp_path: Path) -> None:
    journal = CommitJournal()
    journal.add(CommitNote(encode_ulid(5), outcome=GIVEN_UP))
    chunks = directory(tmp_path, journal)
    chunks.recover()
    before = content(sealed(chunks, BATCHES))
    chunks.close()
    (recovered,) = directory(tmp_path, facts={}).recover()
    assert content(recovered) == before


async def test_a_chunk_that_was_not_sealed_is_noted_when_it_is_recovered(tmp_path: Path) -> None:
    chunks = directory(tmp_path, facts={})
    chunks.recover()
    sealed(chunks, BATCHES)
    chunks.close()
    second = directory(tmp_path)
    (recovered,) = second.recover()
    assert (await notes_of(recovered)).topics == FACTS
    before = content(recovered)
    second.close()
    (again,) = directory(tmp_path, facts={}).recover()
    assert content(again) == before


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_notes_that_are_not_whole_are_cut_and_written_again(tmp_path: Path, damage: str) -> None:
    chunks = directory(tmp_path)
    chunks.recover()
    chunk = sealed(chunks, BATCHES)
    before = content(chunk)
    chunks.close()
    index = Path(chunk.paths.idx)
    data = bytearray(index.read_bytes())
    start = ONE_APPEND
    assert len(data) > start
    if damage == "cut":
        del data[-1]
    else:
        data[start + 20] ^= 4
    index.write_bytes(data)
    (recovered,) = directory(tmp_path).recover()
    assert recovered.batch_count == len(BATCHES)
    assert content(recovered) == before


class NotesDisk(SystemDisk):
    """Refuses what is written behind `limit` bytes of an .idx file."""

    limit = 1 << 40

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        name = os.readlink(f"/proc/self/fd/{fd}")
        if name.endswith(".idx") and offset >= self.limit:
            raise OSError(errno.ENOSPC, "no space")
        return super().pwritev(fd, buffers, offset)


async def test_notes_that_the_disk_refuses_are_left_out_and_told_next_time(tmp_path: Path) -> None:
    disk = NotesDisk()
    journal = CommitJournal()
    note = CommitNote(encode_ulid(5), outcome=GIVEN_UP)
    journal.add(note)
    chunks = directory(tmp_path, journal, disk=disk)
    chunks.recover()
    disk.limit = ONE_APPEND
    first = sealed(chunks, BATCHES)
    assert await notes_of(first) == NO_NOTES
    disk.limit = 1 << 40
    assert (await notes_of(sealed(chunks, BATCHES))).commits == (note,)


def test_a_committed_chunk_is_recognised_with_its_notes(tmp_path: Path) -> None:
    chunks = directory(tmp_path)
    chunks.recover()
    chunk = sealed(chunks, BATCHES)
    body = content(chunk)
    first = chunk.plan.extents[0]
    chunks.mark_committed(chunk)
    chunks.close()
    again = directory(tmp_path, facts={})
    assert again.recover() == []
    found = again.locate(chunk.object_key)
    assert found is not None
    start, size = first.byte_offset, first.length_bytes
    assert object_range(found, start, size) == body[start : start + size]


# --- the order of one broker's objects ------------------------------------------------------------


def test_ulids_of_one_broker_ascend_whatever_its_clock_does() -> None:
    clock, rng = ManualClock(), random.Random(3)
    last: str | None = None
    for step in (0.0, 0.0, -60.0, 0.0, 5.0, -STEP_BACK_MAX_MS / 2000, 700.0):
        clock.step_wall(step)
        ulid = mint_ulid(clock, rng, last)
        assert last is None or ulid > last
        last = ulid


def test_a_clock_that_was_far_ahead_is_not_followed() -> None:
    clock, rng = ManualClock(), random.Random(3)
    ahead = mint_ulid(clock, rng)
    clock.step_wall(-STEP_BACK_MAX_MS / 1000 - 1)
    assert ulid_timestamp_ms(mint_ulid(clock, rng, ahead)) == clock.now_ms()


def test_a_restarted_broker_goes_on_behind_its_last_chunk(tmp_path: Path) -> None:
    chunks = directory(tmp_path)
    chunks.recover()
    first = sealed(chunks, BATCHES)
    chunks.close()
    again = directory(tmp_path)
    again.recover()
    assert sealed(again, BATCHES).identity.ulid > first.identity.ulid


@given(draw=st.data())
def test_outcomes_as_columns_are_noted_as_they_are_one_by_one(draw: st.DataObject) -> None:
    """Offsets follow each other in a partition, but for one that may be wrong."""
    counts = draw.draw(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=12))
    counts.sort(key=lambda one: one[0])
    extents = [
        BatchExtent(
            TopicIdPartition(UUID(int=1), partition),
            ByteOffset(0),
            70,
            count,
            0,
            0,
            0,
            -1,
            -1,
            -1,
            0,
        )
        for partition, count in counts
    ]
    ends = {partition: 10 * partition for partition in range(4)}
    outcomes = []
    for partition, count in counts:
        exception = draw.draw(st.sampled_from([None, None, None, DUPLICATE, REFUSED]))
        if exception is None:
            outcomes.append(BatchOutcome(ends[partition], 1000, 0))
            ends[partition] += count
        else:
            outcomes.append(BatchOutcome(exception=exception))
    if outcomes and draw.draw(st.booleans()):
        at = draw.draw(st.integers(0, len(outcomes) - 1))
        wrong = draw.draw(
            st.sampled_from([{"base_offset": 7}, {"append_time_ms": 9}, {"log_start_offset": 99}])
        )
        outcomes[at] = outcomes[at]._replace(**wrong)
    columns = BatchOutcomes(
        *(np.array([one[field] for one in outcomes], np.int64) for field in range(3)),
        {at: one.exception for at, one in enumerate(outcomes) if one.exception is not None},
    )
    alone = note_commit("0" * 26, extents, outcomes)
    together = note_commit("0" * 26, extents, columns)
    assert (alone is None) == (together is None)
    if alone is not None and together is not None:
        assert [*together.runs] == [*alone.runs]
        assert dict(together.exceptions) == dict(alone.exceptions)
