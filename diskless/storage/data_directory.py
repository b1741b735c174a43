"""Owns the data directory: what lies where, and whose it is.

DIR/meta.properties          node.id, cluster.id, version; written once, checked at every start
DIR/incarnation              the latest lives of this broker, one UUID a line
DIR/metadata/<k>/log/        log of metadata partition k (the truth), unless it is in the store
DIR/metadata/<k>/state.sqlite  its materialisation (a cache)
DIR/wal/<node id>/           chunk files and their quarantine; of worker n in worker-<n>/
DIR/cache/                   disk tier of the object cache
DIR/objects/                 the object store, unless another one is configured
"""

import os
import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Self

from diskless.storage.private_places import make_private, sync_directory
from metadata.log.local_log import LOG_DIRECTORY
from wal.errors import InvalidSettings

LAYOUT_VERSION: Final = "1"
LIVES_KEPT: Final = 8
WORKER: Final = "worker-"
_PROPERTIES: Final = "meta.properties"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataDirectory:
    """Paths below one data directory, and the identity that is written in it."""

    path: Path
    node_id: int
    cluster_id: str
    is_new: bool = field(default=False, compare=False)
    """Nobody had opened it before."""

    @classmethod
    def open(cls, path: Path, *, node_id: int, rng: random.Random) -> Self:
        """Create the directory or check that it belongs to this node.

        Raises InvalidSettings when it is another node's, or of a version we do not know.
        """
        path = path.resolve()
        make_private(path)
        properties = path / _PROPERTIES
        if not properties.exists():
            cluster_id = str(uuid.UUID(int=rng.getrandbits(128), version=4))
            directory = cls(path=path, node_id=node_id, cluster_id=cluster_id, is_new=True)
            # The log's directory first: once there are properties, there is a place for the truth.
            make_private(directory.metadata_log)
            directory._write_properties()
            return directory
        known = read_properties(path)
        if known["node.id"] != str(node_id):
            raise InvalidSettings(
                f"{path} belongs to node {known['node.id']}, this is node.id={node_id}"
            )
        return cls(path=path, node_id=node_id, cluster_id=known["cluster.id"])

    def _write_properties(self) -> None:
        _write_durable(
            self.path / _PROPERTIES,
            f"version={LAYOUT_VERSION}\nnode.id={self.node_id}\ncluster.id={self.cluster_id}\n",
        )

    @property
    def has_metadata(self) -> bool:
        """Whether there is a local metadata log with anything in it."""
        return any(self.metadata_log.glob("*.store"))

    def of_cluster(self, cluster_id: str) -> Self:
        """The same directory as part of another cluster, written down."""
        directory = replace(self, cluster_id=cluster_id)
        directory._write_properties()
        return directory

    def begin_life(self, rng: random.Random) -> tuple[uuid.UUID, Sequence[uuid.UUID]]:
        """A new incarnation of this broker, written down, and the ones before it.

        The caller has locked the directory, so all earlier lives are over.
        """
        path = self.path / "incarnation"
        past: list[uuid.UUID] = []
        if path.exists():
            try:
                past = [uuid.UUID(line) for line in path.read_text(encoding="ascii").split()]
            except (ValueError, OSError) as error:
                raise InvalidSettings(f"{path} is no list of UUIDs: {error}") from error
        life = uuid.UUID(int=rng.getrandbits(128), version=4)
        kept = [*past, life][-LIVES_KEPT:]
        _write_durable(path, "".join(f"{one}\n" for one in kept))
        return life, past

    def metadata_partition(self, index: int) -> Path:
        """Returns where metadata partition `index` lies."""
        return self.path / "metadata" / str(index)

    @property
    def metadata(self) -> Path:
        return self.metadata_partition(0)

    @property
    def metadata_log(self) -> Path:
        return self.metadata / LOG_DIRECTORY

    @property
    def chunks(self) -> Path:
        return self.chunks_of(0)

    def chunks_of(self, lane: int) -> Path:
        """Returns where the chunks of one of the broker's processes are; 0: the head, or all."""
        chunks = self.path / "wal" / str(self.node_id)
        return chunks / f"{WORKER}{lane}" if lane else chunks

    def worker_lanes(self) -> Sequence[int]:
        """Returns the numbers of the workers that have chunks here, or had."""
        names = (path.name for path in self.chunks_of(0).glob(f"{WORKER}*"))
        numbers = (name.removeprefix(WORKER) for name in names)
        return sorted(int(number) for number in numbers if number.isdecimal())

    def cache_of(self, lane: int) -> Path:
        """Returns where one of the broker's processes caches objects; likewise."""
        return self.cache / f"{WORKER}{lane}" if lane else self.cache

    @property
    def cache(self) -> Path:
        return self.path / "cache"

    @property
    def objects(self) -> Path:
        return self.path / "objects"


def _write_durable(path: Path, text: str) -> None:
    """All of the file or, after a crash at any point, no file of this name."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    sync_directory(path.parent)


def has_properties(path: Path) -> bool:
    """Whether a broker has opened this directory; one that only a rebuild has filled has none."""
    return (path / _PROPERTIES).exists()


def read_properties(path: Path) -> dict[str, str]:
    """Reads `meta.properties`. Raises InvalidSettings."""
    properties = path / _PROPERTIES
    try:
        lines = properties.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"{path} is no data directory: {error}") from error
    values = dict(line.split("=", 1) for line in lines if "=" in line)
    if values.get("version") != LAYOUT_VERSION:
        raise InvalidSettings(
            f"{properties}: version {values.get('version')!r}, this release knows {LAYOUT_VERSION}"
        )
    for key in ("node.id", "cluster.id"):
        if key not in values:
            raise InvalidSettings(f"{properties}: {key} is missing")
    return values
