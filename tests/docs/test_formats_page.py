"""docs/formats.md against the code: sizes, fields, magics, versions, records, tables, keys."""

import importlib
import random
import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from diskless.storage.data_directory import DataDirectory
from metadata.log.local_log import LOG_DIRECTORY
from metadata.log.log_object import log_key
from metadata.records import records
from metadata.records.segment_identity import segment_key
from metadata.state.schema import APPLIED, STATE_TABLES, STATE_VERSION
from metadata.state.state import STATE_FILE
from tests.docs.formats_page import LAYOUTS, PAGE, read_as_told
from tests.docs.told_records import RECORDS, TOPIC
from wal.chunks import object_notes
from wal.chunks.kept_notes import (
    HEAD_BYTES,
    KeptNotes,
    NotedEnd,
    NotedSink,
    StagedNote,
    StagedRun,
    encode_kept_notes,
    notes_key,
)
from wal.clock import SystemClock
from wal.coordinates import TopicIdPartition
from wal.records.marker_batches import Marker
from wal.ulid import encode_ulid, mint_ulid, wal_object_key
from wal.wire.fields import FieldReader

# --- byte tables ----------------------------------------------------------------------------------

_STRUCT_CODES: Final = {
    "u8": "B", "u16": "H", "u32": "I", "u64": "Q",
    "i8": "b", "i16": "h", "i32": "i", "i64": "q",
}  # fmt: skip

_TITLE: Final = re.compile(
    r"^\*\*(?P<title>.+?)\*\*, (?P<size>\d+) bytes[^(\n]*"
    r"\((?P<structs>`\w+`(?:, `\w+`)*) in `(?P<path>[\w/]+)\.py`\)\n\n"
    r"\| at \| field \| type \| \|\n\|---\|---\|---\|---\|\n(?P<rows>(?:\|.*\n)+)",
    re.MULTILINE,
)


class Row(NamedTuple):
    at: int
    field: str
    type: str
    note: str


class ByteTable(NamedTuple):
    title: str
    size: int
    path: str
    structs: Sequence[str]
    rows: Sequence[Row]

    @property
    def module(self) -> Any:
        return importlib.import_module(self.path.replace("/", "."))


def byte_tables() -> Iterator[ByteTable]:
    for match in _TITLE.finditer(PAGE):
        rows = [
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in match["rows"].splitlines()
        ]
        yield ByteTable(
            match["title"],
            int(match["size"]),
            match["path"],
            re.findall(r"\w+", match["structs"]),
            [Row(int(at), field, kind, note) for at, field, kind, note in rows],
        )


TABLES: Final = list(byte_tables())


def struct_codes(form: str) -> list[str]:
    """`>I16sx` as [`I`, `16s`, `x`]."""
    return re.findall(r"\d+s|[a-zA-Z]", form.removeprefix(">"))


def table_name(table: ByteTable) -> str:
    return f"{table.path}:{'+'.join(table.structs)}"


def test_every_byte_table_of_the_page_is_understood() -> None:
    assert len(TABLES) == PAGE.count("| at | field | type | |")
    assert {table_name(table) for table in TABLES} == {
        "wal/records/record_batch:HEADER",
        "wal/chunks/chunk:CHUNK_HEADER+CHUNK_HEADER_CRC",
        "wal/chunks/chunk:RECORD_CRC+RECORD_HEAD",
        "wal/chunks/chunk_batches:BATCH_ROW",
        "wal/chunks/sealed_chunk:COMMITTED_CONTENT",
        "wal/chunks/wal_object:OBJECT_HEADER+_CRC",
        "wal/chunks/chunk_batches:INDEX_ENTRY",
        "wal/chunks/wal_object:TRAILER+TRAILER_END",
        "wal/chunks/kept_notes:HEAD",
        "wal/segmented_log/log_file_store:FILE_HEADER",
        "wal/segmented_log/log_file_store:RECORD_HEADER",
        "wal/segmented_log/log_file_index:INDEX_ENTRY",
        "metadata/log/log_object:OBJECT_HEADER+OBJECT_HEADER_CRC",
    }


@pytest.mark.parametrize("table", TABLES, ids=table_name)
def test_a_byte_table_is_the_struct_it_names(table: ByteTable) -> None:
    structs = [getattr(table.module, name) for name in table.structs]
    coded = [code for item in structs for code in struct_codes(item.format)]
    told = [
        "x" if code == "x" and row.field.startswith("zero") and row.type == "u8"
        else _STRUCT_CODES.get(row.type, row.type)
        for row, code in zip(table.rows, coded, strict=True)
    ]  # fmt: skip
    assert told == coded
    assert table.size == sum(item.size for item in structs)
    starts = [struct.calcsize(">" + "".join(coded[:number])) for number in range(len(coded))]
    assert [row.at for row in table.rows] == starts


