"""One chunk's two files: what an append writes, and what is left when it fails."""

import errno
import os
import random
import resource
import signal
import struct
from pathlib import Path

import pytest

from tests.support.chunks.write_path import (
    A0,
    A1,
    B0,
    FaultyDisk,
    batch_bytes,
    open_writer,
    pending,
    write_chunk,
)
from wal.chunks.batch_rows import BATCH_ROW
from wal.chunks.buffer import BufferPool, ChainBuilder
from wal.chunks.chunk import (
    BATCHES,
    CHUNK_HEADER_BYTES,
    NUMBER_AGE_MAX_MS,
    RECORD_CRC,
    RECORD_HEAD,
    RECORD_HEAD_BYTES,
    ChunkPaths,
)
from wal.chunks.chunk_scan import scan_chunk
from wal.crc import crc32c
from wal.disk import IOV_MAX
from wal.errors import AppendTooLarge, CorruptChunk, Overloaded, StorageFailed
from wal.fd_cache import FdCache
from wal.records.record_batch import parse_header


@pytest.fixture
def pool() -> BufferPool:
    return BufferPool(1 << 20)


def sizes(paths: ChunkPaths) -> list[int]:
    return [os.stat(path).st_size for path in (paths.data, paths.idx)]


def test_a_chunk_takes_no_batch_whose_transaction_may_be_forgotten(
    tmp_path: Path, pool: BufferPool
) -> None:
    writer = open_writer(tmp_path)
    asked_ms = writer.identity.opened_at_ms - NUMBER_AGE_MAX_MS
    numbered = pending(pool, transaction_number=1)
    with pytest.raises(Overloaded):
        writer.append([pending(pool), numbered._replace(number_asked_ms=asked_ms - 1)])
    assert writer.batch_count == 0
    writer.append([pending(pool), numbered._replace(number_asked_ms=asked_ms)])
    assert writer.batch_count == 2
    writer.close()


def test_an_append_lays_batches_back_to_back_and_indexes_each(
    tmp_path: Path, pool: BufferPool
) -> None:
    batches = [batch_bytes(b"x" * size) for size in (10, 0, 300)]
    writer = open_writer(tmp_path)
    writer.append([pending(pool, A0, batches[0]), pending(pool, B0, batches[1])])
    writer.append([pending(pool, A1, batches[2])])
    writer.close()
    assert Path(writer.paths.data).read_bytes() == b"".join(batches)
    index = Path(writer.paths.idx).read_bytes()
    record = CHUNK_HEADER_BYTES
    position = number = 0
    for count in (2, 1):
        head = RECORD_HEAD.unpack_from(index, record + RECORD_CRC.size)
        length = RECORD_HEAD_BYTES + BATCH_ROW.size * count
        assert head == (length, BATCHES, bytes(3), number, position)
        for row in range(count):
            fields = BATCH_ROW.unpack_from(index, record + RECORD_HEAD_BYTES + BATCH_ROW.size * row)
            assert fields[2:4] == (position, len(batches[number]))
            position += len(batches[number])
            number += 1
        record += length
    assert record == len(index)
    assert writer.file_bytes == sum(sizes(writer.paths))


def test_a_scan_gives_back_what_was_appended(tmp_path: Path, pool: BufferPool) -> None:
    data = batch_bytes(b"payload", record_count=3, producer_id=42, sequence=7)
    writer = open_writer(tmp_path)
    batch = pending(pool, B0, data, request_id=9, timestamp_type=1, transaction_number=31)
    writer.append([batch])
    writer.close()
    scan = scan_chunk(writer.paths, FdCache(8))
    assert scan is not None
    header = parse_header(data)
    (entry,) = scan.batches
    assert scan.batches == writer.batches()
    assert (entry.partition, entry.request_id, entry.timestamp_type) == (B0, 9, 1)
    assert (entry.producer_id, entry.producer_epoch, entry.base_sequence) == (42, 0, 7)
    assert entry.transaction_number == 31
    assert (entry.record_count, entry.crc, entry.length_bytes) == (3, header.crc, len(data))
    assert entry.max_timestamp_ms == header.max_timestamp_ms
    assert scan.identity == writer.identity
    assert scan.torn == ""


def test_a_group_costs_two_writes_whatever_it_holds(tmp_path: Path, pool: BufferPool) -> None:
    disk = FaultyDisk()
    writer = open_writer(tmp_path, disk=disk)
    disk.calls.clear()
    writer.append([pending(pool) for _ in range(100)])
    assert disk.calls == [("pwritev", ".data"), ("pwritev", ".idx")]


