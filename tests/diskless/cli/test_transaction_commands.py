"""`diskless transaction` and the metrics of transactions, on a running broker."""

import random
import re
import warnings
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from diskless.api import RunningOperations, transaction_apis
from diskless.api.coordinator.transactions import ABORTED_AT_ONCE_MAX
from diskless.authorization import AllowEverything, Authorizer
from diskless.broker_metrics import broker_metrics
from diskless.cli.cli import main
from diskless.server.registry import ApiRegistry
from diskless.transactions.transaction_router import Producer
from metadata.clients.coordinator_client import CoordinatorClient
from metadata.clients.wire_client import WireClient
from metadata.messages.codec import Operation
from metadata.messages.transactions import (
    ABORT_TRANSACTION,
    ABORT_TRANSACTIONS,
    DESCRIBE_TRANSACTIONS,
    LIST_TRANSACTIONS,
    LIST_TRANSACTIONS_HERE,
)
from metadata.transaction_operations import (
    AbortTransaction,
    EndedTransaction,
    ListedTransactions,
    ListTransactions,
    Transaction,
    TransactionState,
)
from tests.support.brokers.kafka_fakes import DenyEverything, running_broker
from tests.support.brokers.live_broker import LiveBroker, until
from wal.clock import SystemClock
from wal.errors import (
    ClusterAuthorizationFailed,
    CommitFailed,
    InvalidRequest,
    InvalidTransactionState,
    TransactionalIdNotFound,
)

with warnings.catch_warnings():
    # kafka-python reads its schemas through a function that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka  # noqa: F401

OPEN = Transaction(1, "pay", 40, 3, number=7, state=TransactionState.ONGOING, began_ms=1)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LiveBroker]:
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "20"}
    with LiveBroker(tmp_path / "data", settings) as broker:
        yield broker


def begin(broker: LiveBroker, name: str, *, timeout_ms: int = 60_000) -> Producer:
    router = broker.broker.coordination.transactions
    answer = broker.run(router.init_producer(Producer(name, -1, -1), timeout_ms))
    assert answer.error is None
    return Producer(name, answer.producer_id, answer.producer_epoch)


def add(broker: LiveBroker, producer: Producer) -> None:
    router = broker.broker.coordination.transactions
    assert broker.run(router.add_partitions(producer, [("t", 1)])) == [None]
    assert broker.run(router.add_group(producer, "readers")) is None


def counted(broker: LiveBroker) -> dict[str, float]:
    return {
        "_".join((source.name.removeprefix("diskless_transaction"), *labels)): value
        for source in broker_metrics(broker.broker)
        if source.name.startswith("diskless_transaction")
        for labels, value in source.read().items()
    }


