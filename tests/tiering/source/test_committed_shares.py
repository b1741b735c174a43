"""Rows of a share over transactions: committed ones alone, the same whenever it is read."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from diskless.api.coordinator.reading import _extents
from metadata.messages.find_batches import FindBatchesMessage
from metadata.operations import READ_COMMITTED, FindBatches, FoundBatches
from tests.support.rolled_transactions import LOG, Rolling, Written, rolling, stable_end, written
from tiering.source.planning import Share
from tiering.source.rows.latest_rows import latest_tables
from tiering.source.rows.share_rows import Wanted, share_tables
from tiering.source.topic_log import TopicLog
from wal.coordinates import TopicIdPartition
from wal.stores.blocking_store import BlockingStore

WANTED = Wanted(columns=["offset", "value"])


class RollingLog(TopicLog):
    """Asks a broker's API of extents, which asks the state."""

    def __init__(self, rolls: Rolling) -> None:
        super().__init__("localhost:1", rolls.topic_name, sleep=lambda _: None)
        self._rolls = rolls
        self._loop = asyncio.get_running_loop()
        self.page = 100

    def _found(self, partition: TopicIdPartition, offset: int, page: int) -> FoundBatches:
        asked = FindBatchesMessage(
            [FindBatches(partition, offset, 0)], 0, self.page, isolation=READ_COMMITTED
        )
        client: Any = self
        answers = _extents(client)(asked, 1_000)
        (found,) = asyncio.run_coroutine_threadsafe(answers, self._loop).result()  # type: ignore[arg-type]
        assert found.extents
        return found

    async def find_batches(
        self, requests: Sequence[FindBatches], *, batches_per_partition_max: int, **options: Any
    ) -> Sequence[FoundBatches]:
        (request,) = requests
        isolation, most = options["isolation"], batches_per_partition_max
        return [await self._rolls.find(request.offset, isolation, extents_max=most)]


def _read(log: RollingLog, partition: TopicIdPartition, share: Share, store: BlockingStore) -> Any:
    tables = [*share_tables(log, partition, share, store, WANTED)]
    latest = [*latest_tables(log, partition, share, share.end, store, WANTED)]
    return [
        [row["offset"] for table in some for row in table.to_pylist()] for some in (tables, latest)
    ]


async def _check(rolls: Rolling, entries: Sequence[Written]) -> None:
    log = RollingLog(rolls)
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
