"""Files live and die in random worlds: no object that anybody might need goes, all others do.

Uploads, commits, drains, handovers, scans by two scanners, crashes, stores that fail, coordinators
that are away and clocks that jump by hours interleave at every await of the workers and scanners.
The world itself checks at each deletion and each commit that the two never meet.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from metadata.metadata_settings import CoordinatorSettings
from metadata.workers.file_workers import FileWorkers
from metadata.workers.note_keeper import NoteKeeper
from metadata.workers.orphan_scan import OrphanScan
from tests.support.coordinators.file_ledger import Crash, FileWorld
from tests.support.profiles import examples
from wal.errors import OutcomeUnknown, Retriable

SETTINGS = CoordinatorSettings(
    max_commit_age_ms=60_000,
    clock_skew_max_ms=5_000,
    orphan_scan_grace_ms=30_000,
    orphan_scan_interval_ms=100_000,
    orphan_scan_page_max=2,
    file_delete_grace_ms=10_000,
    file_cleaner_batch_max=2,
    file_cleaner_interval_ms=1_000,
)
COORDINATORS = 3
SHARDS = 2

BROKERS_DO = ("mint", "upload", "commit", "commit_late", "drain")
BREAKS = ("jump", "fail_deletes", "lose_a_coordinator")
scripts = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from((*BROKERS_DO, *BREAKS, "crash", "scan"))),
    max_size=6,
)


class FileLives(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.world = FileWorld(COORDINATORS, SETTINGS)
        self.rng = self.world.rng = random.Random(seed)
        self.loop = asyncio.new_event_loop()
        self.workers = [self.new_workers(index) for index in range(COORDINATORS)]
        self.scans = [self.new_scan() for _ in range(2)]

    def new_workers(self, coordinator: int) -> FileWorkers:
        world = self.world
        return FileWorkers(
            world.coordinators[coordinator],
            world.store,
            world,
            coordinator_id=coordinator,
            settings=SETTINGS,
            clock=world.coordinators[coordinator].clock,
            rng=self.rng,
            notes=self.new_keeper(),
        )

    def new_keeper(self) -> NoteKeeper:
        return NoteKeeper(self.world.store, clock=self.world.scan_clock, rng=self.rng)

    def new_scan(self) -> OrphanScan:
        world = self.world

        async def coordinator_ids() -> Sequence[int]:
            return range(COORDINATORS)

        return OrphanScan(
            world.store,
            world,
            coordinator_ids,
            settings=SETTINGS,
            clock=world.scan_clock,
            rng=self.rng,
            notes=self.new_keeper(),
        )

    def perform(
        self, work: Callable[[], Awaitable[object]], script: Sequence[tuple[int, str]] = ()
    ) -> bool:
        """Run it while the script happens; False when it crashed."""
        other = self.new_scan()

        async def scan() -> None:
            await other.scan_shard(self.rng.randrange(SHARDS))

        self.world.script = [
            (left, scan if name == "scan" else getattr(self.world, name)) for left, name in script
        ]

        async def performing() -> bool:
            try:
                await work()
            except (Retriable, OutcomeUnknown):
                pass
            except Crash:
                return False
            except ExceptionGroup as errors:
                if errors.split(Crash)[1] is not None:
                    raise
                return False
            return True

        try:
            return self.loop.run_until_complete(performing())
        finally:
            self.world.script = []

    @rule(names=st.lists(st.sampled_from(BROKERS_DO), min_size=1, max_size=5))
    def brokers_work(self, names: list[str]) -> None:
        for name in names:
            self.perform(getattr(self.world, name))

    @rule(script=scripts)
    def everybody_works(self, script: list[tuple[int, str]]) -> None:
        if not self.perform(self.one_round, script):
            self.workers = [self.new_workers(index) for index in range(COORDINATORS)]

    @rule(name=st.sampled_from(BREAKS))
    def something_breaks(self, name: str) -> None:
        self.perform(getattr(self.world, name))

    @rule(seconds=st.sampled_from((1, 11, 61, 100, 200)))
    def time_passes(self, seconds: float) -> None:
        for clock in self.world.clocks:
            clock.advance(seconds)

    @rule(
        coordinator=st.integers(0, COORDINATORS - 1),
        step=st.sampled_from(("delete_once", "hand_over_once", "take_over_once")),
        script=scripts,
    )
    def a_worker_works(self, coordinator: int, step: str, script: list[tuple[int, str]]) -> None:
        if not self.perform(getattr(self.workers[coordinator], step), script):
            self.workers[coordinator] = self.new_workers(coordinator)

    @rule(scanner=st.integers(0, 1), shard=st.integers(0, SHARDS - 1), script=scripts)
    def a_scanner_scans(self, scanner: int, shard: int, script: list[tuple[int, str]]) -> None:
        if not self.perform(lambda: self.scans[scanner].scan_shard(shard), script):
            self.scans[scanner] = self.new_scan()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.heal()
            for drained in (False, True):
                if drained:
                    for coordinator in self.world.coordinators:
                        for key in [key for key, row in coordinator.rows.items() if row.is_live]:
                            coordinator.drain(key)
                self.settle()
                objects = self.loop.run_until_complete(self.objects())
                assert objects == self.world.live_keys(), "orphans stay, or live objects went"
            assert all(not coordinator.rows for coordinator in self.world.coordinators)
            self.loop.close()

    def heal(self) -> None:
        world = self.world
        world.absent, world.deletes_fail = set(), 0
        # Clocks agree again. The latest one counts, or keys of its time would be of the future.
        now_ms = max(clock.now_ms() for clock in world.clocks)
        for clock in world.clocks:
            clock.step_wall((now_ms - clock.now_ms()) / 1000)

    def settle(self) -> None:
        self.workers = [self.new_workers(index) for index in range(COORDINATORS)]
        for _ in range(2 * COORDINATORS + 4):
            self.time_passes(4_000)
            assert self.perform(self.one_round)

    async def one_round(self) -> None:
        for workers in self.workers:
            while await workers.delete_once():
                pass
            while await workers.hand_over_once():
                pass
            for _ in range(10):
                await workers.take_over_once()
        scan = self.new_scan()
        for shard in range(SHARDS):
            await scan.scan_shard(shard)

    async def objects(self) -> set[str]:
        return {stat.key async for stat in self.world.store.list("wal/")}


FileLives.TestCase.settings = examples(1.5, steps=60, allow=[HealthCheck.filter_too_much])
TestFileLives = FileLives.TestCase
