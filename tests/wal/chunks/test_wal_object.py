"""WAL objects: their order, their index, and what reading makes of damage."""

import os
import random
import struct
from collections.abc import Collection
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.support.chunks.write_path import (
    A0,
    A1,
    B0,
    batch_bytes,
    object_bytes,
    object_range,
    open_directory,
    sealed,
)
from tests.support.profiles import examples
from wal.chunks.checked_reads import READ_BYTES_MAX, read_checked
from wal.chunks.chunk import ChunkIdentity
from wal.chunks.chunk_batches import ChunkEntry
from wal.chunks.sealed_chunk import SealedChunk
from wal.chunks.wal_object import (
    INDEX_ENTRY,
    OBJECT_HEADER_BYTES,
    TRAILER_BYTES,
    WalObjectBody,
    WalObjectReader,
    footer_bytes,
    plan_wal_object,
    read_footer,
    read_header,
)
from wal.clock import ManualClock
from wal.columns import FEW_MAX
from wal.coordinates import ObjectKey, TopicIdPartition
from wal.crc import Buffer, crc32c
from wal.errors import ChunkLost, CorruptChunk, CorruptObject, ObjectNotFound
from wal.private_copy import BLOCK_BYTES, is_aligned
from wal.stores.memory_store import MemoryStore
from wal.stores.object_store import BytesBody

KEY = ObjectKey("wal/00/object")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(clock=ManualClock())


def chunk_of(path: Path, batches: list[tuple[TopicIdPartition, bytes]]) -> SealedChunk:
    directory = open_directory(path)
    directory.recover()
    return sealed(directory, batches)


MIXED = [
    (B0, batch_bytes(b"b-1", record_count=2, producer_id=3, sequence=10)),
    (A1, batch_bytes(b"a1-1")),
    (B0, batch_bytes(b"b-2", producer_id=3, sequence=12)),
    (A0, batch_bytes(b"a0-1")),
    (A1, batch_bytes(b"a1-2")),
]


async def test_batches_lie_by_topic_and_partition_in_arrival_order(tmp_path: Path) -> None:
    chunk = chunk_of(tmp_path, MIXED)
    plan = chunk.plan
    assert plan.positions == [3, 1, 4, 0, 2]
    whole = object_bytes(WalObjectBody(chunk, plan))
    assert len(whole) == plan.object_bytes == WalObjectBody(chunk, plan).length_bytes
    for extent, position in zip(plan.extents, plan.positions, strict=True):
        partition, data = MIXED[position]
        assert extent.partition == partition
        assert whole[extent.byte_offset : extent.byte_offset + extent.length_bytes] == data


@pytest.mark.parametrize("excluded", [(), (1, 2), range(len(MIXED))])
def test_an_objects_checksum_is_known_before_it_is_read(
    tmp_path: Path, excluded: Collection[int]
) -> None:
    chunk = chunk_of(tmp_path, MIXED)
    chunk.exclude(excluded)
    body = WalObjectBody(chunk, chunk.plan)
    whole = object_bytes(body)
    os.unlink(chunk.data_path)
    assert body.crc32c() == crc32c(whole)


def test_the_checksum_of_many_batches_is_known_too(tmp_path: Path) -> None:
    batches = [(B0, batch_bytes(bytes(number))) for number in range(1500)]
    chunk = chunk_of(tmp_path, batches)
    body = WalObjectBody(chunk, chunk.plan)
    assert body.crc32c() == crc32c(object_bytes(body))


async def test_an_object_describes_itself(tmp_path: Path, store: MemoryStore) -> None:
    chunk = chunk_of(tmp_path, MIXED)
    await store.put(chunk.object_key, WalObjectBody(chunk, chunk.plan))
    index = await WalObjectReader(store).verify(chunk.object_key)
    assert index.extents == chunk.plan.extents
    assert index.object_bytes == chunk.plan.object_bytes
    assert index.header == (7, chunk.identity.opened_at_ms, chunk.identity.ulid, 3)


