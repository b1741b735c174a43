"""Asks a running broker what the `diskless transaction` commands want."""

from collections.abc import Mapping, Sequence
from uuid import UUID

from diskless.cli.admin_connection import AdminConnection, translated_errors
from metadata.transaction_operations import (
    LISTED_AT_ONCE,
    AbortTransaction,
    ListTransactions,
    Transaction,
    TransactionState,
)
from tiering.coordinator_client import CoordinatorClient
from wal.security.client_security import ClientSecurity


class TransactionClient:
    """Transactions of one cluster. Raises what a broker says, CommitFailed, LoginRefused."""

    def __init__(self, bootstrap: str, security: ClientSecurity) -> None:
        self._brokers = CoordinatorClient(bootstrap, security)

    def transactions(self, states: Sequence[TransactionState]) -> Sequence[Transaction]:
        """All transactional ids in these states, or in any, by name; without their parts."""
        found: list[Transaction] = []
        asked = ListTransactions(states=states)
        while len(page := self._brokers.list_transactions(asked)) == LISTED_AT_ONCE:
            found += page
            asked = asked._replace(after=page[-1].transactional_id)
        return [*found, *page]

    def described(self, transactional_ids: Sequence[str]) -> Sequence[Transaction]:
        """Those that there are, with their parts."""
        return self._brokers.list_transactions(
            ListTransactions(transactional_ids=transactional_ids)
        )

    def abort(self, transactional_id: str, number: int) -> Transaction:
        """The transaction as it was; -1 is whichever is open."""
        return self._brokers.abort_transaction(AbortTransaction(transactional_id, number))


class TopicNames(AdminConnection):
    """What topics are called."""

    def names(self) -> Mapping[UUID, str]:
        with translated_errors(self._bootstrap):
            topics = self._admin.describe_topics()
        return {UUID(str(topic["topic_id"])): topic["name"] for topic in topics}
