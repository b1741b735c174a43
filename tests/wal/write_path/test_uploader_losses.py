"""The uploader: chunks that are refused, and chunks that are damaged before they are stored."""

import os
from pathlib import Path

import pytest

from tests.support.chunks.uploader_rig import Rig, running
from tests.support.chunks.write_path import (
    batch_bytes,
)
from wal.chunks.quarantine import QUARANTINE
from wal.chunks.sealed_chunk import SealedChunk
from wal.chunks.wal_object import WalObjectReader
from wal.coordinates import ObjectKey
from wal.errors import (
    ChunkLost,
    CorruptObject,
    DisklessError,
    ObjectExists,
    ObjectExpired,
    PolicyViolation,
    StorageFailed,
)
from wal.stores.object_store import BytesBody


@pytest.mark.parametrize("error", [ObjectExpired, PolicyViolation])
async def test_a_refused_commit_gives_the_chunk_up_and_goes_on(
    tmp_path: Path, error: type[DisklessError]
) -> None:
    async with running(Rig(tmp_path)) as rig:
        chunks = [rig.chunk(), rig.chunk()]

        def refuse(chunk: SealedChunk) -> None:
            if chunk is chunks[0]:
                raise error("never")

        rig.outcomes.before_commit = refuse
        for chunk in chunks:
            await rig.uploader.submit(chunk)
        assert await rig.uploader.drain(10)
        assert [(chunk, type(why)) for chunk, why in rig.outcomes.abandoned] == [(chunks[0], error)]
        assert rig.outcomes.committed == [chunks[1]]
        # It must not be committed at the next start either.
        assert rig.files() == {"chunk-000001"}


async def test_a_foreign_object_under_the_key_gives_the_chunk_up(tmp_path: Path) -> None:
    async with running(Rig(tmp_path)) as rig:
        chunks = [rig.chunk(), rig.chunk()]
        await rig.store.put(chunks[0].object_key, BytesBody(b"not ours"))
        for chunk in chunks:
            await rig.uploader.submit(chunk)
        assert await rig.uploader.drain(10)
        ((abandoned, error),) = rig.outcomes.abandoned
        # Its producers may send again: nothing of it was committed.
        assert (abandoned, type(error)) == (chunks[0], StorageFailed)
        assert isinstance(error.__cause__, ObjectExists)
        assert rig.outcomes.committed == [chunks[1]]
        assert await rig.store.get(chunks[0].object_key) == b"not ours"
        assert rig.files(QUARANTINE) == {"chunk-000000"}


async def test_a_store_that_refuses_the_body_gives_the_chunk_up(tmp_path: Path) -> None:
    async with running(Rig(tmp_path)) as rig:

        async def refuse(key: ObjectKey, attempt: int) -> None:
            raise CorruptObject("the length differs")

        rig.store.before = refuse
        await rig.uploader.submit(rig.chunk())
        assert await rig.uploader.drain(10)
        assert len(rig.outcomes.abandoned) == 1


def rot(chunk: SealedChunk, position: int, byte: int = 30) -> None:
    """Flip a bit of one batch in the chunk's .data."""
    with open(chunk.data_path, "r+b") as data:
        data.seek(chunk.batches[position].data_offset + byte)
        old = data.read(1)[0]
        data.seek(-1, os.SEEK_CUR)
        data.write(bytes([old ^ 4]))


async def test_a_rotten_batch_fails_alone(tmp_path: Path) -> None:
    async with running(Rig(tmp_path)) as rig:
        chunk = rig.chunk(4)
        rot(chunk, 1)
        await rig.uploader.submit(chunk)
        assert await rig.uploader.drain(10)
        assert rig.outcomes.of_token == {
            0: ["committed"],
            1: ["CorruptChunk"],
            2: ["committed"],
            3: ["committed"],
        }
        index = await WalObjectReader(rig.store).verify(chunk.object_key)
        assert len(index.extents) == 3
        # A restart would plan another object from these files, so they are not kept.
        assert rig.files() == set()
        assert rig.uploader.batches_abandoned == 1
        assert "at byte" in str(rig.directory.damage[0])


async def test_what_the_same_producer_sent_behind_a_rotten_batch_fails_with_it(
    tmp_path: Path,
) -> None:
    """Committed without its predecessor it would be a gap in the producer's sequence."""
    async with running(Rig(tmp_path)) as rig:
        contents = [
            batch_bytes(producer_id=9, sequence=0),  # A0, rots
            batch_bytes(producer_id=9, sequence=0),  # A1
            batch_bytes(producer_id=9, sequence=1),  # A0
            batch_bytes(producer_id=8, sequence=0),  # A1
            batch_bytes(producer_id=8, sequence=0),  # A0
        ]
        chunk = rig.chunk(batches=contents)
        rot(chunk, 0)
        await rig.uploader.submit(chunk)
        assert await rig.uploader.drain(10)
        failed = {t for t, told in rig.outcomes.of_token.items() if told == ["CorruptChunk"]}
        assert failed == {0, 2}


@pytest.mark.parametrize("loss", ["rot", "truncate"])
async def test_a_chunk_without_a_good_batch_is_abandoned(tmp_path: Path, loss: str) -> None:
    async with running(Rig(tmp_path)) as rig:
        chunk, next_chunk = rig.chunk(2), rig.chunk(1)
        if loss == "truncate":
            os.truncate(chunk.data_path, 0)
        else:
            rot(chunk, 0)
            rot(chunk, 1)
        await rig.uploader.submit(chunk)
        await rig.uploader.submit(next_chunk)
        assert await rig.uploader.drain(10)
        assert [type(error).__name__ for _, error in rig.outcomes.abandoned] == ["CorruptChunk"]
        assert rig.outcomes.committed == [next_chunk]
        assert [stat.key async for stat in rig.store.list("")] == [next_chunk.object_key]
        assert rig.files(QUARANTINE) == {"chunk-000000"}


async def test_a_chunk_that_was_deleted_may_be_sent_again_and_is_no_damage(tmp_path: Path) -> None:
    async with running(Rig(tmp_path)) as rig:
        chunk, next_chunk = rig.chunk(2), rig.chunk(1)
        os.unlink(chunk.data_path)
        await rig.uploader.submit(chunk)
        await rig.uploader.submit(next_chunk)
        assert await rig.uploader.drain(10)
        assert [type(error) for _, error in rig.outcomes.abandoned] == [ChunkLost]
        assert rig.outcomes.committed == [next_chunk]
        assert not rig.directory.damage
        # What is left of it must not be committed at the next start.
        assert "chunk-000000" not in rig.files()
