"""The conformance suite of coordinators on both metadata logs and through both clients.

| metadata log | client                    | coordinators | cases                         |
|--------------|---------------------------|--------------|-------------------------------|
| local        | in process, over a socket | 1 and 3      | all                           |
| in a store   | in process, over a socket | 1 and 3      | all                           |
| on moto's S3 | over a socket             | 1            | those that are about the log  |

Every case runs on the two that have nothing in common: a local log, in process, one coordinator; a
log in a store, over a socket, three coordinators. On the other six run those that are marked
`about_log` (what outlives a leader or a process) or `about_routing` (what is answered for several
partitions, topics or files together); the rest of the product is `exhaustive`.

Each of these is a cluster in which the cases run one after the other: what a case finds is what
others left, as it is in life. A cluster ends, and the next case begins with a new one, when its
metadata log has become long (replaying it takes time), and when a case failed or left it without a
leader.
"""

import random
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import pytest_asyncio

from tests.metadata.coordinator.conformance_commit import CommitCases
from tests.metadata.coordinator.conformance_deletion import DeleteRecordsCases
from tests.metadata.coordinator.conformance_durability import DurabilityCases
from tests.metadata.coordinator.conformance_idempotence import IdempotenceCases
from tests.metadata.coordinator.conformance_offsets import TierCases
from tests.metadata.coordinator.conformance_shared_log import SharedLogCases
from tests.metadata.coordinator.conformance_topics import TopicCases
from tests.metadata.coordinator.coordinator_conformance import CoordinatorConformance
from tests.support.coordinators.conformance_bench import ConformanceBench
from tests.support.logs.log_media import LocalLogs, Medium, ObjectLogs
from tests.support.moto_server import new_bucket
from wal.clock import ManualClock, SystemClock
from wal.failpoint import arm
from wal.stores.memory_store import MemoryStore
from wal.stores.s3_store import S3Store

RECORDS_LOGGED_MAX: Final = 100


class Combination(NamedTuple):
    log: str
    over_the_wire: bool
    coordinators: int

    def __str__(self) -> str:
        client = "wire" if self.over_the_wire else "in-process"
        return f"{self.log}-{client}-{self.coordinators}"


COMBINATIONS = [
    Combination(log, over_the_wire, coordinators)
    for log in ("local", "object")
    for over_the_wire in (False, True)
    for coordinators in (1, 3)
]
EVERY_CASE = (Combination("local", False, 1), Combination("object", True, 3))
IN_A_STORE = [combination for combination in COMBINATIONS if combination.log == "object"]
ON_S3 = [Combination("s3-on-moto", True, 1)]


class Cluster:
    """The bench that cases share, as long as it is sound."""

    def __init__(self, combination: Combination, path: Path, endpoint: str, bucket: str) -> None:
        self._combination = combination
        self._path = path
        self._endpoint = endpoint
        self._bucket = bucket
        self._stack = AsyncExitStack()
        self._begun = 0
        self.bench: ConformanceBench | None = None

    async def sound_bench(self) -> ConformanceBench:
        """The one there is, or a new one."""
        if (
            self.bench is not None
            and self.bench.is_sound
            and self.bench.records_logged < RECORDS_LOGGED_MAX
        ):
            return self.bench
        await self.end()
        self._begun += 1
        path = self._path / str(self._begun)
        clock = ManualClock()
        store = MemoryStore(clock=clock)
        self.bench = await self._stack.enter_async_context(
            ConformanceBench(
                path,
                await self._medium(path, store, clock),
                clock=clock,
                store=store,
                over_the_wire=self._combination.over_the_wire,
                coordinators=self._combination.coordinators,
            )
        )
        return self.bench

    async def _medium(self, path: Path, store: MemoryStore, clock: ManualClock) -> Medium:
        match self._combination.log:
            case "local":
                return LocalLogs(path / "logs")
            case "object":
                return ObjectLogs(store, clock)
        opened = S3Store(
            self._bucket,
            f"cluster-{self._begun}",
            endpoint_url=self._endpoint,
            clock=SystemClock(),
            rng=random.Random(1),
        )
        return ObjectLogs(await self._stack.enter_async_context(opened), clock)

    async def end(self) -> None:
        """Whatever is wrong with it was the failure of the case before."""
        self.bench = None
        await self._stack.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Cluster]:
    combination: Combination = request.param
    endpoint, bucket = "", ""
    if combination.log == "s3-on-moto":
        endpoint = request.getfixturevalue("moto_endpoint")
        bucket = new_bucket(endpoint)
    shared = Cluster(combination, tmp_path_factory.mktemp(str(combination)), endpoint, bucket)
    try:
        yield shared
    finally:
        await shared.end()


@pytest_asyncio.fixture(loop_scope="module")
async def bench(cluster: Cluster) -> AsyncIterator[ConformanceBench]:
    running = await cluster.sound_bench()
    try:
        yield running
    except BaseException:
        await cluster.end()
        raise
    finally:
        arm("")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The combinations of TestCoordinatorConformance, case by case."""
    if metafunc.cls is not TestCoordinatorConformance:
        return
    marks = {mark.name for mark in metafunc.definition.iter_markers()}
    more = () if marks & {"about_log", "about_routing"} else (pytest.mark.exhaustive,)
    combinations = [
        pytest.param(each, id=str(each), marks=() if each in EVERY_CASE else more)
        for each in COMBINATIONS
    ]
    metafunc.parametrize("cluster", combinations, indirect=True, scope="module")


@pytest.mark.asyncio(loop_scope="module")
class TestCoordinatorConformance(CoordinatorConformance):
    """Every case, on every combination."""


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("cluster", IN_A_STORE, ids=str, indirect=True, scope="module")
class TestCoordinatorConformanceInAStore(SharedLogCases):
    """Cases that need a log which two brokers can have open."""


@pytest.mark.moto
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("cluster", ON_S3, ids=str, indirect=True, scope="module")
class TestCoordinatorConformanceOnS3(
    CommitCases,
    IdempotenceCases,
    TopicCases,
    DeleteRecordsCases,
    TierCases,
    DurabilityCases,
    SharedLogCases,
):
    """Cases in which the log matters; what is only read is read from the state."""


def test_the_table_of_cases_names_every_case_and_no_other() -> None:
    text = (Path(__file__).parents[3] / "docs" / "conformance-coordinator.md").read_text()
    named = {f"test_{name}" for name in re.findall(r"\| `([a-z_]+)` \|", text)}
    suite = {*dir(CoordinatorConformance), *dir(SharedLogCases)}
    assert named == {name for name in suite if name.startswith("test_")}
