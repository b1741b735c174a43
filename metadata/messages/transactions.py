"""Operations about transactions as bytes: API keys 10090 to 10097 between brokers, 10098 and 10099
of the command line.

    of transactional ids                        of partitions and groups
    10090 CoordinatorInitProducer               10094 CoordinatorEndParts
    10091 CoordinatorAddToTransaction
    10092 CoordinatorJoinTransactions           of the command line
    10093 CoordinatorEndTransaction             10098 AbortTransactions
    10095 CoordinatorDescribeTransactions       10099 ListTransactions
    10096 CoordinatorListTransactions
    10097 CoordinatorAbortTransaction

Laid out like those of metadata/messages/brokers.py; docs/coordinator-api.md has the fields,
metadata/transaction_operations.py the values. Each names its coordinator, but for the list, which
all brokers are asked for.

What a coordinator refuses is in its entry, and so is an append that failed: the entries are decided
one by one, and some of them may have happened. Only where none did, because nobody leads there, is
that the error of the call, for which a sender looks for the leader again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from metadata import transaction_operations as ops
from metadata.messages.codec import Address, Operation, error_of
from metadata.messages.shapes import (
    ERROR,
    ERRORS,
    Addressed,
    addressed,
    alone,
    in_order,
    listed,
    or_error,
    single,
)
from wal.errors import DisklessError, NotCoordinator, TransactionalIdNotFound
from wal.wire.fields import FieldReader, compact_string
from wal.wire.layouts import Field, closed, fields_of, layout

_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")


async def _each(
    asked: Addressed[_Asked],
    ask: Callable[[_Asked], Awaitable[_Answer]],
    failed: Callable[[DisklessError], _Answer],
) -> Sequence[_Answer]:
    """Ask about the entries side by side: they share an append."""

    async def answered(entry: _Asked) -> _Answer:
        try:
            return await ask(entry)
        except DisklessError as error:
            return failed(error)

    answers = await asyncio.gather(*map(answered, asked.entries))
    errors = [error_of(answer) for answer in answers]
    if errors and all(isinstance(error, NotCoordinator) for error in errors):
        assert errors[0] is not None
        raise errors[0]
    return answers


# -- of transactional ids --------------------------------------------------------------------------


def _not_initialized(error: DisklessError) -> ops.InitializedProducer:
    return ops.InitializedProducer(error=error)


def _not_joined(error: DisklessError) -> ops.JoinedTransaction:
    return ops.JoinedTransaction(error=error)


def _not_ended(error: DisklessError) -> ops.EndedTransaction:
    return ops.EndedTransaction(error=error)


_JOINED: Final = in_order(layout(ops.JoinedTransaction, "error", "number", error=ERROR))
_ENDED: Final = in_order(
    layout(
        ops.EndedTransaction,
        "error",
        "number",
        "is_completed",
        "producer_id",
        "producer_epoch",
        error=ERROR,
    )
)

INIT_PRODUCER: Final[Operation[Addressed[ops.InitProducer], ops.InitializedProducer]] = Operation(
    key=10_090,
    name="CoordinatorInitProducer",
    address=Address.NAMED,
    request=addressed(layout(ops.InitProducer)),
    answers=in_order(
        layout(ops.InitializedProducer, "error", "producer_id", "producer_epoch", error=ERROR)
    ),
    at=lambda coordinator, asked: _each(
        asked, coordinator.transactions.init_producer, _not_initialized
    ),
    failed=_not_initialized,
)

ADD_TO_TRANSACTION: Final[Operation[Addressed[ops.AddToTransaction], ops.JoinedTransaction]] = (
    Operation(
        key=10_091,
        name="CoordinatorAddToTransaction",
        address=Address.NAMED,
        request=addressed(layout(ops.AddToTransaction)),
        answers=_JOINED,
        at=lambda coordinator, asked: _each(
            asked, coordinator.transactions.add_to_transaction, _not_joined
        ),
        failed=_not_joined,
    )
)


async def _join(
    coordinator: Any, asked: Addressed[ops.JoinTransaction]
) -> Sequence[ops.JoinedTransaction]:
    """Whoever led before this was asked may have ended what another leader takes for open."""
    answers = [coordinator.transactions.join(entry) for entry in asked.entries]
    await coordinator.lease.confirm()
    return answers


JOIN_TRANSACTIONS: Final[Operation[Addressed[ops.JoinTransaction], ops.JoinedTransaction]] = (
    Operation(
        key=10_092,
        name="CoordinatorJoinTransactions",
        address=Address.NAMED,
        request=addressed(layout(ops.JoinTransaction)),
        answers=_JOINED,
        at=_join,
        failed=_not_joined,
        changes_state=False,
    )
)

END_TRANSACTION: Final[Operation[Addressed[ops.EndTransaction], ops.EndedTransaction]] = Operation(
    key=10_093,
    name="CoordinatorEndTransaction",
    address=Address.NAMED,
    request=addressed(layout(ops.EndTransaction)),
    answers=_ENDED,
    at=lambda coordinator, asked: _each(
        asked, coordinator.transactions.end_transaction, _not_ended
    ),
    failed=_not_ended,
)

ABORT_TRANSACTION: Final[Operation[Addressed[ops.AbortTransaction], ops.EndedTransaction]] = (
    Operation(
        key=10_097,
        name="CoordinatorAbortTransaction",
        address=Address.NAMED,
        request=addressed(layout(ops.AbortTransaction)),
        answers=_ENDED,
        at=lambda coordinator, asked: _each(
            asked, coordinator.transactions.abort_transaction, _not_ended
        ),
        failed=_not_ended,
    )
)

# -- of partitions and groups ----------------------------------------------------------------------

END_PARTS: Final[Operation[Addressed[ops.EndParts], DisklessError | None]] = Operation(
    key=10_094,
    name="CoordinatorEndParts",
    address=Address.NAMED,
    request=addressed(layout(ops.EndParts)),
    answers=in_order(ERRORS),
    at=lambda coordinator, asked: coordinator.transactions.end_parts(asked.entries),
    # Who tells tries again by itself, with what has come meanwhile.
    is_repeated=False,
)

# -- administration --------------------------------------------------------------------------------

_ID: Final = closed(Field(compact_string, FieldReader.compact_string))
_TRANSACTION: Final = layout(ops.Transaction)
_NO_TRANSACTION: Final = _TRANSACTION.write(ops.Transaction(-1, "", -1, -1))


async def _describe(
    coordinator: Any, asked: Addressed[str]
) -> Sequence[ops.Transaction | DisklessError]:
    found = [
        coordinator.transactions.transaction(name)
        or TransactionalIdNotFound("no producer has this transactional id")
        for name in asked.entries
    ]
    await coordinator.lease.confirm()
    return found


DESCRIBE_TRANSACTIONS: Final[Operation[Addressed[str], ops.Transaction | DisklessError]] = (
    Operation(
        key=10_095,
        name="CoordinatorDescribeTransactions",
        address=Address.NAMED,
        request=addressed(_ID),
        answers=in_order(or_error(_TRANSACTION, _NO_TRANSACTION)),
        at=_describe,
        changes_state=False,
    )
)


async def _list(coordinator: Any, asked: ops.ListTransactions) -> Sequence[ops.ListedTransactions]:
    return [await coordinator.transactions.listed(asked)]


def _all_listed(
    asked: ops.ListTransactions,
    answers: Sequence[Sequence[ops.ListedTransactions | DisklessError]],
) -> Sequence[ops.ListedTransactions | DisklessError]:
    found: list[ops.Transaction] = []
    for (answer,) in answers:
        if isinstance(answer, DisklessError):
            return (answer,)
        found += answer.transactions
    return (ops.page_of(found, asked),)


_LISTED: Final = fields_of(ops.ListedTransactions)

LIST_TRANSACTIONS_HERE: Final[
    Operation[ops.ListTransactions, ops.ListedTransactions | DisklessError]
] = Operation(
    key=10_096,
    name="CoordinatorListTransactions",
    address=Address.LED,
    request=single(fields_of(ops.ListTransactions)),
    answers=alone(or_error(_LISTED, _LISTED.write(ops.ListedTransactions()))),
    at=_list,
    merged=_all_listed,
    changes_state=False,
)

# -- of the command line ---------------------------------------------------------------------------

ABORT_TRANSACTIONS: Final[
    Operation[Sequence[ops.AbortTransaction], ops.Transaction | DisklessError]
] = Operation(
    key=10_098,
    name="AbortTransactions",
    address=Address.CATALOGUE,
    request=listed(layout(ops.AbortTransaction)),
    answers=in_order(or_error(_TRANSACTION, _NO_TRANSACTION)),
)
LIST_TRANSACTIONS: Final = replace(LIST_TRANSACTIONS_HERE, key=10_099, name="ListTransactions")

TRANSACTIONS_BETWEEN_BROKERS: Final[Sequence[Operation[Any, Any]]] = (
    INIT_PRODUCER,
    ADD_TO_TRANSACTION,
    JOIN_TRANSACTIONS,
    END_TRANSACTION,
    END_PARTS,
    DESCRIBE_TRANSACTIONS,
    LIST_TRANSACTIONS_HERE,
    ABORT_TRANSACTION,
)
