"""What the tests of chunks, write loop and uploader share: small batches, and disks that fail."""

import errno
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from uuid import UUID

from tests.support.chunks.batch_builder import seal
from tests.support.chunks.chains import chain_of
from wal.chunks.batch_rows import batch_row, placed, row_of_batch
from wal.chunks.buffer import BufferPool, ChainCutter
from wal.chunks.chunk import ChunkIdentity, ChunkPaths, ChunkWriter, PendingBatches, Waiting
from wal.chunks.chunk_directory import ChunkDirectory
from wal.chunks.sealed_chunk import SealedChunk
from wal.chunks.wal_settings import WalSettings
from wal.clock import ManualClock
from wal.coordinates import NO_TRANSACTION, TopicIdPartition
from wal.crc import Buffer
from wal.disk import SYSTEM_DISK, Disk, SystemDisk
from wal.errors import DisklessError, ObjectExpired, Rejected
from wal.fd_cache import FdCache
from wal.records.record_batch import parse_header
from wal.stores.object_store import ObjectBody

TOPIC_A = UUID(int=0xA)
TOPIC_B = UUID(int=0xB)
A0 = TopicIdPartition(TOPIC_A, 0)
A1 = TopicIdPartition(TOPIC_A, 1)
B0 = TopicIdPartition(TOPIC_B, 0)

# Nothing ends a chunk that is not full unless the test asks for it.
SETTINGS = WalSettings(
    commit_interval_ms=60_000,
    commit_early=False,
    puts_per_second_max=100_000,
    retry_backoff_ms=1,
    retry_backoff_max_ms=2,
)


def batch_bytes(
    payload: bytes = b"records", *, record_count: int = 1, producer_id: int = -1, sequence: int = -1
) -> bytes:
    """A RecordBatch with a right CRC; its records are not meant to be opened."""
    return seal(
        payload,
        record_count=record_count,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=sequence,
    )


def pending(
    pool: BufferPool,
    partition: TopicIdPartition = A0,
    data: bytes | None = None,
    *,
    token: object = None,
    request_id: int = 0,
    timestamp_type: int = 0,
    transaction_number: int = NO_TRANSACTION,
) -> PendingBatches:
    """One batch. The token is one of the tests' own for each batch; see `waiting`."""
    data = batch_bytes() if data is None else data
    name = partition.topic_id.bytes
    header = parse_header(data)
    place = partition.partition
    row = batch_row(name, place, 0, header, timestamp_type, request_id, transaction_number)
    tokens = None if token is None else (token,)
    topic_ids = {name: partition.topic_id}
    return PendingBatches(bytearray(row), 1, topic_ids, chain_of(pool, data), tokens)


def together(pool: BufferPool, batches: Sequence[PendingBatches]) -> PendingBatches:
    """Batches of one request, whose own payloads are given back."""
    rows = bytearray()
    data = bytearray()
    tokens: list[object] = []
    topic_ids: dict[bytes, UUID] = {}
    for batch in batches:
        rows += placed(batch.rows, len(data))
        data += b"".join(batch.payload.views())
        batch.payload.release()
        tokens += batch.token or [None] * batch.batch_count
        topic_ids |= batch.topic_ids
    whole = chain_of(pool, data)
    lengths = [row_of_batch(rows, place).length_bytes for place in range(len(tokens))]
    starts = [sum(lengths[:place]) for place in range(len(tokens))]
    payload = ChainCutter(whole).share_all(starts, lengths)
    whole.release()
    return PendingBatches(rows, len(tokens), topic_ids, payload, tokens)


def tokens_of(chunk: SealedChunk, positions: Sequence[int] | None = None) -> list[object]:
    """Who waits for the batches at these arrival positions, or for all."""
    if positions is None:
        positions = range(chunk.batch_count)
    return [
        token
        for tokens, _, places in chunk.waiting_for(sorted(positions))
        for token in (tokens if places is None else [tokens[place] for place in places])
    ]


def open_writer(path: Path, *, number: int = 0, seed: int = 1, disk: Disk = SYSTEM_DISK,
                data_max_bytes: int = 1 << 20, overflow_bytes: int = 1 << 20,
                sync: bool = False) -> ChunkWriter:  # fmt: skip
    return ChunkWriter(
        ChunkPaths.of(path, number),
        ChunkIdentity.mint(ManualClock(), random.Random(seed), broker_id=7),
        data_max_bytes=data_max_bytes,
        overflow_bytes=overflow_bytes,
        sync=sync,
        disk=disk,
    )


def write_chunk(
    path: Path, batches: Sequence[tuple[TopicIdPartition, bytes]], *, number: int = 0, seed: int = 1
) -> ChunkWriter:
    """A closed chunk with one append per batch."""
    pool = BufferPool(1 << 20)
    writer = open_writer(path, number=number, seed=seed)
    for partition, data in batches:
        item = pending(pool, partition, data)
        writer.append([item])
        item.payload.release()
    writer.close()
    return writer


