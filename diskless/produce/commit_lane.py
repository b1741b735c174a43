"""Commits uploaded chunks and answers their producers.

The uploader calls `commit` with the chunks that wait for it, in seal order; this turns their
extents into one coordinator operation and hands every batch's outcome to its waiter. Each waiting
batch gets exactly one outcome, whatever happens to its chunk.

Failure cases: an error of the whole operation is raised to the uploader, which repeats the commit
(same object keys, so at most once). A chunk that is refused alone is returned to it, to be given up
through `abandon`. An error of one batch is that batch's outcome. A batch recovered from a chunk of
an earlier process has nobody waiting: its outcome is counted, not delivered.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import structlog

from metadata.batch_commits import BatchCommits
from metadata.clients.coordinator_client import Coordinator
from metadata.operations import BatchCommit, CommitFile
from wal.chunks.object_notes import (
    DUPLICATE,
    GIVEN_UP,
    REFUSED,
    BatchOutcome,
    BatchOutcomes,
    CommitJournal,
    CommitNote,
    note_commit,
)
from wal.chunks.sealed_chunk import SealedChunk
from wal.clock import Clock
from wal.columns import FEW_MAX
from wal.errors import CommitOutcomeUnknown, DisklessError
from wal.failpoint import failpoint

log = structlog.get_logger(__name__)


class Waits(Protocol):
    """Who appended batches and waits for their offsets; the `token` of pending batches."""

    def batches_done(
        self, results: Sequence[BatchCommit], places: Sequence[int] | None = None
    ) -> None:
        """The outcomes of the batches at these places, which ascend, or of all."""
        ...


class CommitLane:
    """The uploader's `Committer`."""

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        broker_id: int,
        clock: Clock,
        journal: CommitJournal | None = None,
    ) -> None:
        """`journal` gets a note of every answer, for the next WAL object to carry."""
        self._coordinator = coordinator
        self._broker_id = broker_id
        self._clock = clock
        self._journal = journal or CommitJournal()
        self._last_commit: float | None = None
        self.files_committed = 0
        self.batches_committed = 0
        self.batches_refused = 0
        self.batches_duplicate = 0

    async def commit(self, chunks: Sequence[SealedChunk]) -> Sequence[DisklessError | None]:
        """Commit uploaded chunks. Raises what `Coordinator.commit_files` raises."""
        answers = await self._coordinator.commit_files(
            [
                CommitFile(
                    object_key=chunk.object_key,
                    file_size_bytes=chunk.plan.object_bytes,
                    uploader_broker_id=self._broker_id,
                    batches=chunk.plan.extents,
                )
                for chunk in chunks
            ]
        )
        failpoint("commit.after_answer")
        for chunk, (results, refused) in zip(chunks, answers, strict=True):
            if refused is None:
                self.answer(chunk, results)
        return [answer.error for answer in answers]

    def answer(self, chunk: SealedChunk, results: Sequence[BatchCommit]) -> None:
        """A chunk was committed, with these results in its object's order."""
        plan = chunk.plan
        self.files_committed += 1
        self._last_commit = self._clock.monotonic()
        _deliver(chunk, plan.positions, results)
        note = note_commit(chunk.identity.ulid, plan.extents, self._counted(results))
        if note is None:
            log.warning("offsets of an object are not noted", object_key=chunk.object_key)
        else:
            self._journal.add(note)

    def _counted(self, results: Sequence[BatchCommit]) -> Sequence[BatchOutcome] | BatchOutcomes:
        """Count the results, and give them in the words of notes."""
        if type(results) is BatchCommits:
            duplicates = np.flatnonzero(results.is_duplicate).tolist()
            exceptions = dict.fromkeys(duplicates, DUPLICATE) | dict.fromkeys(
                results.errors, REFUSED
            )
            self._count(len(results), len(results.errors), len(duplicates))
            return BatchOutcomes(
                results.base_offset,
                results.log_append_time_ms,
                np.maximum(results.log_start_offset, 0),
                exceptions,
            )
        outcomes = []
        refused = duplicate = 0
        for base_offset, append_time_ms, log_start_offset, is_duplicate, error in results:
            if error is not None:
                refused += 1
                outcomes.append(BatchOutcome(exception=REFUSED))
            elif is_duplicate:
                duplicate += 1
                outcomes.append(BatchOutcome(exception=DUPLICATE))
            else:
                start = log_start_offset if log_start_offset > 0 else 0
                # Half the time of a call of the NamedTuple.
                outcome = base_offset, append_time_ms, start, None
                outcomes.append(tuple.__new__(BatchOutcome, outcome))
        self._count(len(outcomes), refused, duplicate)
        return outcomes

    def _count(self, batches: int, refused: int, duplicate: int) -> None:
        self.batches_refused += refused
        self.batches_duplicate += duplicate
        self.batches_committed += batches - refused - duplicate

    def last_commit_age_s(self) -> float:
        """Seconds since the last commit succeeded; -1 before the first."""
        if self._last_commit is None:
            return -1.0
        return self._clock.monotonic() - self._last_commit

    async def abandon(self, chunk: SealedChunk, error: DisklessError) -> None:
        """This process will not commit the chunk: everyone who waits on it gets `error`.

        With CommitOutcomeUnknown the next start commits it; the uploader says how many those are.
        """
        if not isinstance(error, CommitOutcomeUnknown):
            log.error(
                "chunk dropped, its batches were not acknowledged",
                object_key=chunk.object_key,
                batches=chunk.batch_count,
                error=str(error),
            )
            self._journal.add(CommitNote(chunk.identity.ulid, outcome=GIVEN_UP))
        positions = sorted(chunk.plan.positions)
        _deliver(chunk, positions, [BatchCommit(error=error)] * len(positions))

    async def abandon_batches(
        self, chunk: SealedChunk, positions: Sequence[int], error: DisklessError
    ) -> None:
        """These batches of the chunk are damaged and left out of its object."""
        log.error("damaged batches left out", object_key=chunk.object_key, error=str(error))
        positions = sorted(positions)
        _deliver(chunk, positions, [BatchCommit(error=error)] * len(positions))


def _deliver(chunk: SealedChunk, positions: Sequence[int], results: Sequence[BatchCommit]) -> None:
    """Tell whoever waits for the batches at these arrival positions, in any order."""
    if type(results) is BatchCommits:
        order = np.argsort(positions)
        positions, results = np.asarray(positions)[order].tolist(), results.take(order)
    elif len(positions) > 1:
        pairs = sorted(zip(positions, results, strict=True), key=_position)
        positions, results = [at for at, _ in pairs], [result for _, result in pairs]
    listed: Sequence[BatchCommit] | None = None
    for token, which, places in chunk.waiting_for(positions):
        waits: Waits = token
        if type(results) is BatchCommits and len(which) > FEW_MAX:
            waits.batches_done(results.between(which.start, which.stop), places)
            continue
        if listed is None:
            listed = [*results]
        waits.batches_done(listed[which.start : which.stop], places)


def _position(pair: tuple[int, BatchCommit]) -> int:
    return pair[0]
