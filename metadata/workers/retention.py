"""Retention: moves log start offsets up as topics' retention.ms and retention.bytes say.

What goes is decided by metadata/rules/retention.py. This worker reads rows and asks for deletions,
so that a pass over a million rows holds up nobody:

- Rows are looked at in a reader thread, outside any write transaction, a bounded number at a time.
- What a step found becomes one delete operation, which goes through the coordinator's pipeline like
  any client's: it moves log start offsets, never backwards, and what it deletes is bounded, so that
  applying it takes some milliseconds. Between two steps everybody else has their turn.
- Partitions take turns: each round gives every partition one bounded step, and a pass goes on with
  rounds until one finds nothing. A pass that was cut off begins where it was.
- A partition with nothing to do costs a comparison: its size is in memory, and the timestamp of its
  oldest row is remembered as long as the log start stays where it is and nothing is rewritten. A
  row that is rolled meanwhile may keep the time of its aborted records, which its segment has not.

Between looking and deleting, anything may happen; nothing of it makes the outcome wrong. The rows
found are a prefix of the log, and rows never change. Appends come behind them. Another deletion
only moves the log start up, and then this one moves it less, or not at all. A partition that is
deleted meanwhile answers that it is unknown. Rows replaced by a segment were old enough and still
are; by size, the segment may be smaller than its rows were, so that for once somewhat less than
retention.bytes can stay.

Age is counted by a clock that a jump of the wall clock does not move (wal/steady_clock.py): one bad
reading must not delete a topic.

A damaged row stops retention on its partition and nowhere else: nothing is deleted on the word of a
timestamp that fails its checksum.

One worker per coordinator, running where it is led. Ends by cancellation; what fails is tried again
after the next pause.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from heapq import merge
from itertools import chain, takewhile
from typing import Any, Final, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, select

from metadata.operations import DeleteRecords
from metadata.retention_settings import RetentionSettings
from metadata.rewrites import NO_REWRITE
from metadata.rules.retention import (
    ExpiredPrefix,
    RetainedRow,
    RetentionPolicy,
    expired_prefix,
    may_be_due,
    retention_policy,
)
from metadata.state.image import PartitionState, RewriteState
from metadata.state.queries.batch_queries import batch_rows
from metadata.state.queries.transaction_rows import markers_from
from metadata.state.schema import FILES, PARTITIONS, SEGMENTS, compiled
from metadata.state.state import checked_row
from metadata.workers.deletion_steps import DeletingCoordinator
from metadata.workers.periodic import repeat
from wal.clock import Clock, Sleep
from wal.coordinates import TopicIdPartition
from wal.errors import CorruptState
from wal.failpoint import failpoint
from wal.steady_clock import SteadyClock

PARTITION_ROWS: Final = 15
"""What a partition counts as in a step, in rows: moving its log start takes about as long."""

PARTITIONS_PER_LOOK_MAX: Final = 500
"""Partitions looked at in one read transaction; an old one keeps SQLite from checkpointing."""

PARTITIONS_PER_TURN_MAX: Final = 5_000
"""Partitions thought about in memory before others get the event loop."""

BACKOFF_MAX_S: Final = 300.0

_PAGE_ROWS: Final = 64

_PARTITION: Final = compiled(select(PARTITIONS.table).where(PARTITIONS.table.c.id == 0))
_FILE: Final = compiled(select(FILES.table).where(FILES.table.c.id == 0))
_SEGMENTS_FROM: Final = compiled(
    select(SEGMENTS.table)
    .where(SEGMENTS.table.c.partition == 0, SEGMENTS.table.c.last_offset >= 0)
    .order_by(SEGMENTS.table.c.last_offset)
    .limit(_PAGE_ROWS)
)

_logger = logging.getLogger(__name__)


class Candidate(NamedTuple):
    """A partition that may have something to delete."""

    partition: TopicIdPartition
    partition_id: int
    policy: RetentionPolicy
    generation: int
    """Of the last rewrite, which has ended; -1: one is under way."""


class Finding(NamedTuple):
    """What a look at one partition showed."""

    partition: TopicIdPartition
    log_start_offset: int
    oldest_ms: int | None
    """Timestamp of its oldest row; None when it has none."""
    expired: ExpiredPrefix | None


class RetentionWorker:
    """One background worker per coordinator."""

    def __init__(
        self,
        coordinator: DeletingCoordinator,
        *,
        settings: RetentionSettings,
        clock: Clock,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._coordinator = coordinator
        self._replica = coordinator.replica
        self._settings = settings
        self._clock = SteadyClock(clock)
        self._sleep = sleep
        self._round: list[TopicIdPartition] = []
        """Partitions that this round has not come to, the next one last."""
        self._oldest: dict[TopicIdPartition, tuple[int, int, int]] = {}
        """(log start offset, generation, timestamp of the oldest row at that time)."""
        self.rows_deleted = 0
        """Rows below log starts that this worker moved, since its start, for the metrics."""

    async def run(self) -> None:
        """Pass over all partitions again and again, until cancelled."""
        await repeat(
            self.pass_once,
            interval_s=self._settings.check_interval_ms / 1000,
            backoff_max_s=BACKOFF_MAX_S,
            sleep=self._sleep,
            failed=partial(_logger.warning, "retention failed, trying again later: %s"),
        )

    async def pass_once(self) -> int:
        """Delete all that is due; returns how many rows that was.

        Raises: CommitFailed, NotCoordinator, CommitOutcomeUnknown, StorageFailed; the next call
        goes on where this one was.
        """
        total = 0
        while True:
            found = await self.step()
            while self._round:
                found += await self.step()
            total += found
            if not found:
                return total

    def _begin_round(self) -> None:
        partitions = self._replica.image.partitions
        self._round = list(reversed(partitions))
        for gone in [partition for partition in self._oldest if partition not in partitions]:
            del self._oldest[gone]

    async def step(self) -> int:
        """Look at the next partitions, delete what is due there; returns how many rows.

        Bounded in the rows it deletes, in the partitions it deletes them from, and in the
        partitions that it looks at.
        """
        if not self._round:
            self._begin_round()
        candidates = self._next_candidates()
        if not candidates:
            await self._sleep(0)
            return 0
        try:
            findings = await self._replica.state.read(
                partial(
                    survey,
                    candidates=candidates,
                    now_ms=self._clock.now_ms(),
                    rows_max=self._settings.step_rows_max,
                )
            )
            self._remember(candidates, findings)
            rows = await self._delete(findings)
        except BaseException:
            self._put_back(candidates)
            raise
        # What the look did not come to, because it had found enough, is the next one's.
        self._put_back(candidates[len(findings) :])
        self.rows_deleted += rows
        failpoint("retention.after_step")
        return rows

    def _put_back(self, candidates: Sequence[Candidate]) -> None:
        self._round += [candidate.partition for candidate in reversed(candidates)]

    def _remember(self, candidates: Sequence[Candidate], findings: Sequence[Finding]) -> None:
        """Under the generation from before the look: what was rewritten since is looked at again.

        A segment without rows is as old as its commit. Merged, it is part of one that may be older.
        """
        for candidate, finding in zip(candidates, findings, strict=False):
            start, oldest_ms = finding.log_start_offset, finding.oldest_ms
            if oldest_ms is not None and candidate.generation >= 0:
                self._oldest[finding.partition] = (start, candidate.generation, oldest_ms)

    async def _delete(self, findings: Sequence[Finding]) -> int:
        due = [
            (finding.partition, finding.expired)
            for finding in findings
            if finding.expired is not None
        ]
        if not due:
            return 0
        answers = await self._coordinator.delete_records_at_once(
            [DeleteRecords(partition, expired.new_log_start) for partition, expired in due]
        )
        # An error is a partition that was deleted meanwhile. It must not count as progress.
        return sum(
            expired.rows
            for (_, expired), answer in zip(due, answers, strict=True)
            if answer.error is None
        )

    def _next_candidates(self) -> Sequence[Candidate]:
        image = self._replica.image
        now_ms = self._clock.now_ms()
        policies: dict[UUID, RetentionPolicy] = {}
        found: list[Candidate] = []
        for _ in range(min(len(self._round), PARTITIONS_PER_TURN_MAX)):
            if len(found) >= PARTITIONS_PER_LOOK_MAX:
                break
            partition = self._round.pop()
            state = image.partitions.get(partition)
            configs = self._replica.topic_configs(partition.topic_id)
            # What the catalogue has not heard of has no policy yet.
            if state is None or configs is None or state.log_start_offset >= state.high_watermark:
                continue
            policy = policies.get(partition.topic_id)
            if policy is None:
                policy = retention_policy(configs, self._settings)
                policies[partition.topic_id] = policy
            rewrite = image.rewrites.get(partition) or RewriteState()
            generation = rewrite.generation if rewrite.kind == NO_REWRITE else -1
            *known_of, oldest_ms = self._oldest.get(partition, (-1, -1, 0))
            if may_be_due(
                policy,
                live_bytes=state.live_bytes,
                oldest_ms=oldest_ms if known_of == [state.log_start_offset, generation] else None,
                now_ms=now_ms,
            ):
                found.append(Candidate(partition, state.id, policy, generation))
        return found


def survey(
    connection: Connection, candidates: Sequence[Candidate], *, now_ms: int, rows_max: int
) -> Sequence[Finding]:
    """Look at `candidates` in order, until `rows_max` rows are found that may be deleted.

    Answers as many of them as it came to, at least one. Everything about a partition is of one
    committed state: its size as of another one would make too much look superfluous.
    """
    findings: list[Finding] = []
    left = rows_max
    for candidate in candidates:
        finding = _look_at(connection, candidate, now_ms, max(left, 1))
        findings.append(finding)
        if finding.expired is not None:
            left -= finding.expired.rows + PARTITION_ROWS
            if left <= 0:
                break
    return findings


def _look_at(connection: Connection, candidate: Candidate, now_ms: int, rows_max: int) -> Finding:
    partition, partition_id, policy, _ = candidate
    try:
        row = connection.exec_driver_sql(_PARTITION, (partition_id,)).one_or_none()
        if row is None:
            return Finding(partition, -1, None, None)
        state = PartitionState._make(checked_row(PARTITIONS, row)[:-1])
        # What is not stable yet stays, however old or large it is; a transaction has its time-out.
        rows = takewhile(
            lambda row: row.last_offset < state.last_stable_offset,
            rows_from(connection, state, state.log_start_offset),
        )
        oldest = next(rows, None)
        if oldest is None:
            return Finding(partition, state.log_start_offset, None, None)
        expired = expired_prefix(
            chain([oldest], rows),
            policy,
            live_bytes=state.live_bytes,
            now_ms=now_ms,
            rows_max=rows_max,
        )
        return Finding(partition, state.log_start_offset, oldest.timestamp_ms, expired)
    except CorruptState as error:
        _logger.error("retention leaves %s alone: %s", partition, error)
        return Finding(partition, -1, None, None)


def rows_from(connection: Connection, state: PartitionState, offset: int) -> Iterator[RetainedRow]:
    """Rows, markers and segments in offset order, from the one that holds `offset`, lazily.

    Raises CorruptState.
    """
    yield from merge(
        _batches_from(connection, state.id, offset),
        _markers_from(connection, state, offset),
        _segments_from(connection, state.id, offset),
    )


def _markers_from(
    connection: Connection, state: PartitionState, offset: int
) -> Iterator[RetainedRow]:
    # Those of what is planned may be in segments, and stay for a while whatever is deleted.
    for marker in markers_from(connection, state, max(offset, state.planned_end_offset)):
        yield RetainedRow(marker.offset, 0, marker.timestamp_ms)


def _batches_from(connection: Connection, partition_id: int, offset: int) -> Iterator[RetainedRow]:
    for row in batch_rows(connection, partition_id, offset):
        timestamp_ms = row.timestamp_ms if row.timestamp_ms >= 0 else row.append_time_ms
        yield RetainedRow(row.last_offset, row.byte_size, timestamp_ms)


def _segments_from(connection: Connection, partition_id: int, offset: int) -> Iterator[RetainedRow]:
    while True:
        page = connection.exec_driver_sql(
            _SEGMENTS_FROM, (partition_id, offset, _PAGE_ROWS, 0)
        ).all()
        for row in page:
            _, last_offset, _, file_id, _, _, timestamp_ms, _ = checked_row(SEGMENTS, row)
            file = _file(connection, file_id)
            offset = last_offset + 1
            yield RetainedRow(
                last_offset,
                file["object_bytes"],
                timestamp_ms if timestamp_ms >= 0 else file["committed_at_ms"],
            )
        if len(page) < _PAGE_ROWS:
            return


def _file(connection: Connection, file_id: int) -> Mapping[str, Any]:
    row = connection.exec_driver_sql(_FILE, (file_id,)).one_or_none()
    if row is None:
        raise CorruptState(f"rows reference the unknown file {file_id}")
    return dict(zip(FILES.columns, checked_row(FILES, row), strict=True))
