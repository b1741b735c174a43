"""Readers that know nothing of this project see the records (Spark's is in test_spark_roller)."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from tiering_samples import (
    PARTITION,
    ZSTD,
    SampleBatch,
    SampleRecord,
    file_store,
    plan_of,
    put_wal_object,
)

from tests.support.tiers.hadoop_aws import SDK_OF_HADOOP, hadoop_version
from tiering.roll import RollSettings, roll
from tiering.segment_columns import SEGMENT_SCHEMA, TIMESTAMP_MS_MAX, TIMESTAMP_MS_MIN

RECORDS = [
    SampleRecord(b"k", b"v", 1_700_000_000_123, [("trace", b"1"), ("trace", None), ("é", b"")]),
    SampleRecord(None, b"", TIMESTAMP_MS_MAX),
    SampleRecord(b"", None, TIMESTAMP_MS_MIN),
    SampleRecord(b"\xff", b"x" * 2000, 2**63 - 1),
]
HEADERS = [[{"key": key, "value": value} for key, value in r.headers] for r in RECORDS]


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a topic with two segments of one partition, each of several row groups."""
    directory = tmp_path_factory.mktemp("store")
    with file_store(directory) as store:
        for at in range(2):
            batches = [SampleBatch(RECORDS, codec=ZSTD)] * 4
            extents = put_wal_object(store, f"wal/00/{at}", [batches], base_offset=16 * at)
            roll(plan_of(extents), store, settings=RollSettings(row_group_bytes=2000))
    return directory / "segments" / "topic=flights" / f"id={PARTITION.topic_id}"


def test_pyarrow_reads_a_topic_as_one_dataset(topic: Path) -> None:
    dataset = ds.dataset(topic, partitioning="hive")
    rows = dataset.to_table().sort_by("offset")
    assert rows.schema.remove_metadata() == SEGMENT_SCHEMA.append(pa.field("partition", pa.int32()))
    assert rows.column("offset").to_pylist() == list(range(32))
    assert rows.column("key").to_pylist() == [r.key for r in RECORDS] * 8
    assert rows.column("value").to_pylist() == [r.value for r in RECORDS] * 8
    assert rows.column("headers").to_pylist() == HEADERS * 8
    assert rows.column("tombstone").to_pylist() == [r.value is None for r in RECORDS] * 8
    tail = dataset.to_table(filter=pc.field("offset") >= 30, columns=["offset"])
    assert tail.column("offset").to_pylist() == [30, 31]


def test_the_page_index_and_statistics_let_a_reader_skip(topic: Path) -> None:
    metadata = pq.read_metadata(next(iter(sorted(topic.rglob("*.parquet")))))
    assert metadata.num_row_groups > 1
    first = 0
    for index in range(metadata.num_row_groups):
        offsets = metadata.row_group(index).column(0)
        assert offsets.path_in_schema == "offset"
        last = first + metadata.row_group(index).num_rows - 1
        assert (offsets.statistics.min, offsets.statistics.max) == (first, last)
        first = last + 1
        assert offsets.has_offset_index
        assert offsets.has_column_index
        assert offsets.compression == "ZSTD"
        value = metadata.row_group(index).column(6)
        assert value.path_in_schema == "value"
        assert value.statistics is None or not value.statistics.has_min_max


def test_page_checksums_are_there_for_who_verifies_them(topic: Path, tmp_path: Path) -> None:
    path = next(iter(sorted(topic.rglob("*.parquet"))))
    content = bytearray(path.read_bytes())
    value = pq.read_metadata(path).row_group(0).column(6)
    start = value.dictionary_page_offset or value.data_page_offset
    content[start + value.total_compressed_size - 1] ^= 1  # the end of its last page
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(content)
    with pytest.raises(OSError, match="CRC checksum"):
        pq.ParquetFile(damaged, page_checksum_verification=True).read()


def test_the_page_names_the_hadoop_of_the_installed_spark() -> None:
    page = (Path(__file__).parents[2] / "docs" / "segment-format.md").read_text()
    hadoop = hadoop_version()
    assert f"hadoop-aws:{hadoop}\n" in page
    assert f"Spark {version('pyspark')} has Hadoop {hadoop}" in page
    assert SDK_OF_HADOOP[hadoop] in page


def test_duckdb_reads_a_topic(topic: Path) -> None:
    duckdb: Any = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        rows = connection.execute(
            'select "offset", key, value, headers, epoch_ms(timestamp), timestamp_raw, partition'
            f" from read_parquet('{topic}/*/*.parquet', hive_partitioning = true)"
            ' where "offset" >= 28 order by "offset"'
        ).fetchall()
    assert rows == [
        (28, b"k", b"v", HEADERS[0], 1_700_000_000_123, None, 3),
        (29, None, b"", [], TIMESTAMP_MS_MAX, None, 3),
        (30, b"", None, [], TIMESTAMP_MS_MIN, None, 3),
        (31, b"\xff", b"x" * 2000, [], None, 2**63 - 1, 3),
    ]
