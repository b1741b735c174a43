"""Numbers of transactions, which a test gives when it wants to."""

import asyncio

from diskless.transactions.transaction_numbers import Answer
from metadata.transaction_operations import AddToTransaction, JoinedTransaction, JoinTransaction
from wal.coordinates import TopicIdPartition
from wal.errors import DisklessError, InvalidTransactionState


class HeldNumbers:
    """Keeps questions until the test answers them; `missing` partitions are in no transaction."""

    def __init__(self) -> None:
        self.asked: list[JoinTransaction | AddToTransaction] = []
        self.missing: set[TopicIdPartition] = set()
        self._answers: list[Answer] = []

    def ask(self, asked: JoinTransaction) -> Answer:
        answer: Answer = asyncio.get_running_loop().create_future()
        self.asked.append(asked)
        self._answers.append(answer)
        return answer

    def add(self, asked: AddToTransaction) -> Answer:
        answer: Answer = asyncio.get_running_loop().create_future()
        self.asked.append(asked)
        self._answers.append(answer)
        return answer

    async def answer(self, number: int = 1, error: DisklessError | None = None) -> None:
        """Answer all that was asked, also what is asked because of that."""
        while self._answers:
            answers, self._answers = self._answers, []
            for asked, answer in zip(self.asked[-len(answers) :], answers, strict=True):
                if error is None and self.missing.intersection(asked.partitions):
                    answer.set_result(JoinedTransaction(error=InvalidTransactionState("not in it")))
                else:
                    answer.set_result(JoinedTransaction(number, error))
            for _ in range(4):  # callbacks of callbacks
                await asyncio.sleep(0)
