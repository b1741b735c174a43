"""What a coordinator does for sinks: commits their batches, knows and forgets the last of each.

metadata/rules/sinks decides; each commit is noted in the bucket before its answer
(metadata/coordinator/sink_notes.py).
"""

from metadata.coordinator.pipeline import Pipeline
from metadata.coordinator.sink_notes import SinkNotes
from metadata.metadata_settings import CoordinatorSettings
from metadata.replica.replica import Replica
from metadata.rules.sinks.commit_sink import (
    check_sink_commit,
    decide_commit_sink,
    decide_expire_sinks,
    has_expired,
)
from metadata.sink_operations import CommitSink, Sink, SinkCommit
from wal.clock import Clock
from wal.errors import CommitOutcomeUnknown, ObjectStoreUnavailable
from wal.steady_clock import SteadyClock


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
        self._clock = clock
        self._steady_clock = steady_clock
        self._settings = settings

    async def commit(self, request: CommitSink) -> SinkCommit:
        commits = check_sink_commit(request, self._settings)
        async with self._notes.turn(request.sink_id):
            answer = await self._perform(
                lambda view, now_ms: decide_commit_sink(
                    view,
                    request,
                    commits,
                    now_ms=now_ms,
                    wall_ms=self._clock.now_ms(),
                    steady_ms=self._steady_clock.now_ms(),
                    settings=self._settings,
                ),
                object_keys=[file.object_key for file in request.files],
            )
            try:
                await self._notes.keep(request.sink_id)
            except ObjectStoreUnavailable as error:
                raise CommitOutcomeUnknown(f"committed, and not noted yet: {error}") from error
        return answer

    async def find(self, sink_id: str) -> Sink | None:
        async with self._notes.turn(sink_id):
            sink = self._replica.image.sinks.get(sink_id)
        now_ms = self._steady_clock.now_ms()
        return None if has_expired(sink, now_ms, self._settings) else sink

    async def expire(self, limit: int) -> int:
        before_ms = self._steady_clock.now_ms() - self._settings.sink_expiration_ms
        return await self._perform(
            lambda view, _: decide_expire_sinks(view, before_ms=before_ms, limit=limit)
        )
