"""AddPartitionsToTxn, key 24, versions 0-5: a transaction begins, or takes in more partitions.

- All of a transaction's partitions or none: where one is refused or not there, it has its error and
  the others have OPERATION_NOT_ATTEMPTED.
- Versions 0-3 are clients'. They ask for WRITE on the transactional id and on each topic. The
  cluster's own topic is refused as one that nobody may write to.
- Versions 4 and 5 have many transactions in a request, or ask whether partitions are in one. They
  are for brokers of Kafka, ours ask each other otherwise, and ask for CLUSTER_ACTION.
"""

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

from diskless.api.access import Access, Refused
from diskless.api.errors import OperationNotAttempted, kafka_code
from diskless.api.known_errors import ADD_PARTITIONS_TO_TXN, known_error
from diskless.authorization import AclOperation
from diskless.loop.long_work import Steps, collected, each, gathered, mapped
from diskless.ports import ClientInfo
from diskless.protocol.messages import Fields, decode_request, encode_response
from diskless.server.registry import Api, Deferred, Outcome, ReplySteps, Request
from diskless.transactions.errors import TransactionAbortable
from diskless.transactions.transaction_numbers import TransactionNumbers
from diskless.transactions.transaction_router import Producer, TransactionRouter
from metadata.operations import METADATA_TOPIC
from metadata.transaction_operations import JoinTransaction, TransactionPartition
from wal.coordinates import TopicIdPartition
from wal.errors import DisklessError, InvalidTransactionState, TopicAuthorizationFailed

KEY: Final = ADD_PARTITIONS_TO_TXN

_BATCHED_FROM: Final = 4

_INTERNAL: Final[Refused] = {
    METADATA_TOPIC: TopicAuthorizationFailed(f"{METADATA_TOPIC} can only be read")
}

Errors = DisklessError | Sequence[DisklessError | None]
"""The error of all partitions of a transaction, or of each."""


class _Asked(NamedTuple):
    """One transaction of a request."""

    producer: Producer
    topics: Sequence[Any]
    """Of Kafka's schema."""
    partitions: Sequence[tuple[str, int]]
    refused: Refused = _INTERNAL
    """Topics by name."""
    is_question: bool = False


def api(transactions: TransactionRouter, numbers: TransactionNumbers, access: Access) -> Api:
    async def added(asked: _Asked) -> Errors:
        errors = await transactions.add_partitions(
            asked.producer, asked.partitions, refused=asked.refused
        )
        return errors if isinstance(errors, DisklessError) else await _or_none(errors)

    async def verified(asked: _Asked) -> Errors:
        located = await transactions.located(asked.partitions, asked.refused)
        errors = [one if isinstance(one, DisklessError) else None for one in located]
        if any(errors):
            return await _or_none(errors)
        found = [one.partition for one in located if isinstance(one, TransactionPartition)]
        question = JoinTransaction(*asked.producer, partitions=found)
        error = (await numbers.ask(question)).error
        if not isinstance(error, InvalidTransactionState):
            return error or errors

        async def alone(place: TopicIdPartition) -> DisklessError | None:
            answer = await numbers.ask(question._replace(partitions=[place]))
            if isinstance(answer.error, InvalidTransactionState):
                return TransactionAbortable(str(answer.error))
            return answer.error

        return await gathered(alone, found)

    async def answered(asked: _Asked) -> Errors:
        return await (verified(asked) if asked.is_question else added(asked))

    def handle_one(request: Request, asked: Any) -> Steps[Outcome]:
        name, topics = asked.v3_and_below_transactional_id, asked.v3_and_below_topics

        def encode(errors: Errors) -> ReplySteps:
            rows = _rows(request.version, topics, errors)
            return encode_response(KEY, request.version, {"results_by_topic_v3_and_below": rows})

        client, write = request.client, AclOperation.WRITE
        refusal = access.refused_transactional_id(client, write, name)
        if refusal is not None:
            return (yield from encode(refusal))
        refused = yield from _refused_topics(access, client, topics)
        wanted = _Asked(
            Producer(name, asked.v3_and_below_producer_id, asked.v3_and_below_producer_epoch),
            topics,
            (yield from collected(_partitions(topics))),
            {**refused, **_INTERNAL},
        )
        return Deferred(answered(wanted), encode, None)

    def handle_many(request: Request, asked: Any) -> Steps[Outcome]:
        refusal = access.refused_cluster(request.client, AclOperation.CLUSTER_ACTION)
        if refusal is not None:
            values: Fields = {"error_code": kafka_code(refusal), "results_by_transaction": ()}
            return (yield from encode_response(KEY, request.version, values))
        wanted = []
        for one in asked.transactions:
            producer = Producer(one.transactional_id, one.producer_id, one.producer_epoch)
            partitions = yield from collected(_partitions(one.topics))
            wanted.append(_Asked(producer, one.topics, partitions, is_question=one.verify_only))

        def encode(answers: Sequence[Errors]) -> ReplySteps:
            results = (
                {
                    "transactional_id": one.producer.transactional_id,
                    "topic_results": _rows(request.version, one.topics, errors),
                }
                for one, errors in zip(wanted, answers, strict=True)
            )
            values = {"error_code": 0, "results_by_transaction": results}
            return encode_response(KEY, request.version, values)

        return Deferred(gathered(answered, wanted), encode, None)

    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)
        is_batched = request.version >= _BATCHED_FROM
        return (yield from (handle_many if is_batched else handle_one)(request, asked))

    return Api(
        key=KEY, name="AddPartitionsToTxn", versions=range(6), flexible_from=3, handler=handle
    )


def _refused_topics(access: Access, client: ClientInfo, topics: Sequence[Any]) -> Steps[Refused]:
    names = yield from mapped(attrgetter("name"), topics)
    return access.refused_topics(client, AclOperation.WRITE, names)


async def _or_none(errors: Sequence[DisklessError | None]) -> Sequence[DisklessError | None]:
    """One that has an error lets all others go without being done."""
    if not any(errors):
        return errors
    not_attempted = OperationNotAttempted("something is wrong with another partition")
    return await each(lambda error: error or not_attempted, errors)


def _partitions(topics: Sequence[Any]) -> Iterator[tuple[str, int]]:
    return ((topic.name, index) for topic in topics for index in topic.partitions)


def _rows(version: int, topics: Sequence[Any], errors: Errors) -> Iterator[Mapping[str, Any]]:
    """One for each topic."""

    def code(error: DisklessError | None) -> int:
        return kafka_code(known_error(KEY, version, error))

    of_all = code(errors) if isinstance(errors, DisklessError) else 0
    of_each = iter(()) if isinstance(errors, DisklessError) else map(code, errors)

    def partitions(topic: Any) -> Iterator[Mapping[str, int]]:
        return (
            {"partition_index": index, "partition_error_code": next(of_each, of_all)}
            for index in topic.partitions
        )

    return ({"name": topic.name, "results_by_partition": partitions(topic)} for topic in topics)
