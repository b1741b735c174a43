"""Asks for the numbers of the batches that a Produce request writes in a transaction.

The replica manager names the batches one by one and gets for each what it will have to wait for;
then it has them all asked for together, which costs the coordinator of the transactional id one
question however many partitions there are. One that does not belong to the transaction must not
take the others along: then each partition is asked for by itself.

What is answered is what Kafka's brokers tell producers: an error of the coordinator is none of the
batch's, and most producers know what to do about a few only.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from diskless.transactions.errors import TransactionAbortable, TransactionNotKnown
from diskless.transactions.transaction_numbers import Answer
from metadata.transaction_operations import JoinedTransaction, JoinTransaction
from wal.coordinates import TopicIdPartition
from wal.errors import (
    DisklessError,
    InvalidProducerIdMapping,
    InvalidTransactionState,
    OutcomeUnknown,
    ProducerFenced,
    Retriable,
    StaleProducerEpoch,
)
from wal.records.record_batch import BatchHeader


class Numbers(Protocol):
    """`diskless.transactions.transaction_numbers.TransactionNumbers`."""

    def ask(self, asked: JoinTransaction) -> Answer: ...


class NumberedBatches:
    """The batches of one request, or of a part of it."""

    def __init__(self, numbers: Numbers, transactional_id: str) -> None:
        self._numbers: Final = numbers
        self._transactional_id: Final = transactional_id
        self._producer: tuple[int, int] | None = None
        self._answers: dict[TopicIdPartition, Answer] = {}

    def number_of(self, partition: TopicIdPartition, header: BatchHeader) -> Answer:
        """The number that a batch has to wait for; known some time after `ask` is called.

        Raises: InvalidProducerIdMapping, for a request has one producer.
        """
        producer = (header.producer_id, header.producer_epoch)
        if self._producer is None:
            self._producer = producer
        elif self._producer != producer:
            raise InvalidProducerIdMapping("batches of several producers under one id")
        answer = self._answers.get(partition)
        if answer is None:
            answer = self._answers[partition] = asyncio.get_running_loop().create_future()
        return answer

    def ask(self) -> None:
        """Ask about all batches that were named."""
        if self._producer is not None:
            self._ask(self._answers, self._all_answered)

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
        if isinstance(joined.error, InvalidTransactionState) and len(answers) > 1:
            for partition, answer in answers.items():
                self._ask({partition: answer}, _tell)
        else:
            _tell(answers, joined)


def _tell(answers: Mapping[TopicIdPartition, Answer], joined: JoinedTransaction) -> None:
    if joined.error is not None:
        joined = JoinedTransaction(error=as_producer_error(joined.error))
    for answer in answers.values():
        answer.set_result(joined)


def as_producer_error(error: DisklessError) -> DisklessError:
    """Returns what a producer is told that has not asked the coordinator itself."""
    if isinstance(error, InvalidTransactionState):
        return TransactionAbortable(str(error))
    if isinstance(error, ProducerFenced):
        return StaleProducerEpoch(str(error))
    if isinstance(error, Retriable | OutcomeUnknown):
        # A question changes nothing, so it may be asked again whatever became of it.
        return TransactionNotKnown(str(error))
    return error
