"""A broker to which users with few rights can be sent, ours or Kafka's.

There are topics, groups and transactional ids "open" and "closed", each transaction is open with
both topics in it, and users of `USERS` log in by PLAIN. All of it is made through the protocol, in
versions that both brokers serve.
"""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from tests.support.clients.stock_clients import TIMEOUT_S
from tests.support.questions.versioned_requests import PlainConnection

__all__ = ["ANY_RULE", "PASSWORD", "USERS", "Values", "World", "commit", "each", "named"]

USERS: Final = ("nobody", "describer", "partly")
"""Without any right; with DESCRIBE on everything; with all rights on "open" and "spare"."""
PASSWORD: Final = "of-all"

TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = 2, 3, 4, 5
ALL, DESCRIBE = 2, 8
LITERAL, PREFIXED = 3, 4
ALLOW: Final = 3
NOT_YET: Final = frozenset({3, 5, 6, 14, 15, 16, 51, 72})
"""Errors of a cluster that is still making its own topics."""

Values = Mapping[str, Any]


class World:
    """One broker. `open_port` lets everybody do everything, users log in by PLAIN at `port`."""

    def __init__(self, open_port: int, port: int) -> None:
        self.port: Final = port
        with PlainConnection(open_port) as admin:
            self.versions: Final = {
                row.api_key: range(row.min_version, row.max_version + 1)
                for row in admin.ask(18, 0).api_keys
            }
            _make_topics(admin)
            self.ids: Final = {
                topic.name: UUID(str(topic.topic_id))
                for topic in admin.ask(
                    3, 12, topics=each(("open", "closed"), named("name")),
                    allow_auto_topic_creation=False,
                ).topics
            }  # fmt: skip
            _make_groups(admin)
            _make_transactions(admin)
            _make_rules(admin)

    def id_of(self, name: str) -> UUID:
        return self.ids.get(name, UUID(int=99))


def _until_ready(ask: Callable[[], Any], codes: Callable[[Any], Sequence[int]]) -> Any:
    """The first answer of a broker that has made what it needs for this."""
    ends_at = time.monotonic() + TIMEOUT_S
    while True:
        answer = ask()
        if not NOT_YET & {*codes(answer)}:
            assert {*codes(answer)} == {0}, answer
            return answer
        assert time.monotonic() < ends_at, answer
        time.sleep(0.05)


def _make_topics(admin: PlainConnection) -> None:
    row = named(
        "name", num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )  # fmt: skip
    asked = {"topics": each(("open", "closed"), row), "timeout_ms": 30_000, "validate_only": False}
    answer = admin.ask(19, 5, **asked)
    assert [topic.error_code for topic in answer.topics] == [0, 0]
    _until_ready(
        lambda: admin.ask(
            2,
            5,
            replica_id=-1,
            isolation_level=0,
            topics=each(
                ("open", "closed"),
                named(
                    "name",
                    partitions=[
                        {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
                    ],
                ),
            ),
        ),
        lambda answer: [row.error_code for topic in answer.topics for row in topic.partitions],
    )


def _make_groups(admin: PlainConnection) -> None:
    for group in ("open", "closed"):
        for kind in (0, 1):
            _until_ready(
                lambda: admin.ask(10, 3, key=group, key_type=kind),  # noqa: B023
                lambda answer: [answer.error_code],
            )
        _until_ready(
            lambda: admin.ask(8, 7, **commit(group, ("open", "closed"))),  # noqa: B023
            lambda answer: [row.error_code for topic in answer.topics for row in topic.partitions],
        )


def _make_transactions(admin: PlainConnection) -> None:
    for name in ("open", "closed"):
        producer = _until_ready(
            lambda: admin.ask(
                22, 3, transactional_id=name, transaction_timeout_ms=900_000,  # noqa: B023
                producer_id=-1, producer_epoch=-1,
            ),
            lambda answer: [answer.error_code],
        )  # fmt: skip
        begun = {
            "transactional_id": name,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "topics": each(("open", "closed"), named("name", partitions=[0])),
        }
        _until_ready(
            lambda: admin.ask(
                24, 3, **{f"v3_and_below_{key}": value for key, value in begun.items()}  # noqa: B023
            ),
            lambda answer: [
                row.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for row in topic.results_by_partition
            ],
        )  # fmt: skip


def _make_rules(admin: PlainConnection) -> None:
    def rule(kind: int, name: str, pattern: int, user: str, operation: int) -> Values:
        return {
            "resource_type": kind,
            "resource_name": name,
            "resource_pattern_type": pattern,
            "principal": f"User:{user}",
            "host": "*",
            "operation": operation,
            "permission_type": ALLOW,
        }

    kinds = (TOPIC, GROUP, TRANSACTIONAL_ID)
    rules = [
        *(rule(kind, "*", LITERAL, "describer", DESCRIBE) for kind in kinds),
        rule(CLUSTER, "kafka-cluster", LITERAL, "describer", DESCRIBE),
        *(rule(kind, "open", LITERAL, "partly", ALL) for kind in kinds),
        *(rule(kind, "spare", PREFIXED, "partly", ALL) for kind in kinds),
    ]
    made = admin.ask(30, 2, creations=rules)
    assert {row.error_code for row in made.results} == {0}
    users = [
        {
            "name": user,
            "mechanism": 1,
            "iterations": 4_096,
            "salt": b"salt",
            "salted_password": hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), b"salt", 4_096),
        }
        for user in (*USERS, "open", "closed")
    ]
    added = admin.ask(51, 0, deletions=[], upsertions=users)
    assert {row.error_code for row in added.results} == {0}

    def known() -> int:
        answer = admin.ask(29, 2, **ANY_RULE)
        return sum(len(resource.acls) for resource in answer.resources)

    ends_at = time.monotonic() + TIMEOUT_S
    while known() < len(rules):
        assert time.monotonic() < ends_at
        time.sleep(0.05)


def each(names: Sequence[str], row: Callable[[str], Values]) -> list[Values]:
    return [row(name) for name in names]


def named(*keys: str, **more: Any) -> Callable[[str], Values]:
    return lambda name: {**dict.fromkeys(keys, name), **more}


def commit(group: str, topics: Sequence[str]) -> Values:
    partition = {
        "partition_index": 0,
        "committed_offset": 0,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    return {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "retention_time_ms": -1,
        "topics": each(topics, named("name", partitions=[partition])),
    }


ANY_RULE: Final[Values] = {
    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1,
    "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip
