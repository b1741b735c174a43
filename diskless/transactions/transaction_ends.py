"""Tells coordinators of partitions and groups how transactions end: what each hears, and how.

Each coordinator hears of one call at a time (`call_lanes`), with the ends of as many transactions
as have come meanwhile; it appends them together. A transaction with very many partitions is told in
pieces: what is ended there is ended partition by partition.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

from diskless.transactions.call_lanes import BYTES_AT_ONCE, CallLanes
from metadata.transaction_operations import EndParts, Transaction, TransactionState
from wal.coordinates import TopicIdPartition
from wal.errors import DisklessError

PARTITION_BYTES: Final = 24
"""About what a partition takes on the wire."""

Tell = Callable[[int, EndParts], Awaitable[DisklessError | None]]
"""Tells one coordinator, a metadata partition, about its part of a transaction; never raises."""

TellAll = Callable[[int, Sequence[EndParts]], Awaitable[Sequence[DisklessError | None]]]
"""The same of several transactions. Raises as calls of coordinators do."""


def transaction_ends(tell: TellAll) -> CallLanes[EndParts, DisklessError | None]:
    """Lanes whose `ask` is a `Tell`; enter them."""
    return CallLanes(tell, failed=lambda error: error, size=_size_of, name="transaction-ends")


def parts_of(transaction: Transaction, leader_epoch: int) -> Iterator[tuple[int, EndParts]]:
    """What each coordinator has to be told, in pieces that fit a call.

    `leader_epoch` is that of who tells, which markers show.
    """
    partitions: dict[int, list[TopicIdPartition]] = {}
    groups: dict[int, list[str]] = {}
    for partition, coordinator in transaction.partitions.items():
        partitions.setdefault(coordinator, []).append(partition)
    for group_id, coordinator in transaction.groups.items():
        groups.setdefault(coordinator, []).append(group_id)
    nothing = EndParts(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        number=transaction.number,
        is_commit=TransactionState(transaction.state).is_commit,
        coordinator_epoch=leader_epoch,
    )
    for coordinator in sorted({*partitions, *groups}):
        of_partitions = partitions.get(coordinator, [])
        of_groups = [*_pieces_of(groups.get(coordinator, []))]
        at_once = BYTES_AT_ONCE // PARTITION_BYTES
        for start in range(0, max(len(of_partitions), 1), at_once):
            some = nothing._replace(
                partitions=of_partitions[start : start + at_once],
                groups=of_groups.pop() if of_groups else (),
            )
            yield coordinator, some
        for more in of_groups:
            yield coordinator, nothing._replace(groups=more)


def _pieces_of(group_ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Each as long as a call may be."""
    some: list[str] = []
    size = 0
    for group_id in group_ids:
        size += _group_bytes(group_id)
        if some and size > BYTES_AT_ONCE:
            yield some
            some, size = [], _group_bytes(group_id)
        some.append(group_id)
    if some:
        yield some


def _group_bytes(group_id: str) -> int:
    return 4 * len(group_id) + 5


def _size_of(part: EndParts) -> int:
    named = sum(map(_group_bytes, part.groups))
    return 40 + named + PARTITION_BYTES * len(part.partitions)
