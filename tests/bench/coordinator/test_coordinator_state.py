"""Generated states are what a history of commits leaves: a coordinator takes them for its own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bench.coordinator.files import Files, Producers
from bench.coordinator.state import BATCH_BYTES, RECORDS_PER_BATCH, GeneratedTopic, generate
from bench.tools.coordinator_bed import CLOCK, Bed, coordinating
from metadata.operations import FindBatches
from metadata.replica.verify import check_state
from metadata.state.state import STATE_FILE, read_copy

NOW_MS = CLOCK.now_ms()
WIDE = GeneratedTopic("wide", 7, 100, NOW_MS - 60_000)
NARROW = GeneratedTopic("narrow", 1, 40, NOW_MS - 60_000)


@pytest.fixture
async def directory(tmp_path: Path) -> Path:
    """A metadata partition of both topics, whose rows the next start has to check one by one."""
    made = []
    await generate(tmp_path, [WIDE, NARROW], now_ms=NOW_MS, on_progress=made.append)
    assert sum(made) == 105 + 40, "whole files"
    (tmp_path / f"{STATE_FILE}.closed").unlink()
    return tmp_path


@pytest.fixture
async def bed(directory: Path) -> AsyncIterator[Bed]:
    async with coordinating(directory) as bed:
        yield bed


async def test_all_invariants_of_a_state_hold(directory: Path) -> None:
    assert read_copy(directory / STATE_FILE, check_state) == []


async def test_a_coordinator_takes_it_for_its_own(directory: Path, bed: Bed) -> None:
    assert {topic.name: topic.partition_count for topic in bed.client.topics().values()} == {
        "wide": 7,
        "narrow": 1,
    }
    assert "state.sqlite.bad-1" not in _names_in(directory)


async def test_every_offset_is_found(bed: Bed) -> None:
    for topic in (WIDE, NARROW):
        for index in range(topic.partitions):
            (found,) = await bed.client.find_batches(
                [FindBatches(topic.partition(index), 3, 1 << 20)], max_bytes=1 << 20
            )
            assert [extent.base_offset for extent in found.extents] == [
                number * RECORDS_PER_BATCH for number in range(topic.files)
            ]
            assert {extent.length_bytes for extent in found.extents} == {BATCH_BYTES}
            assert found.high_watermark == topic.files * RECORDS_PER_BATCH


@pytest.mark.parametrize("producers", Producers)
async def test_files_are_committed_behind_it(bed: Bed, producers: Producers) -> None:
    wide = await bed.topic("wide", WIDE.partitions)
    files = Files(wide, 20, producers=producers)
    for _ in range(3):
        answers = await bed.client.commit_file(files.next())
        assert [answer.error for answer in answers] == [None] * 20
    (answer, *_) = await bed.client.commit_file(files.next())
    assert answer.base_offset > WIDE.files * RECORDS_PER_BATCH


def _names_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}
