"""EndTxn, key 26, versions 0-5: commits or aborts the producer's transaction.

- The answer says that the decision is durable. Readers nearly always see it by then; where some
  coordinator has not heard of it yet, the next transaction finds CONCURRENT_TRANSACTIONS.
- May be repeated: the same outcome is answered as before, the other one is INVALID_TXN_STATE.
- The answer to version 5 (`transaction.version` 2) has the producer id and epoch with which the
  producer goes on. An epoch names one transaction then, so nothing that comes late is taken for a
  part of the next one.
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
from metadata.transaction_operations import EndedTransaction

KEY: Final = END_TXN

_BUMPED_FROM: Final = 5


def api(transactions: TransactionRouter, access: Access) -> Api:
    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)
        name = asked.transactional_id

        def encode(ended: EndedTransaction) -> ReplySteps:
            values = {
                "error_code": kafka_code(known_error(KEY, request.version, ended.error)),
                "producer_id": ended.producer_id,
                "producer_epoch": ended.producer_epoch,
            }
            return encode_response(KEY, request.version, values)

        refused = access.refused_transactional_id(request.client, AclOperation.WRITE, name)
        if refused is not None:
            return (yield from encode(EndedTransaction(error=refused)))
        producer = Producer(name, asked.producer_id, asked.producer_epoch)
        ended = transactions.end(
            producer, is_commit=asked.committed, bumps_epoch=request.version >= _BUMPED_FROM
        )
        return Deferred(ended, encode, None)

    return Api(key=KEY, name="EndTxn", versions=range(6), flexible_from=3, handler=handle)
