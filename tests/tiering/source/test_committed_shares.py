"""Rows of a share over transactions: committed ones alone, the same whenever it is read."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiers.rolled_transactions import (
    LOG,
    Rolling,
    Written,
    rolling,
    stable_end,
    written,
)
from tests.tiering.located_log import LocatedLog
from tiering.source.planning import Share
from tiering.source.rows.latest_rows import latest_tables
from tiering.source.rows.share_rows import Wanted, share_tables
from wal.coordinates import TopicIdPartition
from wal.stores.blocking_store import BlockingStore

WANTED = Wanted(columns=["offset", "value"])


def _read(log: LocatedLog, partition: TopicIdPartition, share: Share, store: BlockingStore) -> Any:
    tables = [*share_tables(log, partition, share, store, WANTED)]
    latest = [*latest_tables(log, partition, share, share.end, store, WANTED)]
    return [
        [row["offset"] for table in some for row in table.to_pylist()] for some in (tables, latest)
    ]


async def _check(rolls: Rolling, entries: Sequence[Written]) -> None:
    log = LocatedLog(
        rolls.topic_name,
        lambda asked, isolation, most: rolls.find(asked.offset, isolation, extents_max=most),
    )
    end = stable_end(entries)
    committed = [
        offset
        for one in entries
        if one.is_committed and not one.is_marker and one.last_offset < end
        for offset in range(one.base_offset, one.last_offset + 1)
    ]
    for bounds in ((0, end), (0, 1, end // 2, end), (0, end - 1, end)):
        found = []
        for start, stop in pairwise(bounds):
            log.page = 100 if len(bounds) == 2 else 1
            share = Share(0, start, stop)
            rows, latest = await asyncio.to_thread(_read, log, rolls.partition, share, rolls.store)
            found += rows
            # Each writer has a key; the newest of them is never an aborted one.
            names = {chr(one) for one in range(97, 123)}
            assert set(latest) <= set(rows)
            assert len(latest) == len(
                {
                    one.who
                    for one in entries
                    for o in rows
                    if one.base_offset <= o <= one.last_offset
                }
                & names
            )
        assert found == committed


@pytest.mark.parametrize("length", [len(LOG), 10])
@pytest.mark.parametrize("outcomes", [(False, True, False, True), (True, False, False, False)])
async def test_a_share_has_the_committed_records_whatever_is_rolled(
    tmp_path: Path, length: int, outcomes: Sequence[bool]
) -> None:
    entries = written(LOG[:length], outcomes)
    async with rolling(tmp_path) as rolls:
        await rolls.write(entries)
        await _check(rolls, entries)
        plans = [
            await rolls.plan(entries[first].base_offset, entries[last].last_offset)
            for first, last in ((0, 2), (3, 6))
        ]
        for plan in reversed(plans):
            await rolls.commit(plan)
            await _check(rolls, entries)
