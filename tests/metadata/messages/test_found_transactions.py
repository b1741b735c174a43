"""What FindBatches and ListOffsets tell of transactions, over a wire."""

from uuid import UUID

from metadata import operations as ops
from metadata.messages.coordinator import LIST_OFFSETS
from metadata.messages.find_batches import FIND_BATCHES, FindBatchesMessage
from wal.coordinates import ByteOffset, ObjectKey, Offset, TopicIdPartition
from wal.records.marker_batches import Marker

P, Q = (TopicIdPartition(UUID(int=4), index) for index in (1, 2))


def test_markers_open_and_aborted_transactions_come_as_they_were_sent() -> None:
    wal = ops.WalExtent(
        ObjectKey("wal/00/X"), ByteOffset(64), 90, Offset(2), Offset(9), 8, 7, 1, 200
    )
    markers = [Marker(10, 2**40, 3, True, 5, 1_000), Marker(11, 7, 32_767, False, 2**31 - 1, -1)]
    aborted = (ops.AbortedTransaction(7, 3, 11), ops.AbortedTransaction(2**62, 4, 2**50))
    found = [
        ops.FoundBatches(2, 20, [wal, *markers], None, 12, aborted),
        ops.FoundBatches(0, 5, []),
    ]
    requests = [ops.FindBatches(partition, 2, 100) for partition in (P, Q)]
    message = FindBatchesMessage(requests, 1_000, 9, isolation=ops.READ_COMMITTED)
    assert FIND_BATCHES.decode_request(FIND_BATCHES.encode_request(message, 5)) == (message, 5)
    body = FIND_BATCHES.encode_response(message, found)
    assert FIND_BATCHES.decode_response(message, body)[0] == found
    assert [answer.last_stable_offset for answer in found] == [12, 5]


def test_an_open_transaction_below_the_log_start_holds_back_all_that_is_left() -> None:
    assert ops.FoundBatches(15, 20, (), None, 12).last_stable_offset == 15


def test_a_listed_offset_comes_with_the_last_stable_one() -> None:
    requests = [ops.ListOffsets(partition, -1) for partition in (P, Q)]
    listed = [ops.ListedOffset(20, last_stable_offset=12), ops.ListedOffset(5)]
    body = LIST_OFFSETS.encode_response(requests, listed)
    assert LIST_OFFSETS.decode_response(requests, body)[0] == listed
