"""Transactions in the state as it will be when everything pending is durable.

Part of `SpeculativeView` (metadata/state/speculative.py), which says when the overlays go. Who
writes says for which group of operations.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from metadata.state.transactions.overlay import Absent, Overlay
from metadata.state.transactions.transaction_image import (
    OpenOfPartition,
    ProducerKey,
    TransactionImage,
)
from metadata.transaction_operations import (
    NO_OFFSET,
    NUMBER_MAX,
    ClosedKey,
    ClosedTransaction,
    Constant,
    OpenTransaction,
    Transaction,
)

_ALL_ENDED: Final = ClosedTransaction(number=NUMBER_MAX, producer_epoch=0)


class TransactionView:
    """What the rules read and write of transactions."""

    def __init__(self, image: TransactionImage) -> None:
        self._image = image
        self._ids: Overlay[str, Transaction] = Overlay()
        self._open: Overlay[int, OpenOfPartition] = Overlay()
        """By partition; each entry is all that is open there."""
        self._closed: Overlay[ClosedKey, ClosedTransaction] = Overlay()
        self._looked_up: Mapping[ClosedKey, ClosedTransaction | None] = {}
        self.overlays: Final[Collection[Overlay[Any, Any]]] = (self._ids, self._open, self._closed)

    # -- transactional ids ----------------------------------------------------------------------

    def transaction(self, transactional_id: str) -> Transaction | None:
        found = self._ids.get(transactional_id)
        return self._image.ids.get(transactional_id) if isinstance(found, Absent) else found

    def put_transaction(self, transaction: Transaction, group: int) -> None:
        self._ids.put(transaction.transactional_id, transaction, group)

    def forget_transaction(self, transactional_id: str, group: int) -> None:
        self._ids.put(transactional_id, None, group)

    def id_count(self) -> int:
        """Returns how many transactional ids there are."""
        count = len(self._image.ids)
        for transactional_id, transaction in self._ids.items():
            count += (transaction is not None) - (transactional_id in self._image.ids)
        return count

    def constant(self, name: int) -> int | None:
        """What is fixed once, if it is."""
        return self._image.constants.get(name)

    # -- open in partitions ---------------------------------------------------------------------

    @property
    def has_open(self) -> bool:
        """False: no transaction has data anywhere."""
        return self._image.has_open or bool(self._open.groups)

    def open_of(self, partition_id: int) -> OpenOfPartition:
        """What is open in the partition, by producer id, in the order of their first offsets."""
        found = self._open.get(partition_id)
        if found is None or isinstance(found, Absent):
            return self._image.open_of(partition_id)
        return found

    def open_transaction(self, key: ProducerKey) -> OpenTransaction | None:
        return self.open_of(key[0]).get(key[1])

    def put_open(self, opened: OpenTransaction, group: int) -> None:
        """Behind those that are open in the partition."""
        of_partition = {**self.open_of(opened.partition), opened.producer_id: opened}
        self._open.put(opened.partition, of_partition, group)

    def close(self, key: ProducerKey, group: int) -> None:
        of_partition = dict(self.open_of(key[0]))
        of_partition.pop(key[1], None)
        self._open.put(key[0], of_partition, group)

    def first_open_offset(self, partition_id: int) -> int:
        """The first offset of what is open in the partition; -1: nothing is."""
        for opened in self.open_of(partition_id).values():
            return opened.first_offset
        return NO_OFFSET

    # -- closed ---------------------------------------------------------------------------------

    def unknown(self, keys: Collection[ClosedKey]) -> set[ClosedKey]:
        """Those of `keys` that `closed` cannot answer without a look-up in SQLite."""
        return {
            key
            for key in keys
            if key not in self._looked_up
            and key not in self._image.closed
            and isinstance(self._closed.get(key), Absent)
        }

    def closed(self, key: ClosedKey) -> ClosedTransaction | None:
        """The last transaction that `key` ended; None: it ended none. `key` must be known.

        Of a producer from before the metadata were lost, all have ended.
        """
        if key.producer_id < self._image.constants.get(Constant.ENDED_BELOW, 0):
            return _ALL_ENDED
        found = self._closed.get(key)
        if not isinstance(found, Absent):
            return found
        closed = self._image.closed.get(key)
        return self._looked_up[key] if closed is None else closed

    def put_closed(self, key: ClosedKey, closed: ClosedTransaction, group: int) -> None:
        self._closed.put(key, closed, group)

    # -- life of the view -----------------------------------------------------------------------

    def start_look_up(self) -> None:
        """A look-up in SQLite starts now; it sees everything that was applied before."""
        self._looked_up = {}

    def finish_look_up(self, closed: Mapping[ClosedKey, ClosedTransaction | None]) -> None:
        """Takes in what the look-up found; valid until the next one starts."""
        self._looked_up = closed
