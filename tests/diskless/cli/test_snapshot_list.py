"""`diskless metadata snapshots`: what is stored of snapshots, and whether it is sound."""

import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from diskless.cli.cli import main
from diskless.cli.snapshot_list import list_snapshots
from metadata.replica.snapshot_format import part_key
from tests.support.logs.snapshot_bench import (
    CLUSTER,
    PrunableLog,
    following,
    keeper_of,
    recorded_batches,
    snapshots_in,
)
from wal.clock import SystemClock
from wal.stores.file_store import FileStore


async def take_snapshots(directory: Path, count: int = 2) -> Sequence[int]:
    """Snapshots of a metadata partition in `directory`/bucket; their state hashes, newest first."""
    log = PrunableLog(await recorded_batches(directory))
    hashes = []
    async with FileStore(
        directory / "bucket", clock=SystemClock(), rng=random.Random(1), sync=False
    ) as store:
        snapshots = snapshots_in(store)
        for number in range(1, count + 1):
            until = log.batches[number * len(log.batches) // count - 1].next_offset
            state_directory = directory / f"state-{number}"
            state_directory.mkdir()
            async with following(state_directory, log, until) as followed:
                await keeper_of(followed, snapshots, seed=number).take_once()
                hashes.append(followed.image.state_hash)
    return hashes[::-1]


def test_snapshots_are_listed_and_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hashes = asyncio.run(take_snapshots(tmp_path))
    store = f"file://{tmp_path / 'bucket'}"
    listed = list_snapshots(store, verify=True)
    assert [snapshot.state_hash for snapshot in listed] == hashes
    assert listed[0].next_offset > listed[1].next_offset
    for snapshot in listed:
        assert (snapshot.partition, snapshot.status, snapshot.problem) == (0, "usable", None)
        assert snapshot.cluster_id == CLUSTER
        assert snapshot.file_bytes is not None
        assert 0 < snapshot.stored_bytes < snapshot.file_bytes
    assert list_snapshots(store, partitions=[3]) == []

    assert main(["metadata", "snapshots", "--store", store, "--verify"]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    for row, snapshot in zip(rows, listed, strict=True):
        assert row.startswith(f"0          {snapshot.name}")
        assert f"{snapshot.state_hash:016x}" in row
        assert row.rstrip().endswith("usable, verified now")
    assert main(["metadata", "snapshots", "--store", store, "--json"]) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert shown == [snapshot._asdict() for snapshot in listed]


def test_a_damaged_snapshot_is_shown_and_is_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(take_snapshots(tmp_path, 3))
    store = f"file://{tmp_path / 'bucket'}"
    newest, middle, oldest = list_snapshots(store)
    # One that only loading finds, one that the listing shows, one that was never finished.
    part = tmp_path / "bucket" / part_key(0, newest.name, 0)
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.chmod(0o644)
    part.write_bytes(content)
    (tmp_path / "bucket" / part_key(0, middle.name, 0)).unlink()
    (tmp_path / "bucket" / part_key(0, oldest.name, 0)).with_name("manifest").unlink()

    assert [snapshot.status for snapshot in list_snapshots(store)] == [
        "usable",
        "damaged",
        "without a manifest",
    ]
    assert main(["metadata", "snapshots", "--store", store, "--verify"]) == 1
    rows = capsys.readouterr().out.splitlines()[1:]
    assert "DAMAGED: " in rows[0]
    assert rows[1].rstrip().endswith("damaged")
    assert rows[2].rstrip().endswith("without a manifest")
    (found, _, _) = list_snapshots(store, verify=True)
    assert found.problem is not None
