"""Questions to a broker with rules, by users with few rights, and what an answer tells of names.

A `World` (refused_world.py) has what is "open" and "closed"; nobody has made what is "absent". What
begins with "spare" is not there either; it stands for "open" where a request that is served would
take something away. `QUESTIONS` asks every API for each of the names, in all of its versions. No
question changes what another one is told.

A new API needs a line in `QUESTIONS`, and its answers by Kafka in the file of
tests/clients/test_refusals.py, which tells how it is written.
"""

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

from tests.support.questions.versioned_requests import PlainConnection
from tests.support.security.refused_world import (
    ANY_RULE,
    PASSWORD,
    Values,
    World,
    commit,
    each,
    named,
)

with warnings.catch_warnings():
    # As in tests/support/clients/stock_clients.py.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatchBuilder

__all__ = ["QUESTIONS", "Question", "Seat", "everything_told", "told_of_names"]

NAMES: Final = ("open", "closed", "absent")
SPARED: Final = ("spare", "closed", "absent")

TOPIC, BROKER_CONFIG, GROUP_CONFIG = 2, 4, 32
LITERAL, DESCRIBE, ALLOW = 3, 8, 3
NOBODYS_PRODUCER: Final = 999_999
"""An id of a producer that was given to nobody."""


class Question(NamedTuple):
    """A request of an API for some names."""

    key: int
    what: str
    values: Callable[[World, int, Sequence[str]], Values]
    names: Sequence[str] = NAMES
    by_one: bool = False
    """Whether a request is for one name alone."""
    since: int = 0
    """The first version that can ask this."""
    until: int = 99
    """The first version that cannot."""
    ids_since: int = 99
    """The first version that names topics by id; one that nobody has made is unknown to all."""

    @property
    def title(self) -> str:
        return f"{self.key} {self.what}"

    def requests(self) -> Sequence[Sequence[str]]:
        """The names that are asked for together."""
        return [[name] for name in self.names] if self.by_one else [self.names]

    def versions(self, *worlds: World) -> Sequence[int]:
        """Those that can ask this, and that all `worlds` serve."""
        served = [set(world.versions.get(self.key, ())) for world in worlds]
        return sorted(
            version
            for version in set.intersection(*served)
            if self.since <= version < self.until and not (self.key == 0 and version < 3)
        )


class Seat:
    """A user at a broker, on one connection as long as that is left open."""

    def __init__(self, world: World, user: str) -> None:
        self._world = world
        self._user = user
        self._connection: PlainConnection | None = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.__exit__()
            self._connection = None

    def answer(self, question: Question, version: int, names: Sequence[str]) -> Any:
        """As mappings and lists; "closed" if that is what the broker does instead."""
        values = question.values(self._world, version, names)
        try:
            return _plain(self._logged_in().ask(question.key, version, **values))
        except ConnectionError:
            self.close()
            return "closed"

    def _logged_in(self) -> PlainConnection:
        if self._connection is None:
            self._connection = PlainConnection(self._world.port)
            self._connection.ask(17, 1, mechanism="PLAIN")
            token = f"\0{self._user}\0{PASSWORD}".encode()
            assert self._connection.ask(36, 1, auth_bytes=token).error_code == 0
        return self._connection


_TELLING: Final = frozenset({
    "name", "topic", "topic_name", "group_id", "key", "transactional_id", "resource_name", "user",
    "group_state", "topic_authorized_operations", "cluster_authorized_operations",
    "authorized_operations", "num_partitions", "replication_factor",
})  # fmt: skip
_PASSED_OVER: Final = frozenset({"throttle_time_ms", "throttle_time"})


