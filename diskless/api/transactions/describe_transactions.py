"""DescribeTransactions, key 65, version 0: the last transactions of transactional ids.

- Asked of the id's coordinator; NOT_COORDINATOR elsewhere, TRANSACTIONAL_ID_NOT_FOUND for an id
  that was never used, or not for `transactional.id.expiration.ms`.
- Partitions are shown while the transaction is open. The groups whose offsets it commits are not:
  Kafka shows them as partitions of its topic of offsets, which is not here.
- Asks for DESCRIBE on each transactional id; topics are left out that may not be described.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

from diskless.api.access import Access, allowed_rows
from diskless.api.errors import kafka_code
from diskless.authorization import AclOperation
from diskless.loop.long_work import Steps, in_order
from diskless.ports import ClientInfo, TopicAdmin
from diskless.protocol.messages import Fields, decode_request, encode_response
from diskless.server.registry import Api, Outcome, Request
from diskless.transactions.state_names import STATE_NAMES
from diskless.transactions.transaction_router import TransactionRouter
from metadata.transaction_operations import Transaction, TransactionState
from wal.errors import DisklessError

KEY: Final = 65

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER: Final = -1


class _Described(NamedTuple):
    transaction: Transaction
    topics: Mapping[str, Sequence[int]]


def api(transactions: TransactionRouter, topics: TopicAdmin, access: Access) -> Api:
    def partitions_of(
        client: ClientInfo, transaction: Transaction
    ) -> Steps[Mapping[str, Sequence[int]]]:
        """By the names of topics that there still are."""
        by_topic: dict[UUID, list[int]] = {}
        for partition in transaction.partitions:
            by_topic.setdefault(partition.topic_id, []).append(partition.partition)
            yield
        named: dict[str, Sequence[int]] = {}
        for topic_id, indexes in by_topic.items():
            topic = topics.topic_by_id(topic_id)
            if topic is not None:
                named[topic.name] = yield from in_order(indexes)
            yield
        shown = access.described_topics(client, frozenset(named))
        return {name: named[name] for name in (yield from in_order(shown))}

    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)
        client, names = request.client, asked.transactional_ids
        refused = access.refused_transactional_ids(client, AclOperation.DESCRIBE, names)
        rows = allowed_rows(names, str, refused)
        found: list[_Described | DisklessError] = []
        for name in rows.allowed:
            transaction = transactions.describe(name)
            if isinstance(transaction, DisklessError):
                found.append(transaction)
            else:
                shown = yield from partitions_of(client, transaction)
                found.append(_Described(transaction, shown))
            yield
        answers = rows.merged(found, lambda _, error: error)
        states = (_row(name, answer) for name, answer in zip(names, answers, strict=True))
        return (yield from encode_response(KEY, request.version, {"transaction_states": states}))

    return Api(
        key=KEY, name="DescribeTransactions", versions=range(1), flexible_from=0, handler=handle
    )


def _row(name: str, answer: _Described | DisklessError) -> Fields:
    if isinstance(answer, DisklessError):
        return {
            "error_code": kafka_code(answer),
            "transactional_id": name,
            "transaction_state": "",
            "transaction_timeout": timedelta(0),
            "transaction_start_time": _EPOCH,
            "producer_id": 0,
            "producer_epoch": 0,
            "topics": (),
        }
    transaction, topics = answer
    return {
        "error_code": 0,
        "transactional_id": name,
        "transaction_state": STATE_NAMES[TransactionState(transaction.state)],
        "transaction_timeout": timedelta(milliseconds=transaction.timeout_ms),
        "transaction_start_time": _time(transaction.began_ms if transaction.is_open else _NEVER),
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.producer_epoch,
        "topics": (
            {"topic": topic, "partitions": partitions} for topic, partitions in topics.items()
        ),
    }


def _time(ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=ms)
