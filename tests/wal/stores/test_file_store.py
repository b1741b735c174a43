"""What the directory store promises beyond the contract: durability, crashes, other processes."""

import asyncio
import errno
import fcntl
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from wal import disk
from wal.clock import ManualClock, SystemClock
from wal.coordinates import ObjectKey
from wal.disk import begin_write_back
from wal.errors import (
    ObjectNotFound,
    ObjectStoreRefused,
    ObjectStoreUnavailable,
    Rejected,
    UploadOutcomeUnknown,
)
from wal.private_copy import BLOCK_BYTES, aligned_buffer
from wal.stores.file_store import BlockingFileStore, FileStore, FileStoreSettings
from wal.stores.object_store import STAGING_DIRECTORY, Buffer, BytesBody

KEY = ObjectKey("wal/3f/01HZZZZZZZZZZZZZZZZZZZZZZZ")
BODY = bytes(range(256)) * 100


def blocking_store(root: Path, sync: bool = True) -> BlockingFileStore:
    return BlockingFileStore(root, clock=SystemClock(), rng=random.Random(), sync=sync)


def drafts(root: Path) -> list[str]:
    return [path.name for path in (root / STAGING_DIRECTORY).glob("*/*")]


def fail_nth(
    monkeypatch: pytest.MonkeyPatch, name: str, nth: int = 1, error: int = errno.EIO
) -> list[int]:
    """Make the nth call of `os.<name>` fail once; returns a list with the calls so far."""
    real: Callable[..., object] = getattr(os, name)
    calls = [0]

    def failing(*arguments: object, **options: object) -> object:
        calls[0] += 1
        if calls[0] == nth:
            raise OSError(error, os.strerror(error))
        return real(*arguments, **options)

    monkeypatch.setattr(os, name, failing)
    return calls


class GatedBody:
    """Gives its second fragment only when a test opens the gate."""

    length_bytes = 200_000

    def __init__(self) -> None:
        self.started = threading.Event()
        self.gate = threading.Event()
        self.ended = threading.Event()

    def fragments(self) -> Iterable[Buffer]:
        return self._read()

    def _read(self) -> Iterator[Buffer]:
        try:
            yield bytes(100_000)
            self.started.set()
            assert self.gate.wait(10)
            yield bytes(100_000)
        finally:
            self.ended.set()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("name", ["writev", "fdatasync", "link", "mkdir"])
def test_a_put_that_failed_before_it_had_a_name_stored_nothing_and_may_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: int
) -> None:
    with blocking_store(tmp_path) as store:
        fail_nth(monkeypatch, name, error=error)
        with pytest.raises(ObjectStoreUnavailable):
            store.put(KEY, BytesBody(b"content"))
        with pytest.raises(ObjectNotFound):
            store.get(KEY)
        assert drafts(tmp_path) == []
        store.put(KEY, BytesBody(b"content"))
        assert store.get(KEY) == b"content"


def test_an_fsync_that_failed_is_not_trusted_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with blocking_store(tmp_path) as store:
        store.put(ObjectKey("wal/3f/before"), BytesBody(b"makes the directories"))
        fail_nth(monkeypatch, "fsync")
        with pytest.raises(UploadOutcomeUnknown):
            store.put(KEY, BytesBody(b"content"))
        unsure = (tmp_path / KEY).stat().st_ino
        store.put(KEY, BytesBody(b"content"))
        # A new file with a sync of its own, not the old one after a second fsync "succeeded".
        assert (tmp_path / KEY).stat().st_ino != unsure
        assert store.get(KEY) == b"content"