def test_magics_and_versions_are_those_of_the_code() -> None:
    told = {
        (table.path, text)
        for table in TABLES
        for row in table.rows
        if row.field == "magic"
        for text in re.findall(r"`(\w+)`", row.note)
    }
    coded = set()
    for path, names in {
        "wal/chunks/chunk": ["MAGIC"],
        "wal/chunks/wal_object": ["MAGIC", "TRAILER_MAGIC"],
        "wal/chunks/kept_notes": ["MAGIC"],
        "wal/segmented_log/log_file_store": ["_STORE_MAGIC"],
        "metadata/log/log_object": ["MAGIC"],
    }.items():
        module = importlib.import_module(path.replace("/", "."))
        coded |= {(path, getattr(module, name).decode()) for name in names}
    index_magic = importlib.import_module("wal.segmented_log.log_file_index")._INDEX_MAGIC.decode()
    assert told == coded | {("wal/segmented_log/log_file_store", index_magic)}

    versions = [
        (table.title, row.note, table.module.FORMAT_VERSION)
        for table in TABLES
        for row in table.rows
        if row.field == "version"
    ]
    assert len(versions) == 6  # chunk, object and its trailer, notes, segmented log, log object
    assert all(note == str(coded_version) for _, note, coded_version in versions)


def test_the_first_table_has_the_versions_of_the_code() -> None:
    told = dict(re.findall(r"^\| \[(.+?)\]\(.+?\) \| (.+?) \|", PAGE, re.MULTILINE))
    modules = {
        "chunk": "wal.chunks.chunk",
        "WAL object": "wal.chunks.wal_object",
        "notes object": "wal.chunks.kept_notes",
        "segmented log": "wal.segmented_log.log_file_store",
        "object of the metadata log": "metadata.log.log_object",
        "segment": "tiering.segment_format",
    }
    versions = {
        name: str(importlib.import_module(module).FORMAT_VERSION)
        for name, module in modules.items()
    }
    snapshots = importlib.import_module("metadata.replica.snapshot_format").FORMAT_VERSION
    versions |= {
        "data directory": importlib.import_module("diskless.storage.data_directory").LAYOUT_VERSION,
        "SQLite state": str(STATE_VERSION),
        "metadata snapshot": f"{snapshots}, and the state's",
    }
    assert {name: told.get(name) for name in versions} == versions


@pytest.mark.parametrize("title", RECORDS)
def test_a_metadata_record_reads_back_by_the_page_alone(title: str) -> None:
    record, expected = RECORDS[title]
    frame = FieldReader(records.encode_record(record), title)
    version = int(title.endswith(", version 1"))
    assert [frame.uvarint() for _ in range(3)] == [1, int(title.split()[0]), version]
    assert type(record).__name__ == title.split()[1].rstrip(",") + "Record"
    assert read_as_told(title, frame.raw(frame.end - frame.position)) == expected


def test_the_page_has_every_metadata_record() -> None:
    kinds = {type(record) for record, _ in RECORDS.values()}
    assert kinds == set(records.RECORD_TYPES.values())
    titles = {
        f"{key} {kind.__name__.removesuffix('Record')}"
        for key, kind in records.RECORD_TYPES.items()
    }
    assert titles == {title.split(",")[0] for title in RECORDS}
    assert set(RECORDS) <= set(LAYOUTS)


def test_every_layout_of_the_page_is_checked() -> None:
    assert set(LAYOUTS) == set(RECORDS)


NOTES: Final = object_notes.ObjectNotes(
    topics={TOPIC: object_notes.TopicFacts("flights", 6, (("retention.ms", "60000"),))},
    commits=(
        object_notes.CommitNote(
            encode_ulid(5),
            [object_notes.NotedRun(10, 1_700_000_000_000, 4)],
            {1: object_notes.DUPLICATE},
        ),
        object_notes.CommitNote(encode_ulid(6), outcome=object_notes.GIVEN_UP),
    ),
    floors=(object_notes.Floor(20, 4), None),
)