def test_more_fragments_than_one_call_takes_are_split(tmp_path: Path, pool: BufferPool) -> None:
    disk = FaultyDisk()
    writer = open_writer(tmp_path, disk=disk)
    data = batch_bytes()
    writer.append([pending(pool, A0, data) for _ in range(IOV_MAX + 1)])
    assert Path(writer.paths.data).read_bytes() == data * (IOV_MAX + 1)
    assert disk.calls.count(("pwritev", ".data")) == 2


def test_a_batch_whose_header_straddles_fragments_is_checked_as_one(tmp_path: Path) -> None:
    pool = BufferPool(1 << 20)
    data = batch_bytes(b"z" * 2000)
    # Ten bytes of the batch in one fragment, the rest in the next.
    builder = ChainBuilder(pool)
    builder.writable(512)[502:512] = data[:10]
    builder.commit(512)
    room = builder.writable(len(data))
    room[: len(data) - 10] = data[10:]
    builder.commit(len(data) - 10)
    chain = builder.take(502 + len(data))
    straddling = pending(pool, A0, data)._replace(payload=chain.share(502, len(data)))
    assert len(straddling.payload.views()[0]) == 10
    writer = open_writer(tmp_path)
    writer.append([straddling])
    writer.close()
    scan = scan_chunk(writer.paths, FdCache(8))
    assert scan is not None
    assert len(scan.batches) == 1


def test_an_append_beyond_capacity_and_overflow_leaves_the_chunk_as_it_was(
    tmp_path: Path, pool: BufferPool
) -> None:
    data = batch_bytes(bytes(400))
    writer = open_writer(tmp_path, data_max_bytes=len(data), overflow_bytes=len(data) + 10)
    writer.append([pending(pool, A0, data)])
    before = sizes(writer.paths)
    assert writer.append_threshold == len(data) + 10
    with pytest.raises(AppendTooLarge):
        writer.append([pending(pool, A0, data), pending(pool, A0, data)])
    assert sizes(writer.paths) == before
    # The chunk still takes what fits.
    writer.append([pending(pool, A0, data)])
    assert writer.batch_count == 2


def test_a_payload_longer_than_announced_is_refused(tmp_path: Path, pool: BufferPool) -> None:
    data = batch_bytes()
    item = pending(pool, A0, data)
    longer = pending(pool, A0, data + b"!")._replace(rows=item.rows)
    writer = open_writer(tmp_path)
    with pytest.raises(AppendTooLarge):
        writer.append([longer])
    assert sizes(writer.paths) == [0, CHUNK_HEADER_BYTES]


@pytest.mark.parametrize("suffix", [".data", ".idx"])
def test_a_failed_write_takes_the_whole_group_back_and_seals_the_chunk(
    tmp_path: Path, pool: BufferPool, suffix: str
) -> None:
    disk = FaultyDisk()
    writer = open_writer(tmp_path, disk=disk)
    writer.append([pending(pool)])
    before = sizes(writer.paths)

    def fail(call: str, path: str) -> None:
        if call == "pwritev" and path.endswith(suffix):
            raise OSError(errno.EIO, "input/output error")

    disk.fail = fail
    with pytest.raises(StorageFailed, match="input/output error"):
        writer.append([pending(pool), pending(pool)])
    assert sizes(writer.paths) == before
    disk.fail = lambda call, path: None
    with pytest.raises(StorageFailed, match="earlier append"):
        writer.append([pending(pool)])
    writer.close()
    scan = scan_chunk(writer.paths, FdCache(8))
    assert scan is not None
    assert (len(scan.batches), scan.torn) == (1, "")


def test_a_disk_that_fills_up_at_any_byte_keeps_earlier_appends_and_nothing_else(
    tmp_path: Path, pool: BufferPool
) -> None:
    data = batch_bytes(b"0123456789")
    group = 2 * (len(data) + BATCH_ROW.size) + RECORD_HEAD_BYTES
    for space in range(0, group, 3):
        disk = FaultyDisk()
        writer = open_writer(tmp_path, number=space, disk=disk)
        writer.append([pending(pool, A0, data)])
        disk.space = space
        with pytest.raises(StorageFailed, match="no space"):
            writer.append([pending(pool, A0, data), pending(pool, A0, data)])
        writer.close()
        scan = scan_chunk(writer.paths, FdCache(8))
        assert scan is not None
        assert (len(scan.batches), scan.torn) == (1, ""), f"{space} bytes of space"


