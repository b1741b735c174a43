"""Decides a commit: which batches of a WAL object are appended, at which offsets.

Functions over the speculative view; nothing here waits or does I/O. A commit is idempotent by
object key: a key that was committed before, or is pending, gets the first answer again, whatever
became of its batches since. A batch that is refused (no such partition, stale epoch, sequence out
of order) or that is a duplicate is refused alone.

The batches of a file are decided together: a few in a loop (metadata/rules/commit_rows.py), many
column by column (metadata/rules/commit_columns.py).

Source: KIP-1164, DisklessCommitFile.
"""

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from metadata.metadata_settings import CoordinatorSettings
from metadata.operations import BatchCommit, CommittedFile
from metadata.records.records import FileCommittedRecord, MetadataRecord
from metadata.rules.commit_columns import (
    closed_of_columns,
    decide_columns,
    producers_of_columns,
)
from metadata.rules.commit_request import CheckedCommit
from metadata.rules.commit_request import check_commit as check_commit
from metadata.rules.commit_rows import (
    DecidedBatches,
    closed_of_rows,
    decide_rows,
    producers_of_rows,
)
from metadata.state.commit_answer import commits_of, unpack_answer
from metadata.state.image import ProducerKey
from metadata.state.speculative import FileStanding, KnownFile, SpeculativeView
from metadata.transaction_operations import ClosedKey
from wal.batch_extents import BatchExtents
from wal.coordinates import BatchExtent, ObjectKey
from wal.errors import DisklessError, ObjectExpired, Rejected

_Answer = TypeVar("_Answer")


class Decision(NamedTuple, Generic[_Answer]):
    """Records to append (possibly none) and what to answer once they are durable."""

    records: Sequence[MetadataRecord]
    answer: _Answer


def owns_first(owner_ids: Sequence[int], coordinator_id: int) -> bool:
    """Whether a file with this owner list belongs to this coordinator from its commit on."""
    return not owner_ids or owner_ids[0] == coordinator_id


def producers_of(commit: CheckedCommit, view: SpeculativeView) -> Sequence[ProducerKey]:
    """The producers whose state deciding `commit` needs, each once."""
    batches = commit.batches
    if isinstance(batches, BatchExtents):
        return producers_of_columns(view, batches)
    return producers_of_rows(view, batches)


def closed_of(commit: CheckedCommit, view: SpeculativeView) -> Sequence[ClosedKey]:
    """Under which keys deciding `commit` needs what was closed, each once."""
    batches = commit.batches
    if isinstance(batches, BatchExtents):
        return closed_of_columns(view, batches)
    return closed_of_rows(view, batches)


def decide_commits(
    view: SpeculativeView,
    commits: Sequence[CheckedCommit | DisklessError],
    *,
    now_ms: int,
    wall_ms: int,
    steady_ms: int,
    settings: CoordinatorSettings,
) -> Decision[Sequence[CommittedFile]]:
    """Decide files one after the other, on top of each other; one that is refused is left out.

    An error among `commits` is a file that was refused before.
    """
    records: list[MetadataRecord] = []
    answers: list[CommittedFile] = []
    for commit in commits:
        if isinstance(commit, DisklessError):
            answers.append(CommittedFile(error=commit))
            continue
        try:
            decision = decide_commit(
                view,
                commit,
                now_ms=now_ms,
                wall_ms=wall_ms,
                steady_ms=steady_ms,
                settings=settings,
            )
        except (Rejected, ObjectExpired) as error:
            answers.append(CommittedFile(error=error))
        else:
            records += decision.records
            answers.append(CommittedFile(decision.answer))
    return Decision(records, answers)


def decide_commit(
    view: SpeculativeView,
    commit: CheckedCommit,
    *,
    now_ms: int,
    wall_ms: int,
    steady_ms: int,
    settings: CoordinatorSettings,
) -> Decision[Sequence[BatchCommit]]:
    """Assign offsets; the view has the effect afterwards.

    `now_ms` becomes the append time and never goes back; `wall_ms` does, and keys are judged by it:
    after a clock was set back, new keys look old to a time that only goes forward. Whether a
    producer was silent for long enough to be forgotten is judged by `steady_ms`
    (`wal.steady_clock`).

    Raises (and leaves the view alone): Rejected (other content was committed under this key),
    ObjectExpired (too old, forgotten or tombstoned).
    """
    request = commit.request
    key: ObjectKey = request.object_key
    known = view.file(key)
    if known is not None and known.standing is FileStanding.COMMITTED:
        if known.request_digest != commit.digest:
            raise Rejected(f"{key} was committed with other content")
        return Decision(
            (), commits_of(unpack_answer(known.answer), BatchExtents.of(request.batches))
        )
    if known is not None and known.standing is not FileStanding.HANDED_OVER:
        raise ObjectExpired(f"{key} was given up: whoever looked for orphans deletes it")
    if (
        wall_ms - commit.minted_ms > settings.max_commit_age_ms
        or commit.minted_ms <= view.forgotten_until_ms
    ):
        # Nobody remembers any more whether it was committed before, and whoever looks for orphans
        # may delete it, trusting that it stays unknown.
        raise ObjectExpired(f"{key} is older than {settings.max_commit_age_ms} ms or was forgotten")

    is_owner = known is not None or owns_first(request.owner_ids, view.coordinator_id)
    record, commits = accept(
        view, commit, is_owner=is_owner, now_ms=now_ms, steady_ms=steady_ms, settings=settings
    )
    return Decision((record,), commits)


def accept(
    view: SpeculativeView,
    commit: CheckedCommit,
    *,
    is_owner: bool,
    now_ms: int,
    steady_ms: int,
    settings: CoordinatorSettings,
) -> tuple[FileCommittedRecord, Sequence[BatchCommit]]:
    """Append the batches of a file that may be committed; the view has the effect afterwards."""
    request = commit.request
    decided = _decide(
        view,
        commit.batches,
        now_ms=now_ms,
        steady_ms=steady_ms,
        expiration_ms=settings.producer_expiration_ms,
    )
    view.put_partitions(decided.partitions)
    view.put_producers(decided.producers)
    for opened in decided.opened:
        view.transactions.put_open(opened, view.group)
    view.put_file(request.object_key, KnownFile(commit.digest, decided.packed, is_owner=is_owner))
    record = FileCommittedRecord(
        object_key=request.object_key,
        object_format=request.object_format,
        file_size=request.file_size_bytes,
        uploader_broker_id=request.uploader_broker_id,
        owner_ids=tuple(request.owner_ids),
        committed_at_ms=now_ms,
        batches=decided.accepted,
        refused=decided.refused,
        request_digest=commit.digest,
    )
    return record, decided.commits


def _decide(
    view: SpeculativeView,
    batches: BatchExtents | Sequence[BatchExtent],
    *,
    now_ms: int,
    steady_ms: int,
    expiration_ms: int,
) -> DecidedBatches:
    if isinstance(batches, BatchExtents):
        return decide_columns(
            view, batches, now_ms=now_ms, steady_ms=steady_ms, expiration_ms=expiration_ms
        )
    return decide_rows(
        view, batches, now_ms=now_ms, steady_ms=steady_ms, expiration_ms=expiration_ms
    )
