"""Stores the answer to a commit, and turns it into `BatchCommit`s.

The first answer and the answer to a re-sent commit are the same numbers, decided or read back, and
their errors come from the same function, so they are equal by construction. Errors are stored as
the code that the metadata record has for them; their text is made from the request alone.

A few answers are rows (`BatchAnswer`), many are columns (`Answer`); the bytes are the same.

Stored is one column (metadata/records/columns.py) per field of `Answer`, in its order, the first
one leading.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from metadata.batch_commits import BatchCommits
from metadata.operations import BatchCommit
from metadata.records.columns import pack_column, pack_numbers, read_column
from wal import errors
from wal.batch_extents import BatchExtents
from wal.columns import Int64s
from wal.coordinates import BatchExtent
from wal.wire.fields import FieldReader

REFUSAL_CODES: Final[Mapping[type[errors.Rejected], int]] = {
    errors.UnknownPartition: 3,
    errors.OutOfOrderSequence: 45,
    errors.StaleProducerEpoch: 47,
    errors.InvalidTransactionState: 48,
    errors.SequenceGivenAgain: 59,
}
"""Error codes in FileCommitted records: those between brokers (metadata/messages/errors.py), of
refusals that a record may have. What is stored under a number keeps it."""

_REFUSALS: Final[Mapping[int, type[errors.Rejected]]] = {
    code: refusal for refusal, code in REFUSAL_CODES.items()
}
_TEXTS: Final[Mapping[type[errors.Rejected], str]] = {
    errors.UnknownPartition: "no such partition",
    errors.OutOfOrderSequence: "does not follow the producer's last batch",
    errors.StaleProducerEpoch: "a newer epoch of this producer has written",
    errors.InvalidTransactionState: "does not belong to the producer's open transaction",
    errors.SequenceGivenAgain: "has the sequence of a batch of an earlier transaction",
}


class BatchAnswer(NamedTuple):
    """The answer for one batch; `refusal` 0 = it has an offset."""

    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    refusal: int = 0
    is_duplicate: int = 0


class Answer(NamedTuple):
    """The answers for all batches of a request, in its order; `refusal` 0 = it has an offset."""

    base_offset: Int64s
    log_append_time_ms: Int64s
    log_start_offset: Int64s
    refusal: Int64s
    is_duplicate: Int64s

    @classmethod
    def empty(cls, count: int) -> "Answer":
        """To be filled in: -1 for offsets and times, 0 for the rest."""
        return cls(
            *(np.full(count, -1, np.int64) for _ in range(3)),
            *(np.zeros(count, np.int64) for _ in range(2)),
        )


def pack_answer(answer: Answer) -> bytes:
    """Packs the answer into its stored bytes."""
    first, *others = answer
    return b"".join((pack_column(first, is_leading=True), *map(pack_column, others)))


@lru_cache(maxsize=64)
def pack_answers(answers: tuple[BatchAnswer, ...]) -> bytes:
    """`pack_answer` for a few.

    Cached: a leader packs the answer when it decides about a file, and soon again when it applies
    the record, for a tenth of the time then.
    """
    first, *others = zip(*answers, strict=True) if answers else [()] * len(BatchAnswer._fields)
    return b"".join((pack_numbers(first, is_leading=True), *map(pack_numbers, others)))


def unpack_answer(data: bytes) -> Answer:
    """The inverse of `pack_answer`. Raises CorruptState."""
    reader = FieldReader(data, "a stored answer")
    try:
        first = read_column(reader, None)
        answer = Answer(first, *(read_column(reader, len(first)) for _ in range(4)))
        reader.finish()
    except errors.CorruptLog as error:
        raise errors.CorruptState(str(error)) from error
    return answer


def commits_of_few(
    answers: Sequence[BatchAnswer], batches: Sequence[BatchExtent]
) -> Sequence[BatchCommit]:
    """`commits_of` for a few."""
    return [
        BatchCommit(error=_error(answer.refusal, batch))
        if answer.refusal
        else BatchCommit(*answer[:3], bool(answer.is_duplicate))
        for answer, batch in zip(answers, batches, strict=True)
    ]


def commits_of(answer: Answer, batches: BatchExtents) -> BatchCommits:
    """The answer to the request whose batches are `batches`. Raises CorruptState."""
    count = len(answer.base_offset)
    if count != len(batches):
        raise errors.CorruptState(f"a stored answer for {count} batches to {len(batches)}")
    refused = np.flatnonzero(answer.refusal)
    errors_at = {
        place: _error(int(answer.refusal[place]), batches.at(place)) for place in refused.tolist()
    }
    base_offset, log_append_time_ms, log_start_offset = answer[:3]
    if errors_at:
        base_offset, log_append_time_ms, log_start_offset = (
            np.where(answer.refusal == 0, numbers, -1) for numbers in answer[:3]
        )
    return BatchCommits(
        base_offset=base_offset,
        log_append_time_ms=log_append_time_ms,
        log_start_offset=log_start_offset,
        is_duplicate=(answer.is_duplicate != 0) & (answer.refusal == 0),
        errors=errors_at,
    )


def _error(code: int, batch: BatchExtent) -> errors.Rejected:
    refusal = _REFUSALS.get(code)
    if refusal is None:
        raise errors.CorruptState(f"a stored answer with error code {code}")
    return refusal(
        f"{batch.partition}, producer {batch.producer_id} epoch {batch.producer_epoch}, sequence "
        f"{batch.base_sequence}: {_TEXTS[refusal]}"
    )
