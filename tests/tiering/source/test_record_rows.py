"""Rows to record batches: partitions as Kafka's, batches within limits, and every byte kept."""

from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.sink_operations import SinkTopic
from tests.support.chunks.batch_builder import kafka_murmur2
from tests.support.profiles import examples
from tiering.source.writing.content_digest import ContentSum, content_sum, digest_of
from tiering.source.writing.record_rows import MadeBatch, make_batches, murmur2, record_table
from wal.coordinates import CREATE_TIME
from wal.errors import KeysMissing, RecordTooLarge, Rejected
from wal.records.compression import LZ4, NONE
from wal.records.recompression import Compression
from wal.records.record_columns import LocatedBatch, decode_batches

TOPIC = SinkTopic(
    "t", UUID(int=5), 3, 2_000, is_compacted=False, codec="producer", coordinators=[0, 0, 0]
)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

BYTES = st.none() | st.binary(max_size=40)
ROWS = st.lists(
    st.tuples(
        BYTES,
        BYTES,
        st.none() | st.lists(st.tuples(st.text(max_size=3), BYTES), max_size=3),
        st.none() | st.integers(0, 2),
    ),
    max_size=30,
)
Row = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]] | None, int | None]


def arrow(rows: list[Row]) -> pa.RecordBatch:
    keys, values, headers, partitions = zip(*rows, strict=True) if rows else [()] * 4
    pairs = [
        None if one is None else [{"key": key, "value": value} for key, value in one]
        for one in headers
    ]
    return pa.record_batch(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "headers": pa.array(pairs, HEADERS),
            "partition": pa.array(partitions, pa.int32()),
            "other": pa.array([0.5] * len(rows)),
        }
    )


def made(rows: list[Row], codec: int = NONE, topic: SinkTopic = TOPIC) -> list[MadeBatch]:
    table = record_table(arrow(rows))
    return [*make_batches(table, topic, Compression(codec), batch_bytes=300, timestamp_ms=7)]


def decoded(batches: list[MadeBatch]) -> list[tuple[int, Row]]:
    found = []
    for batch in batches:
        table = decode_batches([LocatedBatch(batch.data, 0, CREATE_TIME, -1)])
        assert table.column("offset").to_pylist() == list(range(batch.record_count))
        assert {*table.column("timestamp").to_pylist()} == {7}
        assert {*table.column("producer_id").to_pylist()} == {-1}
        for row in table.to_pylist():
            headers = [(item["key"].decode(), item["value"]) for item in row["headers"]]
            found.append((batch.partition.partition, (row["key"], row["value"], headers, None)))
    return found


@given(st.lists(st.binary(max_size=23), max_size=20))
@examples(0.5)
def test_the_hash_of_a_key_is_kafkas(keys: list[bytes]) -> None:
    given_keys = pa.array([b"in front", *keys], pa.binary()).slice(1)
    assert [int(value) for value in murmur2(given_keys)] == [
        kafka_murmur2(key) & 0xFFFFFFFF for key in keys
    ]


@given(ROWS, st.sampled_from([NONE, LZ4]))
@examples(1)
def test_every_row_is_one_record_in_its_partition_and_order(rows: list[Row], codec: int) -> None:
    found = decoded(made(rows, codec))
    for partition in range(3):
        of_partition = [row for place, row in found if place == partition]
        wanted = [
            (key, value, headers or [], None)
            for key, value, headers, given_place in rows
            if given_place == partition
        ]
        assert [row for row in of_partition if row in wanted] or not wanted
    assert sorted(map(repr, (row for _, row in found))) == sorted(
        repr((key, value, headers or [], None)) for key, value, headers, _ in rows
    )


def test_rows_of_a_key_share_a_partition_and_keep_their_order() -> None:
    rows: list[Row] = [(b"k%d" % (n % 5), b"%d" % n, None, None) for n in range(200)]
    found = decoded(made(rows))
    for number in range(5):
        mine = [(place, row[1]) for place, row in found if row[0] == b"k%d" % number]
        assert len({place for place, _ in mine}) == 1
        assert [value for _, value in mine] == [b"%d" % n for n in range(200) if n % 5 == number]


def test_batches_end_where_they_are_full_and_a_large_row_is_alone() -> None:
    batches = made([(None, bytes(50), None, 1)] * 20 + [(None, bytes(1_500), None, 1)] * 2)
    assert [batch.record_count for batch in batches] == [5, 4, 4, 4, 3, 1, 1]
    assert all(len(batch.data) <= 2_000 for batch in batches)


def test_rows_without_a_key_are_spread() -> None:
    batches = made([(None, bytes(50), None, None)] * 60)
    assert {batch.partition.partition for batch in batches} == {0, 1, 2}


def test_what_no_broker_would_take_is_refused_in_the_task() -> None:
    with pytest.raises(RecordTooLarge):
        made([(None, bytes(3_000), None, None)])
    with pytest.raises(Rejected, match="partition 3; t has 3 partitions"):
        made([(None, b"", None, 3)])
    with pytest.raises(KeysMissing, match="1 rows have no key"):
        made([(None, b"", None, 0), (b"", b"", None, 0)], topic=TOPIC._replace(is_compacted=True))


@given(ROWS, st.randoms(use_true_random=False), st.integers(0, 30))
@examples(1)
def test_a_digest_is_of_the_rows_in_any_order_and_division(
    rows: list[Row], rng: np.random.Generator, cut: int
) -> None:
    whole = content_sum(record_table(arrow(rows)))
    shuffled = [*rows]
    rng.shuffle(shuffled)  # type: ignore[arg-type]
    parts = [content_sum(record_table(arrow(some))) for some in (shuffled[:cut], shuffled[cut:])]
    assert parts[0].plus(parts[1]) == whole
    assert digest_of(TOPIC.topic_id, parts) == digest_of(TOPIC.topic_id, [whole])


@given(ROWS, ROWS)
@examples(1)
def test_other_rows_have_another_digest(rows: list[Row], others: list[Row]) -> None:
    def told(some: list[Row]) -> list[str]:
        return sorted(
            repr((key, value, headers or [], place)) for key, value, headers, place in some
        )

    sums = [content_sum(record_table(arrow(some))) for some in (rows, others)]
    assert (sums[0] == sums[1]) == (told(rows) == told(others))


def test_a_digest_never_changes() -> None:
    rows: list[Row] = [
        (b"key", b"a value of several words", [("h", None)], 2),
        (None, b"", None, None),
    ]
    assert content_sum(record_table(arrow(rows))) == ContentSum(
        2, 7467859601548495216, 12941099661283576108
    )


def test_a_record_that_is_lost_or_doubled_changes_the_digest() -> None:
    rows: list[Row] = [(b"k", b"%d" % n, None, None) for n in range(100)]
    sums = {content_sum(record_table(arrow(some))) for some in (rows, rows[1:], [*rows, rows[0]])}
    assert len(sums) == 3
