"""One WAL object: batches of many partitions, with an index of them at its end.

The uploader plans an object from a chunk's entries and puts a `WalObjectBody`, which reads the
batches from the chunk's files; `WalObjectReader` reads the index back for `verify` and `wal dump`.
Fetches do not come here: the coordinator knows every batch's place.

    byte 0          header, 64 bytes
    64              batches, those of a partition behind one another as they arrived; the partitions
                    sorted by (topic id, index), or as they arrived (`ChunkBatches.object_order`)
    footer offset   index entries, 80 bytes each, one per batch, in the order of the batches
                    notes, of any length (wal/chunks/object_notes.py)
    end - 32        trailer, 32 bytes

Format version 1; all integers big-endian. A change of any table gets a new version in header and
trailer. Objects live as long as their batches do, so every released version stays readable.

    header                                   index entry
     0  magic        8s  "DLSWALOB"           0  topic id       16s
     8  version     u16  1                   16  partition      i32
    10  length      u16  64                  20  byte offset    u64  in this object
    12  broker id   i32                      28  length         u32
    16  created at  u64  ms, chunk opened    32  record count   i32
    24  zeros       8s                       36  batch CRC      u32  bytes 17-20 of the batch
    32  ULID        26s                      40  max time       i64  ms
    58  lane        u16  of the chunk        48  producer id    i64
    60  CRC         u32  over bytes 0 .. 59  56  base sequence  i32
                                             60  epoch          i16  of the producer
    trailer                                  62  time type      u8   0 create, 1 log append
     0  footer offset   u64                  63  zero           u8
     8  entries         u32                  64  request id     i64
    12  footer CRC      u32  over all        72  transaction    i64  its number; -1: of none
                             entries, notes
    16  version         u16  1
    18  zeros           2s
    20  CRC             u32  over bytes 0 .. 19
    24  magic           8s  "DLSWALIX"

The object describes itself: topics, sequences, timestamps and the answers to earlier commits are
there so that the metadata of a bucket can be rebuilt from its objects. One ranged read of the tail
gives index and notes.

The bytes of an object follow from its chunk alone, so a chunk recovered after a crash produces the
same object under the same key, and the store recognises the second put as the first.

A batch is checked against its CRCs on its way from the chunk to the store. What fails raises
CorruptChunk and nothing is stored: rot on a local disk does not become data.

Source: KIP-1164, "WAL files"; the format is ours.
"""

import asyncio
import struct
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, Self

import numpy as np

from wal.batch_extents import BatchExtents
from wal.chunks.batch_rows import INDEX_ENTRY, INDEX_ROW
from wal.chunks.buffer import FragmentChain
from wal.chunks.checked_reads import READ_BYTES_MAX, DataFile, check_fragments, read_checked
from wal.chunks.chunk import ChunkIdentity
from wal.chunks.chunk_batches import ChunkBatches, ChunkEntry
from wal.chunks.object_notes import NO_NOTES, ObjectNotes, decode_notes
from wal.columns import Int64s
from wal.coordinates import BatchExtent, ObjectKey, TopicIdPartition
from wal.crc import Buffer, crc32c
from wal.errors import CorruptBatch, CorruptObject
from wal.records.record_batch import MAGIC_V2, parse_header, verify_crc
from wal.stores.object_store import ObjectStore
from wal.ulid import ULID_CHARS

FORMAT_VERSION: Final = 1
MAGIC: Final = b"DLSWALOB"
TRAILER_MAGIC: Final = b"DLSWALIX"

OBJECT_HEADER: Final = struct.Struct(">8sHHiQ8s26sH")
_CRC: Final = struct.Struct(">I")
OBJECT_HEADER_BYTES: Final = 64
assert OBJECT_HEADER.size + _CRC.size == OBJECT_HEADER_BYTES

TRAILER: Final = struct.Struct(">QIIH2s")
TRAILER_END: Final = struct.Struct(">I8s")
TRAILER_BYTES: Final = TRAILER.size + TRAILER_END.size
assert TRAILER_BYTES == 32

