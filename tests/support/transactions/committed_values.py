"""A producer whose transactions end one way or the other, and the values that it committed."""

import random
from itertools import count
from typing import Final

from confluent_kafka import Producer

ABORTED_SHARE: Final = 0.3
VALUES: Final = 6
"""Of each transaction, dealt out to the partitions."""


class CommittedValues:
    """Writes numbers; `committed` are those of transactions that were committed."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, rng: random.Random) -> None:
        self.committed: list[int] = []
        self.aborted: list[int] = []
        self._numbers = count()
        self._open: list[int] = []
        self._topic = topic
        self._partitions = partitions
        self._rng = rng
        self._producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
        self._producer.init_transactions(60)

    def write(self, transactions: int) -> None:
        """So many, of which one is aborted, and others with ABORTED_SHARE."""
        for number in range(transactions):
            self.begin()
            self.end(is_commit=number > 0 and self._rng.random() >= ABORTED_SHARE)

    def begin(self) -> None:
        """Write a transaction, all of which is stored when this returns."""
        self._producer.begin_transaction()
        for _ in range(VALUES):
            value = next(self._numbers)
            self._producer.produce(
                self._topic, b"%d" % value, partition=self._rng.randrange(self._partitions)
            )
            self._open.append(value)
        assert self._producer.flush(60) == 0

    def end(self, *, is_commit: bool) -> None:
        if is_commit:
            self._producer.commit_transaction(60)
            self.committed += self._open
        else:
            self._producer.abort_transaction(60)
            self.aborted += self._open
        self._open.clear()
