"""A sealed chunk: what will become, or has become, one WAL object; and the mark of its commit.

The chunk directory (wal/chunks/chunk_directory.py) makes it, the uploader lays out its object and
reads its bytes, fetches read the object's byte ranges from it. Once it is committed only a map from
the object's bytes to .data is kept in memory.

    content of a committed record in .idx, 16 bytes
     0  footer CRC   u32  of the object's footer, which pins down its whole plan
     4  zeros        4s
     8  object bytes u64
"""

import struct
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Protocol, Self

import structlog

from wal.chunks.checked_reads import read_checked
from wal.chunks.chunk import COMMITTED, ChunkIdentity, ChunkPaths, Waiting, encode_record
from wal.chunks.chunk_batches import ChunkBatches
from wal.chunks.wal_object import WalObjectPlan, plan_wal_object
from wal.crc import crc32c
from wal.errors import CorruptChunk, OutOfBounds, StorageFailed
from wal.fd_cache import FdHandle

log = structlog.get_logger(__name__)

COMMITTED_CONTENT: Final = struct.Struct(">I4sQ")
assert COMMITTED_CONTENT.size == 16

BATCH_OVERHEAD_BYTES: Final = 1024
"""What a waiting batch is taken to cost in memory beside its bytes, when queues are bounded.

Measured: 0.4 KiB sealed and laid out, with a small token; more before it is written. Uncharged,
tiny batches would fill memory long before their bytes fill a queue.
"""


CACHED_CHUNK_BYTES: Final = 4096
"""What a committed chunk is taken to cost in memory, beside CACHED_BATCH_BYTES for each batch.

Measured: 3.4 KiB, most of it names. Uncharged, chunks of a few records that are sealed a hundred
times a second would fill memory long before they fill the disk that the cache may use.
"""
CACHED_BATCH_BYTES: Final = 16

_NO_BATCHES: Final = ChunkBatches.of(())


class EarlyPut(Protocol):
    """A put of a chunk's object that was begun before the chunk was sealed."""

    async def has_stored(self) -> bool:
        """Whether the object is in the store; waits for the end of it."""
        ...


class CommitRecord(NamedTuple):
    """What a chunk's .idx says of the object that was committed."""

    footer_crc: int
    object_bytes: int

    @classmethod
    def of(cls, plan: WalObjectPlan) -> Self:
        return cls(crc32c(plan.footer), plan.object_bytes)

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """The inverse of `encode`, for a record that was found good."""
        footer_crc, _, object_bytes = COMMITTED_CONTENT.unpack(content)
        return cls(footer_crc, object_bytes)

    def encode(self) -> bytes:
        return COMMITTED_CONTENT.pack(self.footer_crc, bytes(4), self.object_bytes)


class CommittedEnds(NamedTuple):
    """What the two ends of a committed chunk's .idx say of it."""

    identity: ChunkIdentity
    batch_count: int
    data_bytes: int
    index_bytes: int


class ObjectMap(NamedTuple):
    """From an object's bytes to .data: the batches at `object_offsets` start at `data_offsets`.

    Two arrays, because a tail cache of tiny batches holds millions of them.
    """

    object_offsets: "array[int]"
    """Ascending; one more than batches: the last one is where the footer starts."""
    data_offsets: "array[int]"

    @classmethod
    def of(cls, plan: WalObjectPlan) -> "ObjectMap":
        object_offsets = array("Q", plan.extents.byte_offset.tobytes())
        object_offsets.append(plan.object_bytes - len(plan.footer))
        data_offsets = array("Q", plan.batches.numbers("byte_offset").tobytes())
        return cls(object_offsets, data_offsets)


