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

import structlog

from metadata.clients.coordinator_client import Coordinator
from metadata.operations import BatchCommit, CommitFile
from wal.chunks.object_notes import (
    DUPLICATE,
    GIVEN_UP,
    REFUSED,
    BatchOutcome,
    CommitJournal,
    CommitNote,
    note_commit,
)
from wal.chunks.sealed_chunk import SealedChunk
from wal.clock import Clock
from wal.errors import CommitOutcomeUnknown, DisklessError
from wal.failpoint import failpoint

log = structlog.get_logger(__name__)


class BatchWaiter(Protocol):
    """The one that appended a batch and waits for its offset; the `token` of a pending batch."""

    def batch_done(self, result: BatchCommit) -> None: ...


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
                self._answer(chunk, results)
        return [answer.error for answer in answers]

    def _answer(self, chunk: SealedChunk, results: Sequence[BatchCommit]) -> None:
        plan = chunk.plan
        self.files_committed += 1
        self._last_commit = self._clock.monotonic()
        _deliver(chunk.tokens_in(plan), results)
        note = note_commit(chunk.identity.ulid, plan.extents, self._counted(results))
        if note is None:
            log.warning("offsets of an object are not noted", object_key=chunk.object_key)
        else:
            self._journal.add(note)

    def _counted(self, results: Sequence[BatchCommit]) -> Sequence[BatchOutcome]:
        """Count the results, and give them in the words of notes."""
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
        self.batches_refused += refused
        self.batches_duplicate += duplicate
        self.batches_committed += len(outcomes) - refused - duplicate
        return outcomes

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
                batches=len(chunk.tokens),
                error=str(error),
            )
            self._journal.add(CommitNote(chunk.identity.ulid, outcome=GIVEN_UP))
        failed = BatchCommit(error=error)
        _deliver(chunk.tokens, [failed] * len(chunk.tokens))

    async def abandon_batches(
        self, chunk: SealedChunk, positions: Sequence[int], error: DisklessError
    ) -> None:
        """These batches of the chunk are damaged and left out of its object."""
        log.error("damaged batches left out", object_key=chunk.object_key, error=str(error))
        failed = BatchCommit(error=error)
        _deliver([chunk.tokens[position] for position in positions], [failed] * len(positions))


def _deliver(tokens: Sequence[BatchWaiter | None], results: Sequence[BatchCommit]) -> None:
    for token, result in zip(tokens, results, strict=True):
        if token is not None:
            token.batch_done(result)