def told_of_names(answer: Any, world: World) -> Any:
    """The error codes and names of an answer, what is known of them, and how all that is nested.

    Lists are sorted: brokers do not promise an order. What is empty is left out, and so are topics
    that brokers keep for themselves, and values of configs.
    """
    names = {str(topic_id): name for name, topic_id in world.ids.items()}
    names[str(UUID(int=99))] = "absent"

    def told(value: Any) -> Any:
        if isinstance(value, list):
            found = [kept for kept in map(told, value) if kept not in ({}, [])]
            return sorted(found, key=repr)
        if not isinstance(value, dict):
            return value
        kept: dict[str, Any] = {}
        for key, item in value.items():
            if key in ("configs", "replica_nodes", "isr_nodes", "brokers"):
                continue
            if key == "topic_id":
                kept[key] = names.get(str(item), "none")
            elif isinstance(item, dict | list):
                kept[key] = told(item)
            elif key in _TELLING or key.endswith("error_code"):
                kept[key] = item
        if str(kept.get("name", "")).startswith("__"):
            return {}
        return {key: item for key, item in kept.items() if item not in ({}, [], None, "")}

    return told(answer)


def everything_told(answer: Any, name: str) -> Any:
    """All of an answer but for times, with `name` written as "NAME" in whatever text it is."""
    if isinstance(answer, dict):
        return {
            key: everything_told(value, name)
            for key, value in answer.items()
            if key not in _PASSED_OVER
        }
    if isinstance(answer, list):
        return [everything_told(item, name) for item in answer]
    return answer.replace(name, "NAME") if isinstance(answer, str) else answer


def _plain(answer: Any) -> Any:
    if dataclasses.is_dataclass(answer) and not isinstance(answer, type):
        return {
            field.name: _plain(getattr(answer, field.name)) for field in dataclasses.fields(answer)
        }
    if isinstance(answer, list | tuple):
        return [_plain(item) for item in answer]
    if hasattr(answer, "to_dict"):
        return _plain(answer.to_dict())
    if isinstance(answer, dict):
        return {key: _plain(item) for key, item in answer.items()}
    return int(answer) if isinstance(answer, int) and not isinstance(answer, bool) else answer


# --- what is asked


def _without(values: Values, *keys: str) -> Values:
    return {key: value for key, value in values.items() if key not in keys}


def _records(is_transactional: bool) -> bytes:
    producer = (NOBODYS_PRODUCER, 0, 0) if is_transactional else (-1, -1, -1)
    builder = DefaultRecordBatchBuilder(2, 0, is_transactional, *producer, 1 << 20)
    builder.append(0, timestamp=1_000, key=b"k", value=b"v", headers=[])
    return bytes(builder.build())


def _produce(
    world: World,
    version: int,
    names: Sequence[str],
    *,
    ids: str | None = None,
    is_transactional: bool = False,
) -> Values:
    rows = [
        {
            "name": name,
            "topic_id": world.id_of(name),
            "partition_data": [{"index": 0, "records": _records(is_transactional)}],
        }
        for name in names
    ]
    return {"acks": -1, "timeout_ms": 30_000, "transactional_id": ids, "topic_data": rows}


def _fetch(world: World, version: int, names: Sequence[str]) -> Values:
    partition = {
        "partition": 0, "fetch_offset": 0, "current_leader_epoch": -1,
        "last_fetched_epoch": -1, "log_start_offset": -1, "partition_max_bytes": 1 << 20,
    }  # fmt: skip
    rows = [
        {"topic": name, "topic_id": world.id_of(name), "partitions": [partition]} for name in names
    ]
    limits = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20}
    return {"replica_id": -1, **limits, "session_epoch": -1, "topics": rows}


def _metadata(world: World, version: int, names: Sequence[str]) -> Values:
    return {
        "topics": each(names, named("name", topic_id=UUID(int=0))),
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": True,
        "include_cluster_authorized_operations": True,
    }


def _metadata_by_id(world: World, version: int, names: Sequence[str]) -> Values:
    rows = [{"name": None, "topic_id": world.id_of(name)} for name in names]
    return {**_metadata(world, version, names), "topics": rows}


def _metadata_of_all(world: World, version: int, names: Sequence[str]) -> Values:
    return {**_metadata(world, version, names), "topics": [] if version == 0 else None}


def _offset_fetch(world: World, version: int, groups: Sequence[str], topics: Any) -> Values:
    rows = None if topics is None else each(topics, named("name", partition_indexes=[0]))
    if version < 8:
        return {"group_id": groups[0], "topics": rows, "require_stable": False}
    member = {"member_id": None, "member_epoch": -1}
    asked = [{"group_id": group, **member, "topics": rows} for group in groups]
    return {"groups": asked, "require_stable": False}


