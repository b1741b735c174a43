"""Decides about the batches of a file one after the other: the rule, and the way for a few.

metadata/rules/commit_columns.py does the same for many at once, where operations on columns cost
less than a loop. Both give the same `DecidedBatches`, and leave the view alone.

Source: KIP-1164, DisklessCommitFile; Kafka's ProducerAppendInfo (metadata/state/producer_state.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from metadata.operations import BatchCommit
from metadata.records.file_committed import CommittedBatch, RefusedBatch
from metadata.state.commit_answer import (
    REFUSAL_CODES,
    BatchAnswer,
    commits_of_few,
    pack_answers,
)
from metadata.state.image import PartitionState, ProducerKey
from metadata.state.producer_state import (
    ProducerBatch,
    ProducerState,
    check_sequence,
    plainly_follows,
    state_after,
    unpack_window,
)
from metadata.state.speculative import SpeculativeView
from wal.coordinates import BatchExtent, Offset, TopicIdPartition
from wal.errors import Rejected, UnknownPartition
from wal.records.record_batch import MAGIC_V2

UNKNOWN_PARTITION: Final = REFUSAL_CODES[UnknownPartition]


class DecidedBatches(NamedTuple):
    """What becomes of the batches of a file."""

    accepted: Sequence[CommittedBatch]
    refused: Sequence[RefusedBatch]
    commits: Sequence[BatchCommit]
    """The answer to each batch, in the order of the request."""
    packed: bytes
    """The same as it is stored."""
    partitions: Mapping[TopicIdPartition, PartitionState]
    """The partitions that grow, as they are then."""
    producers: Mapping[ProducerKey, ProducerState]
    """The producers of which anything was accepted, as they are then."""


@dataclass(slots=True)
class _Partition:
    """A partition of the file while its batches are decided."""

    before: PartitionState
    end: int


def producers_of_rows(
    view: SpeculativeView, batches: Sequence[BatchExtent]
) -> Sequence[ProducerKey]:
    """The producers whose states deciding these batches needs, each once."""
    keys: dict[ProducerKey, None] = {}
    for batch in batches:
        if batch.producer_id >= 0:
            state = view.partition(batch.partition)
            if state is not None:
                keys[state.id, batch.producer_id] = None
    return [*keys]


def decide_rows(
    view: SpeculativeView,
    batches: Sequence[BatchExtent],
    *,
    now_ms: int,
    steady_ms: int,
    expiration_ms: int,
) -> DecidedBatches:
    """Decide what becomes of the batches; the states of their producers must be known."""
    accepted: list[CommittedBatch] = []
    answers: list[BatchAnswer] = []
    partitions: dict[TopicIdPartition, _Partition | None] = {}
    producers: dict[ProducerKey, ProducerState] = {}
    name: TopicIdPartition | None = None
    partition: _Partition | None = None
    for position, batch in enumerate(batches):
        if batch.partition is not name:
            name = batch.partition
            if name not in partitions:
                known = view.partition(name)
                partitions[name] = (
                    None if known is None else _Partition(known, known.high_watermark)
                )
            partition = partitions[name]
        if partition is None:
            answers.append(BatchAnswer(refusal=UNKNOWN_PARTITION))
            continue
        base, last_sequence = partition.end, batch.last_sequence
        log_start = partition.before.log_start_offset
        if batch.producer_id >= 0:
            key = (partition.before.id, batch.producer_id)
            state = producers.get(key) or view.producer(key)
            epoch, base_sequence = batch.producer_epoch, batch.base_sequence
            if not plainly_follows(state, epoch, base_sequence):
                verdict = check_sequence(
                    None if state is None else unpack_window(state),
                    epoch=epoch,
                    base_sequence=base_sequence,
                    last_sequence=last_sequence,
                    now_ms=steady_ms,
                    expiration_ms=expiration_ms,
                )
                if verdict is not None:
                    answers.append(_refusal(verdict, log_start))
                    continue
            remembered = ProducerBatch(base_sequence, last_sequence, base, now_ms)
            producers[key] = state_after(state, epoch, remembered)
        partition.end = base + batch.record_count
        accepted.append(_committed(batch, position, base, last_sequence, now_ms))
        answers.append(BatchAnswer(base, now_ms, log_start))
    return DecidedBatches(
        accepted=tuple(accepted),
        refused=tuple(
            RefusedBatch(position, answer.refusal, *answer[:3])
            for position, answer in enumerate(answers)
            if answer.refusal or answer.is_duplicate
        ),
        commits=commits_of_few(answers, batches),
        packed=pack_answers(answers),
        partitions={
            name: with_high_watermark(found.before, found.end)
            for name, found in partitions.items()
            if found is not None and found.end > found.before.high_watermark
        },
        producers=producers,
    )


def _committed(
    batch: BatchExtent, position: int, base_offset: int, last_sequence: int, now_ms: int
) -> CommittedBatch:
    return CommittedBatch(
        batch.partition,
        position,
        MAGIC_V2,
        batch.byte_offset,
        batch.length_bytes,
        Offset(base_offset),
        Offset(base_offset + batch.record_count - 1),
        now_ms,
        batch.max_timestamp_ms,
        batch.timestamp_type,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        last_sequence,
    )


def _refusal(verdict: ProducerBatch | type[Rejected], log_start_offset: int) -> BatchAnswer:
    if isinstance(verdict, ProducerBatch):
        return BatchAnswer(
            verdict.base_offset, verdict.append_time_ms, log_start_offset, is_duplicate=1
        )
    return BatchAnswer(refusal=REFUSAL_CODES[verdict])


def with_high_watermark(state: PartitionState, high_watermark: int) -> PartitionState:
    """`state`, grown."""
    # A third of what _replace takes.
    return PartitionState._make((*state[:4], high_watermark, *state[5:]))
