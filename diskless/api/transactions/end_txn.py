"""EndTxn, key 26, versions 0-4: commits or aborts the producer's transaction.

- The answer says that the decision is durable. Readers nearly always see it by then; where some
  coordinator has not heard of it yet, the next transaction finds CONCURRENT_TRANSACTIONS.
- May be repeated: the same outcome is answered as before, the other one is INVALID_TXN_STATE.
- Asks for WRITE on the transactional id.
"""

from typing import Final

from diskless.api.access import Access
from diskless.api.errors import kafka_code
from diskless.api.known_errors import END_TXN, known_error
from diskless.authorization import AclOperation
from diskless.loop.long_work import Steps
from diskless.protocol.messages import decode_request, encode_response
from diskless.server.registry import Api, Deferred, Outcome, ReplySteps, Request
from diskless.transactions.transaction_router import Producer, TransactionRouter
from wal.errors import DisklessError

KEY: Final = END_TXN


def api(transactions: TransactionRouter, access: Access) -> Api:
    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)
        name = asked.transactional_id

        def encode(error: DisklessError | None) -> ReplySteps:
            known = known_error(KEY, request.version, error)
            return encode_response(KEY, request.version, {"error_code": kafka_code(known)})

        refused = access.refused_transactional_id(request.client, AclOperation.WRITE, name)
        if refused is not None:
            return (yield from encode(refused))
        producer = Producer(name, asked.producer_id, asked.producer_epoch)
        return Deferred(transactions.end(producer, is_commit=asked.committed), encode, None)

    return Api(key=KEY, name="EndTxn", versions=range(5), flexible_from=3, handler=handle)