_TAIL_GUESS_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class WalObjectPlan:
    """What an object will consist of. The sequences are in the object's order and of one length."""

    object_key: ObjectKey
    header: bytes
    extents: BatchExtents
    batches: ChunkBatches
    """Where each extent comes from."""
    positions: Sequence[int]
    """The arrival position of each extent in the chunk."""
    footer: bytes
    """Index entries, notes and trailer."""
    object_bytes: int
    """The length of the whole object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectLayout:
    """Which batches an object holds and where: all of it that does not depend on its notes."""

    positions: Int64s
    batches: ChunkBatches
    extents: BatchExtents

    @classmethod
    def of(cls, entries: Sequence[ChunkEntry], excluded: Collection[int] = ()) -> Self:
        """All batches of a chunk but those at the `excluded` positions."""
        arrived = ChunkBatches.of(entries)
        positions = arrived.object_order(excluded)
        batches = arrived.take(positions)
        lengths = batches.numbers("length_bytes")
        offsets = OBJECT_HEADER_BYTES + lengths.cumsum() - lengths
        return cls(positions=positions, batches=batches, extents=batches.extents(offsets))

    def plan(self, identity: ChunkIdentity, notes: bytes) -> WalObjectPlan:
        """The object of the chunk `identity` that carries `notes`."""
        extents = self.extents
        index = self.batches.index_entries(extents.byte_offset) + notes
        footer_offset = OBJECT_HEADER_BYTES + int(extents.length_bytes.sum())
        footer = encode_footer(index, len(extents), footer_offset)
        return WalObjectPlan(
            object_key=identity.object_key,
            header=object_header(identity),
            extents=extents,
            batches=self.batches,
            positions=self.positions.tolist(),
            footer=footer,
            object_bytes=footer_offset + len(footer),
        )


def plan_wal_object(
    identity: ChunkIdentity,
    entries: Sequence[ChunkEntry],
    *,
    excluded: Collection[int] = (),
    notes: bytes = b"",
) -> WalObjectPlan:
    """Lay out the object of a chunk: all its entries but those at the `excluded` positions."""
    return ObjectLayout.of(entries, excluded).plan(identity, notes)


class ChunkData(Protocol):
    """The bytes a body is read from: a sealed chunk."""

    @property
    def data_path(self) -> str: ...

    def open_data(self) -> AbstractContextManager[DataFile]:
        """Raises: StorageFailed when the file cannot be opened now."""
        ...


class WalObjectBody:
    """A `ChecksummedBody` that reads a chunk's .data in the object's order, checking every batch.

    Its checksum is that of the batches that were appended: a store that compares it with what it
    received tells whether these bytes came.
    """

    def __init__(self, chunk: ChunkData, plan: WalObjectPlan) -> None:
        self._chunk = chunk
        self._plan = plan

    @property
    def length_bytes(self) -> int:
        return self._plan.object_bytes

    def crc32c(self) -> int:
        plan = self._plan
        return plan.batches.crc32c_between(plan.header, plan.footer)

    def fragments(self) -> Iterator[Buffer]:
        """The object in pieces of one buffer, whole blocks but for the last; blocks on the disk.

        Raises: CorruptChunk naming file and position, StorageFailed.
        """
        plan = self._plan
        with self._chunk.open_data() as data:
            yield from read_checked(
                data, self._chunk.data_path, plan.batches, plan.header, plan.footer
            )


class FreshObjectBody:
    """An `ObjectBody` of batches that are still in the memory they were received into.

    They are appended by the thread that puts them. To read an object of four batches back from its
    chunk takes 50 µs more. Each batch is checked against what its chunk says
    of it, as those that are read back are: what was written over meanwhile is not stored.
    """

    def __init__(self, plan: WalObjectPlan, payloads: Sequence[FragmentChain], path: str) -> None:
        """`payloads` are all batches of the chunk in arrival order; `path` names it in errors.

        A view of them has bytes of one batch.
        """
        self._plan = plan
        self._payloads = payloads
        self._path = path

    @property
    def object_key(self) -> ObjectKey:
        return self._plan.object_key

    @property
    def length_bytes(self) -> int:
        return self._plan.object_bytes

    def fragments(self) -> list[Buffer]:
        """Raises: CorruptChunk."""
        plan = self._plan
        views_at: dict[int, list[memoryview]] = {}
        offset = left = 0
        views: list[memoryview] = []
        lengths = {wanted.byte_offset: wanted.length_bytes for wanted in plan.batches.wanted()}
        for payload in self._payloads:
            for view in payload.views():
                if not left:
                    views = views_at[offset] = []
                    left = lengths.get(offset, 0)
                views.append(view)
                offset += len(view)
                left -= len(view)
        found: list[Buffer] = [plan.header]
        for wanted in plan.batches.wanted():
            views = views_at.get(wanted.byte_offset, [])
            check_fragments(views, wanted, self._path)
            found += views
        found.append(plan.footer)
        return found


class WalObjectHeader(NamedTuple):
    """Who wrote an object, and when its chunk was opened."""

    broker_id: int
    created_at_ms: int
    ulid: str
    lane: int = 0
    """See `ChunkIdentity.lane`."""


class WalObjectIndex(NamedTuple):
    """All that an object says of itself."""

    header: WalObjectHeader
    extents: Sequence[BatchExtent]
    object_bytes: int
    notes: ObjectNotes = NO_NOTES


def read_header(data: Buffer, name: str) -> WalObjectHeader:
    """The header at the start of an object. Raises: CorruptObject naming `name`."""
    if len(data) < OBJECT_HEADER_BYTES:
        raise CorruptObject(f"{name}: {len(data)} bytes cannot hold a WAL object's header")
    content = memoryview(data)[: OBJECT_HEADER.size]
    if crc32c(content) != _CRC.unpack_from(data, OBJECT_HEADER.size)[0]:
        raise CorruptObject(f"{name}: header at byte 0 fails its CRC")
    magic, version, length, broker_id, created_at_ms, _, ulid, lane = OBJECT_HEADER.unpack(content)
    if magic != MAGIC:
        raise CorruptObject(f"{name}: no header of a WAL object")
    if version != FORMAT_VERSION or length != OBJECT_HEADER_BYTES:
        raise CorruptObject(
            f"{name}: format version {version}, header of {length} bytes;"
            f" this release reads version {FORMAT_VERSION}"
        )
    return WalObjectHeader(broker_id, created_at_ms, ulid.decode("ascii"), lane)


def footer_bytes(tail: Buffer, object_bytes: int, name: str) -> int:
    """Returns the length of the footer at the object's end; `tail` ends with the object.

    Raises: CorruptObject.
    """
    if len(tail) < TRAILER_BYTES:
        raise CorruptObject(f"{name}: {len(tail)} bytes cannot hold a WAL object's trailer")
    start = len(tail) - TRAILER_BYTES
    where = f"{name}: trailer at byte {object_bytes - TRAILER_BYTES}"
    content = memoryview(tail)[start : start + TRAILER.size]
    crc, magic = TRAILER_END.unpack_from(tail, start + TRAILER.size)
    if magic != TRAILER_MAGIC or crc != crc32c(content):
        raise CorruptObject(f"{where} fails its check")
    footer_offset, count, _, version, _ = TRAILER.unpack(content)
    if version != FORMAT_VERSION:
        raise CorruptObject(
            f"{where}: format version {version}; this release reads version {FORMAT_VERSION}"
        )
    length = object_bytes - footer_offset
    if footer_offset < OBJECT_HEADER_BYTES or length < INDEX_ENTRY.size * count + TRAILER_BYTES:
        raise CorruptObject(
            f"{where}: {count} entries from byte {footer_offset} do not fit {object_bytes} bytes"
        )
    return int(length)


def read_footer(tail: Buffer, object_bytes: int, name: str) -> Sequence[BatchExtent]:
    """The index, from at least the last `footer_bytes(...)` bytes of an object.

    Entries are in the object's order and cover it from the header to the footer without a gap.
    Raises: CorruptObject.
    """
    length = footer_bytes(tail, object_bytes, name)
    if len(tail) < length:
        raise CorruptObject(f"{name}: the footer has {length} bytes, only {len(tail)} are given")
    view = memoryview(tail)[len(tail) - length :]
    footer_offset, count, crc, _, _ = TRAILER.unpack_from(view, length - TRAILER_BYTES)
    if crc32c(view[: length - TRAILER_BYTES]) != crc:
        raise CorruptObject(f"{name}: footer at byte {footer_offset} fails its CRC")
    extents = BatchExtents.of_rows(np.frombuffer(view, INDEX_ROW, count))
    ends = OBJECT_HEADER_BYTES + np.cumsum(extents.length_bytes)
    elsewhere = np.flatnonzero(extents.byte_offset != ends - extents.length_bytes)
    if len(elsewhere):
        expected = int((ends - extents.length_bytes)[elsewhere[0]])
        raise CorruptObject(f"{name}: no batch is named at byte {expected}")
    end = int(ends[-1]) if count else OBJECT_HEADER_BYTES
    if end != footer_offset:
        raise CorruptObject(f"{name}: batches end at byte {end}, not {footer_offset}")
    # Whoever reads an index back looks at batches one by one.
    return [*extents]


def read_notes(tail: Buffer, object_bytes: int, name: str) -> ObjectNotes:
    """The notes, from a tail that `read_footer` found good. Raises: CorruptObject."""
    length = footer_bytes(tail, object_bytes, name)
    count = TRAILER.unpack_from(tail, len(tail) - TRAILER_BYTES)[1]
    start = len(tail) - length + INDEX_ENTRY.size * count
    return decode_notes(bytes(memoryview(tail)[start : len(tail) - TRAILER_BYTES]), name)


def check_object_batch(data: Buffer, extent: BatchExtent, name: str) -> None:
    """Check the bytes of one batch against the index entry that names it. Raises: CorruptObject."""
    where = f"{name}: the batch at byte {extent.byte_offset}"
    try:
        header = parse_header(data)
        if (
            header.length_bytes != extent.length_bytes
            or len(data) != extent.length_bytes
            or header.magic != MAGIC_V2
            or header.crc != extent.crc
            or header.base_offset != 0
        ):
            raise CorruptObject(f"{where} is not the one its index entry names")
        verify_crc(data)
    except CorruptBatch as error:
        raise CorruptObject(f"{where}: {error}") from error


def _partitions_and_notes(
    tail: bytes, object_bytes: int, name: str
) -> tuple[Sequence[TopicIdPartition], ObjectNotes]:
    extents = read_footer(tail, object_bytes, name)
    partitions = tuple(dict.fromkeys(extent.partition for extent in extents))
    return partitions, read_notes(tail, object_bytes, name)


class WalObjectReader:
    """Reads whole objects back: for `verify`, dumps, and rebuilding metadata from a bucket."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def read_index(
        self, key: ObjectKey, *, object_bytes: int | None = None
    ) -> WalObjectIndex:
        """Header, index and notes of one object, from one to three requests for its two ends.

        `object_bytes`, from a listing, saves asking for it.
        Raises: ObjectNotFound, CorruptObject, ObjectStoreUnavailable.
        """
        tail, object_bytes = await self._tail(key, object_bytes)
        is_whole = len(tail) == object_bytes
        head = tail if is_whole else await self._store.get_range(key, 0, OBJECT_HEADER_BYTES)
        header = read_header(head, key)
        if not key.endswith(header.ulid):
            raise CorruptObject(f"{key}: its header says {header.ulid}")
        extents = read_footer(tail, object_bytes, key)
        return WalObjectIndex(header, extents, object_bytes, read_notes(tail, object_bytes, key))

    async def read_notes(
        self, key: ObjectKey, *, object_bytes: int | None = None
    ) -> tuple[Sequence[TopicIdPartition], ObjectNotes]:
        """The partitions in one object, in its order, and its notes: mostly from one request.

        Decoded in a thread. Raises: as `read_index`.
        """
        tail, object_bytes = await self._tail(key, object_bytes)
        return await asyncio.to_thread(_partitions_and_notes, tail, object_bytes, key)

    async def _tail(self, key: ObjectKey, object_bytes: int | None) -> tuple[bytes, int]:
        """At least the footer, as the last bytes of the object, and the object's length."""
        if object_bytes is None:
            object_bytes = (await self._store.head(key)).length_bytes
        if object_bytes < OBJECT_HEADER_BYTES + TRAILER_BYTES:
            raise CorruptObject(f"{key}: {object_bytes} bytes cannot hold a WAL object")
        start = max(object_bytes - _TAIL_GUESS_BYTES, 0)
        tail = await self._store.get_range(key, start, object_bytes - start)
        needed = footer_bytes(tail, object_bytes, key)
        if needed > len(tail):
            tail = await self._store.get_range(key, object_bytes - needed, needed)
        return tail, object_bytes

    async def verify(self, key: ObjectKey) -> WalObjectIndex:
        """Read the index and check every batch, a few MiB in memory at a time.

        Raises: what `read_index` raises.
        """
        index = await self.read_index(key)
        first = 0
        while first < len(index.extents):
            start = index.extents[first].byte_offset
            size = 0
            last = first
            while last < len(index.extents) and (size == 0 or size < READ_BYTES_MAX):
                size += index.extents[last].length_bytes
                last += 1
            data = memoryview(await self._store.get_range(key, start, size))
            for extent in index.extents[first:last]:
                position = extent.byte_offset - start
                check_object_batch(data[position : position + extent.length_bytes], extent, key)
            first = last
        return index


def object_header(identity: ChunkIdentity) -> bytes:
    """The first OBJECT_HEADER_BYTES of the object of a chunk."""
    return encode_header(
        identity.broker_id, identity.opened_at_ms, identity.ulid, lane=identity.lane
    )


def encode_header(broker_id: int, created_at_ms: int, ulid: str, *, lane: int = 0) -> bytes:
    """The first OBJECT_HEADER_BYTES of an object."""
    content = OBJECT_HEADER.pack(
        MAGIC,
        FORMAT_VERSION,
        OBJECT_HEADER_BYTES,
        broker_id,
        created_at_ms,
        bytes(8),
        ulid.encode("ascii"),
        lane,
    )
    return content + _CRC.pack(crc32c(content))


def encode_footer(content: bytes, count: int, footer_offset: int) -> bytes:
    """The end of an object: `content`, which is `count` index entries and notes, and a trailer."""
    trailer = TRAILER.pack(footer_offset, count, crc32c(content), FORMAT_VERSION, b"\0\0")
    return content + trailer + TRAILER_END.pack(crc32c(trailer), TRAILER_MAGIC)


assert ULID_CHARS == 26
