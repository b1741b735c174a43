"""The errors of transaction coordinators. `diskless/api/errors.py` knows their codes."""

from wal.errors import (
    ConcurrentTransactions,
    DisklessError,
    NotCoordinator,
    OutcomeUnknown,
    Rejected,
    Retriable,
)


class NotTransactionCoordinator(Retriable):
    """This broker does not coordinate the transactional id; the client looks for who does."""


class TransactionCoordinatorUnavailable(Retriable):
    """Nobody coordinates the transactional id now, or what had to be stored could not be."""


class TransactionNotKnown(Retriable):
    """Whether something belongs to a transaction could not be found out now."""


class TransactionAbortable(Rejected):
    """The transaction cannot go on, but its producer can: it aborts and begins another one."""


def as_transaction_error(error: DisklessError) -> DisklessError:
    """Returns what a failed append means to a producer."""
    if isinstance(error, NotCoordinator):
        return NotTransactionCoordinator(str(error))
    if isinstance(error, Retriable | OutcomeUnknown) and not isinstance(
        error, ConcurrentTransactions
    ):
        # Repeating it is harmless, whether it happened or not.
        return TransactionCoordinatorUnavailable(str(error))
    return error
