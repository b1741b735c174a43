"""The batch reader: damage in objects and in own chunks, and what is served all the same."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from diskless.replica.batch_reader import ReadRequest
from metadata.operations import WalExtent
from tests.support.brokers.batch_reader_setting import (
    MUCH,
    OTHER,
    PARTITION,
    Setting,
    batch,
    extent_of,
    in_place,
    offsets_of,
)
from wal.chunks.sealed_chunk import SealedChunk
from wal.chunks.wal_object import WalObjectBody
from wal.coordinates import (
    ByteOffset,
    Offset,
)
from wal.errors import (
    CorruptObject,
    ObjectStoreUnavailable,
)


@pytest.fixture
async def setting(tmp_path: Path) -> AsyncIterator[Setting]:
    async with in_place(tmp_path) as setting:
        yield setting


async def test_what_lies_before_the_damage_is_served_and_the_damage_is_an_error(
    setting: Setting,
) -> None:
    sent = [batch(), batch(), batch()]
    key = await setting.put(*sent)
    extent = extent_of(key, sent)
    setting.store.damage(key, 2 * len(sent[0]) - 5)
    before = await setting.read(extent)
    assert offsets_of(before) == [(0, 0)]
    assert isinstance(before.error, CorruptObject)
    at = await setting.read(extent, offset=1)
    assert (at.size_bytes, type(at.error)) == (0, CorruptObject)
    assert str(key) in str(at.error)


@pytest.mark.parametrize("position", range(61))
async def test_a_flipped_bit_anywhere_in_a_header_never_gives_wrong_offsets(
    setting: Setting, position: int
) -> None:
    """Also where the damaged batch is only walked over to find the offsets of the next ones."""
    sent = [batch(b"a", b"b"), batch(b"c", b"d"), batch(b"e", b"f")]
    key = await setting.put(*sent)
    extent = extent_of(key, sent)
    right = b"".join((await setting.read(extent)).records)
    await setting.cache.invalidate(key)
    setting.store.damage(key, position)
    for offset in range(6):
        result = await setting.read(extent, offset=offset)
        served = b"".join(result.records)
        assert served in (b"", right, right[len(sent[0]) :], right[2 * len(sent[0]) :])
        if position >= 16 or 8 <= position < 12:  # the others are written anew anyway
            assert isinstance(result.error, CorruptObject)
            assert served == b""


async def test_damage_in_one_partition_is_nothing_to_the_others(setting: Setting) -> None:
    first, second = [batch(b"1")], [batch(b"2")]
    key = await setting.put(*first, *second)
    both = len(first[0]) + len(second[0])
    setting.store.damage(key, len(first[0]) - 1)
    results = await setting.reader.read(
        [
            ReadRequest(PARTITION, 0, MUCH, [extent_of(key, first, object_bytes=both)]),
            ReadRequest(OTHER, 0, MUCH, [extent_of(key, second, start=len(first[0]))]),
        ],
        max_bytes=MUCH,
    )
    assert isinstance(results[0].error, CorruptObject)
    assert results[1].error is None
    assert offsets_of(results[1]) == [(0, 0)]


async def test_damage_on_the_way_heals_by_asking_once_more(setting: Setting) -> None:
    sent = [batch()]
    extent = extent_of(await setting.put(*sent), sent)
    setting.store.flips_left = 1
    result = await setting.read(extent)
    assert result.error is None
    assert offsets_of(result) == [(0, 0)]
    assert setting.store.statistics().gets == 2
    assert await setting.read_extent(extent) == sent[0]


async def test_an_extent_whose_batches_do_not_fit_its_offsets_is_damage(setting: Setting) -> None:
    sent = [batch(b"a", b"b")]
    extent = extent_of(await setting.put(*sent), sent)
    result = await setting.read(extent._replace(last_offset=Offset(5)))
    assert isinstance(result.error, CorruptObject)


async def test_a_store_that_is_away_is_an_error_and_then_forgotten(setting: Setting) -> None:
    sent = [batch()]
    extent = extent_of(await setting.put(*sent), sent)
    setting.store.read_error = ObjectStoreUnavailable("away")
    assert isinstance((await setting.read(extent)).error, ObjectStoreUnavailable)
    setting.store.read_error = None
    assert (await setting.read(extent)).error is None


async def test_a_look_at_records_heals_or_names_the_damaged_object(setting: Setting) -> None:
    sent = [batch(), batch()]
    key = await setting.put(*sent)
    extent = extent_of(key, sent)
    setting.store.flips_left = 1
    assert await setting.read_extent(extent) == b"".join(sent)
    setting.store.damage(key, 80)
    await setting.cache.invalidate(key)
    with pytest.raises(CorruptObject, match="wal/00/object"):
        await setting.read_extent(extent)
    setting.store.read_error = ObjectStoreUnavailable("away")
    with pytest.raises(ObjectStoreUnavailable):
        await setting.read_extent(extent)


# Own chunks


async def own_chunk(setting: Setting) -> tuple[SealedChunk, WalExtent]:
    """Two batches in a chunk that was uploaded too."""
    sent = [batch(b"a"), batch(b"b")]
    chunk = setting.chunk_of(*sent)
    await setting.store.put(chunk.object_key, WalObjectBody(chunk, chunk.plan))
    extent = extent_of(
        chunk.object_key,
        sent,
        start=chunk.plan.extents[0].byte_offset,
        object_bytes=chunk.plan.object_bytes,
    )
    setting.directory.mark_committed(chunk)
    return chunk, extent


def harm_file(chunk: SealedChunk, harm: str) -> None:
    path = Path(chunk.data_path)
    content = bytearray(path.read_bytes())
    if harm == "missing":
        path.unlink()
    elif harm == "short":
        path.write_bytes(content[:-1])
    else:
        content[-chunk.data_bytes + 30] ^= 1  # in the header of the first batch
        path.write_bytes(content)


async def test_the_brokers_own_chunk_is_read_without_asking_the_store(setting: Setting) -> None:
    _, extent = await own_chunk(setting)
    assert offsets_of(await setting.read(extent)) == [(0, 0), (1, 1)]
    assert setting.store.statistics().gets == 0
    assert setting.reader.statistics().chunk_bytes == extent.length_bytes


@pytest.mark.parametrize("harm", ["missing", "short", "flipped"])
async def test_a_chunk_that_is_no_good_is_replaced_by_its_object(
    setting: Setting, harm: str
) -> None:
    chunk, extent = await own_chunk(setting)
    harm_file(chunk, harm)
    result = await setting.read(extent)
    assert result.error is None
    assert offsets_of(result) == [(0, 0), (1, 1)]
    assert setting.store.statistics().gets > 0
    assert len(await setting.read_extent(extent)) == extent.length_bytes


async def test_a_damaged_chunk_while_the_store_is_away_is_no_damage_of_the_log(
    setting: Setting,
) -> None:
    chunk, extent = await own_chunk(setting)
    harm_file(chunk, "flipped")
    setting.store.read_error = ObjectStoreUnavailable("away")
    assert isinstance((await setting.read(extent)).error, ObjectStoreUnavailable)
    setting.store.read_error = None
    assert (await setting.read(extent)).error is None


async def test_a_range_the_chunk_does_not_have_is_asked_of_the_store(setting: Setting) -> None:
    _, extent = await own_chunk(setting)
    beyond = extent._replace(byte_offset=ByteOffset(extent.object_bytes))
    result = await setting.read(beyond)
    assert result.size_bytes == 0
    assert isinstance(result.error, CorruptObject)
