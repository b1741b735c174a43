"""Two brokers hold themselves to be the leader, over an S3 server that misbehaves meanwhile.

Each has its own faulty line to one bucket: answers of puts get lost, and requests are answered 412,
409 or 503 without being looked at. The old leader is stopped past its lease with a commit and a
strict read under way, the new one takes over, and the old one wakes.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from metadata import operations as ops
from metadata.coordinator.coordinator import PartitionCoordinator
from tests.support.coordinators.contender import DEADLINE_S, LEASE_MS, Contender, until
from tests.support.coordinators.coordinator_bench import batch
from tests.support.stores.faulty_s3 import Fault, FaultyS3
from wal import errors
from wal.clock import ManualClock, SystemClock
from wal.coordinates import ByteOffset, ObjectKey, TopicIdPartition
from wal.stores.s3_settings import S3Settings
from wal.stores.s3_store import S3Store
from wal.ulid import mint_ulid, wal_object_key

COMMITS: Final = 30
FAST_S3: Final = S3Settings(attempts_max=3, retry_first_delay_ms=1, retry_delay_max_ms=5)
LOG: Final = "meta/0/log/"

FAULTS: Final[dict[str, list[dict[str, Any]]]] = {
    "lost responses": [{"action": "lose_response"}],
    "412": [{"action": "status", "status": 412, "code": "PreconditionFailed"}],
    "409": [{"action": "status", "status": 409, "code": "ConditionalRequestConflict"}],
    "503": [{"action": "status", "status": 503, "code": "SlowDown"}],
    "all of them": [
        {"action": "lose_response"},
        {"action": "status", "status": 412, "code": "PreconditionFailed"},
        {"action": "status", "status": 409, "code": "ConditionalRequestConflict"},
        {"action": "status", "status": 503, "code": "SlowDown"},
    ],
}


class Duel:
    """Two contenders, their lines to the bucket, and what was acknowledged to their clients."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.contenders: list[Contender] = []
        self.lines: list[FaultyS3] = []
        self.acknowledged: dict[ObjectKey, int] = {}
        """Base offset by object key."""
        self.refused: set[ObjectKey] = set()
        """Of which the client was told that nothing happened."""
        self.partition: TopicIdPartition
        self._rng = random.Random(11)

    def misbehave(self, faults: list[dict[str, Any]]) -> None:
        for line in self.lines:
            for fault in faults:
                line.add(
                    Fault(
                        **fault,
                        method="PUT",
                        key_prefix=LOG,
                        count=None,
                        probability=0.3 / len(faults),
                    )
                )

    def calm(self) -> None:
        for line in self.lines:
            line.clear()

    @property
    def hits(self) -> int:
        return sum(line.hits("lose_response") + line.hits("status") for line in self.lines)

    async def leader(self, *among: Contender) -> PartitionCoordinator:
        """The one that leads; time passes as long as nobody does."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                for contender in among:
                    if contender.partition.coordinator is not None:
                        return contender.partition.coordinator
                self.clock.advance(LEASE_MS / 1000 / 20)
                await asyncio.sleep(0.005)

    async def create(self, coordinator: PartitionCoordinator) -> None:
        (topic,) = await coordinator.create_topics([ops.CreateTopic(name="t", partition_count=1)])
        assert isinstance(topic, ops.TopicDescription)
        self.partition = TopicIdPartition(topic.topic_id, 0)

    def file(self) -> ops.CommitFile:
        return ops.CommitFile(
            object_key=wal_object_key(mint_ulid(self.clock, self._rng)),
            file_size_bytes=200,
            uploader_broker_id=9,
            batches=[batch(self.partition)._replace(byte_offset=ByteOffset(16))],
        )

    async def commit(self, coordinator: PartitionCoordinator, file: ops.CommitFile) -> object:
        """Its one answer or its error, which is taken down."""
        try:
            (answer,) = await coordinator.commit_file(file)
        except errors.CommitOutcomeUnknown as error:
            return error
        except errors.DisklessError as error:
            self.refused.add(file.object_key)
            return error
        if answer.error is None:
            self.acknowledged[file.object_key] = answer.base_offset
        elif not isinstance(answer.error, errors.CommitOutcomeUnknown):
            self.refused.add(file.object_key)
        return answer

    async def commit_many(self, *among: Contender) -> None:
        """Some one after the other, then some at once."""
        for _ in range(COMMITS // 2):
            await self.commit(await self.leader(*among), self.file())
        coordinator = await self.leader(*among)
        files = [self.file() for _ in range(COMMITS // 2)]
        await asyncio.gather(*(self.commit(coordinator, file) for file in files))

    async def stored(self, coordinator: PartitionCoordinator) -> list[tuple[ObjectKey, int]]:
        """(object key, base offset) of all that is committed, in offset order."""
        (found,) = await coordinator.replica.find_batches(
            [ops.FindBatches(self.partition, 0, 1 << 20)], max_bytes=1 << 20
        )
        assert found.error is None
        extents = [extent for extent in found.extents if isinstance(extent, ops.WalExtent)]
        assert len(extents) == found.high_watermark
        return [(extent.object_key, extent.base_offset) for extent in extents]


@pytest.fixture
async def duel(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Duel]:
    endpoint = request.getfixturevalue(f"{request.param}_endpoint")
    bucket = request.getfixturevalue(f"{request.param}_bucket")
    duel = Duel(ManualClock())
    async with AsyncExitStack() as stack:
        for broker_id in (1, 2):
            line = await stack.enter_async_context(FaultyS3(endpoint, seed=broker_id))
            store = S3Store(
                bucket,
                endpoint_url=line.url,
                clock=SystemClock(),
                rng=random.Random(broker_id),
                settings=FAST_S3,
            )
            await stack.enter_async_context(store)
            duel.lines.append(line)
            duel.contenders.append(
                Contender(tmp_path / str(broker_id), store, clock=duel.clock, broker_id=broker_id)
            )
        yield duel


@pytest.mark.parametrize(
    ("duel", "faults"),
    [
        *(
            pytest.param("moto", faults, id=f"moto-{name}", marks=pytest.mark.moto)
            for name, faults in FAULTS.items()
        ),
        *(
            pytest.param(
                "localstack",
                faults,
                id=f"localstack-{name}",
                marks=[
                    pytest.mark.localstack,
                    *([pytest.mark.exhaustive] if name != "all of them" else []),
                ],
            )
            for name, faults in FAULTS.items()
        ),
    ],
    indirect=["duel"],
)
async def test_the_old_leader_acknowledges_nothing_when_it_wakes(
    duel: Duel, faults: list[dict[str, Any]]
) -> None:
    old, new = duel.contenders
    async with old:
        await duel.create(await old.leading())
        async with new:
            await new.following(old)
            duel.misbehave(faults)
            await duel.commit_many(old)

            coordinator = await duel.leader(old)
            old.stop_the_world()
            file = duel.file()
            late = asyncio.create_task(duel.commit(coordinator, file))
            await until(lambda: any(w.kind == "put" for w in old.steps.waiting), "it is under way")
            await duel.leader(new)
            asked = [ops.ListOffsets(duel.partition, -1)]
            stale = asyncio.create_task(coordinator.list_offsets(asked))
            await duel.commit_many(new)
            before = dict(duel.acknowledged)

            old.go_on()
            answer = await late
            assert isinstance(
                answer, errors.NotCoordinator | errors.CommitFailed | errors.CommitOutcomeUnknown
            ), answer
            with pytest.raises((errors.NotCoordinator, errors.StorageFailed)):
                await stale
            with pytest.raises(errors.NotCoordinator):
                await coordinator.list_offsets(asked)
            with pytest.raises(errors.NotCoordinator):
                await coordinator.commit_file(duel.file())
            assert duel.acknowledged == before

            assert duel.hits >= COMMITS / 5, "the lines were as bad as they were meant to be"
            duel.calm()
            leading = await duel.leader(old, new)
            assert isinstance((await leading.commit_file(duel.file()))[0], ops.BatchCommit)
            leader, follower = (new, old) if new.partition.coordinator is not None else (old, new)
            await follower.following(leader)
            assert follower.replica.state_hash == leader.replica.state_hash
            stored = await duel.stored(leading)
            assert [offset for _, offset in stored] == [*range(len(stored))]
            places = dict(stored)
            assert len(places) == len(stored), "nothing is committed twice"
            assert duel.acknowledged.items() <= places.items(), "what was acknowledged is there"
            assert not duel.refused & places.keys(), "what was refused is not"
            assert len(duel.acknowledged) > COMMITS / 2