KEPT_NOTES: Final = KeptNotes(
    topics={TOPIC: object_notes.TopicFacts("flights", 6)},
    commits=NOTES.commits[1:],
    floors={TopicIdPartition(TOPIC, 3): object_notes.Floor(20, 20)},
    staged=[
        StagedNote(
            "s",
            encode_ulid(5),
            [StagedRun(TopicIdPartition(TOPIC, 3), 64, 300, 20, 7, 0, 1_700_000_000_000, 5, 2)],
        )
    ],
    sinks=[
        NotedSink(
            "s", "User:u", 4, bytes(16), 1_700_000_000_000, [(TopicIdPartition(TOPIC, 3), 20, 26)]
        )
    ],
    ends={
        TopicIdPartition(TOPIC, 3): [
            NotedEnd(Marker(27, 1_000, 2, True, 3, 1_700_000_000_000), 5),
        ]
    },
    ended_below=2_000,
    schemas=["{}"],
)


@pytest.mark.parametrize(
    ("title", "written"),
    [
        ("notes", object_notes.encode_notes(NOTES)),
        ("kept notes", encode_kept_notes(KEPT_NOTES)[HEAD_BYTES:]),
    ],
)
def test_the_example_of_notes_is_what_the_code_writes(title: str, written: bytes) -> None:
    (example,) = re.findall(rf"```text\n{title}, for example\n(.*?)```", PAGE, re.DOTALL)
    told = [re.match(r"  ((?:(?:[0-9a-f]{2})+ )*)", line + " ") for line in example.splitlines()]
    assert bytes.fromhex("".join(match[1] for match in told if match)) == written


# --- tables, keys, directories --------------------------------------------------------------------


def test_the_state_tables_have_these_columns() -> None:
    section = PAGE.split("## SQLite state")[1].split("\n## ")[0]
    told = {
        name: re.findall(r"`(\w+)`", columns)
        for name, columns in re.findall(r"^\| `(\w+)` \| (.+) \|$", section, re.MULTILINE)
    }
    coded = {table.name: list(table.columns) for table in STATE_TABLES}
    coded["applied"] = list(APPLIED.columns.keys())
    assert all(columns[-1] == "checksum" for columns in coded.values())
    assert told == {name: columns[:-1] for name, columns in coded.items()}
    assert f"`state_version` (now {STATE_VERSION})" in section


_KEY_PARTS: Final = {
    "<2 hex>": r"[0-9a-f]{2}",
    "<metadata partition>": r"\d+",
    "<ULID>": r"[0-9A-HJKMNP-TV-Z]{26}",
    "<topic>": r"[\w.-]+",
    "<topic id>": r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "<n>": r"\d+",
    "<base offset>": r"\d{20}",
    "<last offset>": r"\d{20}",
}


def key_pattern(prefix: str) -> re.Pattern[str]:
    (key,) = re.findall(rf"^\| `({prefix}/.+?)` \|", PAGE, re.MULTILINE)
    parts = re.split(r"(<.+?>)", key)
    return re.compile("".join(_KEY_PARTS.get(part, re.escape(part)) for part in parts))


def test_objects_are_named_as_the_page_says() -> None:
    ulid = mint_ulid(SystemClock(), random.Random(1))
    assert key_pattern("wal").fullmatch(wal_object_key(ulid))
    partition = TopicIdPartition(TOPIC, 12)
    assert key_pattern("meta/<metadata partition>/log").fullmatch(log_key(11, 12345))
    assert key_pattern("notes").fullmatch(notes_key(ulid))
    assert key_pattern("segments").fullmatch(segment_key("a.b-c_d", partition, 3, 4))


def test_the_data_directory_is_laid_out_as_the_page_says(tmp_path: Path) -> None:
    directory = DataDirectory.open(tmp_path, node_id=7, rng=random.Random(1))
    directory.begin_life(random.Random(1))
    told = re.findall(r"^DIR/(.+?)  ", PAGE, re.MULTILINE)
    names = {"<node id>": "7", "<k>": "3", "<n>": "2"}
    assert [tmp_path / re.sub(r"<.+?>", lambda match: names[match[0]], name) for name in told] == [
        tmp_path / "meta.properties",
        tmp_path / "incarnation",
        directory.metadata_partition(3) / LOG_DIRECTORY,
        directory.metadata_partition(3) / STATE_FILE,
        directory.chunks,
        directory.chunks_of(2),
        directory.cache,
        directory.objects,
    ]
    assert (tmp_path / "meta.properties").is_file()
    assert (tmp_path / "incarnation").is_file()
