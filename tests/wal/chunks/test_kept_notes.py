"""Notes objects: their bytes, their names, and what several of them say together."""

import struct
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal.chunks.kept_notes import (
    KeptNotes,
    NotedEnd,
    NotedSink,
    StagedNote,
    StagedRun,
    decode_kept_notes,
    encode_kept_notes,
    merged,
    minted_ms_of_notes_key,
    notes_key,
)
from wal.chunks.object_notes import GIVEN_UP, CommitNote, Floor, NotedRun, TopicFacts
from wal.coordinates import TopicIdPartition
from wal.errors import CorruptObject
from wal.records.marker_batches import Marker
from wal.ulid import encode_ulid

TOPIC = UUID(int=0xA)
PLACE = TopicIdPartition(TOPIC, 3)
COMMITTED = CommitNote(encode_ulid(7), (NotedRun(10, 5, 2),), {4: 1})
GIVEN = CommitNote(encode_ulid(7), outcome=GIVEN_UP)
RUN = StagedRun(PLACE, 64, 300, 20, 7, 1, 1_700_000_000_000, -1, 2)
STAGED = StagedNote("s", encode_ulid(9), (RUN, RUN._replace(byte_offset=364, base_offset=27)))
SINK = NotedSink("s", "User:u", 4, bytes(range(16)), 1_000, ((PLACE, 20, 33),))
ENDS = (
    NotedEnd(Marker(20, 1_000, 2, False, 0, 1_700_000_000_000), 4),
    NotedEnd(Marker(27, 1_000, 2, True, 3, 1_700_000_000_001), 5),
)
NOTES = KeptNotes(
    {TOPIC: TopicFacts("flights", 6)},
    (COMMITTED,),
    {PLACE: Floor(90, 90)},
    (STAGED,),
    (SINK,),
    {PLACE: ENDS},
    1_000_000,
    ("{}", "schéma"),
)

_floors = st.dictionaries(
    st.builds(
        TopicIdPartition,
        st.uuids(),
        st.integers(0, (1 << 31) - 1),
    ),
    st.tuples(st.integers(0, 1 << 62), st.integers(0, 1 << 62)).map(
        lambda pair: Floor(max(pair), min(pair))
    ),
    max_size=5,
)


@given(_floors, st.integers(0, 3))
def test_notes_are_read_back_as_they_were_written(
    floors: dict[TopicIdPartition, Floor], commits: int
) -> None:
    notes = KeptNotes(
        NOTES.topics,
        tuple(COMMITTED._replace(ulid=encode_ulid(number)) for number in range(commits)),
        floors,
        (STAGED,) * commits,
        (SINK,) * commits,
        {PLACE: ENDS[:commits]} if commits else {},
        commits,
        ("schema",) * commits,
    )
    assert decode_kept_notes(encode_kept_notes(notes), "x") == notes


@given(st.integers(0, len(encode_kept_notes(NOTES)) - 1), st.integers(1, 255))
def test_a_damaged_byte_is_noticed(position: int, flipped: int) -> None:
    data = bytearray(encode_kept_notes(NOTES))
    data[position] ^= flipped
    if position in (10, 11):
        return  # zeros that nobody reads
    with pytest.raises(CorruptObject, match="x: "):
        decode_kept_notes(bytes(data), "x")


@given(st.binary(max_size=60))
def test_anything_else_is_no_notes_object(data: bytes) -> None:
    with pytest.raises(CorruptObject):
        decode_kept_notes(data, "x")


@pytest.mark.parametrize("version", [0, 2])
def test_notes_of_an_unknown_version_are_refused_by_name(version: int) -> None:
    data = bytearray(encode_kept_notes(NOTES))
    struct.pack_into(">H", data, 8, version)
    with pytest.raises(CorruptObject, match=f"x: format version {version};.* version 1"):
        decode_kept_notes(bytes(data), "x")


def test_a_commit_counts_for_more_than_that_the_object_was_given_up() -> None:
    for parts in ([KeptNotes(commits=(GIVEN,)), NOTES], [NOTES, KeptNotes(commits=(GIVEN,))]):
        assert merged(parts).commits == (COMMITTED,)


def test_of_two_floors_the_higher_one_counts() -> None:
    other = KeptNotes(floors={PLACE: Floor(80, 10)})
    assert merged([NOTES, other]).floors == merged([other, NOTES]).floors == {PLACE: Floor(90, 90)}


@pytest.mark.parametrize("key", ["notes/x", "notes/", f"notes/a/{encode_ulid(1)}", "wal/notes"])
def test_only_a_ulid_names_a_notes_object(key: str) -> None:
    assert minted_ms_of_notes_key(key) is None
    assert minted_ms_of_notes_key(notes_key(encode_ulid(5 << 80))) == 5


def test_the_runs_of_a_staged_object_add_up_and_the_last_batch_of_a_sink_counts() -> None:
    first, second = (STAGED._replace(runs=(run,)) for run in STAGED.runs)
    expired = SINK._replace(committed_at_ms=5_000, batch_id=0)
    parts = [
        KeptNotes(staged=(first,), sinks=(expired,)),
        KeptNotes(staged=(second,), sinks=(SINK,)),
    ]
    assert merged(parts) == KeptNotes(staged=(STAGED,), sinks=(expired,))


def test_ends_of_transactions_add_up() -> None:
    parts = [KeptNotes(ends={PLACE: ENDS[1:]}, ended_below=7), KeptNotes(ends={PLACE: ENDS})]
    assert merged(parts) == KeptNotes(ends={PLACE: ENDS}, ended_below=7)
