"""The body of an object that is put while its chunk fills."""

import random
import threading
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.brokers.live_broker import until
from tests.support.chunks.write_path import A0, A1, B0, batch_bytes
from wal.chunks.chunk import ChunkIdentity
from wal.chunks.chunk_batches import ChunkBatches, ChunkEntry
from wal.chunks.wal_object import WalObjectPlan, plan_wal_object
from wal.clock import ManualClock
from wal.errors import CorruptChunk, ObjectStoreUnavailable
from wal.private_copy import BLOCK_BYTES, aligned_buffer, is_aligned
from wal.records.record_batch import parse_header
from wal.write_path.growing_object import GrowingObject, ReceivedData

IDENTITY = ChunkIdentity.mint(ManualClock(), random.Random(1), 7)
BUFFER_BYTES = 4 * BLOCK_BYTES
FOREVER_S = 600.0


class Chunk:
    """Batches of three partitions, which are neighbours, without any files."""

    def __init__(self, *contents: bytes) -> None:
        self.data = b"".join(contents)
        self.entries: list[ChunkEntry] = []
        self.starts = [0]
        for place, content in enumerate(contents):
            crc = parse_header(content).crc
            partition = (B0, A1, A0)[3 * place // len(contents)]
            start, size = self.starts[-1], len(content)
            self.entries.append(ChunkEntry(partition, start, size, 1, crc, 0, 0, -1, -1, -1, place))
            self.starts.append(start + size)

    def plan(self, count: int | None = None) -> WalObjectPlan:
        return plan_wal_object(IDENTITY, self.entries[:count])

    def whole(self) -> bytes:
        plan = self.plan()
        assert [*plan.positions] == [*range(len(self.entries))]
        return plan.header + self.data + plan.footer

    def add(self, growing: GrowingObject, first: int, last: int, cuts: Sequence[int] = ()) -> None:
        """Batches first .. last - 1, received in as many views as `cuts` make."""
        start, end = self.starts[first], self.starts[last]
        borders = sorted({start, end, *(start + cut % max(end - start, 1) for cut in cuts)})
        views = [memoryview(bytearray(self.data[a:b])) for a, b in pairwise(borders)]
        growing.add(ChunkBatches.of(self.entries[first:last]), views, start)


class Putting:
    """Reads a growing object in a thread of its own, as a store does."""

    def __init__(self, growing: GrowingObject, hold: Callable[[], object] = lambda: None) -> None:
        self.pieces: list[bytes] = []
        self.are_aligned = True
        self.error: Exception | None = None
        self._growing = growing
        self._hold = hold
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            for piece in self._growing.fragments():
                self._hold()
                self.are_aligned &= is_aligned(memoryview(piece))
                self.pieces.append(bytes(piece))
        except ObjectStoreUnavailable as error:
            self.error = error

    def join(self) -> bytes:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return b"".join(self.pieces)


def growing_object(patience_s: float = FOREVER_S) -> GrowingObject:
    growing = GrowingObject(aligned_buffer(BUFFER_BYTES), patience_s=patience_s)
    growing.begin(IDENTITY, "chunk-000001.data")
    return growing


@given(
    st.lists(st.integers(1, 3 * BLOCK_BYTES - 100), min_size=1, max_size=8),
    st.lists(st.integers(1, 8)),
    st.lists(st.integers(0, 10**6), max_size=5),
)
def test_whatever_the_appends_it_is_the_object_in_whole_blocks(
    sizes: list[int], appends: list[int], cuts: list[int]
) -> None:
    chunk = Chunk(*[batch_bytes(bytes([number]) * size) for number, size in enumerate(sizes)])
    growing = growing_object()
    putting = Putting(growing)
    ends = sorted({0, len(sizes), *[end for end in appends if end < len(sizes)]})
    for first, last in pairwise(ends):
        chunk.add(growing, first, last, cuts)
    growing.finish(chunk.plan())
    written = putting.join()
    assert written == chunk.whole()
    assert growing.length_bytes == len(written)
    assert not any(len(piece) % BLOCK_BYTES for piece in putting.pieces[:-1])
    assert putting.are_aligned


def test_who_adds_waits_for_room_and_no_longer_than_it_takes() -> None:
    chunk = Chunk(*[batch_bytes(bytes(BLOCK_BYTES)) for _ in range(6)])
    growing, go_on = growing_object(), threading.Semaphore(0)
    putting = Putting(growing, go_on.acquire)
    adding = threading.Thread(target=lambda: chunk.add(growing, 0, 6))
    adding.start()
    adding.join(0.05)
    assert adding.is_alive(), "six batches found room for three"
    go_on.release(100)
    adding.join(60)
    assert not adding.is_alive()
    growing.finish(chunk.plan())
    assert putting.join() == chunk.whole()


@pytest.mark.parametrize("gives_up", [True, False])
def test_a_store_that_hangs_keeps_nobody_from_adding(gives_up: bool) -> None:
    """Somebody gives it up, or who adds loses patience."""
    chunk = Chunk(*[batch_bytes(bytes(BLOCK_BYTES)) for _ in range(6)])
    growing = growing_object(patience_s=FOREVER_S if gives_up else 0.01)
    stuck, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        stuck.set()
        assert go_on.wait(60)

    putting = Putting(growing, hang)
    adding = threading.Thread(target=lambda: chunk.add(growing, 0, 6))
    adding.start()
    assert stuck.wait(60)
    if gives_up:
        growing.end()
    adding.join(60)
    assert not adding.is_alive()
    assert growing.is_over
    growing.finish(chunk.plan())
    go_on.set()
    putting.join()
    assert isinstance(putting.error, ObjectStoreUnavailable)
    assert growing.length_bytes == 0


def test_who_puts_does_not_wait_for_a_chunk_that_came_to_nothing() -> None:
    growing = growing_object()
    putting = Putting(growing)
    until(lambda: not putting.pieces, "a put that waits")
    growing.end()
    assert putting.join() == b""
    assert putting.error is not None
    never_begun = GrowingObject(aligned_buffer(BUFFER_BYTES))
    never_begun.end()
    assert never_begun.wait_begun() is None


def test_a_batch_larger_than_the_buffer_is_not_put_beside() -> None:
    chunk = Chunk(batch_bytes(b"0"), batch_bytes(bytes(BUFFER_BYTES)), batch_bytes(b"1"))
    growing = growing_object()
    putting = Putting(growing)
    chunk.add(growing, 0, 3)
    assert growing.is_over
    growing.finish(chunk.plan())
    putting.join()
    assert putting.error is not None


def test_what_is_there_is_put_at_once() -> None:
    """Each piece makes a thread wait for the interpreter."""
    chunk = Chunk(*[batch_bytes(bytes(2000)) for _ in range(6)])
    growing = growing_object()
    chunk.add(growing, 0, 6)
    growing.finish(chunk.plan())
    putting = Putting(growing)
    assert putting.join() == chunk.whole()
    assert len(putting.pieces) == 1


def test_another_object_than_was_begun_has_no_end() -> None:
    chunk = Chunk(*[batch_bytes(b"%d" % number) for number in range(3)])
    growing = growing_object()
    putting = Putting(growing)
    chunk.add(growing, 0, 3)
    growing.finish(chunk.plan(2))
    putting.join()
    assert putting.error is not None


def test_a_batch_that_was_written_over_is_not_added() -> None:
    chunk = Chunk(batch_bytes(b"0"), batch_bytes(b"1" * BLOCK_BYTES))
    chunk.data = chunk.data[:-1] + b"x"
    growing = growing_object()
    putting = Putting(growing)
    with pytest.raises(CorruptChunk, match=r"chunk-000001\.data: the batch at byte \d+"):
        chunk.add(growing, 0, 2)
    growing.end()
    putting.join()


@given(st.lists(st.integers(1, 9), min_size=1), st.integers(0, 60), st.integers(0, 60))
def test_received_data_is_read_like_a_file(sizes: list[int], offset: int, length: int) -> None:
    data, start = random.Random(1).randbytes(sum(sizes)), 7
    ends = [sum(sizes[: place + 1]) for place in range(len(sizes))]
    views = [memoryview(data[a:b]) for a, b in pairwise([0, *ends])]
    expected = data[offset : offset + length]
    buffer = memoryview(bytearray(length))
    assert ReceivedData(views, start).pread_into(buffer, start + offset) == len(expected)
    assert buffer[: len(expected)] == expected