def open_directory(
    path: Path,
    *,
    settings: WalSettings = SETTINGS,
    disk: Disk = SYSTEM_DISK,
    seed: int = 1,
) -> ChunkDirectory:
    return ChunkDirectory(
        path,
        settings=settings,
        clock=ManualClock(),
        rng=random.Random(seed),
        fd_cache=FdCache(64),
        broker_id=7,
        lane=3,
        disk=disk,
    )


def object_bytes(body: ObjectBody) -> bytes:
    """A body read to its end, as a store would."""
    return b"".join(bytes(fragment) for fragment in body.fragments())


def sealed(
    directory: ChunkDirectory,
    batches: Iterable[tuple[TopicIdPartition, bytes]],
    tokens: Sequence[object] | None = None,
) -> SealedChunk:
    """A sealed chunk of a directory that was recovered."""
    pool = BufferPool(1 << 20)
    writer = directory.open_chunk()
    items = [pending(pool, partition, data) for partition, data in batches]
    writer.append(items)
    for item in items:
        item.payload.release()
    chunk = directory.seal(writer, [Waiting(tokens, len(items))])
    assert chunk is not None
    return chunk


class FaultyDisk(SystemDisk):
    """A disk on which `fail` decides, per call, whether it works: it may raise OSError.

    `space` is how many bytes may still be written; None is enough for everything. What does not
    fit is refused as a file system does it: a short write first, then ENOSPC.
    """

    def __init__(self, fail: Callable[[str, str], None] = lambda call, path: None) -> None:
        self.fail = fail
        self.space: int | None = None
        self.calls: list[tuple[str, str]] = []
        self._paths: dict[int, str] = {}

    def _enter(self, call: str, path: str) -> None:
        self.calls.append((call, Path(path).suffix))
        self.fail(call, path)

    def open(self, path: str, flags: int) -> int:
        self._enter("open", path)
        fd = super().open(path, flags)
        self._paths[fd] = path
        return fd

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        self._enter("pwritev", self._paths[fd])
        if self.space is not None:
            if self.space == 0:
                raise OSError(errno.ENOSPC, "no space left on device")
            data = b"".join(buffers)[: self.space]
            self.space -= len(data)
            return super().pwritev(fd, [data], offset)
        return super().pwritev(fd, buffers, offset)

    def fdatasync(self, fd: int) -> None:
        self._enter("fdatasync", self._paths[fd])

    def ftruncate(self, fd: int, length_bytes: int) -> None:
        self._enter("ftruncate", self._paths[fd])
        super().ftruncate(fd, length_bytes)

    def rename(self, source: str, target: str) -> None:
        self._enter("rename", source)
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._enter("unlink", path)
        super().unlink(path)


class Outcomes:
    """A committer, and the ends of everything a write loop may tell: each token's outcomes.

    `commit` runs `before_commit` for each chunk first, which may wait or raise: Rejected and
    ObjectExpired concern that chunk alone.
    """

    def __init__(self) -> None:
        self.of_token: dict[object, list[str]] = {}
        self.committed: list[SealedChunk] = []
        self.together: list[int] = []
        """How many chunks each call of `commit` was about."""
        self.abandoned: list[tuple[SealedChunk, DisklessError]] = []
        self.before_commit: Callable[[SealedChunk], None] = lambda chunk: None

    def _tell(self, token: object, outcome: str) -> None:
        if token is not None:
            self.of_token.setdefault(token, []).append(outcome)

    def failed(self, batches: Sequence[PendingBatches], error: DisklessError) -> None:
        for some in batches:
            for token in some.token or ():
                self._tell(token, type(error).__name__)

    async def commit(self, chunks: Sequence[SealedChunk]) -> Sequence[DisklessError | None]:
        self.together.append(len(chunks))
        refused: list[DisklessError | None] = []
        for chunk in chunks:
            try:
                self.before_commit(chunk)
            except (Rejected, ObjectExpired) as error:
                refused.append(error)
            else:
                refused.append(None)
        for chunk, error in zip(chunks, refused, strict=True):
            if error is None:
                for token in tokens_of(chunk, chunk.plan.positions):
                    self._tell(token, "committed")
                self.committed.append(chunk)
        return refused

    async def abandon(self, chunk: SealedChunk, error: DisklessError) -> None:
        for token in tokens_of(chunk, chunk.plan.positions):
            self._tell(token, type(error).__name__)
        self.abandoned.append((chunk, error))

    async def abandon_batches(
        self, chunk: SealedChunk, positions: Sequence[int], error: DisklessError
    ) -> None:
        for token in tokens_of(chunk, positions):
            self._tell(token, type(error).__name__)


def object_range(chunk: SealedChunk, start: int, length: int) -> bytes:
    """Bytes [start, start + length) of the chunk's object, read from the chunk."""
    content = bytearray(length)
    chunk.read_object_range(start, memoryview(content))
    return bytes(content)
