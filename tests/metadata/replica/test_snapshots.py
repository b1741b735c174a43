"""Snapshots: their format, and what is taken is the state at its offset."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.log.log import MetadataRecordBatch
from metadata.replica.snapshot_format import (
    SnapshotManifest,
    SnapshotPart,
    decode_manifest,
    encode_manifest,
    manifest_key,
    next_offset_of,
    part_key,
    snapshot_name,
)
from metadata.replica.snapshots import SnapshotStatus
from metadata.state.state import STATE_FILE, Applied
from metadata.state.state_check import verified_file
from tests.support.logs.snapshot_bench import (
    PrunableLog,
    following,
    hash_at,
    keeper_of,
    recorded_batches,
    snapshots_in,
)
from tests.support.logs.snapshot_store_bench import keys, names
from tests.support.stores.faulty_store import FaultyStore, StoreFaults
from wal import errors
from wal.clock import ManualClock
from wal.crc import crc32c
from wal.failpoint import FailpointError, arm
from wal.stores.memory_store import MemoryStore
from wal.stores.object_store import ObjectStore
from wal.ulid import mint_ulid


@pytest.fixture
async def batches(tmp_path: Path) -> list[MetadataRecordBatch]:
    return await recorded_batches(tmp_path / "recorded")


@pytest.fixture
async def store() -> AsyncIterator[ObjectStore]:
    async with MemoryStore(clock=ManualClock()) as opened_store:
        yield opened_store


class TestFormat:
    _manifests = st.builds(
        SnapshotManifest,
        cluster_id=st.text(max_size=30),
        partition=st.integers(0, 2**31 - 1),
        name=st.just("set below"),
        state_version=st.integers(0, 2**16),
        applied=st.builds(
            Applied,
            next_offset=st.integers(1, 2**63 - 1),
            last_record_crc=st.integers(0, 2**32 - 1),
            timestamp_ms=st.integers(-1, 2**63 - 1),
            forgotten_until_ms=st.integers(-1, 2**63 - 1),
            began_ms=st.integers(-1, 2**63 - 1),
            state_hash=st.integers(0, 2**64 - 1),
        ),
        taken_at_ms=st.integers(0, 2**63 - 1),
        file_sha256=st.binary(min_size=32, max_size=32),
        parts=st.lists(
            st.builds(
                SnapshotPart,
                stored_bytes=st.integers(1, 64 << 20),
                crc32c=st.integers(0, 2**32 - 1),
                file_bytes=st.integers(1, 64 << 20),
            ),
            min_size=1,
            max_size=5,
        ),
    ).map(lambda made: replace(made, name=snapshot_name(made.next_offset, "0" * 26)))

    @given(_manifests)
    def test_a_manifest_is_read_as_it_was_written(self, manifest: SnapshotManifest) -> None:
        assert decode_manifest(encode_manifest(manifest), manifest.name) == manifest

    @given(_manifests, st.data())
    def test_a_damaged_manifest_is_found(
        self, manifest: SnapshotManifest, data: st.DataObject
    ) -> None:
        encoded = bytearray(encode_manifest(manifest))
        position = data.draw(st.integers(0, len(encoded) - 1))
        encoded[position] ^= 1 << data.draw(st.integers(0, 7))
        with pytest.raises(errors.CorruptObject):
            decode_manifest(bytes(encoded), manifest.name)
        with pytest.raises(errors.CorruptObject):
            decode_manifest(encode_manifest(manifest)[:position], manifest.name)

    @given(st.binary(max_size=200))
    def test_garbage_is_no_manifest(self, data: bytes) -> None:
        with pytest.raises(errors.CorruptObject):
            decode_manifest(data, snapshot_name(1, "0" * 26))

    @given(_manifests)
    def test_a_manifest_under_another_name_is_refused(self, manifest: SnapshotManifest) -> None:
        with pytest.raises(errors.CorruptObject):
            decode_manifest(encode_manifest(manifest), snapshot_name(5, "1" * 26))

    def test_a_manifest_of_a_later_format_is_refused(self) -> None:
        name = snapshot_name(1, "0" * 26)
        line = b'{"format":2}'
        with pytest.raises(errors.CorruptObject, match="format 2"):
            decode_manifest(b"%s\n%08x\n" % (line, crc32c(line)), name)

    @pytest.mark.parametrize(
        "name", ["", "manifest", "1-" + "0" * 26, "0" * 20, "0" * 20 + "-" + "a" * 26]
    )
    def test_other_names_have_no_offset(self, name: str) -> None:
        assert next_offset_of(name) is None

    def test_names_sort_by_offset(self) -> None:
        ulid = mint_ulid(ManualClock(), random.Random(1))
        made = [snapshot_name(offset, ulid) for offset in (0, 9, 10, 99, 10**18, 2**63 - 1)]
        assert sorted(made) == made
        assert [next_offset_of(name) for name in made] == [0, 9, 10, 99, 10**18, 2**63 - 1]


class TestTaking:
    async def test_snapshots_taken_while_batches_are_applied_are_the_state_at_their_offset(
        self, tmp_path: Path, batches: Sequence[MetadataRecordBatch], store: ObjectStore
    ) -> None:
        snapshots = snapshots_in(store)
        taken: list[SnapshotManifest] = []
        async with following(tmp_path, PrunableLog(batches), 4) as followed:
            keeper = keeper_of(followed, snapshots)
            is_done = False

            async def take() -> None:
                while not is_done:
                    if (manifest := await keeper.take_once()) is not None:
                        taken.append(manifest)

            taking = asyncio.create_task(take())
            await followed.follow()
            is_done = True
            await taking
            if (last := await keeper.take_once()) is not None:
                taken.append(last)
            assert taken[-1].next_offset == followed.image.next_offset
        assert len(taken) > 1
        for number, manifest in enumerate(taken):
            expected = await hash_at(tmp_path / str(number), batches, manifest.next_offset)
            assert manifest.applied.state_hash == expected
            loaded = tmp_path / "loaded"
            await snapshots.download(manifest, loaded)
            assert verified_file(loaded) == manifest.applied

    async def test_nothing_is_taken_of_an_empty_state_or_of_one_that_did_not_move(
        self, tmp_path: Path, batches: Sequence[MetadataRecordBatch], store: ObjectStore
    ) -> None:
        async with following(tmp_path, PrunableLog(batches)) as followed:
            keeper = keeper_of(followed, snapshots_in(store))
            assert await keeper.take_once() is None
            await followed.follow()
            assert await keeper.take_once() is not None
            assert await keeper.take_once() is None
            assert keeper.taken == 1

    async def test_a_large_state_is_stored_in_parts(
        self,
        tmp_path: Path,
        batches: Sequence[MetadataRecordBatch],
        store: ObjectStore,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("metadata.replica.snapshots.PART_BYTES", 10_000)
        async with following(tmp_path, PrunableLog(batches), 10) as followed:
            manifest = await keeper_of(followed, snapshots_in(store)).take_once()
        assert manifest is not None
        assert len(manifest.parts) > 5
        assert {part.file_bytes for part in manifest.parts[:-1]} == {10_000}
        expected = {part_key(0, manifest.name, number) for number in range(len(manifest.parts))}
        assert await keys(store) == expected | {manifest_key(0, manifest.name)}

    async def test_no_copy_is_left_beside_the_state(
        self, tmp_path: Path, batches: Sequence[MetadataRecordBatch], store: ObjectStore
    ) -> None:
        async with following(tmp_path / "s", PrunableLog(batches), 10) as followed:
            await keeper_of(followed, snapshots_in(store)).take_once()
            faults = StoreFaults()
            faults.outage()
            await followed.follow()
            failing = keeper_of(followed, snapshots_in(FaultyStore(store, faults)))
            with pytest.raises(errors.ObjectStoreUnavailable):
                await failing.take_once()
        assert {path.name for path in (tmp_path / "s").iterdir()} == {
            STATE_FILE,
            f"{STATE_FILE}.closed",
        }

    async def test_what_the_store_gives_back_differently_is_no_snapshot(
        self, tmp_path: Path, batches: Sequence[MetadataRecordBatch], store: ObjectStore
    ) -> None:
        faults = StoreFaults()
        snapshots = snapshots_in(FaultyStore(store, faults))
        async with following(tmp_path, PrunableLog(batches), 10) as followed:
            keeper = keeper_of(followed, snapshots)
            faults.flip_bits = True
            with pytest.raises(errors.CorruptObject):
                await keeper.take_once()
            faults.heal()
            assert await names(snapshots) == [(10, SnapshotStatus.UNFINISHED)]
            await keeper.take_once()
            await keeper.maintain_once()
            assert await names(snapshots) == [(10, SnapshotStatus.USABLE)]

    async def test_a_manifest_whose_put_was_not_answered_counts_only_with_its_parts(
        self, tmp_path: Path, batches: Sequence[MetadataRecordBatch], store: ObjectStore
    ) -> None:
        faults = StoreFaults()
        snapshots = snapshots_in(FaultyStore(store, faults))
        async with following(tmp_path, PrunableLog(batches), 10) as followed:
            keeper = keeper_of(followed, snapshots)
            arm("snapshot.before_manifest=raise")
            try:
                with pytest.raises(FailpointError):
                    await keeper.take_once()
            finally:
                arm("")
            (unfinished,) = await snapshots.stored()
            await keeper.maintain_once()
            assert await names(snapshots) == []
            # It lands after all, when its parts have been deleted.
            manifest = await keeper.take_once()
            assert manifest is not None
            late = replace(manifest, name=unfinished.name)
            await snapshots.publish(late)
            assert sorted(status.name for _, status in await names(snapshots)) == [
                "DAMAGED",
                "USABLE",
            ]

    async def test_a_lost_answer_is_an_unknown_outcome_and_the_next_round_goes_on(
        self, tmp_path: Path, batches: Sequence[MetadataRecordBatch], store: ObjectStore
    ) -> None:
        faults = StoreFaults()
        snapshots = snapshots_in(FaultyStore(store, faults))
        async with following(tmp_path, PrunableLog(batches), 10) as followed:
            keeper = keeper_of(followed, snapshots)
            faults.lost_responses = 1
            with pytest.raises(errors.UploadOutcomeUnknown):
                await keeper.take_once()
            assert await keeper.take_once() is not None
