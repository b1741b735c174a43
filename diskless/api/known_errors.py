"""Replaces the errors of transactions that an older version of a request does not know.

A client gives up for ever at a code that is new to it. Two of them came late, each in another
version of each API; before that, its clients were told something close:

- PRODUCER_FENCED (90): INVALID_PRODUCER_EPOCH (47);
- TRANSACTION_ABORTABLE (120): INVALID_TXN_STATE (48), at which not every producer can go on.
"""

from collections.abc import Mapping
from typing import Final, TypeVar

from diskless.transactions.errors import TransactionAbortable
from wal.errors import DisklessError, InvalidTransactionState, ProducerFenced, StaleProducerEpoch

PRODUCE: Final = 0
INIT_PRODUCER_ID: Final = 22
ADD_PARTITIONS_TO_TXN: Final = 24
ADD_OFFSETS_TO_TXN: Final = 25
END_TXN: Final = 26
TXN_OFFSET_COMMIT: Final = 28

_FENCED_FROM: Final[Mapping[int, int]] = {
    INIT_PRODUCER_ID: 4,
    ADD_PARTITIONS_TO_TXN: 2,
    ADD_OFFSETS_TO_TXN: 2,
    END_TXN: 2,
}
"""From which version on an API knows PRODUCER_FENCED. Produce and TxnOffsetCommit do in none: what
they find out about epochs they call INVALID_PRODUCER_EPOCH themselves."""

_ABORTABLE_FROM: Final[Mapping[int, int]] = {
    PRODUCE: 11,
    INIT_PRODUCER_ID: 5,
    ADD_PARTITIONS_TO_TXN: 5,
    ADD_OFFSETS_TO_TXN: 4,
    END_TXN: 4,
    TXN_OFFSET_COMMIT: 4,
}

_NEVER: Final = 1 << 15

_Answer = TypeVar("_Answer")


def known_error(key: int, version: int, error: _Answer) -> _Answer | DisklessError:
    """`error` as this version of the API can say it; everything else is given back as it is."""
    if isinstance(error, ProducerFenced) and version < _FENCED_FROM.get(key, _NEVER):
        return StaleProducerEpoch(str(error))
    if isinstance(error, TransactionAbortable) and version < _ABORTABLE_FROM.get(key, _NEVER):
        return InvalidTransactionState(str(error))
    return error
