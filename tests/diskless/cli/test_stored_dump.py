"""Dumps show every batch, and what is wrong with the damaged ones."""

from pathlib import Path

import pytest

from diskless.cli.dumps.stored_dump import dump_chunk, dump_wal_index
from tests.support.chunks.write_path import A0, B0, batch_bytes, open_directory, sealed, write_chunk
from wal.chunks.wal_object import WalObjectBody, WalObjectReader
from wal.clock import ManualClock
from wal.errors import CorruptChunk, InvalidSettings
from wal.stores.memory_store import MemoryStore

BATCHES = [
    (B0, batch_bytes(record_count=2, producer_id=5, sequence=7)),
    (A0, batch_bytes(b"other")),
]


@pytest.mark.parametrize("suffix", ["idx", "data"])
def test_any_file_of_a_chunk_names_it(tmp_path: Path, suffix: str) -> None:
    write_chunk(tmp_path, BATCHES, number=12)
    dump = dump_chunk(tmp_path / f"chunk-000012.{suffix}")
    assert dump.facts["batches"] == 2
    assert dump.facts["damaged"] == 0
    first = dict(zip(dump.columns, dump.rows[0], strict=True))
    assert first["topic id"] == B0.topic_id
    assert (first["records"], first["producer id"], first["base sequence"]) == (2, 5, 7)
    assert first["max timestamp"] == "2023-11-14T22:13:20.000Z"
    assert first["damage"] == ""


def test_damage_is_shown_beside_what_is_good(tmp_path: Path) -> None:
    writer = write_chunk(tmp_path, BATCHES)
    data = bytearray(Path(writer.paths.data).read_bytes())
    data[30] ^= 1
    Path(writer.paths.data).write_bytes(data)
    dump = dump_chunk(Path(writer.paths.data))
    assert dump.facts["damaged"] == 1
    assert "at byte 0 of .data fails its CRC" in str(dump.rows[0][-1])
    assert dump.rows[1][-1] == ""


def test_what_is_no_chunk_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="not one of the files"):
        dump_chunk(tmp_path / "notes.txt")
    with pytest.raises(CorruptChunk, match="missing"):
        dump_chunk(tmp_path / "chunk-000001.idx")


async def test_an_object_is_shown_in_its_own_order(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    directory.recover()
    chunk = sealed(directory, [*BATCHES, BATCHES[0]])
    store = MemoryStore(clock=ManualClock())
    await store.put(chunk.object_key, WalObjectBody(chunk, chunk.plan))
    index = await WalObjectReader(store).read_index(chunk.object_key)
    dump = dump_wal_index(chunk.object_key, index)
    assert [row[0] for row in dump.rows] == [A0.topic_id, B0.topic_id, B0.topic_id]
    assert (dump.facts["records"], dump.facts["partitions"]) == (5, 2)
    directory.close()
