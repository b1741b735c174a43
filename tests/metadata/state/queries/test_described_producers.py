"""What administrators are shown of the producers of a partition, their transactions included."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from metadata.records.records import FileCommittedRecord
from metadata.records.transactions import EndedPartition, TransactionEndedRecord
from metadata.state.queries.described_producers import DescribedProducer, described_producers
from tests.support.coordinators.applied_state import START_MS, AppliedState, applied_state
from wal.coordinates import TopicIdPartition


def two_records(
    state: AppliedState, partition: TopicIdPartition, producer: int, number: int
) -> FileCommittedRecord:
    record = state.file((partition, 2, 10, START_MS), producer=producer)
    return replace(
        record, batches=[batch._replace(transaction_number=number) for batch in record.batches]
    )


def ended(producer: int, number: int, partition: EndedPartition) -> TransactionEndedRecord:
    return TransactionEndedRecord(
        producer_id=producer,
        producer_epoch=1,
        number=number,
        is_commit=True,
        coordinator_epoch=40 + number,
        ended_ms=START_MS,
        partitions=[partition],
        group_id=None,
    )


async def test_open_transactions_and_the_last_ends_are_shown(tmp_path: Path) -> None:
    async with applied_state(tmp_path) as state:
        here, elsewhere = await state.topic(2)

        async def shown(at: TopicIdPartition = here) -> dict[int, tuple[int, int]]:
            found = await state.state.read(
                partial(described_producers, partition_id=state.partition(at).id, limit=10)
            )
            assert all(isinstance(one, DescribedProducer) for one in found)
            return {
                one.producer_id: (one.coordinator_epoch, one.first_open_offset) for one in found
            }

        for producer, number in ((7, -1), (8, 1), (9, 5)):
            await state.apply(two_records(state, here, producer, number))
        assert await shown() == {7: (-1, -1), 8: (-1, 2), 9: (-1, 4)}
        await state.apply(ended(8, 1, EndedPartition(here, 6, 2, 4)))
        assert await shown() == {7: (-1, -1), 8: (41, -1), 9: (-1, 4)}
        await state.apply(ended(8, 2, EndedPartition(here, 7, -1, 4)))
        assert await shown() == {7: (-1, -1), 8: (42, -1), 9: (-1, 4)}
        assert await shown(elsewhere) == {}
