"""The roll through a real S3 API: ranged reads, put-if-absent, and a second attempt."""

from pathlib import Path

import pytest
from tiering_samples import (
    SampleBatch,
    SampleRecord,
    expected_batches,
    extent_of,
    file_store,
    plan_of,
    put_wal_object,
    range_reader,
    read_batch,
)

from tiering.roll import RollSettings, roll
from tiering.segment_reader import SegmentReader
from tiering.segment_verification import verify_segment
from wal.errors import CorruptSegment, ObjectNotFound
from wal.stores.blocking_store import open_blocking_store
from wal.stores.object_store import BytesBody

BATCHES = [SampleBatch([SampleRecord(value=b"%d" % at)] * 50, codec=at % 5) for at in range(30)]
SETTINGS = RollSettings(row_group_bytes=20_000)


@pytest.fixture
def url(moto_endpoint: str, moto_bucket: str) -> str:
    return f"s3://{moto_bucket}/cluster-1?endpoint_url={moto_endpoint}"


async def test_a_segment_is_rolled_and_served_on_s3_as_on_a_directory(
    url: str, tmp_path: Path
) -> None:
    with file_store(tmp_path) as directory, open_blocking_store(url) as bucket:
        segments = []
        for store in (directory, bucket):
            extents = put_wal_object(store, "wal/00/one", [BATCHES[:10], BATCHES[10:20]])
            extents += put_wal_object(store, "wal/00/two", [BATCHES[20:]], base_offset=1000)
            segments.append(roll(plan_of(extents), store, settings=SETTINGS).segment)
        assert segments[0] == segments[1]
        key = segments[1].object_key
        assert directory.get(key) == bucket.get(key)
        assert roll(plan_of(extents), bucket, settings=SETTINGS).segment == segments[1]
        async with SegmentReader(range_reader(bucket)) as reader:
            taken = await reader.read(extent_of(segments[1]), 0, max_bytes=1 << 30)
    assert [read_batch(batch.data) for batch in taken] == expected_batches(BATCHES)


def test_a_missing_wal_object_is_named(url: str) -> None:
    with open_blocking_store(url) as bucket:
        (extent,) = put_wal_object(bucket, "wal/00/one", [BATCHES])
        with pytest.raises(ObjectNotFound, match="wal/00/gone"):
            roll(plan_of([extent._replace(object_key="wal/00/gone")]), bucket)  # type: ignore[arg-type]


def test_a_damaged_segment_on_s3_is_found(url: str) -> None:
    with open_blocking_store(url) as bucket:
        segment = roll(plan_of(put_wal_object(bucket, "wal/00/one", [BATCHES])), bucket).segment
        content = bytearray(bucket.get(segment.object_key))
        content[len(content) // 2] ^= 1
        copy = segment.object_key.replace("segments/", "copies/")
        bucket.put(copy, BytesBody(bytes(content)))  # type: ignore[arg-type]
        with pytest.raises(CorruptSegment, match="copies/"):
            verify_segment(bucket, copy)  # type: ignore[arg-type]