async def test_the_index_needs_one_ranged_read_of_the_tail(
    tmp_path: Path, store: MemoryStore
) -> None:
    chunk = chunk_of(tmp_path, [(A0, batch_bytes(bytes(100_000)))] * 3)
    await store.put(chunk.object_key, WalObjectBody(chunk, chunk.plan))
    await WalObjectReader(store).read_index(chunk.object_key)
    # The tail, and the header at the other end.
    assert (store.statistics().gets, store.statistics().heads) == (2, 1)


async def test_an_index_larger_than_the_guess_is_read_whole(
    tmp_path: Path, store: MemoryStore
) -> None:
    chunk = chunk_of(tmp_path, [(A0, batch_bytes(b"%d" % number)) for number in range(2000)])
    assert len(chunk.plan.footer) > 64 << 10
    await store.put(chunk.object_key, WalObjectBody(chunk, chunk.plan))
    index = await WalObjectReader(store).verify(chunk.object_key)
    assert len(index.extents) == 2000


def test_a_body_can_be_read_again_from_its_start(tmp_path: Path) -> None:
    chunk = chunk_of(tmp_path, [(A0, batch_bytes(bytes(READ_BYTES_MAX // 2)))] * 5)
    body = WalObjectBody(chunk, chunk.plan)
    half_read = iter(body.fragments())
    next(half_read)
    next(half_read)
    assert object_bytes(body) == object_bytes(body)


@pytest.mark.parametrize(
    "lengths",
    [
        [READ_BYTES_MAX - 61],
        [READ_BYTES_MAX - 60],
        [3 * READ_BYTES_MAX],
        [10, 2 * READ_BYTES_MAX, 10],
        [READ_BYTES_MAX // 2] * 5,
        [100] * 50,
    ],
)
def test_pieces_are_bounded_and_add_up(tmp_path: Path, lengths: list[int]) -> None:
    rng = random.Random(1)
    batches = [(rng.choice([A0, A1, B0]), batch_bytes(rng.randbytes(length))) for length in lengths]
    chunk = chunk_of(tmp_path, batches)
    expected = b"".join(batches[position][1] for position in chunk.plan.positions)
    pieces = []
    for fragment in WalObjectBody(chunk, chunk.plan).fragments():
        assert len(fragment) <= READ_BYTES_MAX
        assert is_aligned(memoryview(fragment))
        pieces.append(bytes(fragment))
    assert not any(len(piece) % BLOCK_BYTES for piece in pieces[:-1])
    assert b"".join(pieces) == chunk.plan.header + expected + chunk.plan.footer


def test_a_footer_larger_than_the_buffer_comes_in_whole_blocks_too(tmp_path: Path) -> None:
    batches = [(A0, batch_bytes(b"%d" % number)) for number in range(READ_BYTES_MAX // 70)]
    chunk = chunk_of(tmp_path, batches)
    assert len(chunk.plan.footer) > READ_BYTES_MAX
    pieces = [bytes(piece) for piece in WalObjectBody(chunk, chunk.plan).fragments()]
    assert not any(len(piece) % BLOCK_BYTES for piece in pieces[:-1])
    data = b"".join(data for _, data in batches)
    assert b"".join(pieces) == chunk.plan.header + data + chunk.plan.footer


class CountingFile:
    """A .data file in memory that counts the reads."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.reads = 0

    def pread_into(self, buffer: memoryview, offset: int) -> int:
        self.reads += 1
        part = self._data[offset : offset + len(buffer)]
        buffer[: len(part)] = part
        return len(part)


def test_neighbours_in_the_chunk_are_read_at_once(tmp_path: Path) -> None:
    chunk = chunk_of(tmp_path, [(A0, batch_bytes())] * 10 + [(B0, batch_bytes())] * 10)
    file = CountingFile(Path(chunk.data_path).read_bytes())
    for _ in read_checked(file, "data", chunk.plan.batches):
        pass
    assert file.reads == 1


@pytest.mark.parametrize("times", [1, 9])
@given(draw=st.data())
@examples(allow=[HealthCheck.function_scoped_fixture])
def test_a_bit_that_flips_in_data_is_never_put(
    tmp_path: Path, times: int, draw: st.DataObject
) -> None:
    """Few batches are looked at one by one, many at once."""
    chunk = chunk_of(tmp_path, MIXED * times)
    path = Path(chunk.data_path)
    content = bytearray(path.read_bytes())
    bit = draw.draw(st.integers(0, 8 * len(content) - 1))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    with pytest.raises(CorruptChunk, match=r"chunk-\d+\.data: the batch at byte \d+"):
        object_bytes(WalObjectBody(chunk, chunk.plan))
    for file in tmp_path.iterdir():
        file.unlink()


@pytest.mark.parametrize("position", [0, 20, 21, READ_BYTES_MAX, 3 * READ_BYTES_MAX + 60])
def test_rot_in_a_batch_larger_than_the_buffer_is_found(tmp_path: Path, position: int) -> None:
    chunk = chunk_of(tmp_path, [(A0, batch_bytes(bytes(3 * READ_BYTES_MAX)))])
    with open(chunk.data_path, "r+b") as data:
        data.seek(position)
        old = data.read(1)
        data.seek(position)
        data.write(bytes([old[0] ^ 1]))
    with pytest.raises(CorruptChunk):
        object_bytes(WalObjectBody(chunk, chunk.plan))


def test_a_chunk_file_that_is_too_short_or_gone_is_named(tmp_path: Path) -> None:
    chunk = chunk_of(tmp_path, MIXED)
    os.truncate(chunk.data_path, 100)
    with pytest.raises(CorruptChunk, match="ends before byte"):
        object_bytes(WalObjectBody(chunk, chunk.plan))
    os.unlink(chunk.data_path)
    with pytest.raises(ChunkLost, match="missing"):
        object_bytes(WalObjectBody(chunk, chunk.plan))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[ObjectKey, bytes]:
    chunk = chunk_of(tmp_path_factory.mktemp("object"), MIXED)
    return chunk.object_key, object_bytes(WalObjectBody(chunk, chunk.plan))


@given(draw=st.data())
@examples(3)
async def test_a_flipped_bit_anywhere_in_an_object_is_found_unless_readers_overwrite_it(
    whole: tuple[ObjectKey, bytes], draw: st.DataObject
) -> None:
    key, content = whole
    flipped = bytearray(content)
    bit = draw.draw(st.integers(0, 8 * len(content) - 1))
    flipped[bit // 8] ^= 1 << bit % 8
    store = MemoryStore(clock=ManualClock())
    await store.put(key, BytesBody(bytes(flipped)))
    reader = WalObjectReader(store)
    if _in_leader_epoch(content, bit // 8):
        await reader.verify(key)
    else:
        with pytest.raises(CorruptObject, match=key):
            await reader.verify(key)


def _in_leader_epoch(content: bytes, byte: int) -> bool:
    """Whether `byte` belongs to the one field of a batch that no checksum covers: bytes 12-15.

    Every reader writes its own leader epoch there.
    """
    extents = read_footer(content, len(content), "test")
    return any(12 <= byte - extent.byte_offset < 16 for extent in extents)


@given(draw=st.data())
@examples(2)
async def test_a_truncated_object_is_found(
    whole: tuple[ObjectKey, bytes], draw: st.DataObject
) -> None:
    key, content = whole
    store = MemoryStore(clock=ManualClock())
    await store.put(key, BytesBody(content[: draw.draw(st.integers(0, len(content) - 1))]))
    with pytest.raises(CorruptObject):
        await WalObjectReader(store).verify(key)


@given(st.binary(max_size=500))
def test_garbage_is_no_footer_and_no_header(data: bytes) -> None:
    with pytest.raises(CorruptObject, match="name"):
        read_footer(data, len(data), "name")
    with pytest.raises(CorruptObject, match="name"):
        read_header(data, "name")


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("where", ["header", "trailer"])
async def test_an_object_of_an_unknown_version_is_refused_by_name(
    whole: tuple[ObjectKey, bytes], store: MemoryStore, where: str, version: int
) -> None:
    key, content = whole
    data = bytearray(content)
    start, at, crc_at = (0, 8, 60) if where == "header" else (len(data) - 32, 16, 20)
    struct.pack_into(">H", data, start + at, version)
    struct.pack_into(">I", data, start + crc_at, crc32c(bytes(data[start : start + crc_at])))
    await store.put(key, BytesBody(bytes(data)))
    with pytest.raises(CorruptObject, match=rf"{key}.*: format version {version}.* version 1"):
        await WalObjectReader(store).read_index(key)


async def test_an_object_under_another_objects_key_is_found(
    whole: tuple[ObjectKey, bytes], store: MemoryStore
) -> None:
    await store.put(KEY, BytesBody(whole[1]))
    with pytest.raises(CorruptObject, match="its header says"):
        await WalObjectReader(store).read_index(KEY)


async def test_a_missing_object_is_not_a_corrupt_one(store: MemoryStore) -> None:
    with pytest.raises(ObjectNotFound):
        await WalObjectReader(store).read_index(KEY)


def test_a_tail_that_is_too_short_is_told_apart_from_damage(
    whole: tuple[ObjectKey, bytes],
) -> None:
    _, content = whole
    tail: Buffer = content[-TRAILER_BYTES:]
    needed = footer_bytes(tail, len(content), "name")
    assert needed == len(MIXED) * INDEX_ENTRY.size + TRAILER_BYTES
    with pytest.raises(CorruptObject, match="only 32 are given"):
        read_footer(tail, len(content), "name")
    assert len(read_footer(content[-needed:], len(content), "name")) == len(MIXED)


def test_excluded_batches_are_left_out_and_the_rest_moves_up(tmp_path: Path) -> None:
    chunk = chunk_of(tmp_path, MIXED)
    chunk.exclude([1, 3])
    plan = chunk.plan
    assert plan.positions == [4, 0, 2]
    whole = object_bytes(WalObjectBody(chunk, plan))
    assert whole[OBJECT_HEADER_BYTES : -len(plan.footer)] == b"".join(
        MIXED[position][1] for position in plan.positions
    )
    assert object_range(chunk, OBJECT_HEADER_BYTES, 10) == MIXED[4][1][:10]


@given(
    st.lists(
        st.tuples(
            st.builds(TopicIdPartition, st.uuids(), st.integers(0, 2**31 - 1)),
            st.integers(61, 2**32 - 1),
            st.integers(1, 2**31 - 1),
            st.integers(0, 2**32 - 1),
            st.integers(-(2**63), 2**63 - 1),
            st.integers(0, 1),
            st.integers(-(2**63), 2**63 - 1),
            st.integers(-(2**15), 2**15 - 1),
            st.integers(-(2**31), 2**31 - 1),
            st.integers(-(2**63), 2**63 - 1),
        ),
        max_size=20,
    )
)
def test_every_footer_reads_back_as_it_was_planned(fields: list[tuple[int, ...]]) -> None:
    entries = [
        ChunkEntry(partition, 0, length, count, crc, *rest)  # type: ignore[arg-type]
        for partition, length, count, crc, *rest in fields
    ]
    identity = ChunkIdentity.mint(ManualClock(), random.Random(1), 1)
    plan = plan_wal_object(identity, entries)
    assert read_footer(plan.footer, plan.object_bytes, "name") == plan.extents


PARTITIONS = (B0, A1, A0)


@given(st.lists(st.tuples(st.sampled_from(PARTITIONS), st.integers(1, 9)), max_size=6))
def test_few_batches_whose_partitions_came_one_after_the_other_lie_as_they_came(
    runs: list[tuple[TopicIdPartition, int]],
) -> None:
    arrived = [partition for partition, count in runs for _ in range(count)]
    entries = [ChunkEntry(name, 0, 100, 1, 0, 0, 0, -1, -1, -1, 0) for name in arrived]
    identity = ChunkIdentity.mint(ManualClock(), random.Random(1), 1)
    plan = plan_wal_object(identity, entries)
    positions = [*range(len(arrived))]
    first_seen = [*dict.fromkeys(arrived)]
    if len(arrived) > FEW_MAX or sorted(arrived, key=first_seen.index) != arrived:
        positions.sort(key=lambda position: arrived[position])
    assert [*plan.positions] == positions
    assert [extent.partition for extent in plan.extents] == [arrived[place] for place in positions]
    others = plan_wal_object(identity, entries, excluded=[0] if entries else [])
    assert [*others.positions] == [place for place in positions if place]
