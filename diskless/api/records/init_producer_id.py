"""InitProducerId, key 22, versions 0-5: ids for idempotent producers, and for transactional ones.

- Every call without a transactional id gets a new producer id with epoch 0, also when the request
  names one it had before.
- With a transactional id, the coordinator of the id answers, NOT_COORDINATOR elsewhere. It aborts
  what an earlier producer left open, and says CONCURRENT_TRANSACTIONS until that has ended. A
  producer that goes on after an error names its producer id and epoch (version 3, KIP-360);
  PRODUCER_FENCED, before version 4 INVALID_PRODUCER_EPOCH, if it has a successor.
- A timeout must lie between 1 ms and `transaction.max.timeout.ms`.
- Asks for WRITE on the transactional id. Without one, for IDEMPOTENT_WRITE on the cluster; WRITE on
  any topic will do as well.
"""

from datetime import timedelta
from typing import Any, Final

from diskless.api.access import Access
from diskless.api.errors import kafka_code
from diskless.api.known_errors import INIT_PRODUCER_ID, known_error
from diskless.authorization import AclOperation
from diskless.loop.long_work import Steps
from diskless.ports import ClientInfo, ProducerIds
from diskless.protocol.messages import decode_request, encode_response
from diskless.server.registry import Api, Deferred, Outcome, ReplySteps, Request
from diskless.transactions.transaction_router import Producer, TransactionRouter
from metadata.transaction_operations import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    InitializedProducer,
)
from wal.errors import DisklessError, InvalidRequest

KEY: Final = INIT_PRODUCER_ID

_MS: Final = timedelta(milliseconds=1)


def api(producer_ids: ProducerIds, transactions: TransactionRouter, access: Access) -> Api:
    def refusal(client: ClientInfo, asked: Any) -> DisklessError | None:
        name = asked.transactional_id
        if name == "":
            return InvalidRequest("an empty transactional id")
        if name is not None:
            return access.refused_transactional_id(client, AclOperation.WRITE, name)
        write = AclOperation.IDEMPOTENT_WRITE
        may = access.may_cluster(client, write)
        if not may and access.may_with_no_topic(client, AclOperation.WRITE):
            return access.refused_cluster(client, write)
        return None

    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)

        def encode(producer: InitializedProducer) -> ReplySteps:
            values = {
                "error_code": kafka_code(known_error(KEY, request.version, producer.error)),
                "producer_id": producer.producer_id,
                "producer_epoch": producer.producer_epoch,
            }
            return encode_response(KEY, request.version, values)

        def fresh(producer_id: int) -> ReplySteps:
            return encode(InitializedProducer(producer_id, 0))

        def refuse(error: DisklessError) -> ReplySteps:
            return encode(InitializedProducer(error=error))

        refused = refusal(request.client, asked)
        if refused is not None:
            return (yield from refuse(refused))
        if asked.transactional_id is None:
            return Deferred(producer_ids.allocate_producer_id(), fresh, refuse)
        producer = Producer(
            asked.transactional_id,
            getattr(asked, "producer_id", NO_PRODUCER_ID),
            getattr(asked, "producer_epoch", NO_PRODUCER_EPOCH),
        )
        if (producer.producer_id == NO_PRODUCER_ID) != (
            producer.producer_epoch == NO_PRODUCER_EPOCH
        ):
            return (
                yield from refuse(InvalidRequest("a producer id without epoch, or the reverse"))
            )
        timeout_ms = asked.transaction_timeout // _MS
        return Deferred(transactions.init_producer(producer, timeout_ms), encode, refuse)

    return Api(key=KEY, name="InitProducerId", versions=range(6), flexible_from=2, handler=handle)
