"""Conformance of coordinators whose metadata log several brokers share: leaders are deposed."""

import asyncio
from collections.abc import Awaitable, Sequence

from metadata.operations import LATEST_TIMESTAMP, BatchCommit, ListedOffset, ListOffsets
from tests.support.coordinators.conformance_bench import ConformanceBench
from tests.support.coordinators.contender import until
from tests.support.coordinators.coordinator_bench import batch
from tests.support.stores.stepped_store import Fate
from wal.errors import CommitOutcomeUnknown, NotCoordinator


async def _errors(asked: Awaitable[Sequence[BatchCommit | ListedOffset]]) -> list[object]:
    """What each entry is answered with, or all of them."""
    try:
        return [type(answer.error) for answer in await asked]
    except (NotCoordinator, CommitOutcomeUnknown) as error:
        return [type(error)]


class SharedLogCases:
    """A leader that was replaced says nothing that could be wrong."""

    async def test_a_leader_that_was_paused_past_its_lease_acknowledges_nothing(
        self, bench: ConformanceBench
    ) -> None:
        partitions = await bench.partitions(3)
        await bench.commit_good(*[batch(each, 2, producer=3) for each in partitions])
        async with bench.overtaken() as paused:
            await bench.commit_good(
                *[batch(each, 3, producer=3, sequence=2) for each in partitions]
            )
            late = bench.file(*[batch(each, 4, producer=3, sequence=5) for each in partitions])
            asked = [
                asyncio.create_task(_errors(paused.client.commit_file(late))),
                asyncio.create_task(
                    _errors(
                        paused.client.list_offsets(
                            [ListOffsets(each, LATEST_TIMESTAMP) for each in partitions]
                        )
                    )
                ),
            ]
            await until(lambda: bool(paused.steps.waiting), "it asks its log")
            paused.go_on()
            refusals = {error for errors in await asyncio.gather(*asked) for error in errors}
            assert refusals <= {NotCoordinator, CommitOutcomeUnknown}
            answers = await bench.client.commit_file(late)
            assert [(each.base_offset, each.is_duplicate) for each in answers] == [(5, False)] * 3
            (again,) = await _errors(paused.client.commit_file(bench.file(batch(partitions[0]))))
            assert again is NotCoordinator
        assert [await bench.high_watermark(each) for each in partitions] == [9, 9, 9]

    async def test_a_commit_whose_append_lost_its_answer_happened_once(
        self, bench: ConformanceBench
    ) -> None:
        partitions = await bench.partitions(3)
        for count in range(1, 4):
            request = bench.file(*[batch(each, 2) for each in partitions])
            bench.life.steps.puts.extend([Fate.LOST] * bench.coordinators)
            for _ in range(2):
                answers = await bench.client.commit_file(request)
                assert [answer.base_offset for answer in answers] == [2 * count - 2] * 3
        bench.life.steps.puts.clear()
        assert [await bench.high_watermark(each) for each in partitions] == [6, 6, 6]
