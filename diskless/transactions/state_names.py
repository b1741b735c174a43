"""Kafka's names of the states of a transactional id, as its tools show and filter by them."""

from collections.abc import Mapping
from typing import Final

from metadata.transaction_operations import TransactionState

STATE_NAMES: Final[Mapping[TransactionState, str]] = {
    TransactionState.EMPTY: "Empty",
    TransactionState.ONGOING: "Ongoing",
    TransactionState.PREPARE_COMMIT: "PrepareCommit",
    TransactionState.PREPARE_ABORT: "PrepareAbort",
    TransactionState.COMPLETE_COMMIT: "CompleteCommit",
    TransactionState.COMPLETE_ABORT: "CompleteAbort",
}

STATE_OF: Final[Mapping[str, TransactionState]] = {
    name: state for state, name in STATE_NAMES.items()
}

NEVER_SHOWN: Final = frozenset({"Dead", "PrepareEpochFence"})
"""States that Kafka has besides, in which no id is ever seen; not unknown to a filter."""