def _coordinator(kind: int) -> Callable[[World, int, Sequence[str]], Values]:
    return lambda world, version, names: {
        "key": names[0],
        "key_type": kind,
        "coordinator_keys": list(names),
    }


def _member(**more: Any) -> Callable[[World, int, Sequence[str]], Values]:
    """Of a group, which is what is asked for."""
    return lambda world, version, names: {
        "group_id": names[0],
        "generation_id": 1,
        "member_id": "m",
        "group_instance_id": None,
        **more,
    }


def _heartbeat(group: str, topics: Sequence[str]) -> Values:
    return {
        "group_id": group,
        "member_id": "m",
        "member_epoch": 5,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": timedelta(seconds=10),
        "subscribed_topic_names": tuple(topics),
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": (),
    }


def _new_topics(world: World, version: int, names: Sequence[str]) -> Values:
    row = named("name", num_partitions=2, replication_factor=1, assignments=[], configs=[])
    return {"topics": each(names, row), "timeout_ms": 30_000, "validate_only": True}


def _delete_topics(world: World, version: int, names: Sequence[str]) -> Values:
    return {
        "topic_names": list(names),
        "topics": each(names, named("name", topic_id=UUID(int=0))),
        "timeout_ms": 30_000,
    }


def _delete_topics_by_id(world: World, version: int, names: Sequence[str]) -> Values:
    rows = [{"name": None, "topic_id": world.id_of(name)} for name in names]
    return {"topics": rows, "timeout_ms": 30_000}


def _configs(kind: int, **row: Any) -> Callable[[World, int, Sequence[str]], Values]:
    return lambda world, version, names: {
        "resources": [
            {"resource_type": kind, "resource_name": name, **row}
            for name in (["1"] if kind == BROKER_CONFIG else names)
        ],
        "include_synonyms": False,
        "include_documentation": False,
        "validate_only": True,
    }


def _described(kind: int) -> Callable[[World, int, Sequence[str]], Values]:
    asked = _configs(kind, configuration_keys=["retention.ms"])
    return lambda *arguments: _without(asked(*arguments), "validate_only")


def _altered(kind: int, **more: Any) -> Callable[[World, int, Sequence[str]], Values]:
    asked = _configs(kind, configs=[{"name": "retention.ms", "value": "500000", **more}])
    left_out = ("include_synonyms", "include_documentation")
    return lambda *arguments: _without(asked(*arguments), *left_out)


def _in_transaction(ids: str, **more: Any) -> Values:
    return {
        "transactional_id": ids,
        "producer_id": NOBODYS_PRODUCER,
        "producer_epoch": 0,
        **more,
    }


def _added(ids: str, topics: Sequence[str]) -> Values:
    rows = each(topics, named("name", partitions=[0]))
    values = _in_transaction(ids, topics=rows)
    return {
        **{f"v3_and_below_{key}": value for key, value in values.items()},
        "transactions": [{**values, "verify_only": False}],
    }


def _txn_commit(ids: str, group: str, topics: Sequence[str]) -> Values:
    left_out = ("generation_id_or_member_epoch", "retention_time_ms")
    committed = _without(commit(group, topics), *left_out)
    return {**_in_transaction(ids), "generation_id": -1, **committed}


_PARTITION: Final[Values] = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
_QUOTA: Final[Values] = {
    "entity": [{"entity_type": "user", "entity_name": "u"}],
    "ops": [{"key": "producer_byte_rate", "value": 5.0, "remove": False}],
}
_RULE: Final[Values] = {
    "resource_type": TOPIC, "resource_name": "closed", "resource_pattern_type": LITERAL,
    "principal": "User:nobody", "host": "*", "operation": DESCRIBE, "permission_type": ALLOW,
}  # fmt: skip

