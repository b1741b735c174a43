"""What every object store promises (`wal.stores.object_store`): one suite for all of them.

A new implementation adds an `open_*` function to `STORES`: it takes pytest's request (for fixtures)
and yields a factory that opens a fresh handle on one and the same empty store. A store for threads
goes in as `BlockingInThreads`.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

import pytest

from tests.support.stores.blocking_in_threads import BlockingInThreads
from wal.clock import SystemClock
from wal.coordinates import ObjectKey
from wal.errors import CorruptChunk, CorruptObject, ObjectExists, ObjectNotFound, Rejected
from wal.stores.blocking_s3_store import BlockingS3Store
from wal.stores.file_store import FileStore
from wal.stores.memory_store import MemoryStore, forget_bucket
from wal.stores.object_store import Buffer, BytesBody, ObjectStore
from wal.stores.observed_store import ObservedStore, StoreReach
from wal.stores.s3_settings import S3Settings
from wal.stores.s3_store import S3Store

OpenStore = Callable[[], AbstractAsyncContextManager[ObjectStore]]
PREFIX: Final = "a prefix/of ours"
KEY: Final = ObjectKey("wal/3f/01HZZZZZZZZZZZZZZZZZZZZZZZ")


def open_file(request: pytest.FixtureRequest) -> Iterator[OpenStore]:
    root: Path = request.getfixturevalue("tmp_path") / "store"
    yield lambda: FileStore(root, clock=SystemClock(), rng=random.Random(), sync=False)


def open_observed(request: pytest.FixtureRequest) -> Iterator[OpenStore]:
    clock = SystemClock()
    yield lambda: ObservedStore(
        MemoryStore("observed", clock=clock), StoreReach("memory://observed", clock=clock)
    )
    forget_bucket("observed")


def open_memory(request: pytest.FixtureRequest) -> Iterator[OpenStore]:
    yield lambda: MemoryStore("contract", clock=SystemClock())
    forget_bucket("contract")


def open_s3_on_moto(request: pytest.FixtureRequest) -> Iterator[OpenStore]:
    endpoint = request.getfixturevalue("moto_endpoint")
    yield s3_opener(endpoint, request.getfixturevalue("moto_bucket"))


def open_s3_on_localstack(request: pytest.FixtureRequest) -> Iterator[OpenStore]:
    endpoint = request.getfixturevalue("localstack_endpoint")
    yield s3_opener(endpoint, request.getfixturevalue("localstack_bucket"))


def open_blocking_s3_on_moto(request: pytest.FixtureRequest) -> Iterator[OpenStore]:
    endpoint = request.getfixturevalue("moto_endpoint")
    yield blocking_s3_opener(endpoint, request.getfixturevalue("moto_bucket"))


def open_blocking_s3_on_localstack(request: pytest.FixtureRequest) -> Iterator[OpenStore]:
    endpoint = request.getfixturevalue("localstack_endpoint")
    yield blocking_s3_opener(endpoint, request.getfixturevalue("localstack_bucket"))


def open_s3_on_minio(request: pytest.FixtureRequest) -> Iterator[OpenStore]:
    endpoint = request.getfixturevalue("minio_endpoint")
    yield s3_opener(endpoint, request.getfixturevalue("minio_bucket"))


def open_blocking_s3_on_minio(request: pytest.FixtureRequest) -> Iterator[OpenStore]:
    endpoint = request.getfixturevalue("minio_endpoint")
    yield blocking_s3_opener(endpoint, request.getfixturevalue("minio_bucket"))


def s3_opener(endpoint: str, bucket: str) -> Callable[[], S3Store]:
    # Small pages, so that listing a few hundred keys crosses several of them.
    settings = S3Settings(list_page=100)
    return lambda: S3Store(
        bucket,
        PREFIX,
        endpoint_url=endpoint,
        clock=SystemClock(),
        rng=random.Random(),
        settings=settings,
    )


def blocking_s3_opener(endpoint: str, bucket: str) -> OpenStore:
    open_broker = s3_opener(endpoint, bucket)
    return lambda: BlockingInThreads(
        open_broker(),
        BlockingS3Store(
            bucket, PREFIX, endpoint_url=endpoint, clock=SystemClock(), rng=random.Random()
        ),
    )


# `make test` has each S3 client and each S3 server once.
STORES: Final = [
    pytest.param(open_file, id="file"),
    pytest.param(open_memory, id="memory"),
    pytest.param(open_observed, id="observed"),
    pytest.param(
        open_s3_on_moto, id="s3-on-moto", marks=[pytest.mark.moto, pytest.mark.exhaustive]
    ),
    pytest.param(open_s3_on_localstack, id="s3-on-localstack", marks=pytest.mark.localstack),
    pytest.param(open_blocking_s3_on_moto, id="blocking-s3-on-moto", marks=pytest.mark.moto),
    pytest.param(
        open_blocking_s3_on_localstack,
        id="blocking-s3-on-localstack",
        marks=[pytest.mark.localstack, pytest.mark.exhaustive],
    ),
    pytest.param(open_s3_on_minio, id="s3-on-minio", marks=pytest.mark.minio),
    pytest.param(
        open_blocking_s3_on_minio,
        id="blocking-s3-on-minio",
        marks=[pytest.mark.minio, pytest.mark.exhaustive],
    ),
]


@pytest.fixture(params=STORES)
def open_store(request: pytest.FixtureRequest) -> Iterator[OpenStore]:
    yield from request.param(request)


@pytest.fixture
async def store(open_store: OpenStore) -> AsyncIterator[ObjectStore]:
    async with open_store() as opened:
        yield opened


class GeneratedBody:
    """Fragments made anew for every attempt, in a buffer that the next fragment overwrites."""

    def __init__(self, fragments: int, fragment_bytes: int) -> None:
        self.length_bytes = fragments * fragment_bytes
        self.attempts = 0
        self._fragments = fragments
        self._fragment_bytes = fragment_bytes

    def fragments(self) -> Iterable[Buffer]:
        self.attempts += 1
        buffer = bytearray(self._fragment_bytes)
        for number in range(self._fragments):
            buffer[:] = bytes([number % 251]) * self._fragment_bytes
            yield memoryview(buffer)

    def content(self) -> bytes:
        return b"".join(bytes([n % 251]) * self._fragment_bytes for n in range(self._fragments))


class LyingBody:
    """Announces one length and has another."""

    def __init__(self, announced: int, content: bytes) -> None:
        self.length_bytes = announced
        self._content = content

    def fragments(self) -> Iterable[Buffer]:
        yield self._content


class DamagedBody:
    """Finds out half-way that its source is damaged."""

    length_bytes = 2_000_000

    def fragments(self) -> Iterable[Buffer]:
        yield bytes(1_000_000)
        raise CorruptChunk("chunk-000001.data: bad batch at byte 1000000")


async def keys(store: ObjectStore, prefix: str, start_after: str = "") -> list[str]:
    return [stat.key async for stat in store.list(prefix, start_after)]


async def test_what_was_put_is_read_back(store: ObjectStore) -> None:
    await store.put(KEY, BytesBody(b"hello ", bytearray(b"diskless"), memoryview(b" world")))
    assert await store.get(KEY) == b"hello diskless world"
    assert await store.get_range(KEY, 6, 8) == b"diskless"


async def test_an_empty_object_is_an_object(store: ObjectStore) -> None:
    await store.put(KEY, BytesBody())
    assert await store.get(KEY) == b""
    assert await store.get_range(KEY, 0, 0) == b""
    assert (await store.head(KEY)).length_bytes == 0


@pytest.mark.parametrize(("fragments", "size"), [(3000, 100), (5, 300_000), (130, 16_384)])
async def test_a_body_may_reuse_its_buffer_from_fragment_to_fragment(
    store: ObjectStore, fragments: int, size: int
) -> None:
    body = GeneratedBody(fragments, size)
    await store.put(KEY, body)
    assert await store.get(KEY) == body.content()


async def test_thousands_of_fragments_that_are_valid_together_are_stored_in_order(
    store: ObjectStore,
) -> None:
    fragments = [number.to_bytes(4, "big") for number in range(5000)]
    await store.put(KEY, BytesBody(*fragments))
    assert await store.get(KEY) == b"".join(fragments)


async def test_other_bytes_under_a_taken_key_are_refused_and_change_nothing(
    store: ObjectStore,
) -> None:
    await store.put(KEY, BytesBody(b"first"))
    with pytest.raises(ObjectExists):
        await store.put(KEY, BytesBody(b"other"))
    with pytest.raises(ObjectExists):
        await store.put(KEY, BytesBody(b"first and more"))
    assert await store.get(KEY) == b"first"


async def test_a_put_of_the_very_same_bytes_again_is_a_success(open_store: OpenStore) -> None:
    async with open_store() as lost:
        await lost.put(KEY, BytesBody(b"recovered chunk"))
    async with open_store() as store:
        await store.put(KEY, BytesBody(b"recovered", b" chunk"))
        assert await store.get(KEY) == b"recovered chunk"


async def test_of_eight_racing_puts_exactly_one_wins_and_is_seen_whole(
    open_store: OpenStore,
) -> None:
    contents = [bytes([number]) * 200_000 for number in range(8)]
    async with open_store() as one, open_store() as two:

        async def race(number: int) -> bytes | None:
            try:
                await (one, two)[number % 2].put(KEY, BytesBody(contents[number]))
            except ObjectExists:
                return None
            return contents[number]

        outcomes = await asyncio.gather(*map(race, range(8)))
        winners = [content for content in outcomes if content is not None]
        assert len(winners) == 1
        assert await one.get(KEY) == winners[0]
        assert await two.get(KEY) == winners[0]


async def test_a_reader_sees_all_of_an_object_or_none_of_it(open_store: OpenStore) -> None:
    content = bytes(4_000_000)
    async with open_store() as writer, open_store() as reader:
        putting = asyncio.create_task(writer.put(KEY, BytesBody(content)))
        while not putting.done():
            await asyncio.sleep(0)  # the memory store never waits by itself
            try:
                assert len(await reader.get(KEY)) == len(content)
            except ObjectNotFound:
                assert await keys(reader, "other/") == []
        await putting
        assert len(await reader.get(KEY)) == len(content)


async def test_a_body_that_lies_about_its_length_is_not_stored(store: ObjectStore) -> None:
    for announced in (5, 7):
        with pytest.raises(CorruptObject):
            await store.put(KEY, LyingBody(announced, b"sixsix"))
        with pytest.raises(ObjectNotFound):
            await store.head(KEY)


async def test_a_body_that_turns_out_damaged_is_not_stored(store: ObjectStore) -> None:
    with pytest.raises(CorruptChunk):
        await store.put(KEY, DamagedBody())
    with pytest.raises(ObjectNotFound):
        await store.get(KEY)
    assert await keys(store, "") == []


async def test_a_range_past_the_end_is_an_error_and_not_a_short_read(store: ObjectStore) -> None:
    await store.put(KEY, BytesBody(bytes(100)))
    assert await store.get_range(KEY, 90, 10) == bytes(10)
    for start, length in ((91, 10), (99, 2), (100, 1), (500, 10), (-1, 1)):
        with pytest.raises(CorruptObject):
            await store.get_range(KEY, start, length)


async def test_a_missing_object_is_not_found(store: ObjectStore) -> None:
    await store.put(KEY, BytesBody(b"x"))
    missing = [ObjectKey("wal/3f/other"), ObjectKey("wal/3f"), ObjectKey("nowhere/at/all")]
    for key in missing:
        with pytest.raises(ObjectNotFound):
            await store.get(key)
        with pytest.raises(ObjectNotFound):
            await store.get_range(key, 0, 1)
        with pytest.raises(ObjectNotFound):
            await store.head(key)


async def test_head_tells_length_and_age(store: ObjectStore) -> None:
    before_ms = SystemClock().now_ms()
    await store.put(KEY, BytesBody(b"four"))
    stat = await store.head(KEY)
    assert (stat.key, stat.length_bytes) == (KEY, 4)
    assert before_ms - 2000 <= stat.last_modified_ms <= SystemClock().now_ms() + 2000


async def test_list_is_in_key_order_below_the_prefix(store: ObjectStore) -> None:
    names = ["a", "b-c/1", "b.c", "b/1", "b/10", "b/2", "b/2-x", "b/2/y", "b0", "ba/1", "Z", "é/1"]
    names.remove("b/2")  # a directory cannot hold both b/2 and b/2/y
    shuffled = list(names)
    random.Random(7).shuffle(shuffled)
    for name in shuffled:
        await store.put(ObjectKey(name), BytesBody(name.encode()))
    ordered = sorted(names, key=str.encode)
    assert await keys(store, "") == ordered
    for prefix in ("b", "b/", "b/1", "b/2", "b.", "é/", "b/10", "nothing", "a/", "..", "/"):
        assert await keys(store, prefix) == [name for name in ordered if name.startswith(prefix)]
    for start_after in ["", *names, "b/", "b/1x", "b/2", "b/3", "zzz", "A"]:
        assert await keys(store, "", start_after) == [n for n in ordered if n > start_after]
        assert await keys(store, "b", start_after) == [
            name for name in ordered if name > start_after and name.startswith("b")
        ]


async def test_list_tells_lengths(store: ObjectStore) -> None:
    for length in range(3):
        await store.put(ObjectKey(f"wal/{length}"), BytesBody(bytes(length)))
    assert [(s.key, s.length_bytes) async for s in store.list("wal/")] == [
        ("wal/0", 0),
        ("wal/1", 1),
        ("wal/2", 2),
    ]


async def test_list_goes_on_past_a_page(store: ObjectStore) -> None:
    names = [f"meta/0/log/{number:020}" for number in range(270)]
    await asyncio.gather(*(store.put(ObjectKey(name), BytesBody(b"r")) for name in names))
    assert await keys(store, "meta/0/log/") == names
    assert await keys(store, "meta/0/log/", names[129]) == names[130:]


async def test_a_listing_beside_writers_shows_what_was_there_before_and_nothing_that_was_gone(
    open_store: OpenStore,
) -> None:
    """Writers add, delete, and put again what is there, while the same keys are listed."""
    stable = [ObjectKey(f"log/{number:04}") for number in range(0, 100, 4)]
    doomed = [ObjectKey(f"log/{number:04}") for number in range(1, 100, 32)]
    ended = asyncio.Event()

    async def come_and_go(store: ObjectStore, first: int) -> None:
        number = first
        while not ended.is_set():
            key = ObjectKey(f"log/{number % 100:04}")
            await store.put(key, BytesBody(b"comes and goes"))
            await asyncio.sleep(0)  # the memory store never waits by itself
            await store.delete([key])
            number += 4

    async def put_again(store: ObjectStore) -> None:
        while not ended.is_set():
            for key in stable:
                await store.put(key, BytesBody(b"stays"))
                await asyncio.sleep(0)

    async with open_store() as writer, open_store() as reader, asyncio.TaskGroup() as tasks:
        for key in stable:
            await writer.put(key, BytesBody(b"stays"))
        for key in doomed:
            await writer.put(key, BytesBody(b"goes"))
        tasks.create_task(come_and_go(writer, 2))
        tasks.create_task(come_and_go(reader, 3))
        tasks.create_task(put_again(writer))
        for key in doomed:
            await writer.delete([key])
            arrived = ObjectKey(f"log/new-{key[4:]}")
            await writer.put(arrived, BytesBody(b"new"))
            listed = []
            async for stat in reader.list("log/"):
                listed.append(stat.key)
                await asyncio.sleep(0)
            assert listed == sorted(set(listed))
            assert {*stable, arrived} <= set(listed)
            assert not set(listed) & set(doomed[: doomed.index(key) + 1])
        ended.set()


async def test_delete_confirms_what_is_gone_and_counts_the_absent(store: ObjectStore) -> None:
    for name in ("a/1", "a/2", "a/3"):
        await store.put(ObjectKey(name), BytesBody(name.encode()))
    gone = await store.delete([ObjectKey("a/1"), ObjectKey("a/3"), ObjectKey("never/was")])
    assert sorted(gone) == ["a/1", "a/3", "never/was"]
    assert await keys(store, "") == ["a/2"]
    with pytest.raises(ObjectNotFound):
        await store.get(ObjectKey("a/1"))
    assert list(await store.delete([])) == []


async def test_a_deleted_key_may_be_put_again_and_serves_the_new_bytes(store: ObjectStore) -> None:
    await store.put(KEY, BytesBody(b"old"))
    assert await store.get_range(KEY, 0, 3) == b"old"
    await store.delete([KEY])
    await store.put(KEY, BytesBody(b"new"))
    assert await store.get_range(KEY, 0, 3) == b"new"


@pytest.mark.parametrize(
    "key", ["", "/a", "a/", "a//b", ".", "..", "a/../b", "../a", "a\0b", "a\nb", "x" * 901]
)
async def test_a_key_that_some_store_could_not_hold_is_rejected_by_all(
    store: ObjectStore, key: str
) -> None:
    with pytest.raises(Rejected):
        await store.put(ObjectKey(key), BytesBody(b"x"))
    with pytest.raises((Rejected, ObjectNotFound)):
        await store.get(ObjectKey(key))


async def test_a_store_counts_its_requests_and_bytes(store: ObjectStore) -> None:
    await store.put(KEY, BytesBody(bytes(1000)))
    await store.get(KEY)
    await store.get_range(KEY, 0, 10)
    await store.head(KEY)
    await store.delete([KEY])
    counted = store.statistics()
    assert (counted.puts, counted.put_bytes) == (1, 1000)
    assert (counted.gets, counted.get_bytes) == (2, 1010)
    # A put is verified by a HEAD where the server's answer does not tell the checksum.
    assert counted.heads in (1, 2)
    assert (counted.deletes, counted.retries, counted.errors) == (1, 0, 0)
