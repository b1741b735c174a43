"""Which batches of transactions are appended, decided as rows and as columns."""

import random
from collections.abc import Sequence

import pytest

from metadata.operations import BatchCommit, CommitFile
from metadata.records.records import FileCommittedRecord
from metadata.rules.commit import check_commit, closed_of, decide_commit, producers_of
from metadata.state.image import CommittedImage, PartitionState
from metadata.state.speculative import SpeculativeView
from metadata.transaction_operations import ClosedKey, ClosedTransaction, OpenTransaction
from tests.support.samples.commit_samples import (
    KEY,
    KNOWN,
    NOW_MS,
    OTHER_KEY,
    SETTINGS,
    both_ways,
    deciding,
)
from wal.clock import ManualClock
from wal.coordinates import NO_TRANSACTION, BatchExtent, ByteOffset, ObjectKey
from wal.errors import InvalidTransactionState, SequenceGivenAgain, StaleProducerEpoch
from wal.ulid import mint_ulid, wal_object_key

CLOSED = ClosedKey(10, 5)
THIRD_KEY, FOURTH_KEY = (
    wal_object_key(mint_ulid(ManualClock(NOW_MS), random.Random(seed))) for seed in (3, 4)
)


def batch(place: int, number: int, *, sequence: int, epoch: int = 2) -> BatchExtent:
    return BatchExtent(
        KNOWN[0], ByteOffset(16 + 9 * place), 9, 2, 0, 0, 0, 5, epoch, sequence, 0, number
    )


class Partition:
    """One partition at offset 3, where producer 5 has closed transaction 4 with epoch 2."""

    def __init__(self, way: str) -> None:
        self.way = way
        image = CommittedImage(producers_max=100)
        image.partitions[KNOWN[0]] = PartitionState(10, 1, 0, 0, 3)
        image.transactions.closed[CLOSED] = ClosedTransaction(4, 2)
        self.view = SpeculativeView(image)

    @property
    def state(self) -> PartitionState:
        state = self.view.partition(KNOWN[0])
        assert state is not None
        return state

    def commit(self, *batches: BatchExtent, key: str = KEY) -> Sequence[BatchCommit]:
        request = CommitFile(
            object_key=ObjectKey(key),
            file_size_bytes=999,
            uploader_broker_id=1,
            batches=batches,
        )
        with deciding(self.way):
            commit = check_commit(request, SETTINGS)
        unknown = self.view.unknown_producers(producers_of(commit, self.view))
        assert not self.view.transactions.unknown(closed_of(commit, self.view))
        self.view.finish_look_up({}, dict.fromkeys(unknown))
        decision = decide_commit(
            self.view,
            commit,
            now_ms=NOW_MS,
            wall_ms=NOW_MS,
            steady_ms=NOW_MS,
            settings=SETTINGS,
        )
        (record,) = decision.records
        assert isinstance(record, FileCommittedRecord)
        accepted = [one.position for one in record.batches]
        assert [one.transaction_number for one in record.batches] == [
            batches[place].transaction_number for place in accepted
        ]
        return decision.answer


@both_ways
def test_the_first_batch_of_a_number_opens_it_and_others_are_appended(way: str) -> None:
    partition = Partition(way)
    answers = partition.commit(batch(0, 5, sequence=0), batch(1, 5, sequence=2))
    assert [answer.base_offset for answer in answers] == [3, 5]
    opened = partition.view.transactions.open_transaction((10, 5))
    assert opened == OpenTransaction(10, 3, 5, 2, 5, NOW_MS)
    assert (partition.state.last_stable_offset, partition.state.high_watermark) == (3, 7)
    (answer,) = partition.commit(batch(0, 5, sequence=4), key=OTHER_KEY)
    assert answer.base_offset == 7
    assert partition.view.transactions.open_transaction((10, 5)) == opened
    assert partition.state.last_stable_offset == 3


@both_ways
@pytest.mark.parametrize(
    ("epoch", "error"), [(2, InvalidTransactionState), (1, StaleProducerEpoch)], ids=str
)
def test_a_closed_number_is_refused_and_takes_nobody_along(
    way: str, epoch: int, error: type[Exception]
) -> None:
    partition = Partition(way)
    late, fresh = partition.commit(batch(0, 4, sequence=0, epoch=epoch), batch(1, 5, sequence=0))
    assert isinstance(late.error, error)
    assert fresh.base_offset == 3
    assert partition.state.high_watermark == 5


@both_ways
def test_a_batch_outside_of_the_open_transaction_is_refused(way: str) -> None:
    partition = Partition(way)
    answers = partition.commit(
        batch(0, 5, sequence=0),
        batch(1, NO_TRANSACTION, sequence=2),
        batch(2, 6, sequence=2),
        batch(3, 5, sequence=2),
    )
    assert [type(answer.error) for answer in answers] == [
        type(None),
        InvalidTransactionState,
        InvalidTransactionState,
        type(None),
    ]
    assert partition.state.high_watermark == 7


@both_ways
def test_a_sequence_that_is_given_again_in_the_next_transaction_is_no_duplicate(way: str) -> None:
    partition = Partition(way)
    partition.commit(batch(0, 5, sequence=0), batch(1, 5, sequence=2))
    partition.view.transactions.close((10, 5), 0)
    partition.view.transactions.put_closed(CLOSED, ClosedTransaction(5, 2), 0)
    (first,) = partition.commit(batch(0, 6, sequence=2), key=OTHER_KEY)
    assert isinstance(first.error, SequenceGivenAgain)
    mine, other, again = partition.commit(
        batch(0, 6, sequence=4),
        batch(1, 6, sequence=2),
        batch(2, 6, sequence=4),
        key=THIRD_KEY,
    )
    assert (mine.base_offset, mine.is_duplicate) == (7, False)
    assert isinstance(other.error, SequenceGivenAgain)
    assert (again.base_offset, again.is_duplicate) == (7, True)
    late, other = partition.commit(batch(0, 6, sequence=4), batch(1, 6, sequence=2), key=FOURTH_KEY)
    assert (late.base_offset, late.is_duplicate) == (7, True)
    assert isinstance(other.error, SequenceGivenAgain)
    assert partition.state.high_watermark == 9


@both_ways
def test_a_duplicate_is_a_success_after_the_end_too(way: str) -> None:
    partition = Partition(way)
    partition.commit(batch(0, 5, sequence=0))
    partition.view.transactions.close((10, 5), 0)
    partition.view.transactions.put_closed(CLOSED, ClosedTransaction(5, 2), 0)
    again, late = partition.commit(batch(0, 5, sequence=0), batch(1, 5, sequence=2), key=OTHER_KEY)
    assert (again.base_offset, again.is_duplicate) == (3, True)
    assert isinstance(late.error, InvalidTransactionState)
    assert partition.state.high_watermark == 5
