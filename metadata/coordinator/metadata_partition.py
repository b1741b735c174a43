"""The role of this process for one metadata partition: follow its log, or lead it.

    follow --(no leader, or silent for longer than its lease)--> stand
    stand  --(its LeaderChange is in the log)-----------------> lead
    stand  --(somebody else's batch is there)-----------------> follow
    lead   --(deposed, or an append with an unknown outcome)---> follow
    lead   --(resigned to the broker that should lead)---------> follow

A follower applies what it reads to its replica and serves reads that may be stale. When it has seen
nothing new for longer than a lease, it stands: it appends a LeaderChange at the very
offset up to which it has read. Only one such append can win, and who wins has everything. A leader
runs a `PartitionCoordinator` and, as long as it leads, the background workers it was given.

Invariants:
- `coordinator` is set exactly while this process believes that it leads; being wrong for a while is
  harmless, because appends then collide and strict reads ask the log.
- The replica never goes back: it is the same state in every role.
- Workers run only under a leader and are gone before this process follows again.

When a follower stands, and how it follows, is in metadata/coordinator/following.py.

Failure cases: an entry it cannot decode, or a log that only this process can write and that failed,
end the broker, since a restart is what recovers them.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, Self

from metadata.coordinator.coordinator import PartitionCoordinator
from metadata.coordinator.feeding.feed import AskLeader, Feed
from metadata.coordinator.feeding.feeds import Feeds
from metadata.coordinator.following import Following
from metadata.coordinator.lease import Keeping
from metadata.coordinator.sink_notes import NotePlace
from metadata.leadership.candidate import Candidate, current_leader
from metadata.leadership.leader_moves import LeaderMoves, MovePace
from metadata.leadership.ranks import Ranks
from metadata.log.log import MetadataLog
from metadata.log.shared_tail import SharedTail
from metadata.metadata_settings import CoordinatorSettings
from metadata.operations import Leader
from metadata.records.control import NO_BROKER, LeaderChangeRecord
from metadata.records.records import encode_record
from metadata.replica.replica import Replica
from metadata.retention_settings import DEFAULT_RETENTION, RetentionSettings
from wal.clock import Clock, Sleep
from wal.errors import CommitFailed, CommitOutcomeUnknown, NotCoordinator, Retriable
from wal.failpoint import failpoint

CUT_OFF_S: Final = 3_600.0
"""A broker that was registered within this time may be alive, though nobody hears of it."""

_RESIGN_TIMEOUT_S: Final = 3.0

_logger = logging.getLogger(__name__)


class Worker(Protocol):
    """A background worker of a leader. Ends by cancellation; retries whatever can be retried."""

    async def run(self) -> None: ...


class SharedFeed(NamedTuple):
    """What a leader feeds its followers from, and how a follower asks for it."""

    tail: SharedTail
    ask: AskLeader


class MetadataPartition:
    """One metadata partition in this process. Enter it, then run `run` in a task."""

    def __init__(
        self,
        replica: Replica,
        log: MetadataLog,
        *,
        candidate: Callable[[], Candidate],
        workers: Callable[[PartitionCoordinator], Sequence[Worker]],
        clock: Clock,
        rng: random.Random,
        settings: CoordinatorSettings,
        retention: RetentionSettings = DEFAULT_RETENTION,
        lease_ms: int = 0,
        note_place: NotePlace | None = None,
        ranks: Ranks | None = None,
        pace: MovePace | None = None,
        shared: SharedFeed | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`log` is open and is closed with the partition; `lease_ms` is that of its leaders.

        With `ranks` the brokers stand in their order, and with `pace` a leader moves to the first.
        `shared`: its end, which leaders feed to others; None: others read the store. `retention` is
        that of topics that set none; what sinks commit is noted at `note_place`.
        """
        self.replica: Final = replica
        self.log: Final = log
        self.coordinator: PartitionCoordinator | None = None
        """Set while this process leads."""
        self._candidate = candidate
        self._workers = workers
        self._clock = clock
        self._rng = rng
        self._settings = settings
        self._retention = retention
        self._lease_ms = lease_ms
        self._note_place = note_place
        self._ranks = ranks
        self._pace = pace
        self._sleep = sleep
        self._ready = asyncio.Event()
        self._following = Following(
            replica,
            log,
            candidate=candidate,
            rank=self._rank,
            is_registered=self._is_registered,
            is_led=self._ready.set,
            clock=clock,
            rng=rng,
            interval_ms=settings.follow_interval_ms,
            lease_ms=lease_ms,
            feed=(
                None
                if shared is None
                else Feed(replica, shared.tail, shared.ask, candidate=candidate, clock=clock)
            ),
            sleep=sleep,
        )
        self._tail = None if shared is None else shared.tail
        self.feeds: Feeds | None = None
        """The followers that are fed, while this process leads and until it has resigned."""
        self._registered_at: dict[int, float] = {}
        """When each broker was last seen to be registered, while this process led."""
        self._is_closed = False

    @property
    def index(self) -> int:
        """The number of the metadata partition, which is the coordinator's id."""
        return self.replica.coordinator_id

    @property
    def leader(self) -> Leader | None:
        """The leader as far as this process has read; None: there was none, or it resigned."""
        return current_leader(self.replica)

    @property
    def is_fed(self) -> bool:
        """Whether this process follows, and hears of the leader."""
        return self._following.is_fed

    def is_myself(self, leader: Leader) -> bool:
        """Whether `leader` is this very process."""
        return leader.incarnation == self._candidate().incarnation

    async def ready(self) -> None:
        """Return when somebody leads: this process, with everything applied, or another."""
        await self._ready.wait()

    async def hand_over(self) -> None:
        """Resign to the broker that should lead when this one has gone, and follow from then on.

        For a process that is about to stop and serves on meanwhile: nobody waits until it has
        ended. Nothing happens where this process does not lead, or nobody else may. A resignation
        that does not get through leaves this process leading, until it is closed.
        """
        coordinator, candidate = self.coordinator, self._candidate()
        successor_id = self._successor_id(candidate.broker_id)
        if coordinator is None or successor_id == NO_BROKER:
            return
        record = self._leader_change(NO_BROKER, candidate, successor_id=successor_id)
        try:
            async with asyncio.timeout(_RESIGN_TIMEOUT_S):
                await coordinator.pipeline.end_with(record)
        except (Retriable, CommitOutcomeUnknown, TimeoutError) as error:
            _logger.warning("metadata partition %d: not handed over: %s", self.index, error)
        # It may have stopped to decide, whatever became of the record.
        await coordinator.stop()

    async def __aenter__(self) -> Self:
        """Bring the replica to the end of the log. Raises: CorruptLog, CorruptState."""
        try:
            await self.log.refresh()
            await self.replica.open(self.log)
        except BaseException:
            await self.log.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop serving and close state and log."""
        self._is_closed = True
        try:
            if self.coordinator is not None:
                await self.coordinator.stop()
            await self.replica.close()
        finally:
            await self.log.close()

    async def run(self) -> None:
        """Follow and lead in turn, until cancelled. Raises what this process cannot heal."""
        while True:
            if self.log.lease_expires_at is None or self._has_resigned:
                await self._following.follow()
            try:
                coordinator = await self._stand()
            except (NotCoordinator, CommitFailed, CommitOutcomeUnknown) as error:
                self._refuse_to_lose_an_own_log(error)
                _logger.info("metadata partition %d: not elected: %s", self.index, error)
                continue
            deposed_by = await self._lead(coordinator)
            if self._is_closed:
                return
            self._refuse_to_lose_an_own_log(deposed_by)
            if self._has_resigned:
                _logger.info("metadata partition %d: %s", self.index, deposed_by)
            else:
                _logger.warning("metadata partition %d: deposed: %s", self.index, deposed_by)

    def _refuse_to_lose_an_own_log(self, error: Exception) -> None:
        """Nobody else writes the local log: only opening it again finds out what it holds."""
        if not self._has_rivals:
            raise error

    @property
    def _has_rivals(self) -> bool:
        return self._lease_ms > 0

    @property
    def _has_resigned(self) -> bool:
        """Whether the last leader has; the log does not know that, and would append for it."""
        return self._has_rivals and self.leader is None

    def _rank(self, silent: int) -> int:
        """How many brokers stand before this one when the leader, `silent`, is not heard."""
        if self._ranks is None:
            return 0
        return self._ranks.rank(self.index, self._candidate().broker_id, without=silent)

    def _is_registered(self) -> bool:
        if self._ranks is None:
            return True
        return self._candidate().broker_id in self._ranks.registered()

    def _is_waited_for(self) -> bool:
        """Whether a broker that this leader does not feed counts the time since its last append.

        Such a broker is registered, or was: it may be cut off from here and reach the store.
        """
        if self._ranks is None:
            return True
        now = self._clock.monotonic()
        self._registered_at.update(dict.fromkeys(self._ranks.registered(), now))
        known = {id for id, at in self._registered_at.items() if now - at < CUT_OFF_S}
        fed = frozenset() if self.feeds is None else self.feeds.fed_brokers()
        return bool(known - fed - {self._candidate().broker_id})

    # -- stand ----------------------------------------------------------------------------------

    async def _stand(self) -> PartitionCoordinator:
        """Become leader. Raises: NotCoordinator, CommitFailed, CommitOutcomeUnknown."""
        candidate = self._candidate()
        before = self.leader
        await self._append_leader_change(self._leader_change(candidate.broker_id, candidate))
        failpoint("lead.after_log")
        await self._following.catch_up()
        _logger.info(
            "metadata partition %d: broker %d leads, epoch %d",
            self.index,
            candidate.broker_id,
            0 if self.replica.leader is None else self.replica.leader.leader_epoch,
        )
        return PartitionCoordinator(
            self.replica,
            self.log,
            clock=self._clock,
            rng=self._rng,
            settings=self._settings,
            sleep=self._sleep,
            retention=self._retention,
            keeping=Keeping(self._lease_ms, self._is_waited_for),
            note_place=self._note_place,
            deposed=(None if before is None or before.broker_id == candidate.broker_id else before),
        )

    async def _append_leader_change(self, record: LeaderChangeRecord) -> None:
        await self.log.lead(
            [encode_record(record)],
            max(self._clock.now_ms(), self.replica.image.timestamp_ms),
            at_offset=self.replica.applied_offset,
        )

    def _leader_change(
        self, broker_id: int, candidate: Candidate, *, successor_id: int = NO_BROKER
    ) -> LeaderChangeRecord:
        leader = self.replica.leader
        return LeaderChangeRecord(
            leader_epoch=1 if leader is None else leader.leader_epoch + 1,
            broker_id=broker_id,
            host=candidate.host,
            port=candidate.port,
            incarnation=candidate.incarnation,
            successor_id=successor_id,
        )

    # -- lead -----------------------------------------------------------------------------------

    async def _lead(self, coordinator: PartitionCoordinator) -> Exception:
        """Serve and feed until deposed or closed; returns why it ended."""
        if self._tail is None:
            return await self._serve(coordinator)
        self.feeds = Feeds(self._tail, clock=self._clock, sleep=self._sleep)
        try:
            return await self._serve(coordinator)
        finally:
            self.feeds.close()
            self.feeds = None

    async def _serve(self, coordinator: PartitionCoordinator) -> Exception:
        """Serve until deposed or closed; returns why it ended."""
        ended: Exception = NotCoordinator("closed")
        try:
            async with asyncio.TaskGroup() as tasks:
                serving = tasks.create_task(coordinator.run(), name=f"coordinator-{self.index}")
                workers = [
                    tasks.create_task(worker.run(), name=f"{type(worker).__name__}-{self.index}")
                    for worker in (*self._workers(coordinator), *self._moves(coordinator))
                ]
                self.coordinator = coordinator
                self._ready.set()
                await serving
                for worker in workers:
                    worker.cancel()
        except BaseExceptionGroup as errors:
            steps_down, others = errors.split((NotCoordinator, CommitOutcomeUnknown))
            if others is not None or steps_down is None:
                raise
            ended = _first(steps_down)
            if _is_cancelled():  # a worker that was waiting for an answer has hidden it
                await self._resign(coordinator)
                raise asyncio.CancelledError from errors
        except asyncio.CancelledError:
            await self._resign(coordinator)
            raise
        finally:
            self.coordinator = None
        return ended

    def _moves(self, coordinator: PartitionCoordinator) -> Sequence[Worker]:
        """What moves leadership on, where brokers are ranked."""
        if self._ranks is None or self._pace is None:
            return ()
        candidate = self._candidate()

        async def resign(successor_id: int) -> None:
            record = self._leader_change(NO_BROKER, candidate, successor_id=successor_id)
            await coordinator.pipeline.end_with(record)

        return [
            LeaderMoves(
                self.index,
                self._ranks,
                self._pace,
                broker_id=candidate.broker_id,
                leader=lambda: self.replica.leader,
                resign=resign,
                clock=self._clock,
                sleep=self._sleep,
            )
        ]

    def _successor_id(self, broker_id: int) -> int:
        """Who is to lead when this broker has gone."""
        if self._ranks is None:
            return NO_BROKER
        ranked = self._ranks.leader(self.index, without=broker_id)
        return NO_BROKER if ranked is None else ranked

    async def _resign(self, coordinator: PartitionCoordinator) -> None:
        """Let others stand at once; if it does not get through, they wait for the lease to end."""
        if not self._has_rivals or self.log.lease_expires_at is None:
            return
        candidate = self._candidate()
        try:
            async with asyncio.timeout(_RESIGN_TIMEOUT_S):
                await self.replica.catch_up(self.log)
                if not self._has_resigned:
                    await self._append_leader_change(
                        self._leader_change(
                            NO_BROKER,
                            candidate,
                            successor_id=self._successor_id(candidate.broker_id),
                        )
                    )
        except (Retriable, CommitOutcomeUnknown, TimeoutError) as error:
            _logger.warning("metadata partition %d: could not resign: %s", self.index, error)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _first(errors: BaseExceptionGroup[Exception]) -> Exception:
    inner = errors.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner
