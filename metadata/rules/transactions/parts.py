"""Decides the end of transactions in partitions and groups, and the offsets that wait for it.

Ending a part twice is ending it once: what was ended has a number that is closed. A partition that
is gone has ended. Where a transaction of the producer is open that has another number, something is
wrong that must not be made worse, and the end is refused.
"""

from collections.abc import Sequence

from metadata.metadata_settings import CoordinatorSettings
from metadata.records.groups import CommittedOffset
from metadata.records.transactions import (
    EndedPartition,
    TransactionalOffsetsRecord,
    TransactionEndedRecord,
)
from metadata.rules.commit import Decision
from metadata.rules.commit_rows import check_number
from metadata.state.image import PartitionState
from metadata.state.speculative import SpeculativeView
from metadata.transaction_operations import (
    GROUP_PARTITION,
    NO_OFFSET,
    ClosedKey,
    ClosedTransaction,
    EndParts,
)
from wal.chunks.chunk import NUMBER_AGE_MAX_MS
from wal.coordinates import NO_TRANSACTION, TopicIdPartition
from wal.errors import InvalidTransactionState


def closed_of_parts(view: SpeculativeView, parts: EndParts) -> Sequence[ClosedKey]:
    """Under which keys `decide_end_parts` needs what was closed."""
    states = view.partitions(parts.partitions)
    return [
        *(ClosedKey(state.id, parts.producer_id) for state in states if state is not None),
        *(_of_group(group_id, parts.producer_id) for group_id in parts.groups),
    ]


def _of_group(group_id: str, producer_id: int) -> ClosedKey:
    return ClosedKey(GROUP_PARTITION, producer_id, group_id)


def decide_end_parts(view: SpeculativeView, parts: EndParts, *, now_ms: int) -> Decision[None]:
    """End what has not ended yet; what was closed under `closed_of_parts` must be known.

    Raises: InvalidTransactionState.
    """
    closed = view.transactions.closed
    partitions: list[TopicIdPartition] = []
    for name in dict.fromkeys(parts.partitions):
        state = view.partition(name)
        if state is None or _is_closed(closed(ClosedKey(state.id, parts.producer_id)), parts):
            continue
        opened = view.transactions.open_transaction((state.id, parts.producer_id))
        if opened is not None and opened.number != parts.number:
            raise InvalidTransactionState(
                f"transaction {parts.number} of producer {parts.producer_id} cannot end in {name} "
                f"while {opened.number} is open there"
            )
        partitions.append(name)
    groups = [
        group_id
        for group_id in dict.fromkeys(parts.groups)
        if not _is_closed(closed(_of_group(group_id, parts.producer_id)), parts)
    ]
    still_open = parts._replace(partitions=partitions, groups=groups)
    return Decision(end_parts_now(view, still_open, now_ms=now_ms), None)


def _is_closed(closed: ClosedTransaction | None, parts: EndParts) -> bool:
    return closed is not None and closed.number >= parts.number


def end_parts_now(
    view: SpeculativeView, parts: EndParts, *, now_ms: int
) -> Sequence[TransactionEndedRecord]:
    """The records by which parts end that have not ended, and are there; none for no parts."""
    ended: list[EndedPartition] = []
    closed = ClosedTransaction(parts.number, parts.producer_epoch)
    for name in parts.partitions:
        state = view.partition(name)
        if state is not None:
            ended.append(_end_partition(view, name, state, parts.producer_id))
            key = ClosedKey(state.id, parts.producer_id)
            view.transactions.put_closed(key, closed, view.group)
    for group_id in parts.groups:
        view.transactions.put_closed(_of_group(group_id, parts.producer_id), closed, view.group)
    named: list[str | None] = [*parts.groups]
    if ended and not named:
        named.append(None)
    return [
        TransactionEndedRecord(
            producer_id=parts.producer_id,
            producer_epoch=parts.producer_epoch,
            number=parts.number,
            is_commit=parts.is_commit,
            coordinator_epoch=parts.coordinator_epoch,
            ended_ms=now_ms,
            partitions=ended if place == 0 else (),
            group_id=group_id,
        )
        for place, group_id in enumerate(named)
    ]


def _end_partition(
    view: SpeculativeView, name: TopicIdPartition, state: PartitionState, producer_id: int
) -> EndedPartition:
    """Put a marker behind what is there."""
    key = (state.id, producer_id)
    opened = view.transactions.open_transaction(key)
    if opened is not None:
        view.transactions.close(key, view.group)
    after = state._replace(
        high_watermark=state.high_watermark + 1,
        first_open_offset=view.transactions.first_open_offset(state.id),
        last_marker_offset=state.high_watermark,
    )
    view.put_partition(name, after)
    return EndedPartition(
        name,
        state.high_watermark,
        NO_OFFSET if opened is None else opened.first_offset,
        after.last_stable_offset,
    )


def closed_retention_ms(settings: CoordinatorSettings) -> int:
    """How long a closed number is kept, so that no batch of its transaction opens it again.

    Whoever has the number asked for it while the transaction was open. A broker keeps it for no
    longer than that may be, the chunk of the batch is opened NUMBER_AGE_MAX_MS later at most, and
    committed before its object is too old; twice that, since clocks differ. As long as producers
    are known, at least. So where no number is known as closed, none was that a batch can have.
    """
    late_ms = settings.transaction_max_timeout_ms + NUMBER_AGE_MAX_MS + settings.max_commit_age_ms
    return max(settings.producer_expiration_ms, 2 * late_ms)


# -- offsets --------------------------------------------------------------------------------------


def closed_of_group(group_id: str, producer_id: int) -> Sequence[ClosedKey]:
    """Under which key `decide_keep_offsets` needs what was closed."""
    return (_of_group(group_id, producer_id),)


def decide_keep_offsets(
    view: SpeculativeView,
    _now_ms: int,
    *,
    group_id: str,
    producer_id: int,
    producer_epoch: int,
    number: int,
    offsets: Sequence[CommittedOffset],
) -> Decision[None]:
    """The offsets wait for the end of the transaction.

    Raises: InvalidTransactionState, StaleProducerEpoch (it has ended here).
    """
    closed = view.transactions.closed(_of_group(group_id, producer_id))
    refusal = check_number(number, producer_epoch, open_number=NO_TRANSACTION, closed=closed)
    if number == NO_TRANSACTION or refusal is not None:
        raise (refusal or InvalidTransactionState)(
            f"transaction {number} of producer {producer_id} has ended in group {group_id!r}"
        )
    record = TransactionalOffsetsRecord(
        group_id=group_id, producer_id=producer_id, number=number, offsets=offsets
    )
    return Decision((record,), None)
