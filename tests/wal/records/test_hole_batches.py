"""Batches without records: what spans a hole, however long."""

from wal.records.hole_batches import HOLE_OFFSETS_MAX, hole_batches
from wal.records.record_batch import parse_header, verify_crc


def test_a_hole_is_one_control_batch_without_records() -> None:
    (batch,) = hole_batches(7, 41, leader_epoch=3)
    assert (batch.base_offset, batch.last_offset) == (7, 41)
    header = parse_header(batch.data)
    assert (header.base_offset, header.last_offset) == (7, 41)
    assert (header.record_count, header.length_bytes) == (0, len(batch.data))
    assert header.is_control
    assert not header.is_transactional
    assert (header.producer_id, header.partition_leader_epoch) == (-1, 3)
    verify_crc(batch.data)


def test_a_long_hole_takes_several_batches_that_touch() -> None:
    batches = hole_batches(5, 5 + 2 * HOLE_OFFSETS_MAX, leader_epoch=0)
    assert [(batch.base_offset, batch.last_offset) for batch in batches] == [
        (5, 4 + HOLE_OFFSETS_MAX),
        (5 + HOLE_OFFSETS_MAX, 4 + 2 * HOLE_OFFSETS_MAX),
        (5 + 2 * HOLE_OFFSETS_MAX, 5 + 2 * HOLE_OFFSETS_MAX),
    ]
    assert [parse_header(batch.data).last_offset for batch in batches] == [
        batch.last_offset for batch in batches
    ]


def test_no_hole_is_no_batch() -> None:
    assert hole_batches(5, 4, leader_epoch=0) == []
