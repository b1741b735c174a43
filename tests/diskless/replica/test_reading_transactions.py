"""The batch reader and transactions: markers are made, and an answer ends where it is told to."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from diskless.replica.batch_reader import ReadRequest
from tests.support.brokers.batch_reader_setting import (
    MUCH,
    OTHER,
    PARTITION,
    Setting,
    batch,
    extent_of,
    in_place,
    offsets_of,
)
from wal.records.marker_batches import MARKER_BYTES, Marker


@pytest.fixture
async def setting(tmp_path: Path) -> AsyncIterator[Setting]:
    async with in_place(tmp_path) as setting:
        yield setting


async def test_a_marker_comes_between_the_batches_of_extents(setting: Setting) -> None:
    sent = [batch(b"a", b"b")]
    key = await setting.put(*sent)
    extents = [
        extent_of(key, sent),
        Marker(2, 7, 1, True, 3, 5),
        extent_of(key, sent, base_offset=3),
        Marker(5, 7, 1, False, 3, 6),
    ]
    (result,) = await setting.reader.read(
        [ReadRequest(PARTITION, 0, MUCH, extents)], max_bytes=MUCH
    )
    assert offsets_of(result) == [(0, 1), (2, 2), (3, 4), (5, 5)]
    assert result.next_offset == 6
    assert setting.reader.statistics().marker_bytes == 2 * MARKER_BYTES
    (alone,) = await setting.reader.read(
        [ReadRequest(PARTITION, 5, 1, extents[3:])], max_bytes=MUCH
    )
    assert offsets_of(alone) == [(5, 5)]


@pytest.mark.parametrize("end", range(6))
async def test_an_answer_ends_within_an_extent_and_others_go_on(setting: Setting, end: int) -> None:
    sent = [batch(b"a"), batch(b"b"), batch(b"c"), batch(b"d"), batch(b"e")]
    extent = extent_of(await setting.put(*sent), sent)
    requests = [
        ReadRequest(PARTITION, 0, MUCH, [extent], end),
        ReadRequest(OTHER, 0, MUCH, [extent]),
    ]
    cut, whole = await setting.reader.read(requests, max_bytes=MUCH)
    assert offsets_of(cut) == [(offset, offset) for offset in range(end)]
    assert len(offsets_of(whole)) == 5
    rest = requests[0]._replace(offset=end, end=5)
    (later,) = await setting.reader.read([rest], max_bytes=MUCH)
    assert offsets_of(later) == [(offset, offset) for offset in range(end, 5)]
