"""The batch that ends a transaction: Kafka's bytes, and what a stock client reads of them."""

import pytest
from aiokafka.record.default_records import DefaultRecordBatch

from wal.records.marker_batches import MARKER_BYTES, Marker, marker_batch
from wal.records.record_batch import parse_header, verify_crc


@pytest.mark.parametrize(("is_commit", "kind"), [(True, 1), (False, 0)])
def test_a_marker_is_one_control_record_of_its_producer(is_commit: bool, kind: int) -> None:
    batch = marker_batch(Marker(2**40, 4711, 12, is_commit, 7, 1_704_067_200_000), leader_epoch=3)
    assert (batch.base_offset, batch.last_offset) == (2**40, 2**40)
    assert len(batch.data) == MARKER_BYTES
    verify_crc(batch.data)
    header = parse_header(batch.data)
    assert header.is_control
    assert header.is_transactional
    assert (header.length_bytes, header.record_count) == (MARKER_BYTES, 1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4711, 12, -1)
    assert (header.base_offset, header.partition_leader_epoch) == (2**40, 3)
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (1_704_067_200_000,) * 2
    (record,) = DefaultRecordBatch(batch.data)
    assert record.offset == 2**40
    assert record.timestamp == 1_704_067_200_000
    assert record.key == bytes([0, 0, 0, kind])
    assert record.value == bytes([0, 0, 0, 0, 0, 7])