def test_a_write_beyond_the_file_size_limit_is_a_storage_failure(tmp_path: Path) -> None:
    """The kernel's own short write and refusal, in a child because the limit is a process's."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
            pool = BufferPool(1 << 20)
            writer = open_writer(tmp_path)
            writer.append([pending(pool, A0, batch_bytes(bytes(3000)))])
            try:
                writer.append([pending(pool, A0, batch_bytes(bytes(6000)))])
            except StorageFailed:
                status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    scan = scan_chunk(ChunkPaths.of(tmp_path, 0), FdCache(8))
    assert scan is not None
    assert (len(scan.batches), scan.torn) == (1, "")


def test_with_sync_every_file_of_every_append_is_synced(tmp_path: Path, pool: BufferPool) -> None:
    disk = FaultyDisk()
    writer = open_writer(tmp_path, disk=disk, sync=True)
    writer.append([pending(pool)])
    assert sorted(path for call, path in disk.calls if call == "fdatasync") == [
        ".data",
        ".idx",
    ]


@pytest.mark.parametrize("suffix", [".data", ".idx"])
def test_an_fsync_that_failed_once_is_final(tmp_path: Path, pool: BufferPool, suffix: str) -> None:
    disk = FaultyDisk()
    writer = open_writer(tmp_path, disk=disk, sync=True)
    writer.append([pending(pool)])

    def fail(call: str, path: str) -> None:
        if call == "fdatasync" and path.endswith(suffix):
            disk.fail = lambda call, path: None  # The kernel reports it once.
            raise OSError(errno.EIO, "input/output error")

    disk.fail = fail
    with pytest.raises(StorageFailed):
        writer.append([pending(pool)])
    with pytest.raises(StorageFailed):
        writer.append([pending(pool)])
    writer.close()
    scan = scan_chunk(writer.paths, FdCache(8))
    assert scan is not None
    assert len(scan.batches) == 1


@pytest.mark.parametrize("suffix", [".data", ".idx"])
def test_a_chunk_that_cannot_be_opened_leaves_no_file(tmp_path: Path, suffix: str) -> None:
    def fail(call: str, path: str) -> None:
        if call == "open" and path.endswith(suffix):
            raise OSError(errno.EMFILE, "too many open files")

    with pytest.raises(StorageFailed, match="too many"):
        open_writer(tmp_path, disk=FaultyDisk(fail))
    assert list(tmp_path.iterdir()) == []


def test_two_chunks_have_different_salts_and_keys(tmp_path: Path) -> None:
    first = write_chunk(tmp_path, [(A0, batch_bytes())], number=0, seed=1)
    second = write_chunk(tmp_path, [(A0, batch_bytes())], number=1, seed=2)
    assert first.identity.salt != second.identity.salt
    assert first.identity.object_key != second.identity.object_key


def test_stale_records_of_an_earlier_file_are_not_accepted(tmp_path: Path) -> None:
    """The same batches, left on recycled blocks behind a new chunk's first record."""
    batches = [(A0, batch_bytes(bytes([65 + number]) * 50)) for number in range(3)]
    old = write_chunk(tmp_path, batches, number=0, seed=1)
    new = write_chunk(tmp_path, batches[:1], number=1, seed=2)
    for old_path, new_path in zip(old.paths.files, new.paths.files, strict=True):
        stale = Path(old_path).read_bytes()
        fresh = Path(new_path).read_bytes()
        Path(new_path).write_bytes(fresh + stale[len(fresh) :])
    scan = scan_chunk(new.paths, FdCache(8))
    assert scan is not None
    assert len(scan.batches) == 1
    assert f"byte {new.index_bytes} fails its CRC" in scan.torn


@pytest.mark.parametrize("version", [0, 2])
def test_a_chunk_of_an_unknown_version_is_refused_by_name(tmp_path: Path, version: int) -> None:
    writer = write_chunk(tmp_path, [(A0, batch_bytes())])
    index = bytearray(Path(writer.paths.idx).read_bytes())
    struct.pack_into(">H", index, 8, version)
    struct.pack_into(">I", index, 60, crc32c(bytes(index[:60])))
    Path(writer.paths.idx).write_bytes(index)
    with pytest.raises(CorruptChunk, match=rf"\.idx: format version {version}, .* version 1"):
        scan_chunk(writer.paths, FdCache(8))


def test_random_groups_read_back_in_order(tmp_path: Path, pool: BufferPool) -> None:
    rng = random.Random(3)
    writer = open_writer(tmp_path)
    expected = []
    for _ in range(30):
        group = [
            batch_bytes(rng.randbytes(rng.randrange(2000))) for _ in range(rng.randrange(1, 9))
        ]
        writer.append([pending(pool, rng.choice([A0, A1, B0]), data) for data in group])
        expected += group
    writer.close()
    scan = scan_chunk(writer.paths, FdCache(8))
    assert scan is not None
    data = Path(writer.paths.data).read_bytes()
    assert [
        data[entry.data_offset : entry.data_offset + entry.length_bytes] for entry in scan.batches
    ] == expected
