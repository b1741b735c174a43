"""Batches of sinks over several metadata logs: whoever dies, a batch is everywhere or nowhere."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from diskless.sinks.shares import check_shares, shares_of
from metadata.messages.sinks import COMMIT_SINK_HERE, CommitSinkAt
from metadata.operations import CommitFile, PlanSegments
from metadata.sink_operations import CommitSink, SinkCommit, SinkRange, SinkShare
from metadata.workers.file_agreement import give_up_files
from tests.support.coordinators.coordinator_bench import batch
from tests.support.profiles import seeds
from tests.support.transactions.transaction_cluster import TransactionCluster
from wal.coordinates import ByteOffset
from wal.errors import (
    ConcurrentTransactions,
    DisklessError,
    OutcomeUnknown,
    Rejected,
    Retriable,
    UnknownPartition,
)
from wal.staging.staged_keys import staged_key
from wal.ulid import mint_ulid

TOPIC = "t"
LOGS = 3
HOME = 1
A, B = bytes(range(16)), bytes(range(1, 17))
EVERYTHING = PlanSegments(include_partial=True)

Opened = Callable[..., AbstractAsyncContextManager[TransactionCluster]]


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    @asynccontextmanager
    async def cluster(*, brokers: int = 1) -> AsyncIterator[TransactionCluster]:
        async with (
            TransactionCluster(tmp_path, coordinators=LOGS, brokers=brokers) as cluster,
            asyncio.timeout(60),
        ):
            await cluster.topic(TOPIC, LOGS)
            yield cluster

    return cluster


class Driver:
    """Of one sink, whose batches have records for every partition."""

    def __init__(self, cluster: TransactionCluster, sink_id: str = "s") -> None:
        self._cluster = cluster
        self._sink_id = sink_id
        self._rng = random.Random(5)
        # Each at the coordinator of its index here.
        self.places = sorted(
            (cluster.partition(TOPIC, index) for index in range(LOGS)),
            key=cluster.any.client.coordinator_of,
        )

    def staged(self, index: int, count: int) -> CommitFile:
        """A new object with a batch for one partition."""
        key = staged_key(self._sink_id, mint_ulid(self._cluster.clock, self._rng))
        extent = batch(self.places[index], count)._replace(byte_offset=ByteOffset(16))
        return CommitFile(
            object_key=key,
            file_size_bytes=extent.length_bytes + 200,
            uploader_broker_id=-1,
            batches=[extent],
        )

    def batch(self, batch_id: int, *, digest: bytes = A, count: int = 2) -> CommitSink:
        """Staged anew with each call, as by a driver that begins again."""
        return self.of([self.staged(index, count) for index in range(LOGS)], batch_id, digest)

    def of(self, files: Sequence[CommitFile], batch_id: int, digest: bytes = A) -> CommitSink:
        coordinator_of = self._cluster.any.client.coordinator_of
        shares = dict(shares_of(files, coordinator_of))
        own = shares.pop(HOME, ())
        others = [SinkShare(*share) for share in sorted(shares.items())]
        return CommitSink(self._sink_id, "User:a", batch_id, digest, own, others)

    async def commit(self, asked: CommitSink) -> SinkCommit:
        """Once, through any broker."""
        client = self._cluster.any.client
        await check_shares(client, asked.shares, timeout_ms=500)
        (answer,) = await client.call(COMMIT_SINK_HERE, CommitSinkAt(HOME, asked), timeout_ms=2_000)
        if answer.error is not None:
            raise answer.error
        return answer

    async def until_committed(self, asked: Callable[[], CommitSink]) -> SinkCommit:
        """As long as it takes; a batch that is repeated is staged anew."""
        async with asyncio.timeout(60):
            while True:
                try:
                    return await self.commit(asked())
                except (Retriable, OutcomeUnknown):
                    await asyncio.sleep(0.01)

    def end(self, index: int) -> int:
        return self._cluster.state(TOPIC, self.places[index].partition).high_watermark

    def ends(self) -> Sequence[int]:
        return [*map(self.end, range(LOGS))]

    def is_open(self) -> bool:
        return self._sink_id in self._cluster.coordinator(HOME).replica.image.open_batches

    async def is_complete(self) -> None:
        await self._cluster.until(lambda: not self.is_open(), "the batch is complete")

    def ranges(self, base: int, count: int) -> tuple[SinkRange, ...]:
        return tuple(SinkRange(place, base, base + count - 1) for place in sorted(self.places))


async def test_a_batch_is_committed_in_all_its_logs_and_once(opened: Opened) -> None:
    async with opened() as cluster:
        driver = Driver(cluster)
        assert [*map(cluster.any.client.coordinator_of, driver.places)] == [0, 1, 2]
        first = await driver.commit(driver.batch(7))
        assert first == SinkCommit(ranges=driver.ranges(0, 2))
        assert driver.ends() == [2, 2, 2]
        assert not driver.is_open()
        again = await driver.commit(driver.batch(7, count=9))
        assert again == first._replace(is_repeated=True)
        with pytest.raises(Rejected, match="batch 7 was committed with other records"):
            await driver.commit(driver.batch(7, digest=B))
        with pytest.raises(Rejected, match="batch 6 comes after batch 7"):
            await driver.commit(driver.batch(6))
        assert driver.ends() == [2, 2, 2]
        # One share alone, and none at the home.
        only = driver.of([driver.staged(0, 5)], 8)
        assert not only.files
        assert (await driver.commit(only)).ranges == (SinkRange(driver.places[0], 2, 6),)
        await driver.commit(driver.batch(9))
        assert driver.ends() == [9, 4, 4]


PLACES = [
    ("share", HOME),
    pytest.param("hear_share", 0, marks=pytest.mark.exhaustive),
    ("heard_share", 2),
    pytest.param("shared", HOME, marks=pytest.mark.exhaustive),
    ("complete_sink", HOME),
]


@pytest.mark.parametrize(("place", "index"), PLACES)
async def test_whoever_dies_behind_the_decision_each_row_is_there_once(
    opened: Opened, place: str, index: int
) -> None:
    async with opened(brokers=3) as cluster:
        driver = Driver(cluster)
        await driver.commit(driver.batch(0))
        dying = cluster.leading(index)
        assert dying is not None
        dying.gate.at = place
        first = asyncio.create_task(driver.commit(driver.batch(1)))
        await dying.gate.held()
        assert driver.is_open()
        await cluster.kill(dying)
        # No driver is needed for it.
        await driver.is_complete()
        assert driver.ends() == [4, 4, 4]
        answer = await driver.until_committed(lambda: driver.batch(1))
        assert answer == SinkCommit(is_repeated=True, ranges=driver.ranges(2, 2))
        await asyncio.gather(first, return_exceptions=True)
        assert driver.ends() == [4, 4, 4]
        await driver.until_committed(lambda: driver.batch(2))
        assert driver.ends() == [6, 6, 6]


async def test_who_dies_before_the_decision_leaves_nothing(opened: Opened) -> None:
    async with opened(brokers=3) as cluster:
        driver = Driver(cluster)
        await driver.commit(driver.batch(0))
        dying = cluster.leading(0)
        assert dying is not None
        await dying.stop(dies=True)
        committing = asyncio.create_task(driver.until_committed(lambda: driver.batch(1)))
        done, _ = await asyncio.wait([committing], timeout=0.1)
        assert not done
        assert not driver.is_open()
        assert [driver.end(1), driver.end(2)] == [2, 2]
        await cluster.elect()
        assert (await committing).ranges == driver.ranges(2, 2)
        assert driver.ends() == [4, 4, 4]


@pytest.mark.parametrize("digests", [(A, A), (A, B)])
async def test_of_two_drivers_at_once_one_batch_is_committed(
    opened: Opened, digests: tuple[bytes, bytes]
) -> None:
    async with opened() as cluster:
        driver = Driver(cluster)
        commits = [driver.commit(driver.batch(0, digest=digest)) for digest in digests]
        answers = await asyncio.gather(*commits, return_exceptions=True)
        assert driver.ends() == [2, 2, 2]
        answered = [answer for answer in answers if isinstance(answer, SinkCommit)]
        assert {answer.ranges for answer in answered} == {driver.ranges(0, 2)}
        refused = [answer for answer in answers if not isinstance(answer, SinkCommit)]
        assert len(refused) == len({*digests}) - 1
        assert all(isinstance(error, Rejected) for error in refused)


async def test_the_next_batch_waits_for_all_shares_of_the_last(opened: Opened) -> None:
    async with opened(brokers=3) as cluster:
        driver = Driver(cluster)
        held = cluster.leading(2)
        assert held is not None
        held.gate.at = "hear_share"
        first = asyncio.create_task(driver.commit(driver.batch(0)))
        await held.gate.held()
        with pytest.raises(ConcurrentTransactions, match="batch 0 is not committed everywhere"):
            await driver.commit(driver.batch(1))
        with pytest.raises(Rejected, match="with other records"):
            await driver.commit(driver.batch(0, digest=B))
        # What others do meanwhile is their own affair.
        other = Driver(cluster, "other")
        await other.commit(other.of([other.staged(0, 3)], 0))
        held.gate.at = None
        await driver.is_complete()
        assert (await asyncio.gather(first, return_exceptions=True))[0] is not None
        assert driver.ends() == [5, 2, 2]
        await driver.commit(driver.batch(1))
        assert driver.ends() == [7, 4, 4]


async def test_nothing_of_a_batch_is_planned_into_a_segment_before_it_is_complete(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(brokers=3) as cluster:
        driver = Driver(cluster)

        async def planned(index: int) -> list[tuple[int, int]]:
            plans = await cluster.coordinator(index).plan_segments(EVERYTHING)
            return [(plan.base_offset, plan.last_offset) for plan in plans]

        await driver.commit(driver.batch(0))
        monkeypatch.setattr("metadata.coordinator.sinks.COMPLETED_WITHIN_S", 0.05)
        held = cluster.leading(2)
        assert held is not None
        held.gate.at = "hear_share"
        committing = asyncio.create_task(driver.commit(driver.batch(1, count=3)))
        await held.gate.held()
        await cluster.until(lambda: driver.end(0) == 5, "a share is committed")
        assert [await planned(0), await planned(HOME)] == [[(0, 1)], [(0, 1)]]
        held.gate.at = None
        await driver.is_complete()
        await asyncio.gather(committing, return_exceptions=True)
        for index in range(LOGS):
            assert (await planned(index))[-1][1] == 4


async def test_no_object_of_a_batch_is_given_up(opened: Opened) -> None:
    async with opened(brokers=3) as cluster:
        driver = Driver(cluster)
        held = cluster.leading(2)
        assert held is not None
        held.gate.at = "hear_share"
        asked = driver.batch(0)
        keys = [share.files[0].object_key for share in asked.shares if share.coordinator == 2]
        client = cluster.any.client
        # A scan that asked the coordinator of the share before it was told, and the home behind it.
        (tombstone,) = await client.tombstone_files(2, keys)
        assert not tombstone.is_known
        committing = asyncio.create_task(driver.commit(asked))
        await held.gate.held()
        agreement = await give_up_files(client, dict.fromkeys(keys, range(LOGS)))
        assert agreement.known == keys
        held.gate.at = None
        await driver.is_complete()
        await asyncio.gather(committing, return_exceptions=True)
        (tombstone,) = await client.tombstone_files(HOME, keys)
        assert not tombstone.is_known
        agreement = await give_up_files(client, dict.fromkeys(keys, range(LOGS)))
        assert agreement.known == keys
        assert driver.ends() == [2, 2, 2]


async def test_an_object_that_was_given_up_is_refused_before_the_decision(opened: Opened) -> None:
    async with opened() as cluster:
        driver = Driver(cluster)
        asked = driver.batch(0)
        keys = [file.object_key for share in asked.shares for file in share.files]
        agreement = await give_up_files(cluster.any.client, dict.fromkeys(keys, range(LOGS)))
        assert agreement.given_up == keys
        with pytest.raises(Rejected, match="was given up"):
            await driver.commit(asked)
        assert driver.ends() == [0, 0, 0]


async def test_an_object_is_committed_by_one_batch_only(opened: Opened) -> None:
    async with opened() as cluster:
        driver = Driver(cluster)
        asked = driver.batch(0)
        await driver.commit(asked)
        with pytest.raises(Rejected, match="was committed by an earlier batch"):
            await driver.commit(asked._replace(batch_id=1, digest=B))
        # A broker that did not ask decides it; what was there already is not there twice.
        again = CommitSinkAt(HOME, asked._replace(batch_id=1, digest=B, files=()))
        (answer,) = await cluster.any.client.call(COMMIT_SINK_HERE, again)
        assert answer == SinkCommit()
        assert driver.ends() == [2, 2, 2]


async def test_a_topic_that_is_deleted_holds_up_nothing(opened: Opened) -> None:
    async with opened(brokers=3) as cluster:
        driver = Driver(cluster)
        held = cluster.leading(2)
        assert held is not None
        held.gate.at = "hear_share"
        committing = asyncio.create_task(driver.commit(driver.batch(0)))
        await held.gate.held()
        client = cluster.any.client
        assert await client.delete_topics([driver.places[0].topic_id]) == [None]
        held.gate.at = None
        await driver.is_complete()
        await asyncio.gather(committing, return_exceptions=True)
        with pytest.raises(UnknownPartition):
            await driver.commit(driver.batch(1))


async def test_an_object_has_batches_of_one_coordinator(opened: Opened) -> None:
    async with opened() as cluster:
        driver = Driver(cluster)
        first, second = driver.staged(0, 1), driver.staged(1, 1)
        first.batches[0:0] = second.batches  # type: ignore[index]
        with pytest.raises(Rejected, match="has batches for 2 metadata partitions"):
            driver.of([first], 0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", seeds(4))
async def test_leaders_die_at_random_and_each_batch_is_there_once(
    opened: Opened, seed: int
) -> None:
    rng = random.Random(seed)
    async with opened(brokers=3) as cluster:
        driver = Driver(cluster)
        places = ["share", "hear_share", "heard_share", "complete_sink"]
        committed = 0
        for batch_id in range(6):
            if len(cluster.alive) > 1:
                dying = rng.choice(cluster.alive)
                dying.gate.at = rng.choice(places)
                first = asyncio.create_task(driver.commit(driver.batch(batch_id)))
                held = asyncio.create_task(dying.gate.held())
                await asyncio.wait([first, held], return_when=asyncio.FIRST_COMPLETED)
                held.cancel()
                await cluster.kill(dying)
                await asyncio.wait([first])
                error = first.exception()
                assert error is None or isinstance(error, DisklessError)
            await driver.until_committed(lambda batch_id=batch_id: driver.batch(batch_id))
            committed += 2
            assert driver.ends() == [committed] * LOGS
