"""Transactions in the part of the committed state that is kept in memory.

All transactional ids and all open transactions: deciding anything about them needs them, and the
rules bound how many there are. Of the numbers that were closed, of which every (partition, producer
id) leaves one for a day, only those last used; the others are read from SQLite.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

from metadata.state import schema
from metadata.transaction_operations import (
    GROUP_PARTITION,
    ClosedKey,
    ClosedTransaction,
    OpenTransaction,
    Transaction,
)
from wal.coordinates import TopicIdPartition

ProducerKey = tuple[int, int]
"""(partition's surrogate key, producer id)."""

OpenOfPartition = Mapping[int, OpenTransaction]
"""The open transactions of a partition by producer id, in the order of their first offsets."""

_NOTHING_OPEN: Final[OpenOfPartition] = MappingProxyType({})


@dataclass(slots=True)
class TransactionChanges:
    """What one transaction of SQLite changed; None stands for gone."""

    ids: dict[str, Transaction | None] = field(default_factory=dict)
    open: dict[ProducerKey, OpenTransaction | None] = field(default_factory=dict)
    closed: dict[ClosedKey, ClosedTransaction | None] = field(default_factory=dict)
    constants: dict[int, int] = field(default_factory=dict)
    groups: set[str] = field(default_factory=set)
    """Groups whose committed offsets an end has changed."""


class TransactionImage:
    """What SQLite has, as far as it is in memory."""

    def __init__(self, *, closed_max: int) -> None:
        self._closed_max = closed_max
        self.ids: dict[str, Transaction] = {}
        """By transactional id."""
        self.closed: dict[ClosedKey, ClosedTransaction] = {}
        self.constants: dict[int, int] = {}
        """By `Constant`, what is fixed."""
        self._open: dict[int, dict[int, OpenTransaction]] = {}

    @property
    def has_open(self) -> bool:
        """Whether a transaction has data anywhere."""
        return bool(self._open)

    def open_of(self, partition_id: int) -> OpenOfPartition:
        return self._open.get(partition_id, _NOTHING_OPEN)

    def open_transaction(self, key: ProducerKey) -> OpenTransaction | None:
        return self.open_of(key[0]).get(key[1])

    def add_open(self, opened: OpenTransaction) -> None:
        """Behind those of the partition that are there."""
        self._open.setdefault(opened.partition, {})[opened.producer_id] = opened

    def merge(self, changes: TransactionChanges) -> None:
        for transactional_id, transaction in changes.ids.items():
            if transaction is None:
                self.ids.pop(transactional_id, None)
            else:
                self.ids[transactional_id] = transaction
        self.constants.update(changes.constants)
        for key, opened in changes.open.items():
            # One that ended and began again in one transaction moves behind the others.
            of_partition = self._open.get(key[0], {})
            of_partition.pop(key[1], None)
            if opened is not None:
                self.add_open(opened)
            elif not of_partition:
                self._open.pop(key[0], None)
        for closed_key, closed in changes.closed.items():
            self.closed.pop(closed_key, None)
            if closed is not None:
                self.closed[closed_key] = closed
        while len(self.closed) > self._closed_max:
            del self.closed[next(iter(self.closed))]


def load_transactions(
    rows: Callable[[schema.StateTable], Iterable[tuple[Any, ...]]], image: TransactionImage
) -> None:
    """Fill an empty `image`; `rows` are those of a table, checked."""
    partitions: dict[int, dict[TopicIdPartition, int]] = {}
    groups: dict[int, dict[str, int]] = {}
    for key, partition, coordinator, topic_id, group_id, _ in rows(schema.TRANSACTION_PARTS):
        if partition == GROUP_PARTITION:
            groups.setdefault(key, {})[group_id] = coordinator
        else:
            place = TopicIdPartition(UUID(bytes=topic_id), partition)
            partitions.setdefault(key, {})[place] = coordinator
    for key, *numbers, transactional_id, _ in rows(schema.TRANSACTIONS):
        *numbers, bumps_epoch = numbers
        image.ids[transactional_id] = Transaction._make(
            (
                key,
                transactional_id,
                *numbers,
                bool(bumps_epoch),
                partitions.get(key, {}),
                groups.get(key, {}),
            )
        )
    for name, value, _ in rows(schema.CONSTANTS):
        image.constants[name] = value
    # In the order of their first offsets.
    for *opened, _ in sorted(rows(schema.OPEN_TRANSACTIONS)):
        image.add_open(OpenTransaction(*opened))
