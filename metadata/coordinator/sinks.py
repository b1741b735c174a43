"""What a coordinator does for sinks: commits their batches, knows and forgets the last of each.

metadata/rules/sinks decides; each commit is noted in the bucket before its answer
(metadata/coordinator/sink_notes.py). A batch that other coordinators have shares of is decided
here, and told to them by a worker beside the leader (diskless/sinks/share_teller.py); `subscribe`
says when there is one. Who asks about a sink whose batch is open waits for its completion.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from metadata.coordinator.pipeline import Pipeline
from metadata.coordinator.sink_notes import SinkNotes
from metadata.coordinator.unsettled_batches import UnsettledBatches
from metadata.messages.commit_file import pack_files, unpack_files
from metadata.metadata_settings import CoordinatorSettings
from metadata.replica.replica import Replica
from metadata.rules.sinks.commit_sink import (
    CheckedShare,
    check_files,
    check_sink_commit,
    decide_commit_sink,
    decide_complete_sink,
    decide_expire_sinks,
    has_expired,
)
from metadata.rules.sinks.share import decide_commit_share
from metadata.sink_operations import (
    CommitShare,
    CommitSink,
    OpenBatch,
    Sink,
    SinkCommit,
    SinkRange,
    SinkShare,
    StoredShare,
    share_name,
)
from wal.clock import Clock
from wal.errors import (
    CommitOutcomeUnknown,
    ConcurrentTransactions,
    ObjectStoreUnavailable,
)
from wal.failpoint import failpoint
from wal.steady_clock import SteadyClock

COMPLETED_WITHIN_S: Final = 5.0
"""How long who asks waits for shares to be committed; then it asks again."""

Listener = Callable[[OpenBatch], None]


class Sinks:
    """The sinks of one coordinator, for one term; `PartitionCoordinator` says what it promises."""

    def __init__(
        self,
        pipeline: Pipeline,
        replica: Replica,
        notes: SinkNotes,
        *,
        clock: Clock,
        steady_clock: SteadyClock,
        settings: CoordinatorSettings,
    ) -> None:
        self._perform = pipeline.perform
        self._replica = replica
        self._notes = notes
        self.unsettled: Final = UnsettledBatches(replica, notes)
        self._clock = clock
        self._steady_clock = steady_clock
        self._settings = settings
        self._listeners: list[Listener] = []
        self._completed: dict[str, asyncio.Event] = {}
        """By sink id, for those who wait."""

    # -- the home -------------------------------------------------------------------------------

    async def commit(self, request: CommitSink) -> SinkCommit:
        check_sink_commit(request, self._settings)
        commits = check_files(request.sink_id, request.files, self._settings)
        shares = [self._checked(request.sink_id, share) for share in request.shares]
        all_commits = [*commits, *(commit for share in shares for commit in share.commits)]
        sink_id = request.sink_id
        async with self._notes.turn(sink_id):
            answer = await self._perform(
                lambda view, now_ms: decide_commit_sink(
                    view,
                    request,
                    commits,
                    shares,
                    now_ms=now_ms,
                    wall_ms=self._clock.now_ms(),
                    steady_ms=self._steady_clock.now_ms(),
                    settings=self._settings,
                ),
                object_keys=[commit.request.object_key for commit in all_commits],
            )
            opened = self._replica.image.open_batches.get(sink_id)
            if opened is None:
                await self._note(sink_id)
                return answer
        failpoint("sink.after_decision")
        for listener in self._listeners:
            listener(opened)
        if not await self._is_completed(sink_id):
            raise CommitOutcomeUnknown(
                f"batch {request.batch_id} of sink {sink_id} is decided, and not committed"
                " everywhere yet"
            )
        async with self._notes.turn(sink_id):
            sink = self._replica.image.sinks.get(sink_id)
            if sink is None or sink.batch_id != request.batch_id:
                raise CommitOutcomeUnknown("another batch of the sink was committed meanwhile")
            return answer._replace(ranges=sink.ranges)

    def _checked(self, sink_id: str, share: SinkShare) -> CheckedShare:
        commits = check_files(sink_id, share.files, self._settings)
        keys = tuple(file.object_key for file in share.files)
        return CheckedShare(StoredShare(share.coordinator, keys, pack_files(share.files)), commits)

    async def _note(self, name: str) -> None:
        """Raises CommitOutcomeUnknown."""
        try:
            await self._notes.keep(name)
        except ObjectStoreUnavailable as error:
            raise CommitOutcomeUnknown(f"committed, and not noted yet: {error}") from error

    async def _is_completed(self, sink_id: str) -> bool:
        """Waits until no batch of the sink is open, for COMPLETED_WITHIN_S at most."""
        if sink_id not in self._replica.image.open_batches:
            return True
        completed = self._completed.setdefault(sink_id, asyncio.Event())
        try:
            async with asyncio.timeout(COMPLETED_WITHIN_S):
                await completed.wait()
        except TimeoutError:
            return False
        return True

    async def find(self, sink_id: str) -> Sink | None:
        if not await self._is_completed(sink_id):
            raise ConcurrentTransactions(f"the last batch of sink {sink_id} is open yet")
        async with self._notes.turn(sink_id):
            sink = self._replica.image.sinks.get(sink_id)
        now_ms = self._steady_clock.now_ms()
        return None if has_expired(sink, now_ms, self._settings) else sink

    async def expire(self, limit: int) -> int:
        before_ms = self._steady_clock.now_ms() - self._settings.sink_expiration_ms
        return await self._perform(
            lambda view, _: decide_expire_sinks(view, before_ms=before_ms, limit=limit)
        )

    # -- shares ---------------------------------------------------------------------------------

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` with each batch that is decided and open."""
        self._listeners.append(listener)

    def open_batches(self) -> Sequence[OpenBatch]:
        """All that were decided and are not completed."""
        return [*self._replica.image.open_batches.values()]

    async def complete(self, sink_id: str, decided_at_ms: int, ranges: Sequence[SinkRange]) -> None:
        """All shares are committed, at `ranges`. Raises as appends do."""
        failpoint("sink.before_completion")
        await self._perform(
            lambda view, _: decide_complete_sink(
                view, sink_id, decided_at_ms, ranges, steady_ms=self._steady_clock.now_ms()
            )
        )
        completed = self._completed.pop(sink_id, None)
        if completed is not None:
            completed.set()

    async def commit_share(self, share: CommitShare) -> SinkCommit:
        """At another coordinator than the home: commit what is decided; noted when this returns.

        Raises: InvalidRequest and Rejected, for what is no share; CommitOutcomeUnknown and what
        appends raise.
        """
        files = unpack_files(share.files)
        commits = check_files(share.sink_id, files, self._settings)
        name = share_name(share.home, share.sink_id)
        async with self._notes.turn(name):
            answer = await self._perform(
                lambda view, now_ms: decide_commit_share(
                    view,
                    share,
                    commits,
                    now_ms=now_ms,
                    steady_ms=self._steady_clock.now_ms(),
                    settings=self._settings,
                ),
                object_keys=[file.object_key for file in files],
            )
            await self._note(name)
        failpoint("sink.after_share")
        return answer
