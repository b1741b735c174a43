import errno
import os
import random
import threading
from pathlib import Path

import pytest

from wal.errors import InvalidSettings
from wal.fd_cache import FdCache


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    paths = [tmp_path / f"chunk-{number}.data" for number in range(6)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * 1000)
    return [str(path) for path in paths]


def read_one(cache: FdCache, path: str) -> int:
    with cache.open(path) as file:
        return file.pread(1, 0)[0]


def test_a_second_read_uses_the_open_descriptor(files: list[str]) -> None:
    cache = FdCache(2)
    assert [read_one(cache, files[1]) for _ in range(3)] == [1, 1, 1]
    assert cache.statistics() == (2, 1, 0, 1, 0)
    cache.close()


def test_the_least_recently_used_file_is_closed_first(files: list[str]) -> None:
    before = open_descriptors()
    cache = FdCache(2)
    for number in (0, 1, 0, 2):
        read_one(cache, files[number])
    assert open_descriptors() == before + 2
    misses = cache.statistics().misses
    read_one(cache, files[0])
    assert cache.statistics().misses == misses
    read_one(cache, files[1])
    assert cache.statistics().misses == misses + 1
    cache.close()
    assert open_descriptors() == before


def test_eviction_passes_over_files_in_use_and_catches_up_afterwards(files: list[str]) -> None:
    cache = FdCache(2)
    handles = [cache.open(path) for path in files[:4]]
    assert cache.statistics().open == 4
    assert [handle.pread(1, 0)[0] for handle in handles] == [0, 1, 2, 3]
    handles[2].close()
    assert cache.statistics().open == 3
    for handle in handles:
        handle.close()
    assert cache.statistics().open == 2
    assert cache.statistics().in_use == 0
    cache.close()


def test_a_recreated_file_is_never_served_by_the_old_descriptor(files: list[str]) -> None:
    cache = FdCache(4)
    path = files[0]
    for generation in range(20):
        os.unlink(path)
        Path(path).write_bytes(bytes([100 + generation]))
        assert read_one(cache, path) == 100 + generation
    assert cache.statistics().open == 1
    cache.close()


def test_a_deleted_file_is_not_found_and_its_descriptor_is_given_back(files: list[str]) -> None:
    cache = FdCache(4)
    read_one(cache, files[0])
    os.unlink(files[0])
    with pytest.raises(FileNotFoundError):
        cache.open(files[0])
    assert cache.statistics().open == 0


def test_an_invalidated_file_stays_readable_for_who_has_it_open(files: list[str]) -> None:
    cache = FdCache(4)
    with cache.open(files[3]) as file:
        os.unlink(files[3])
        cache.invalidate(files[3])
        assert file.pread(2, 998) == b"\3\3"
        assert cache.statistics().open == 1
    assert cache.statistics().open == 0
    cache.invalidate("never/opened")


def test_closing_the_cache_leaves_the_last_reader_in_peace(files: list[str]) -> None:
    before = open_descriptors()
    cache = FdCache(4)
    handle = cache.open(files[2])
    cache.close()
    assert handle.pread(1, 0) == b"\2"
    handle.close()
    handle.close()
    assert open_descriptors() == before
    with pytest.raises(ValueError, match="after its with block"):
        handle.pread(1, 0)


def test_a_cache_that_nobody_closes_leaves_no_file_open(files: list[str]) -> None:
    before = open_descriptors()
    cache = FdCache(6)
    for path in files:
        read_one(cache, path)
    assert open_descriptors() == before + 6
    del cache
    assert open_descriptors() == before


def test_a_growing_file_shows_what_was_appended(files: list[str]) -> None:
    cache = FdCache(1)
    with cache.open(files[0]) as file, open(files[0], "ab") as growing:
        assert file.pread(10, 995) == b"\0" * 5
        growing.write(b"new")
        growing.flush()
        assert (file.size(), file.pread(10, 1000), file.pread(10, 5000)) == (1003, b"new", b"")
    cache.close()


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        FdCache(1).open(str(tmp_path))


@pytest.mark.parametrize("capacity", [0, -1, 10**9])
def test_a_capacity_that_starves_sockets_is_refused(capacity: int) -> None:
    with pytest.raises(InvalidSettings, match=r"fd\.cache\.capacity"):
        FdCache(capacity)


def test_threads_reading_deleting_and_recreating_never_see_another_file(files: list[str]) -> None:
    """Each file holds one byte value for ever, also when it is re-created."""
    before = open_descriptors()
    cache = FdCache(2)
    wrong: list[str] = []

    def replace(path: str) -> None:
        content = Path(path).read_bytes()
        Path(path + ".new").write_bytes(content)
        os.rename(path + ".new", path)

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(300):
            number = rng.randrange(len(files))
            with cache.open(files[number]) as file:
                if rng.random() < 0.2:
                    cache.invalidate(files[rng.randrange(len(files))])
                if file.pread(8, rng.randrange(900)) != bytes([number]) * 8:
                    wrong.append(f"seed {seed}: {files[number]}")
            if seed == 0 and rng.random() < 0.2:
                replace(files[number])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    counted = cache.statistics()
    assert counted.in_use == 0
    assert counted.open <= 2
    assert counted.hits + counted.misses == 4 * 300
    cache.close()
    assert open_descriptors() == before


def test_what_is_not_in_memory_is_asked_of_the_disk_at_once(
    files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    is_in_memory = True
    preadv = os.preadv

    def preadv_as_of(fd: int, buffers: list[bytearray], offset: int, flags: int = 0) -> int:
        if flags == os.RWF_NOWAIT and not is_in_memory:
            raise BlockingIOError(errno.EAGAIN, "not in memory")
        return preadv(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv_as_of)
    monkeypatch.setattr(os, "posix_fadvise", lambda _, *range_: asked.append(range_[:2]))
    ranges = [(900, 50), (10, 5), (300, 600)]
    cache = FdCache(2)
    with cache.open(files[1]) as file:
        file.load_together(ranges)
        assert asked == []
        is_in_memory = False
        file.load_together(ranges)
        assert asked == ranges
        content = bytearray(50)
        assert file.pread_into(memoryview(content), 900) == 50
        assert content == bytes([1]) * 50
    cache.close()