@pytest.fixture(params=["a disk", "memory"])
def medium(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A directory on the usual file system, and one on tmpfs, which keeps names differently."""
    if request.param == "a disk":
        yield tmp_path
        return
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("no tmpfs at /dev/shm")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        yield Path(directory)


def test_a_put_again_does_not_hide_its_object_from_a_listing_under_way(medium: Path) -> None:
    keys = [ObjectKey(f"log/{number:020}") for number in range(2000)]
    with blocking_store(medium, sync=False) as store:
        for key in keys:
            store.put(key, BytesBody(b"x"))
        with os.scandir(medium / "log") as listing:
            seen = {next(listing).name}  # the kernel has given some names, and not all
            for key in reversed(keys):
                store.put(key, BytesBody(b"x"))
            seen |= {entry.name for entry in listing}
        assert {f"log/{name}" for name in seen} == set(keys)


def test_file_directory_and_every_new_parent_are_synced_before_a_put_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    def note(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}").removeprefix(str(tmp_path)))

    monkeypatch.setattr(os, "fdatasync", note)
    monkeypatch.setattr(os, "fsync", note)
    with blocking_store(tmp_path) as store:
        store.put(KEY, BytesBody(b"content"))
        assert synced[:2] == ["", "/wal"]
        assert synced[2].startswith(f"/{STAGING_DIRECTORY}/")
        assert synced[3:] == ["/wal/3f"]
        synced.clear()
        store.put(ObjectKey("wal/3f/second"), BytesBody(b"content"))
        assert synced[1:] == ["/wal/3f"]
        synced.clear()
        store.delete([KEY])
        assert synced == ["/wal/3f"]
    synced.clear()
    with blocking_store(tmp_path, sync=False) as careless:
        careless.put(ObjectKey("wal/40/third"), BytesBody(b"content"))
    assert synced == []


def test_meanwhile_is_beside_the_disk_and_before_the_name(tmp_path: Path) -> None:
    seen: list[tuple[int, bool]] = []

    def look() -> None:
        (draft,) = (tmp_path / STAGING_DIRECTORY).glob("*/*")
        seen.append((draft.stat().st_size, (tmp_path / KEY).exists()))

    with blocking_store(tmp_path) as store:
        store.put(KEY, BytesBody(BODY), meanwhile=look)
        assert seen == [(len(BODY), False)]
        assert store.get(KEY) == BODY


def test_a_put_that_is_abandoned_meanwhile_stores_nothing(tmp_path: Path) -> None:
    is_abandoned = False

    def abandon() -> None:
        nonlocal is_abandoned
        is_abandoned = True

    with blocking_store(tmp_path) as store:
        with pytest.raises(ObjectStoreUnavailable, match="abandoned"):
            store.put(KEY, BytesBody(BODY), lambda: is_abandoned, abandon)
        assert drafts(tmp_path) == []
        with pytest.raises(ObjectNotFound):
            store.get(KEY)


def test_nothing_is_done_meanwhile_for_a_put_that_failed_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[None] = []
    with blocking_store(tmp_path) as store:
        fail_nth(monkeypatch, "writev")
        with pytest.raises(ObjectStoreUnavailable):
            store.put(KEY, BytesBody(BODY), meanwhile=lambda: called.append(None))
        assert not called


def test_to_begin_writing_a_file_to_its_disk_promises_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(BODY)
    with (tmp_path / "file").open("r+b") as file:
        begin_write_back(file.fileno())
        begin_write_back(-1)
        monkeypatch.setattr(disk, "_sync_file_range", None)
        begin_write_back(file.fileno())
    assert (tmp_path / "file").read_bytes() == BODY


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.writev
    rng = random.Random(3)

    def short(fd: int, buffers: list[memoryview]) -> int:
        joined = b"".join(buffers)
        return real(fd, [joined[: rng.randint(1, 7000)]])

    monkeypatch.setattr(os, "writev", short)
    fragments = [rng.randbytes(rng.choice([0, 1, 100, 5000, 20_000])) for _ in range(50)]
    with blocking_store(tmp_path) as store:
        store.put(KEY, BytesBody(*fragments))
        assert store.get(KEY) == b"".join(fragments)


def test_a_file_that_is_shorter_than_what_was_written_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.writev

    def lying(fd: int, buffers: list[memoryview]) -> int:
        joined = b"".join(buffers)
        real(fd, [joined[:-1]])
        return len(joined)

    with blocking_store(tmp_path) as store:
        with monkeypatch.context() as patched:
            patched.setattr(os, "writev", lying)
            with pytest.raises(ObjectStoreUnavailable, match="wrote 1000 bytes, it has 999"):
                store.put(KEY, BytesBody(bytes(1000)))
        store.put(KEY, BytesBody(bytes(1000)))


class Pieces:
    """A large body in pieces that lie at `shift` in memory that starts at a block."""

    def __init__(self, *lengths: int, shift: int = 0) -> None:
        self.length_bytes = sum(lengths)
        self.content = random.Random(5).randbytes(self.length_bytes)
        self._lengths = lengths
        self._shift = shift

    def fragments(self) -> Iterable[Buffer]:
        buffer = aligned_buffer(self._shift + max(self._lengths))
        position = 0
        for length in self._lengths:
            piece = buffer[self._shift : self._shift + length]
            piece[:] = self.content[position : position + length]
            yield piece
            position += length


MIB = 1 << 20
LARGE_BODIES = [
    Pieces(MIB, MIB),
    Pieces(MIB, MIB, 5),
    Pieces(MIB, BLOCK_BYTES, MIB, BLOCK_BYTES + 1),
    Pieces(MIB, 100, MIB, 3 * BLOCK_BYTES),
    Pieces(100, 2 * MIB),
    Pieces(MIB, MIB + 7, shift=8),
    Pieces(MIB - 1, 20_000),
]


@pytest.mark.parametrize("body", LARGE_BODIES)
@pytest.mark.parametrize("flag", ["taken", "refused"])
def test_a_large_object_is_stored_whatever_its_pieces_are_like(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: Pieces, flag: str
) -> None:
    if flag == "refused":
        real = fcntl.fcntl

        def without(fd: int, command: int, argument: int = 0) -> int:
            if command == fcntl.F_SETFL and argument & os.O_DIRECT:
                raise OSError(errno.EINVAL, "no such way")
            return real(fd, command, argument)

        monkeypatch.setattr(fcntl, "fcntl", without)
    with blocking_store(tmp_path) as store:
        store.put(KEY, body)
        assert store.get(KEY) == body.content
        store.put(KEY, body)
        assert drafts(tmp_path) == []


def test_whole_blocks_of_a_large_object_go_past_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = os.open(tmp_path / "probe", os.O_CREAT | os.O_RDWR)
    try:
        fcntl.fcntl(probe, fcntl.F_SETFL, os.O_DIRECT)
    except OSError:
        pytest.skip("the file system of the tests has no O_DIRECT")
    finally:
        os.close(probe)
    writes: list[tuple[int, bool]] = []
    real = os.writev

    def noted(fd: int, buffers: list[memoryview]) -> int:
        written = real(fd, buffers)
        writes.append((written, bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT)))
        return written

    monkeypatch.setattr(os, "writev", noted)
    with blocking_store(tmp_path) as store:
        store.put(KEY, Pieces(MIB, MIB, 5 * BLOCK_BYTES + 10))
        assert writes == [(MIB, True), (MIB, True), (5 * BLOCK_BYTES, True), (10, False)]
        writes.clear()
        store.put(ObjectKey("wal/00/small"), Pieces(BLOCK_BYTES))
        assert writes == [(BLOCK_BYTES, False)]


def test_a_file_system_that_takes_the_flag_and_not_the_writes_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.writev

    def refusing(fd: int, buffers: list[memoryview]) -> int:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "not so")
        return real(fd, buffers)

    body = Pieces(MIB, MIB)
    with blocking_store(tmp_path) as store:
        monkeypatch.setattr(os, "writev", refusing)
        with suppress(ObjectStoreUnavailable):
            store.put(KEY, body)
        store.put(KEY, body)
        assert store.get(KEY) == body.content


def test_what_a_killed_process_left_is_removed_and_what_a_live_one_writes_is_not(
    tmp_path: Path,
) -> None:
    crash = (
        "import os, random, signal, sys\n"
        "from wal.clock import SystemClock\n"
        "from wal.stores.file_store import BlockingFileStore\n"
        "class Body:\n"
        "    length_bytes = 200_000\n"
        "    def fragments(self):\n"
        "        yield bytes(100_000)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "with BlockingFileStore(sys.argv[1], clock=SystemClock(), rng=random.Random()) as s:\n"
        "    s.put('wal/00/killed', Body())\n"
    )
    died = subprocess.run([sys.executable, "-c", crash, str(tmp_path)], check=False)
    assert died.returncode == -signal.SIGKILL
    assert drafts(tmp_path) == ["0"]
    body = GatedBody()
    with blocking_store(tmp_path) as alive:
        putting = threading.Thread(target=alive.put, args=(KEY, body))
        putting.start()
        assert body.started.wait(10)
        with blocking_store(tmp_path) as newcomer:
            assert len(drafts(tmp_path)) == 1
            with pytest.raises(ObjectNotFound):
                newcomer.head(ObjectKey("wal/00/killed"))
            assert list(newcomer.list("")) == []
            body.gate.set()
            putting.join()
            assert newcomer.head(KEY).length_bytes == GatedBody.length_bytes
    assert list((tmp_path / STAGING_DIRECTORY).iterdir()) == []


def test_a_directory_that_was_removed_under_the_store_is_made_again(tmp_path: Path) -> None:
    with blocking_store(tmp_path) as store:
        store.put(KEY, BytesBody(b"content"))
        (tmp_path / KEY).unlink()
        (tmp_path / "wal/3f").rmdir()
        store.put(KEY, BytesBody(b"content"))
        assert store.get(KEY) == b"content"


def test_a_directory_tree_cannot_hold_what_it_cannot_name(tmp_path: Path) -> None:
    with blocking_store(tmp_path) as store:
        store.put(ObjectKey("a/b"), BytesBody(b"x"))
        for key in ("a", "a/b/c", "a/b/c/d", "x/" + "y" * 256):
            with pytest.raises(Rejected):
                store.put(ObjectKey(key), BytesBody(b"x"))
        with pytest.raises(Rejected):
            store.put(ObjectKey(f"{STAGING_DIRECTORY}/x"), BytesBody(b"x"))
        assert [stat.key for stat in store.list("")] == ["a/b"]


def test_a_put_past_its_deadline_is_given_up(tmp_path: Path) -> None:
    clock = ManualClock()

    class SlowBody:
        length_bytes = 200_000

        def fragments(self) -> Iterable[Buffer]:
            yield bytes(100_000)
            clock.advance(31)
            yield bytes(100_000)

    store = BlockingFileStore(tmp_path, clock=clock, rng=random.Random(1))
    with store, pytest.raises(ObjectStoreUnavailable, match="not written within 30000 ms"):
        store.put(KEY, SlowBody())
    assert not (tmp_path / KEY).exists()


def test_a_reader_needs_no_write_permission(tmp_path: Path) -> None:
    with blocking_store(tmp_path) as store:
        store.put(KEY, BytesBody(b"content"))
    (tmp_path / STAGING_DIRECTORY).rmdir()
    with blocking_store(tmp_path) as reader:
        assert reader.get(KEY) == b"content"
        assert [stat.key for stat in reader.list("")] == [KEY]
    assert os.listdir(tmp_path) == ["wal"]


def test_unlinked_objects_give_their_space_back(tmp_path: Path) -> None:
    with blocking_store(tmp_path) as store:
        store.put(KEY, BytesBody(b"content"))
        store.get_range(KEY, 0, 1)
        store.delete([KEY])
        open_files = [
            os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.exists()
        ]
        assert not any(str(tmp_path / "wal") in name for name in open_files)


def test_a_delete_that_may_not_survive_a_power_cut_is_not_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with blocking_store(tmp_path) as store:
        for key in ("a/1", "b/1"):
            store.put(ObjectKey(key), BytesBody(b"x"))
        calls = fail_nth(monkeypatch, "fsync")
        gone = store.delete([ObjectKey("a/1"), ObjectKey("b/1")])
        assert (gone, calls) == (("b/1",), [2])
        # Absent by now, but confirmed only with a sync of its own.
        assert store.delete([ObjectKey("a/1")]) == ("a/1",)
        assert calls == [3]


async def test_a_cancelled_put_stores_nothing_and_lets_go_of_its_body_first(
    tmp_path: Path,
) -> None:
    body = GatedBody()
    async with FileStore(tmp_path, clock=SystemClock(), rng=random.Random()) as store:
        putting = asyncio.create_task(store.put(KEY, body))
        await asyncio.to_thread(body.started.wait, 10)
        putting.cancel()
        await asyncio.sleep(0)
        assert not putting.done()
        putting.cancel()
        await asyncio.sleep(0)
        assert not putting.done()
        body.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await putting
        assert body.ended.is_set()
        with pytest.raises(ObjectNotFound):
            await store.get(KEY)


async def test_slow_puts_do_not_hold_up_reads(tmp_path: Path) -> None:
    settings = FileStoreSettings(put_threads=2, read_threads=1)
    bodies = [GatedBody() for _ in range(2)]
    async with FileStore(
        tmp_path, clock=SystemClock(), rng=random.Random(), settings=settings
    ) as store:
        await store.put(KEY, BytesBody(b"content"))
        putting = [
            asyncio.create_task(store.put(ObjectKey(f"slow/{number}"), body))
            for number, body in enumerate(bodies)
        ]
        for body in bodies:
            await asyncio.to_thread(body.started.wait, 10)
        assert await store.get(KEY) == b"content"
        for body in bodies:
            body.gate.set()
        await asyncio.gather(*putting)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_directory_that_may_not_be_written_is_a_refusal_and_no_outage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    store = blocking_store(tmp_path)
    with store:
        store.put(KEY, BytesBody(b"before"))
        fail_nth(monkeypatch, "open", 1, number)
        with pytest.raises(ObjectStoreRefused):
            store.put(ObjectKey("wal/other"), BytesBody(b"after"))
        assert store.get(KEY) == b"before"


async def test_an_unusable_root_is_reported_at_start(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    with pytest.raises(ObjectStoreUnavailable):
        async with FileStore(blocked / "store", clock=SystemClock(), rng=random.Random()):
            pass