QUESTIONS: Final = (
    Question(0, "topics", _produce, ids_since=13),
    Question(0, "ids", lambda w, v, n: _produce(w, v, ["open"], ids=n[0], is_transactional=True),
             NAMES[1:], by_one=True),
    Question(0, "no id", lambda w, v, n: _produce(w, v, ["open"], is_transactional=True)),
    Question(1, "topics", _fetch, ids_since=13),
    Question(2, "topics", lambda w, v, n: {
        "replica_id": -1, "topics": each(n, named("name", partitions=[_PARTITION])),
    }),
    Question(3, "topics", _metadata),
    Question(3, "topics by id", _metadata_by_id, since=12, ids_since=12),
    Question(3, "all topics", _metadata_of_all),
    Question(8, "groups", lambda w, v, n: commit(n[0], ["open"]), by_one=True, until=10),
    Question(8, "topics", lambda w, v, n: commit("open", n), until=10),
    Question(9, "a group", lambda w, v, n: _offset_fetch(w, v, n, ["open"]), by_one=True, until=10),
    Question(9, "groups", lambda w, v, n: _offset_fetch(w, v, n, ["open"]), since=8, until=10),
    Question(9, "topics", lambda w, v, n: _offset_fetch(w, v, ["open"], n), until=10),
    Question(9, "all topics", lambda w, v, n: _offset_fetch(w, v, ["open"], None),
             since=2, until=10),
    Question(10, "groups", _coordinator(0), by_one=True),
    Question(10, "ids", _coordinator(1), by_one=True, since=1),
    Question(10, "several groups", _coordinator(0), since=4),
    Question(11, "groups", lambda w, v, n: {
        "group_id": n[0], "session_timeout_ms": 1, "rebalance_timeout_ms": 1, "member_id": "",
        "group_instance_id": None, "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}], "reason": "",
    }, by_one=True),
    Question(12, "groups", _member(), by_one=True),
    Question(13, "groups", lambda w, v, n: {
        "group_id": n[0], "member_id": "m",
        "members": [{"member_id": "m", "group_instance_id": None, "reason": ""}],
    }, by_one=True),
    Question(14, "groups", _member(protocol_type="consumer", protocol_name="range",
                                   assignments=[]), by_one=True),
    Question(15, "groups", lambda w, v, n: {
        "groups": list(n), "include_authorized_operations": True,
    }),
    Question(16, "all groups", lambda w, v, n: {"states_filter": [], "types_filter": []}),
    Question(19, "topics", _new_topics, SPARED),
    Question(20, "topics", _delete_topics, SPARED),
    Question(20, "topics by id", _delete_topics_by_id, NAMES[1:], since=6, ids_since=6),
    Question(21, "topics", lambda w, v, n: {
        "timeout_ms": 30_000,
        "topics": each(n, named("name", partitions=[{"partition_index": 0, "offset": 0}])),
    }),
    Question(22, "no id", lambda w, v, n: {
        "transactional_id": None, "transaction_timeout_ms": 1_000,
        "producer_id": -1, "producer_epoch": -1,
    }),
    Question(22, "ids", lambda w, v, n: {
        "transactional_id": n[0], "transaction_timeout_ms": 0,
        "producer_id": -1, "producer_epoch": -1,
    }, by_one=True),
    Question(23, "topics", lambda w, v, n: {
        "replica_id": -1,
        "topics": each(n, named("topic", partitions=[
            {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}])),
    }),
    Question(24, "ids", lambda w, v, n: _added(n[0], ["open"]), by_one=True),
    Question(24, "topics", lambda w, v, n: _added("open", n)),
    Question(25, "ids", lambda w, v, n: _in_transaction(n[0], group_id="open"), by_one=True),
    Question(25, "groups", lambda w, v, n: _in_transaction("open", group_id=n[0]), by_one=True),
    Question(26, "ids", lambda w, v, n: _in_transaction(n[0], committed=True), by_one=True),
    Question(28, "ids", lambda w, v, n: _txn_commit(n[0], "spare", ["open"]), by_one=True),
    Question(28, "groups", lambda w, v, n: _txn_commit("spare", n[0], ["open"]), SPARED,
             by_one=True),
    Question(28, "topics", lambda w, v, n: _txn_commit("spare", "spare", n)),
    Question(29, "rules", lambda w, v, n: ANY_RULE),
    Question(30, "rules", lambda w, v, n: {"creations": [_RULE, _RULE]}),
    Question(31, "rules", lambda w, v, n: {"filters": [ANY_RULE]}),
    Question(32, "topics", _described(TOPIC)),
    Question(32, "groups", _described(GROUP_CONFIG)),
    Question(32, "the broker", _described(BROKER_CONFIG)),
    Question(33, "topics", _altered(TOPIC)),
    Question(33, "groups", _altered(GROUP_CONFIG), NAMES[1:]),
    Question(33, "the broker", _altered(BROKER_CONFIG)),
    Question(44, "topics", _altered(TOPIC, config_operation=0)),
    Question(44, "groups", _altered(GROUP_CONFIG, config_operation=0), NAMES[1:]),
    Question(44, "the broker", _altered(BROKER_CONFIG, config_operation=0)),
    Question(35, "topics", lambda w, v, n: {"topics": each(n, named("topic", partitions=[0]))}),
    Question(37, "topics", lambda w, v, n: {
        "topics": each(n, named("name", count=2, assignments=None)),
        "timeout_ms": 30_000, "validate_only": True,
    }),
    Question(42, "groups", lambda w, v, n: {"groups_names": list(n)}, SPARED),
    Question(43, "topics", lambda w, v, n: {
        "election_type": 0, "timeout_ms": 30_000,
        "topic_partitions": each(n, named("topic", partitions=[0])),
    }),
    Question(45, "topics", lambda w, v, n: {
        "timeout_ms": 30_000, "allow_replication_factor_change": True,
        "topics": each(n, named("name", partitions=[{"partition_index": 0, "replicas": None}])),
    }),
    Question(46, "topics", lambda w, v, n: {
        "timeout_ms": 30_000, "topics": each(n, named("name", partition_indexes=[0])),
    }),
    Question(47, "groups", lambda w, v, n: {
        "group_id": n[0],
        "topics": [{"name": "open", "partitions": [{"partition_index": 0}]}],
    }, SPARED, by_one=True),
    Question(47, "topics", lambda w, v, n: {
        "group_id": "open",
        "topics": each(n, named("name", partitions=[{"partition_index": 0}])),
    }),
    Question(48, "quotas", lambda w, v, n: {"components": [], "strict": False}),
    Question(49, "quotas", lambda w, v, n: {"entries": [_QUOTA], "validate_only": True}),
    Question(50, "users", lambda w, v, n: {"users": each(n, named("name"))}),
    Question(51, "users", lambda w, v, n: {
        "deletions": each(n, named("name", mechanism=1)),
        "upsertions": [],
    }),
    Question(57, "features", lambda w, v, n: {
        "timeout_ms": 30_000, "validate_only": True,
        "feature_updates": [{"feature": "transaction.version", "max_version_level": 2,
                             "allow_downgrade": False, "upgrade_type": 1}],
    }),
    Question(60, "the cluster", lambda w, v, n: {
        "include_cluster_authorized_operations": True, "endpoint_type": 1,
    }),
    Question(61, "topics", lambda w, v, n: {"topics": each(n, named("name",
                                                                     partition_indexes=[0]))}),
    Question(65, "ids", lambda w, v, n: {"transactional_ids": list(n)}),
    Question(66, "all ids", lambda w, v, n: {
        "state_filters": [], "producer_id_filters": [], "duration_filter": -1,
        "transactional_id_pattern": None,
    }),
    Question(68, "groups", lambda w, v, n: _heartbeat(n[0], ["open"]), SPARED, by_one=True),
    Question(68, "topics", lambda w, v, n: _heartbeat("spare", n)),
    Question(69, "groups", lambda w, v, n: {
        "group_ids": tuple(n), "include_authorized_operations": True,
    }),
    Question(74, "configs", lambda w, v, n: {"resource_types": []}),
    Question(75, "topics", lambda w, v, n: {
        "topics": each(n, named("name")), "response_partition_limit": 9, "cursor": None,
    }),
    Question(75, "all topics", lambda w, v, n: {
        "topics": [], "response_partition_limit": 9, "cursor": None,
    }),
)  # fmt: skip
