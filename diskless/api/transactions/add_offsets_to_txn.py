"""AddOffsetsToTxn, key 25, versions 0-4: a group's offsets will be committed with the transaction.

- Begins the transaction, if it is the first that is added to it.
- Nothing of the group is looked at here: TxnOffsetCommit asks the group's own coordinator.
- Asks for WRITE on the transactional id, and for READ on the group.
"""

from typing import Final

from diskless.api.access import Access
from diskless.api.errors import kafka_code
from diskless.api.known_errors import ADD_OFFSETS_TO_TXN, known_error
from diskless.authorization import AclOperation
from diskless.groups.errors import InvalidGroupId
from diskless.loop.long_work import Steps
from diskless.protocol.messages import decode_request, encode_response
from diskless.server.registry import Api, Deferred, Outcome, ReplySteps, Request
from diskless.transactions.transaction_router import Producer, TransactionRouter
from wal.errors import DisklessError

KEY: Final = ADD_OFFSETS_TO_TXN


def api(transactions: TransactionRouter, access: Access) -> Api:
    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)
        client, name, group_id = request.client, asked.transactional_id, asked.group_id

        def encode(error: DisklessError | None) -> ReplySteps:
            known = known_error(KEY, request.version, error)
            return encode_response(KEY, request.version, {"error_code": kafka_code(known)})

        refused = access.refused_transactional_id(client, AclOperation.WRITE, name)
        refused = refused or access.refused_group(client, AclOperation.READ, group_id)
        if refused is None and not group_id:
            refused = InvalidGroupId("an empty group id")
        if refused is not None:
            return (yield from encode(refused))
        producer = Producer(name, asked.producer_id, asked.producer_epoch)
        return Deferred(transactions.add_group(producer, group_id), encode, None)

    return Api(key=KEY, name="AddOffsetsToTxn", versions=range(5), flexible_from=3, handler=handle)
