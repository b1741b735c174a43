"""Which transactions somebody wants to see: by state, producer, time and name."""

from collections.abc import Sequence

from diskless.groups.consumer.topic_patterns import compiled_pattern
from diskless.loop.long_work import Steps
from diskless.transactions.state_names import NEVER_SHOWN, STATE_OF
from metadata.transaction_operations import Transaction


class TransactionFilter:
    """All conditions must hold; one that is empty or negative always does."""

    def __init__(
        self,
        *,
        state_names: Sequence[str],
        producer_ids: Sequence[int],
        longer_than_ms: int,
        pattern: str | None,
    ) -> None:
        """`pattern` is for whole names. Raises: InvalidRegularExpression."""
        self._state_names = frozenset(state_names)
        self._states = frozenset(
            int(state) for name, state in STATE_OF.items() if name in self._state_names
        )
        self._producer_ids = frozenset(producer_ids)
        self._longer_than_ms = longer_than_ms
        self._matches = compiled_pattern(pattern).fullmatch if pattern else None

    def unknown_states(self) -> Steps[Sequence[str]]:
        """Those that were named and are none."""
        unknown = []
        for name in self._state_names:
            if name not in STATE_OF and name not in NEVER_SHOWN:
                unknown.append(name)
            yield
        return unknown

    def found(self, transactions: Sequence[Transaction], now_ms: int) -> Steps[list[Transaction]]:
        found = []
        for transaction in transactions:
            if self._finds(transaction, now_ms):
                found.append(transaction)
            yield
        return found

    def _finds(self, transaction: Transaction, now_ms: int) -> bool:
        if self._state_names and transaction.state not in self._states:
            return False
        if self._producer_ids and transaction.producer_id not in self._producer_ids:
            return False
        if self._longer_than_ms >= 0 and not (
            transaction.is_open and now_ms - transaction.began_ms > self._longer_than_ms
        ):
            return False
        return (
            self._matches is None
            or self._matches(transaction.transactional_id.encode()) is not None
        )
