"""The answer to a commit: how it is stored, and how it becomes a list of `BatchCommit`s.

The first answer and the answer to a re-sent commit go through the same function, from the same
stored entries, so they are equal by construction. Errors are stored as the code that the metadata
record has for them; their text is made from the request alone.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from metadata.operations import BatchCommit
from wal.coordinates import BatchExtent
from wal.errors import (
    CorruptState,
    OutOfOrderSequence,
    Rejected,
    StaleProducerEpoch,
    UnknownPartition,
)

REFUSAL_CODES: Final[Mapping[type[Rejected], int]] = {
    UnknownPartition: 3,
    OutOfOrderSequence: 45,
    StaleProducerEpoch: 47,
}
"""Error codes in FileCommitted records; the numbers are Kafka's, the format is ours to keep."""

_REFUSALS: Final[Mapping[int, type[Rejected]]] = {
    code: refusal for refusal, code in REFUSAL_CODES.items()
}
_TEXTS: Final[Mapping[type[Rejected], str]] = {
    UnknownPartition: "no such partition",
    OutOfOrderSequence: "does not follow the producer's last batch",
    StaleProducerEpoch: "a newer epoch of this producer has written",
}

_ENTRY: Final = struct.Struct("<qqqhB")
assert _ENTRY.size == 27


class AnswerEntry(NamedTuple):
    """What is stored of the answer for one batch; `refusal` 0 = it has an offset."""

    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    refusal: int = 0
    is_duplicate: bool = False


def pack_answer(entries: Sequence[AnswerEntry]) -> bytes:
    """27 bytes per batch, in request order, little-endian."""
    pack = _ENTRY.pack
    return b"".join([pack(*entry) for entry in entries])


def unpack_answer(data: bytes, batches: Sequence[BatchExtent]) -> Sequence[BatchCommit]:
    """The answer to the request whose batches are `batches`. Raises CorruptState."""
    if len(data) != len(batches) * _ENTRY.size:
        raise CorruptState(f"a stored answer of {len(data)} bytes for {len(batches)} batches")
    return [
        BatchCommit(base_offset, append_time_ms, log_start, bool(is_duplicate))
        if refusal == 0
        else BatchCommit(error=_error(refusal, batch))
        for (base_offset, append_time_ms, log_start, refusal, is_duplicate), batch in zip(
            _ENTRY.iter_unpack(data), batches, strict=True
        )
    ]


def _error(code: int, batch: BatchExtent) -> Rejected:
    refusal = _REFUSALS.get(code)
    if refusal is None:
        raise CorruptState(f"a stored answer with error code {code}")
    return refusal(
        f"{batch.partition}, producer {batch.producer_id} epoch {batch.producer_epoch}, sequence "
        f"{batch.base_sequence}: {_TEXTS[refusal]}"
    )
