"""The errors of transaction coordinators. `diskless/api/errors.py` knows their codes."""

from wal import errors


class NotTransactionCoordinator(errors.Retriable):
    """This broker does not coordinate the transactional id; the client looks for who does."""


class TransactionCoordinatorUnavailable(errors.Retriable):
    """Nobody coordinates the transactional id now, or what had to be stored could not be."""


class TransactionNotKnown(errors.Retriable):
    """Whether something belongs to a transaction could not be found out now."""


class TransactionAbortable(errors.Rejected):
    """The transaction cannot go on, but its producer can: it aborts and begins another one."""


def as_transaction_error(error: errors.DisklessError) -> errors.DisklessError:
    """Returns what a failed append means to a producer."""
    if isinstance(error, errors.NotCoordinator):
        return NotTransactionCoordinator(str(error))
    if isinstance(error, errors.Retriable | errors.OutcomeUnknown) and not isinstance(
        error, errors.ConcurrentTransactions
    ):
        # Repeating it is harmless, whether it happened or not.
        return TransactionCoordinatorUnavailable(str(error))
    return error
