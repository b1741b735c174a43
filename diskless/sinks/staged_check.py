"""Looks into staged objects before they are committed, and judges their batches as Produce would.

Nothing that a task says of its object is believed. The index at the object's end says where batches
lie and for which partitions; all else is read from the batches themselves: their headers, which the
index must agree with, because a rebuild of the metadata compares it with what was noted; their
CRCs, and their records where the topic's rules ask for keys or bound the age of timestamps. What a
producer may not send is refused here as well: a control, transactional or delete-horizon bit. So is
a producer id, which belongs to somebody else, and another codec than the topic's, since nobody
compresses the batch anew.

How it goes: first the indexes of all objects, so that a commit with too many batches, or for topics
that it did not name, ends before its data is read; then the batches, a piece of some megabytes at a
time, checked in threads.

Invariants: at most COMMITS_AT_ONCE commits are looked into at a time, with PIECES_AT_ONCE pieces in
memory, over all of them; what records inflate to is reserved from the `InflationBudget` as for
produced batches. An object takes at most OBJECT_BYTES_MAX.

Failure cases: Rejected and what stands below it, naming the object; ObjectStoreUnavailable. Whoever
may write to the bucket can replace an object after it was checked, as any other object there.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple
from uuid import UUID

from metadata.operations import WRITE_AHEAD_MULTI_SEGMENT, CommitFile
from metadata.sink_operations import StagedFile
from wal.chunks.batch_rows import INDEX_ENTRY
from wal.chunks.wal_object import (
    OBJECT_HEADER_BYTES,
    TRAILER_BYTES,
    footer_bytes,
    read_footer,
    read_header,
)
from wal.clock import Clock
from wal.coordinates import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TRANSACTION,
    BatchExtent,
    ObjectKey,
)
from wal.crc import crc32c
from wal.errors import (
    BatchRejected,
    CorruptObject,
    InvalidRecord,
    ObjectNotFound,
    RecordTooLarge,
    Rejected,
    UnknownPartition,
)
from wal.inflation_budget import InflationBudget
from wal.records.batch_preparation import BatchWork, NeededWork
from wal.records.batch_validation import TopicRules, check_contents, check_header, opens_records
from wal.records.compression import CODEC_NAMES
from wal.records.recompression import Compression
from wal.records.record_batch import CRC_START, BatchHeader, unchecked_header
from wal.stores.object_store import ObjectStore

COMMITS_AT_ONCE: Final = 4
PIECES_AT_ONCE: Final = 4
OBJECT_BYTES_MAX: Final = 1 << 30
PIECE_BYTES: Final = 4 << 20
"""Batches that are read together; one that is larger is read alone."""
_TAIL_GUESS_BYTES: Final = 64 << 10
_PRODUCE_VERSION: Final = 13


class JudgedTopic(NamedTuple):
    """What batches of a topic are judged by."""

    name: str
    partition_count: int
    rules: TopicRules
    compression: Compression | None
    """The codec that they must have; None: any."""


class _Piece(NamedTuple):
    """Batches of one object that are read together."""

    object_key: ObjectKey
    extents: Sequence[BatchExtent]


class StagedCheck:
    """Of one broker."""

    def __init__(self, store: ObjectStore, budget: InflationBudget, clock: Clock) -> None:
        self._store = store
        self._budget = budget
        self._clock = clock
        self._commits = asyncio.Semaphore(COMMITS_AT_ONCE)
        self._pieces = asyncio.Semaphore(PIECES_AT_ONCE)

    async def checked(
        self,
        files: Sequence[StagedFile],
        topics: Mapping[UUID, JudgedTopic],
        *,
        batches_max: int,
    ) -> Sequence[CommitFile]:
        """The objects with the batches in them, all of which may be committed.

        `topics`: those that the batches may be of.
        """
        async with self._commits:
            indexes = []
            batches_left = batches_max
            for file in files:
                extents = await self._index(file, batches_left)
                batches_left -= len(extents)
                _check_places(file.object_key, extents, topics)
                indexes.append(extents)
            pieces = [
                piece
                for file, extents in zip(files, indexes, strict=True)
                for piece in _pieces(file.object_key, extents)
            ]
            judged: dict[ObjectKey, list[BatchExtent]] = {file.object_key: [] for file in files}
            for some in await self._all(pieces, topics):
                judged[some.object_key] += some.extents
        return [
            CommitFile(
                object_key=file.object_key,
                file_size_bytes=file.object_bytes,
                uploader_broker_id=-1,
                batches=judged[file.object_key],
                object_format=WRITE_AHEAD_MULTI_SEGMENT,
                owner_ids=(),
            )
            for file in files
        ]

    # -- indexes --------------------------------------------------------------------------------

    async def _index(self, file: StagedFile, batches_left: int) -> Sequence[BatchExtent]:
        key, size = file
        if not OBJECT_HEADER_BYTES + TRAILER_BYTES <= size <= OBJECT_BYTES_MAX:
            raise Rejected(f"{key}: a staged object of {size} bytes")
        async with self._pieces:
            try:
                start = max(size - _TAIL_GUESS_BYTES, 0)
                tail = await self._store.get_range(key, start, size - start)
                needed = footer_bytes(tail, size, key)
                if needed > TRAILER_BYTES + INDEX_ENTRY.size * batches_left:
                    raise Rejected(f"{key}: more batches than fit into one commit")
                if needed > len(tail):
                    tail = await self._store.get_range(key, size - needed, needed)
                head = tail
                if len(tail) < size:
                    head = await self._store.get_range(key, 0, OBJECT_HEADER_BYTES)
                header = read_header(head, key)
                if not key.endswith(f"/{header.ulid}"):
                    raise Rejected(f"{key}: its header says {header.ulid}")
                return await asyncio.to_thread(read_footer, tail, size, key)
            except ObjectNotFound as error:
                raise Rejected(
                    f"{key} is not there: it was deleted for its age, or tasks write to another"
                    " bucket than that of the brokers"
                ) from error
            except CorruptObject as error:
                raise Rejected(str(error)) from error

    # -- batches --------------------------------------------------------------------------------

    async def _all(
        self, pieces: Sequence[_Piece], topics: Mapping[UUID, JudgedTopic]
    ) -> Sequence[_Piece]:
        waiting = iter(enumerate(pieces))
        done: dict[int, _Piece] = {}

        async def work() -> None:
            for number, piece in waiting:
                async with self._pieces:
                    done[number] = await self._piece(piece, topics)

        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(min(PIECES_AT_ONCE, len(pieces))):
                    tasks.create_task(work(), name="staged-check")
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from group
        return [done[number] for number in range(len(pieces))]

    async def _piece(self, piece: _Piece, topics: Mapping[UUID, JudgedTopic]) -> _Piece:
        key, extents = piece
        start = extents[0].byte_offset
        length = sum(extent.length_bytes for extent in extents)
        try:
            data = memoryview(await self._store.get_range(key, start, length))
        except (ObjectNotFound, CorruptObject) as error:
            raise Rejected(f"{key} changed while it was looked into: {error}") from error
        now_ms = self._clock.now_ms()
        judged = await asyncio.to_thread(_judge, key, data, extents, topics, now_ms)
        for extent, (header, _) in zip(extents, judged, strict=True):
            topic = topics[extent.partition.topic_id]
            if opens_records(topic.rules):
                at = extent.byte_offset - start
                view = data[at : at + extent.length_bytes]
                await self._open(key, extent, view, header, topic.rules, now_ms)
        return _Piece(key, [extent for _, extent in judged])

    async def _open(
        self,
        key: ObjectKey,
        extent: BatchExtent,
        data: memoryview,
        header: BatchHeader,
        rules: TopicRules,
        now_ms: int,
    ) -> None:
        work = BatchWork([data], header, NeededWork(rules, now_ms, False, None))
        with _naming(key, extent):
            memory_bytes = await asyncio.to_thread(work.measure)
            async with self._budget.reserve(memory_bytes):
                await asyncio.to_thread(work.run)


def _check_places(
    key: ObjectKey, extents: Sequence[BatchExtent], topics: Mapping[UUID, JudgedTopic]
) -> None:
    """Raises UnknownPartition, RecordTooLarge."""
    for extent in extents:
        partition = extent.partition
        topic = topics.get(partition.topic_id)
        if topic is None:
            raise UnknownPartition(f"{key} has a batch of a topic that the commit does not name")
        if not 0 <= partition.partition < topic.partition_count:
            raise UnknownPartition(f"{key}: there is no {topic.name}-{partition.partition}")
        if extent.length_bytes > topic.rules.max_message_bytes:
            raise RecordTooLarge(
                f"{key}: a batch of {extent.length_bytes} bytes for {topic.name},"
                f" {topic.rules.max_message_bytes} allowed"
            )


def _pieces(key: ObjectKey, extents: Sequence[BatchExtent]) -> Iterator[_Piece]:
    some: list[BatchExtent] = []
    size = 0
    for extent in extents:
        if some and size + extent.length_bytes > PIECE_BYTES:
            yield _Piece(key, some)
            some, size = [], 0
        some.append(extent)
        size += extent.length_bytes
    if some:
        yield _Piece(key, some)


def _judge(
    key: ObjectKey,
    data: memoryview,
    extents: Sequence[BatchExtent],
    topics: Mapping[UUID, JudgedTopic],
    now_ms: int,
) -> Sequence[tuple[BatchHeader, BatchExtent]]:
    """Headers and CRCs of batches that lie back to back; for threads."""
    judged = []
    position = 0
    for extent in extents:
        topic = topics[extent.partition.topic_id]
        view = data[position : position + extent.length_bytes]
        position += extent.length_bytes
        with _naming(key, extent):
            header = unchecked_header([view])
            check_header(
                header,
                size=extent.length_bytes,
                rules=topic.rules,
                produce_version=_PRODUCE_VERSION,
            )
            actual_crc = crc32c(view[CRC_START:])
            check_contents(header, actual_crc, rules=topic.rules, now_ms=now_ms)
            told = extent.record_count, extent.crc, extent.max_timestamp_ms
            if told != (header.record_count, header.crc, header.max_timestamp_ms):
                raise InvalidRecord("the object's index says something else of it")
            if header.producer_id != NO_PRODUCER_ID:
                raise InvalidRecord(
                    f"it has producer id {header.producer_id}, which is not its own"
                )
            wanted = topic.compression
            if wanted is not None and wanted.codec != header.codec:
                raise InvalidRecord(
                    f"it is {CODEC_NAMES[header.codec]}, {topic.name} wants"
                    f" {CODEC_NAMES[wanted.codec]}"
                )
        found = extent._replace(
            record_count=header.record_count,
            crc=header.crc,
            max_timestamp_ms=header.max_timestamp_ms,
            timestamp_type=topic.rules.timestamp_type,
            producer_id=NO_PRODUCER_ID,
            producer_epoch=NO_PRODUCER_EPOCH,
            base_sequence=NO_SEQUENCE,
            request_id=0,
            transaction_number=NO_TRANSACTION,
        )
        judged.append((header, found))
    return judged


@contextmanager
def _naming(key: ObjectKey, extent: BatchExtent) -> Iterator[None]:
    """Says of what is refused where it is."""
    try:
        yield
    except BatchRejected as error:
        raise Rejected(f"{key}, the batch at byte {extent.byte_offset}: {error}") from error
