"""A data directory belongs to one node and one layout version."""

import os
import random
from pathlib import Path

import pytest

from diskless.storage.data_directory import DataDirectory, read_properties
from wal.errors import InvalidSettings


def test_a_restart_finds_the_identity_that_the_first_start_wrote(tmp_path: Path) -> None:
    first = DataDirectory.open(tmp_path / "data", node_id=2, rng=random.Random(1))
    again = DataDirectory.open(tmp_path / "data", node_id=2, rng=random.Random(2))
    assert again == first
    assert read_properties(first.path)["cluster.id"] == first.cluster_id


def test_another_nodes_directory_is_refused(tmp_path: Path) -> None:
    DataDirectory.open(tmp_path, node_id=1, rng=random.Random(1))
    with pytest.raises(InvalidSettings, match=r"belongs to node 1, this is node\.id=2"):
        DataDirectory.open(tmp_path, node_id=2, rng=random.Random(1))


def test_a_directory_of_an_unknown_version_is_refused(tmp_path: Path) -> None:
    DataDirectory.open(tmp_path, node_id=1, rng=random.Random(1))
    properties = tmp_path / "meta.properties"
    properties.write_text(properties.read_text().replace("version=1", "version=9"))
    with pytest.raises(InvalidSettings, match="version '9'"):
        DataDirectory.open(tmp_path, node_id=1, rng=random.Random(1))


def test_a_directory_without_properties_is_no_data_directory(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="is no data directory"):
        read_properties(tmp_path)


def test_the_names_of_a_new_directory_are_synced_before_its_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        synced.append(Path(f"/proc/self/fd/{handle}").readlink())
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    data = DataDirectory.open(tmp_path / "new" / "data", node_id=1, rng=random.Random(1))
    assert data.metadata_log.is_dir()
    assert synced == [
        tmp_path,
        tmp_path / "new",
        data.path,
        data.path / "metadata",
        data.metadata,
        data.path / "meta.tmp",
        data.path,
    ]
