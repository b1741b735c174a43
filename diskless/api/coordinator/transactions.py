"""What `diskless transaction` asks a broker: private APIs 10098 and 10099.

Not Kafka APIs, and not listed by ApiVersions. Kafka's tools abort a transaction by writing markers
(WriteTxnMarkers), which the coordinator of its transactional id would not hear of. Here it is that
coordinator which decides, as for a transaction that is open for too long: the producer is fenced,
and everybody who has a part in it is told.

To abort takes ALTER on the cluster, to list DESCRIBE. Any broker may be asked.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from diskless.api.access import Access
from diskless.api.coordinator.coordinator_operation import (
    Call,
    RunningOperations,
    client_api,
    coordinator_api,
)
from diskless.audit.audit_log import UNNOTED, Audit
from diskless.authorization import AclOperation, Authorizer
from diskless.ports import ClientInfo
from diskless.server.registry import Api
from metadata.clients.coordinator_client import CoordinatorClient
from metadata.messages.shapes import Addressed
from metadata.messages.transactions import (
    ABORT_TRANSACTION,
    ABORT_TRANSACTIONS,
    DESCRIBE_TRANSACTIONS,
    LIST_TRANSACTIONS,
    LIST_TRANSACTIONS_HERE,
)
from metadata.transaction_operations import (
    AbortTransaction,
    ListedTransactions,
    ListTransactions,
    Transaction,
)
from wal.errors import DisklessError, InvalidRequest, InvalidTransactionState

ABORTED_AT_ONCE_MAX: Final = 100
"""By one request."""
WHATEVER_IS_OPEN: Final = -1
"""In place of the number of a transaction."""


def transaction_apis(
    client: CoordinatorClient,
    coordinator_of: Callable[[str], int],
    running: RunningOperations,
    authorizer: Authorizer,
    audit: Audit = UNNOTED,
) -> Sequence[Api]:
    """APIs to be added to a registry; `client` reaches all coordinators.

    `coordinator_of`: the metadata partition of a transactional id.
    """
    access = Access(authorizer, audit)

    def refused_abort(of: ClientInfo, asked: Sequence[AbortTransaction]) -> DisklessError | None:
        if len(asked) > ABORTED_AT_ONCE_MAX:
            return InvalidRequest(f"more than {ABORTED_AT_ONCE_MAX} transactions")
        return access.refused_cluster(of, AclOperation.ALTER)

    def refused_list(of: ClientInfo, _: Any) -> DisklessError | None:
        return access.refused_cluster(of, AclOperation.DESCRIBE)

    def abort_for(
        of: ClientInfo,
    ) -> Call[Sequence[AbortTransaction], Transaction | DisklessError]:
        async def abort(
            asked: Sequence[AbortTransaction], timeout_ms: int
        ) -> Sequence[Transaction | DisklessError]:
            aborting = partial(_aborted, client, coordinator_of, timeout_ms=timeout_ms)
            answers = await asyncio.gather(*map(aborting, asked))
            for answer in answers:
                if isinstance(answer, Transaction):
                    resource = f"transaction:{answer.transactional_id}/{answer.number}"
                    access.audit.changed(of, "AbortTransaction", resource)
            return answers

        return abort

    async def listed(
        asked: ListTransactions, timeout_ms: int
    ) -> Sequence[ListedTransactions | DisklessError]:
        return await client.call(LIST_TRANSACTIONS_HERE, asked, timeout_ms=timeout_ms)

    return [
        client_api(ABORT_TRANSACTIONS, abort_for, running, access, refusal=refused_abort),
        coordinator_api(LIST_TRANSACTIONS, listed, running, access, refusal=refused_list),
    ]


async def _aborted(
    client: CoordinatorClient,
    coordinator_of: Callable[[str], int],
    asked: AbortTransaction,
    *,
    timeout_ms: int,
) -> Transaction | DisklessError:
    """The transaction as it was before."""
    name = asked.transactional_id
    coordinator = coordinator_of(name)
    try:
        (found,) = await client.call(
            DESCRIBE_TRANSACTIONS, Addressed(coordinator, [name]), timeout_ms=timeout_ms
        )
        if isinstance(found, DisklessError):
            return found
        if asked.number not in (WHATEVER_IS_OPEN, found.number) or not found.is_open:
            which = "" if asked.number == WHATEVER_IS_OPEN else f" {asked.number}"
            return InvalidTransactionState(f"{name} has no transaction{which} open")
        (ended,) = await client.call(
            ABORT_TRANSACTION,
            Addressed(coordinator, [AbortTransaction(name, found.number)]),
            timeout_ms=timeout_ms,
        )
    except DisklessError as error:
        return error
    return found if ended.error is None else ended.error
