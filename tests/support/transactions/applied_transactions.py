"""Records of a transaction as a partition applies them, and whether its state is sound after."""

from dataclasses import replace
from functools import partial

from metadata.records.records import (
    FileCommittedRecord,
)
from metadata.records.transactions import (
    EndedPartition,
    TransactionBeganRecord,
    TransactionDecidedRecord,
    TransactionEndedRecord,
    TransactionGrewRecord,
)
from metadata.state.image import CommittedImage
from metadata.state.state import load_image
from metadata.transaction_operations import (
    TransactionGroup,
    TransactionPartition,
)
from tests.support.coordinators.applied_state import START_MS, AppliedState
from wal.coordinates import TopicIdPartition

BEGAN = TransactionBeganRecord(
    transactional_id="t",
    producer_id=7,
    producer_epoch=1,
    last_producer_id=-1,
    last_epoch=-1,
    timeout_ms=60_000,
    at_ms=START_MS,
)


def grew(number: int, *partitions: TopicIdPartition) -> TransactionGrewRecord:
    return TransactionGrewRecord(
        transactional_id="t",
        number=number,
        at_ms=START_MS + number,
        bumps_epoch=False,
        partitions=[TransactionPartition(partition, 0) for partition in partitions],
        groups=[TransactionGroup("g", 0)],
    )


def decided(number: int, *, is_commit: bool) -> TransactionDecidedRecord:
    return TransactionDecidedRecord(
        transactional_id="t",
        number=number,
        is_commit=is_commit,
        producer_epoch=1,
        last_epoch=-1,
        next_producer_id=-1,
        at_ms=START_MS,
    )


def ended(
    number: int, *partitions: EndedPartition, is_commit: bool, producer: int = 7
) -> TransactionEndedRecord:
    return TransactionEndedRecord(
        producer_id=producer,
        producer_epoch=1,
        number=number,
        is_commit=is_commit,
        coordinator_epoch=3,
        ended_ms=START_MS,
        partitions=partitions,
        group_id="g",
    )


def of_transaction(
    state: AppliedState,
    partition: TopicIdPartition,
    number: int,
    *,
    producer: int = 7,
    count: int = 1,
) -> FileCommittedRecord:
    record = state.file(*[(partition, 2, 10, START_MS)] * count, producer=producer)
    batches = [
        batch._replace(
            transaction_number=number, base_sequence=2 * place, last_sequence=2 * place + 1
        )
        for place, batch in enumerate(record.batches)
    ]
    return replace(record, batches=batches)


async def reloaded(state: AppliedState) -> CommittedImage:
    image = CommittedImage(producers_max=1_000)
    await state.state.read(partial(load_image, image=image))
    return image


async def assert_sound(state: AppliedState) -> None:
    assert not await state.violations()
    image, stored = state.image, await reloaded(state)
    assert stored.transactions.ids == image.transactions.ids
    assert stored.partitions == image.partitions
    for partition in image.partitions.values():
        assert [*stored.transactions.open_of(partition.id).items()] == [
            *image.transactions.open_of(partition.id).items()
        ]