def test_transactions_are_listed_described_and_aborted(
    broker: LiveBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    def transaction(*arguments: str) -> tuple[int, str]:
        status = main(["transaction", *arguments, "--bootstrap", broker.bootstrap])
        told = capsys.readouterr()
        return status, told.out + told.err

    assert main(["topic", "create", "t", "--partitions", "2", "--bootstrap", broker.bootstrap]) == 0
    capsys.readouterr()
    pay, idle = begin(broker, "pay"), begin(broker, "idle")
    add(broker, pay)
    until(lambda: counted(broker)["s_ongoing"] == 1, "the transaction is counted")
    assert counted(broker)["al_ids"] == 2
    status, listed = transaction("list")
    assert status == 0
    assert re.search(rf"^idle +empty +0 +{idle.producer_id} +0 +- +1 m 0 s", listed, re.MULTILINE)
    assert re.search(rf"^pay +ongoing +1 +{pay.producer_id} +0 +\d", listed, re.MULTILINE)
    assert "idle" not in transaction("list", "--open")[1]
    assert "pay" not in transaction("list", "--state", "empty")[1]
    assert "pay" not in transaction("list", "--open", "--older-than", "3600")[1]
    described = transaction("describe", "pay")[1]
    assert "takes part: 1 partition and 1 group" in described
    assert re.search(r"^topic +t +1 +0 *$", described, re.MULTILINE)
    assert re.search(r"^group +readers +- +0 *$", described, re.MULTILINE)
    assert transaction("describe", "pay", "nobody")[0] == 1
    assert transaction("abort", "pay", "--number", "2")[0] == 1
    assert transaction("abort", "idle")[0] == 1
    status, aborted = transaction("abort", "pay", "--number", "1")
    assert (status, aborted.split(",")[0]) == (0, "aborted transaction 1 of pay")
    assert "complete_abort" in transaction("list")[1]
    assert transaction("abort", "pay")[0] == 1
    status, refused = transaction("abort", "nobody")
    assert (status, "TransactionalIdNotFound" in refused) == (1, True)


def test_what_becomes_of_transactions_is_counted(broker: LiveBroker) -> None:
    assert main(["topic", "create", "t", "--partitions", "2", "--bootstrap", broker.bootstrap]) == 0
    router = broker.broker.coordination.transactions
    pay = begin(broker, "pay")
    for is_commit in (True, False, True):
        add(broker, pay)
        assert broker.run(router.end(pay, is_commit=is_commit)).error is None
        # Asked again, it is the same one.
        assert broker.run(router.end(pay, is_commit=is_commit)).error is None
    late = begin(broker, "late", timeout_ms=1)
    add(broker, late)
    until(lambda: counted(broker)["s_ended_timed_out"] == 1, "a timeout")
    add(broker, pay)
    pay = begin(broker, "pay")
    # By an administrator, which its coordinator is told by bytes.
    add(broker, pay)
    assert main(["transaction", "abort", "pay", "--bootstrap", broker.bootstrap]) == 0
    counts = counted(broker)
    assert counts["s_ended_committed"] == 2
    assert counts["s_ended_aborted"] == 3
    until(lambda: counted(broker)["s_ongoing"] == 0, "a look at all of them")
    assert counted(broker)["s_oldest_seconds"] == 0
    assert counted(broker)["s_ending"] == 0


# -- the APIs --------------------------------------------------------------------------------------


class Coordinators(CoordinatorClient):
    """Has the transaction `OPEN`, and aborts it."""

    def __init__(self) -> None:
        self.asked: list[tuple[Operation[Any, Any], Any]] = []

    async def call(
        self, operation: Operation[Any, Any], request: Any, *, timeout_ms: int = 0
    ) -> Sequence[Any]:
        self.asked.append((operation, request))
        if operation is LIST_TRANSACTIONS_HERE:
            return [ListedTransactions((OPEN,))]
        (entry,) = request.entries
        name = entry if operation is DESCRIBE_TRANSACTIONS else entry.transactional_id
        assert request.coordinator == len(name)
        if name == "away":
            raise CommitFailed("nobody leads")
        if operation is ABORT_TRANSACTION:
            return [EndedTransaction(entry.number, is_completed=True)]
        return [OPEN if name == "pay" else TransactionalIdNotFound(name)]


@asynccontextmanager
async def serving(
    coordinators: Coordinators, authorizer: Authorizer | None = None
) -> AsyncIterator[WireClient]:
    async with RunningOperations() as running:
        apis = transaction_apis(coordinators, len, running, authorizer or AllowEverything())
        async with running_broker(apis=ApiRegistry(apis)) as broker:
            address = broker.server.address
            async with WireClient(*address, clock=SystemClock(), rng=random.Random(1)) as client:
                yield client


async def test_each_transaction_is_aborted_or_has_its_own_error() -> None:
    coordinators = Coordinators()
    async with serving(coordinators) as client:
        asked = [AbortTransaction(name, -1) for name in ("pay", "nobody", "away")]
        first, second, third = await client.call(ABORT_TRANSACTIONS, asked)
        assert first == OPEN
        assert isinstance(second, TransactionalIdNotFound)
        assert isinstance(third, CommitFailed)
        aborted = [
            entry
            for operation, request in coordinators.asked
            if operation is ABORT_TRANSACTION
            for entry in request.entries
        ]
        assert aborted == [AbortTransaction("pay", 7)]
        (other,) = await client.call(ABORT_TRANSACTIONS, [AbortTransaction("pay", 6)])
        assert isinstance(other, InvalidTransactionState)
        with pytest.raises(InvalidRequest):
            await client.call(ABORT_TRANSACTIONS, asked[:1] * (ABORTED_AT_ONCE_MAX + 1))
        (listed,) = await client.call(LIST_TRANSACTIONS, ListTransactions())
        assert listed == ListedTransactions((OPEN,))


async def test_who_may_not_is_told_so() -> None:
    coordinators = Coordinators()
    async with serving(coordinators, DenyEverything()) as client:
        with pytest.raises(ClusterAuthorizationFailed, match="may not ALTER"):
            await client.call(ABORT_TRANSACTIONS, [AbortTransaction("pay", -1)])
        with pytest.raises(ClusterAuthorizationFailed, match="may not DESCRIBE"):
            await client.call(LIST_TRANSACTIONS, ListTransactions())
    assert coordinators.asked == []
