"""Defines a snapshot in the object store: its keys and its manifest.

    meta/<metadata partition>/snapshots/<20-digit next offset>-<ULID>/part-<5 digits>
    meta/<metadata partition>/snapshots/<20-digit next offset>-<ULID>/manifest

The parts are consecutive slices of the SQLite file, each compressed with zstd on its own, so that
neither writing nor reading needs more memory than one of them. The offset in the name is the first
metadata record that is *not* in the snapshot: a listing tells which is the newest. The ULID makes
the keys of every attempt its own.

The manifest is one line of JSON, and one with the CRC32C of the first in hexadecimal. It is written
last, when the parts were read back and checked: without a manifest there is no snapshot.

Pure functions; metadata/replica/snapshots.py calls them. Whatever a manifest says is checked before
it is believed: CorruptObject.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from metadata.state.state import Applied
from metadata.state.state_hash import HASH_MODULUS
from wal.coordinates import ObjectKey
from wal.crc import crc32c
from wal.errors import CorruptObject
from wal.ulid import ULID_CHARS

FORMAT_VERSION: Final = 1
MANIFEST_BYTES_MAX: Final = 4 << 20
PART_BYTES: Final = 8 << 20
"""Of the SQLite file, in each part but the last; so much is in memory at a time, and compressed."""
PART_BYTES_MAX: Final = 64 << 20
"""No part of any release holds more: what a damaged manifest can make a reader take."""
PARTS_MAX: Final = 65_536

_OFFSET_MAX: Final = (1 << 63) - 1
_U32_MAX: Final = (1 << 32) - 1
_NAME: Final = re.compile(rf"(?P<offset>\d{{20}})-(?P<ulid>[0-9A-Z]{{{ULID_CHARS}}})")
_MANIFEST: Final = "manifest"


def snapshots_prefix(partition: int) -> str:
    """Returns the start of the keys of all snapshots of a metadata partition."""
    return f"meta/{partition}/snapshots/"


def snapshot_name(next_offset: int, ulid: str) -> str:
    return f"{next_offset:020}-{ulid}"


def manifest_key(partition: int, name: str) -> ObjectKey:
    return ObjectKey(f"{snapshots_prefix(partition)}{name}/{_MANIFEST}")


def part_key(partition: int, name: str, number: int) -> ObjectKey:
    return ObjectKey(f"{snapshots_prefix(partition)}{name}/part-{number:05}")


def next_offset_of(name: str) -> int | None:
    """The offset in a snapshot's name; None when it is not the name of one."""
    match = _NAME.fullmatch(name)
    return int(match["offset"]) if match is not None else None


class SnapshotPart(NamedTuple):
    """One stored part."""

    stored_bytes: int
    crc32c: int
    """Of the stored bytes."""
    file_bytes: int
    """How much of the SQLite file it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotManifest:
    """What a snapshot holds, and what must come out of checking it."""

    cluster_id: str
    partition: int
    name: str
    state_version: int
    applied: Applied
    """How far the metadata log is in it, the CRC of the last record, and the state hash."""
    taken_at_ms: int
    """Wall clock of who took it."""
    file_sha256: bytes
    parts: Sequence[SnapshotPart]

    @property
    def next_offset(self) -> int:
        """The first metadata record that is not in the snapshot."""
        return self.applied.next_offset

    @property
    def file_bytes(self) -> int:
        return sum(part.file_bytes for part in self.parts)

    @property
    def stored_bytes(self) -> int:
        """The stored bytes of all its parts."""
        return sum(part.stored_bytes for part in self.parts)


def encode_manifest(manifest: SnapshotManifest) -> bytes:
    applied = manifest.applied
    line = json.dumps(
        {
            "format": FORMAT_VERSION,
            "cluster_id": manifest.cluster_id,
            "partition": manifest.partition,
            "name": manifest.name,
            "state_version": manifest.state_version,
            "next_offset": applied.next_offset,
            "last_record_crc32c": applied.last_record_crc,
            "timestamp_ms": applied.timestamp_ms,
            "forgotten_until_ms": applied.forgotten_until_ms,
            "began_ms": applied.began_ms,
            "state_hash": f"{applied.state_hash:016x}",
            "taken_at_ms": manifest.taken_at_ms,
            "file_sha256": manifest.file_sha256.hex(),
            "parts": [list(part) for part in manifest.parts],
        }
    ).encode()
    return b"%s\n%08x\n" % (line, crc32c(line))


def decode_manifest(data: bytes, name: str) -> SnapshotManifest:
    """The manifest of the snapshot `name`. Raises CorruptObject."""
    lines = data.split(b"\n")
    if len(lines) != 3 or lines[2] or lines[1] != b"%08x" % crc32c(lines[0]):
        raise CorruptObject(f"the manifest of snapshot {name} fails its checksum")
    try:
        fields = json.loads(lines[0])
        version = fields["format"]
        if version != FORMAT_VERSION:
            raise ValueError(f"format {version}, this release reads {FORMAT_VERSION}")
        return _manifest(fields, name)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptObject(f"the manifest of snapshot {name}: {error!r}") from error


def _manifest(fields: Mapping[str, Any], name: str) -> SnapshotManifest:
    parts = fields["parts"]
    if not isinstance(parts, list) or not 0 < len(parts) <= PARTS_MAX:
        raise ValueError("no or too many parts")
    manifest = SnapshotManifest(
        cluster_id=str(fields["cluster_id"]),
        partition=_integer(fields["partition"], 0, _U32_MAX),
        name=str(fields["name"]),
        state_version=_integer(fields["state_version"], 0, _U32_MAX),
        applied=Applied(
            next_offset=_integer(fields["next_offset"], 1, _OFFSET_MAX),
            last_record_crc=_integer(fields["last_record_crc32c"], 0, _U32_MAX),
            timestamp_ms=_integer(fields["timestamp_ms"], -1, _OFFSET_MAX),
            forgotten_until_ms=_integer(fields["forgotten_until_ms"], -1, _OFFSET_MAX),
            began_ms=_integer(fields["began_ms"], -1, _OFFSET_MAX),
            state_hash=_integer(int(fields["state_hash"], 16), 0, HASH_MODULUS - 1),
        ),
        taken_at_ms=_integer(fields["taken_at_ms"], 0, _OFFSET_MAX),
        file_sha256=bytes.fromhex(fields["file_sha256"]),
        parts=[_part(*part) for part in parts],
    )
    if manifest.name != name or next_offset_of(name) != manifest.next_offset:
        raise ValueError(f"it is that of {manifest.name} at {manifest.next_offset}")
    return manifest


def _part(stored_bytes: Any, crc: Any, file_bytes: Any) -> SnapshotPart:
    return SnapshotPart(
        _integer(stored_bytes, 1, PART_BYTES_MAX),
        _integer(crc, 0, _U32_MAX),
        _integer(file_bytes, 1, PART_BYTES_MAX),
    )


def _integer(value: Any, minimum: int, maximum: int) -> int:
    if type(value) is not int or not minimum <= value <= maximum:
        raise ValueError(f"{value!r} is not within {minimum}..{maximum}")
    return value
