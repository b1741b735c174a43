"""ListTransactions, key 66, versions 0-2: the transactional ids this broker coordinates.

Clients ask every broker. Filters, of which all must let an id through:

- by state and by producer id; states that there are not are named in the answer;
- version 1: by duration. A transaction passes that has been open for more than the milliseconds
  given. Ids without an open transaction do not pass; Kafka lists those that never had one;
- version 2: ids that a pattern in RE2's dialect matches from end to end; INVALID_REGULAR_EXPRESSION
  for one that is none.

Who may not DESCRIBE a transactional id does not see it.
"""

from collections.abc import Callable, Sequence
from typing import Final

from diskless.api.access import Access
from diskless.api.errors import kafka_code
from diskless.api.transactions.transaction_filter import TransactionFilter
from diskless.authorization import AclOperation
from diskless.groups.errors import InvalidRegularExpression
from diskless.loop.long_work import Steps, batched
from diskless.ports import ClientInfo
from diskless.protocol.messages import Fields, decode_request, encode_response
from diskless.server.registry import Api, Outcome, Request
from diskless.transactions.state_names import STATE_NAMES
from diskless.transactions.transaction_router import TransactionRouter
from metadata.transaction_operations import Transaction, TransactionState
from wal.errors import DisklessError

KEY: Final = 66

_ASKED_AT_ONCE: Final = 1_000
"""Names in one question to the authorizer."""


def api(transactions: TransactionRouter, now_ms: Callable[[], int], access: Access) -> Api:
    def visible(client: ClientInfo, found: Sequence[Transaction]) -> Sequence[Transaction]:
        names = [transaction.transactional_id for transaction in found]
        hidden = access.hidden_transactional_ids(client, AclOperation.DESCRIBE, names)
        if not hidden:
            return found
        return [transaction for transaction in found if transaction.transactional_id not in hidden]

    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)
        unknown: Sequence[str] = ()
        shown: list[Transaction] = []
        error: DisklessError | None = None
        try:
            wanted = TransactionFilter(
                state_names=asked.state_filters,
                producer_ids=asked.producer_id_filters,
                longer_than_ms=getattr(asked, "duration_filter", -1),
                pattern=getattr(asked, "transactional_id_pattern", None),
            )
        except InvalidRegularExpression as failure:
            error = failure
        else:
            unknown = yield from wanted.unknown_states()
            for known in transactions.list():
                yield
                found = yield from wanted.found(known, now_ms())
                for some in batched(found, _ASKED_AT_ONCE):
                    shown += visible(request.client, some)
                    yield
        values: Fields = {
            "error_code": kafka_code(error),
            "unknown_state_filters": unknown,
            "transaction_states": map(_row, shown),
        }
        return (yield from encode_response(KEY, request.version, values))

    return Api(key=KEY, name="ListTransactions", versions=range(3), flexible_from=0, handler=handle)


def _row(transaction: Transaction) -> Fields:
    return {
        "transactional_id": transaction.transactional_id,
        "producer_id": transaction.producer_id,
        "transaction_state": STATE_NAMES[TransactionState(transaction.state)],
    }