class SealedChunk:
    """A chunk that takes no more appends: what will become, or has become, one WAL object.

    `waiting` says who waits for its batches, in arrival order; for a recovered chunk's, nobody
    does. The chunk directory made it: it gives its own lock, `books`, under which `readers` and
    `is_gone` change.
    """

    def __init__(
        self,
        open_data: "Callable[[SealedChunk], FdHandle]",
        books: threading.Lock,
        paths: ChunkPaths,
        identity: ChunkIdentity,
        batches: ChunkBatches,
        *,
        waiting: Sequence[Waiting] = (),
        data_bytes: int,
        index_bytes: int,
        notes: bytes = b"",
        plan: WalObjectPlan | None = None,
    ) -> None:
        self.paths = paths
        self.identity = identity
        self.object_key: Final = identity.object_key
        self.waiting = waiting
        self.data_bytes = data_bytes
        self.index_bytes = index_bytes
        self.batch_count = len(batches)
        self.is_committed = False
        self.is_stored = False
        """Whether its object was put by the thread that sealed it."""
        self.early_put: EarlyPut | None = None
        self._open_data = open_data
        self._books = books
        self._batches = batches
        self._notes = notes
        self._plan = plan
        self._map: ObjectMap | None = None
        self._load_map: Callable[[SealedChunk], ObjectMap] | None = None
        self._lock = threading.Lock()
        self.readers = 0
        self.is_gone = False

    @classmethod
    def committed(
        cls,
        open_data: "Callable[[SealedChunk], FdHandle]",
        books: threading.Lock,
        paths: ChunkPaths,
        ends: CommittedEnds,
        load_map: "Callable[[SealedChunk], ObjectMap]",
    ) -> Self:
        """One that an earlier process committed. `load_map` is called when it is first read from,
        while its files are kept; raises CorruptChunk, StorageFailed.
        """
        identity, batch_count, data_bytes, index_bytes = ends
        chunk = cls(
            open_data,
            books,
            paths,
            identity,
            _NO_BATCHES,
            data_bytes=data_bytes,
            index_bytes=index_bytes,
        )
        chunk.batch_count = batch_count
        chunk.is_committed = True
        chunk._load_map = load_map
        return chunk

    @property
    def data_path(self) -> str:
        return self.paths.data

    @property
    def file_bytes(self) -> int:
        """The bytes of both files."""
        return self.data_bytes + self.index_bytes

    @property
    def cached_memory_bytes(self) -> int:
        """The bytes it counts against `wal.cache.memory.max.bytes` when it is committed."""
        return CACHED_CHUNK_BYTES + CACHED_BATCH_BYTES * self.batch_count

    @property
    def charged_bytes(self) -> int:
        """The bytes this chunk counts against `wal.buffer.max.bytes`."""
        return self.data_bytes + BATCH_OVERHEAD_BYTES * self.batch_count

    @property
    def batches(self) -> ChunkBatches:
        """The batches in arrival order; none once committed, when only the map is kept."""
        return self._batches

    @property
    def is_planned(self) -> bool:
        """Whether `plan` has its answer ready."""
        return self._plan is not None

    @property
    def plan(self) -> WalObjectPlan:
        """The object this chunk becomes; laid out when first asked for, gone once committed."""
        with self._lock:
            if self._plan is None:
                if self.is_committed:
                    raise ValueError(f"{self.object_key} is committed, its plan was dropped")
                self._plan = self._lay_out()
            return self._plan

    def exclude(self, positions: Collection[int]) -> None:
        """Plan the object without the batches at these arrival positions.

        For batches that were found damaged before anything was uploaded under this chunk's key.
        Nobody waits for them any more, once they were told so.
        """
        with self._lock:
            self._plan = self._lay_out(positions)
            self._map = None

    def waiting_for(
        self, positions: Sequence[int]
    ) -> Iterator[tuple[Any, range, Sequence[int] | None]]:
        """Who waits for the batches at these arrival positions, which ascend.

        Gives (token, which of `positions` are of its batches, which of its batches they are: None
        for all).
        """
        first = start = 0
        for token, count in self.waiting:
            end = bisect_left(positions, first + count, start)
            if token is not None and end > start:
                is_all = end - start == count
                places = None if is_all else [at - first for at in positions[start:end]]
                yield token, range(start, end), places
            first, start = first + count, end

    def open_data(self) -> FdHandle:
        """The .data file, for a `with` statement. Raises: ChunkLost, StorageFailed."""
        return self._open_data(self)

    def read_object_range(self, start: int, content: memoryview) -> None:
        """Fill `content` with the object's bytes from `start` on; blocks on the disk.

        The range must lie within the batches; it need not follow their
        borders. The bytes are not checked: readers check each batch's CRC, as they do for bytes
        from anywhere else.
        Raises: OutOfBounds, StorageFailed (deleted in the meantime, or unreadable), CorruptChunk
        (the file is too short).
        """
        with self.pinned():
            pieces = self._extents_of(start, len(content))
            with self.open_data() as data:
                if len(pieces) > 1:
                    self._load_together(data, pieces)
                filled = 0
                for offset, size in pieces:
                    self._fill(data, content[filled : filled + size], offset)
                    filled += size

    def commit_record(self) -> bytes:
        """The record of the commit of `plan`, for the end of .idx."""
        return encode_record(
            self.identity.salt_crc,
            COMMITTED,
            self.batch_count,
            self.data_bytes,
            CommitRecord.of(self.plan).encode(),
        )

    @contextmanager
    def pinned(self) -> Iterator[None]:
        """Keep the chunk's files for a `with` block; entering it raises StorageFailed if gone."""
        with self._books:
            if self.is_gone:
                raise StorageFailed(f"{self.data_path}: no longer kept")
            self.readers += 1
        try:
            yield
        finally:
            with self._books:
                self.readers -= 1

    def forget_plan(self) -> None:
        """Committed: keep what reading needs, drop what only the upload and the commit needed."""
        with self._lock:
            self._map = self._mapped()
            self.is_committed = True
            self._plan = None
            self._batches = _NO_BATCHES
            self._notes = b""
            self.waiting = ()

    def _lay_out(self, excluded: Collection[int] = ()) -> WalObjectPlan:
        return plan_wal_object(self.identity, self._batches, excluded=excluded, notes=self._notes)

    def _mapped(self) -> ObjectMap:
        """The map, made when first asked for; under the lock."""
        if self._map is None and self._load_map is not None:
            self._map = self._load_map(self)
        if self._map is None:
            if self._plan is None:
                self._plan = self._lay_out()
            self._map = ObjectMap.of(self._plan)
        return self._map

    def _load_together(self, data: FdHandle, pieces: Sequence[tuple[int, int]]) -> None:
        try:
            data.load_together(pieces)
        except OSError as error:
            raise StorageFailed(f"{self.data_path}: {error}") from error

    def _fill(self, data: FdHandle, view: memoryview, offset: int) -> None:
        try:
            count = data.pread_into(view, offset)
        except OSError as error:
            raise StorageFailed(f"{self.data_path}: byte {offset}: {error}") from error
        if count != len(view):
            raise CorruptChunk(f"{self.data_path}: ends before byte {offset + len(view)}")

    def _extents_of(self, start: int, length: int) -> Sequence[tuple[int, int]]:
        """(offset in .data, size) of each piece of an object range, neighbours merged."""
        with self._lock:
            object_offsets, data_offsets = self._mapped()
        if start < object_offsets[0] or length < 0 or start + length > object_offsets[-1]:
            raise OutOfBounds(
                f"{self.object_key}: bytes [{start}, {start + length}) are not within its batches,"
                f" [{object_offsets[0]}, {object_offsets[-1]})"
            )
        pieces: list[tuple[int, int]] = []
        index = bisect_right(object_offsets, start) - 1
        while length:
            skipped = start - object_offsets[index]
            size = min(object_offsets[index + 1] - start, length)
            offset = data_offsets[index] + skipped
            if pieces and sum(pieces[-1]) == offset:
                pieces[-1] = (pieces[-1][0], pieces[-1][1] + size)
            else:
                pieces.append((offset, size))
            start += size
            length -= size
            index += 1
        return pieces


def find_damaged(chunk: SealedChunk) -> Sequence[int]:
    """Read all of a chunk and find what must be left out of its object; blocks.

    Returns arrival positions, ascending: batches that fail their CRCs or cannot be read, and behind
    each of them what the same idempotent producer has on the same partition.
    None at all when the file cannot be opened now, for then nothing is known of it.
    """
    damaged: list[int] = []
    broken: set[tuple[object, int]] = set()
    try:
        data = chunk.open_data()
    except StorageFailed as error:
        log.warning("chunk not readable now", path=chunk.data_path, error=str(error))
        return ()
    with data:
        for position, entry in enumerate(chunk.batches):
            producer = (entry.partition, entry.producer_id)
            if producer in broken:
                damaged.append(position)
                continue
            try:
                for _ in read_checked(data, chunk.data_path, ChunkBatches.of([entry])):
                    pass
            except CorruptChunk:
                damaged.append(position)
                if entry.producer_id >= 0:
                    broken.add(producer)
    return damaged
