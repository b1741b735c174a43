"""InitProducerId, key 22, versions 0-5: ids for idempotent producers.

- Every call without a transactional id gets a new producer id with epoch 0, also when the request
  names one it had before (KIP-360 serves transactional producers).
- Asks for IDEMPOTENT_WRITE on the cluster; WRITE on any topic will do as well.
- With a transactional id the answer is TRANSACTIONAL_ID_AUTHORIZATION_FAILED: transactions are not
  served, and this is the code at which all clients give up at once instead of trying again.
"""

from typing import Final

from diskless.api.access import Access
from diskless.api.errors import TransactionsNotServed, kafka_code
from diskless.authorization import AclOperation
from diskless.loop.long_work import Steps
from diskless.ports import ProducerIds
from diskless.protocol.messages import decode_request, encode_response
from diskless.server.registry import Api, Deferred, Outcome, ReplySteps, Request
from wal.errors import DisklessError, InvalidRequest

KEY: Final = 22


def api(producer_ids: ProducerIds, access: Access) -> Api:
    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)

        def encode(producer_id: int) -> ReplySteps:
            values = {"error_code": 0, "producer_id": producer_id, "producer_epoch": 0}
            return encode_response(KEY, request.version, values)

        def refuse(error: DisklessError) -> ReplySteps:
            values = {"error_code": kafka_code(error), "producer_id": -1, "producer_epoch": -1}
            return encode_response(KEY, request.version, values)

        if asked.transactional_id == "":
            return (yield from refuse(InvalidRequest("an empty transactional id")))
        if asked.transactional_id is not None:
            return (yield from refuse(TransactionsNotServed("transactions are not served")))
        client, write = request.client, AclOperation.IDEMPOTENT_WRITE
        may = access.may_cluster(client, write)
        if not may and access.may_with_no_topic(client, AclOperation.WRITE):
            refused = access.refused_cluster(client, write)
            assert refused is not None
            return (yield from refuse(refused))
        return Deferred(producer_ids.allocate_producer_id(), encode, refuse)

    return Api(key=KEY, name="InitProducerId", versions=range(6), flexible_from=2, handler=handle)
