"""Asks for the numbers of the batches that a Produce request writes in a transaction.

The replica manager names the batches one by one and gets for each what it will have to wait for;
then it has them all asked for together, which costs the coordinator of the transactional id one
question however many partitions there are. One that does not belong to the transaction must not
take the others along: then each partition is asked for by itself. A producer of version 2 of
transactions has added nothing; here that is done for it, and asked about what is new only.

What is answered is what Kafka's brokers tell producers: an error of the coordinator is none of the
batch's, and most producers know what to do about a few only.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from diskless.transactions.errors import TransactionAbortable, TransactionNotKnown
from diskless.transactions.transaction_numbers import Answer
from metadata.transaction_operations import (
    AddToTransaction,
    JoinedTransaction,
    JoinTransaction,
    TransactionPartition,
)
from wal import errors
from wal.coordinates import TopicIdPartition
from wal.records.record_batch import BatchHeader

ADDED_FROM: Final = 12
"""The version of Produce that adds partitions to the transaction."""


class Numbers(Protocol):
    """`diskless.transactions.transaction_numbers.TransactionNumbers`."""

    def ask(self, asked: JoinTransaction) -> Answer: ...

    def add(self, asked: AddToTransaction) -> Answer: ...


class NumberedBatches:
    """The batches of one request, or of a part of it."""

    def __init__(self, numbers: Numbers, transactional_id: str, *, adds: bool) -> None:
        """`adds`: whether partitions become part of the transaction by being written to."""
        self._numbers: Final = numbers
        self._transactional_id: Final = transactional_id
        self._adds: Final = adds
        self._producer: tuple[int, int] | None = None
        self._answers: dict[TopicIdPartition, Answer] = {}
        self._coordinators: dict[TopicIdPartition, int] = {}

    def number_of(
        self, partition: TopicIdPartition, header: BatchHeader, coordinator: int
    ) -> Answer:
        """The number that a batch has to wait for; known some time after `ask` is called.

        `coordinator` is the partition's. Raises: InvalidProducerIdMapping, for a request has one
        producer.
        """
        producer = (header.producer_id, header.producer_epoch)
        if self._producer is None:
            self._producer = producer
        elif self._producer != producer:
            raise errors.InvalidProducerIdMapping("batches of several producers under one id")
        answer = self._answers.get(partition)
        if answer is None:
            answer = self._answers[partition] = asyncio.get_running_loop().create_future()
            self._coordinators[partition] = coordinator
        return answer

    def ask(self) -> None:
        """Ask about all batches that were named."""
        if self._producer is None:
            return
        if not self._adds:
            self._ask(self._answers, self._all_answered)
            return
        parts = [*map(TransactionPartition._make, self._coordinators.items())]
        added = AddToTransaction(self._transactional_id, *self._producer, partitions=parts)
        self._numbers.add(added).add_done_callback(
            lambda future: _tell(self._answers, future.result(), adds=True)
        )

    def _ask(
        self,
        answers: Mapping[TopicIdPartition, Answer],
        answered: Callable[[Mapping[TopicIdPartition, Answer], JoinedTransaction], None],
    ) -> None:
        assert self._producer is not None, "a batch was named"
        question = JoinTransaction(self._transactional_id, *self._producer, partitions=[*answers])
        self._numbers.ask(question).add_done_callback(
            lambda future: answered(answers, future.result())
        )

    def _all_answered(
        self, answers: Mapping[TopicIdPartition, Answer], joined: JoinedTransaction
    ) -> None:
        if isinstance(joined.error, errors.InvalidTransactionState) and len(answers) > 1:
            for partition, answer in answers.items():
                self._ask({partition: answer}, _tell)
        else:
            _tell(answers, joined)


def _tell(
    answers: Mapping[TopicIdPartition, Answer], joined: JoinedTransaction, *, adds: bool = False
) -> None:
    if joined.error is not None:
        joined = JoinedTransaction(error=as_producer_error(joined.error, adds=adds))
    for answer in answers.values():
        answer.set_result(joined)


def as_producer_error(error: errors.DisklessError, *, adds: bool = False) -> errors.DisklessError:
    """Returns what a producer is told that has not asked the coordinator itself.

    One of version 2 knows that its last transaction may still be being ended.
    """
    if adds and isinstance(error, errors.ConcurrentTransactions):
        return error
    if isinstance(error, errors.InvalidTransactionState):
        return TransactionAbortable(str(error))
    if isinstance(error, errors.ProducerFenced):
        return errors.StaleProducerEpoch(str(error))
    if isinstance(error, errors.Retriable | errors.OutcomeUnknown):
        # A question changes nothing, so it may be asked again whatever became of it.
        return TransactionNotKnown(str(error))
    return error
