"""Requests that name an open and a closed topic, group or id, and what is read off the answers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.support.questions.kafka_raw_client import a_batch
from tests.support.security.refusing_broker import Serving


def codes(*path: str) -> Callable[[Any], Sequence[int]]:
    """The error codes of what is found by following the lists of these names."""

    def of(answer: Any) -> Sequence[int]:
        found = [answer]
        for name in path:
            found = [item for outer in found for item in getattr(outer, name)]
        return [int(item.error_code) for item in found]

    return of


def code(answer: Any) -> int:
    return int(answer.error_code)


def always(**values: Any) -> Callable[[Serving, int], Mapping[str, Any]]:
    return lambda serving, version: values


def both(item: Callable[[str], Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    return [item("open"), item("closed")]


def named(serving: Serving, *, by_id: bool) -> Sequence[Mapping[str, Any]]:
    """Both topics, named as Produce and Fetch do in any version."""
    if by_id:
        return [{"topic_id": serving.open_id}, {"topic_id": serving.closed_id}]
    return [{"name": name, "topic": name, "topic_id": None} for name in ("open", "closed")]


def produce(serving: Serving, version: int) -> Mapping[str, Any]:
    partitions = [{"index": 0, "records": a_batch()}]
    return {
        "transactional_id": None,
        "acks": -1,
        "topic_data": [
            {**topic, "partition_data": partitions} for topic in named(serving, by_id=version >= 13)
        ],
    }


def produce_to_closed_id(serving: Serving, version: int) -> Mapping[str, Any]:
    return {**produce(serving, version), "transactional_id": "closed"}


def fetch(serving: Serving, version: int) -> Mapping[str, Any]:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1_000}
    return {
        "session_id": 0,
        "session_epoch": -1,
        "max_bytes": 1_000,
        "forgotten_topics_data": [],
        "topics": [
            {**topic, "partitions": [partition]} for topic in named(serving, by_id=version >= 13)
        ],
    }


def offsets_of_groups(serving: Serving, version: int) -> Mapping[str, Any]:
    if version < 8:
        return {"group_id": "closed", "topics": []}
    return {"groups": both(lambda name: {"group_id": name, "member_id": None, "topics": []})}


def offsets_of_topics(serving: Serving, version: int) -> Mapping[str, Any]:
    topics = both(lambda name: {"name": name, "partition_indexes": [0]})
    if version < 8:
        return {"group_id": "open", "topics": topics}
    return {"groups": [{"group_id": "open", "member_id": None, "topics": topics}]}


def all_offsets(serving: Serving, version: int) -> Mapping[str, Any]:
    if version < 8:
        return {"group_id": "open", "topics": None}
    return {"groups": [{"group_id": "open", "member_id": None, "topics": None}]}


def codes_of_groups(answer: Any) -> Sequence[int]:
    """One code for each group; version 1 has them beside partitions only."""
    return codes("groups")(answer) if hasattr(answer, "groups") else [code(answer)]


def codes_of_offsets(answer: Any) -> Sequence[int]:
    (group,) = answer.groups if hasattr(answer, "groups") else [answer]
    return codes("topics", "partitions")(group)


def names_of_offsets(answer: Any) -> Sequence[str]:
    (group,) = answer.groups if hasattr(answer, "groups") else [answer]
    return [topic.name for topic in group.topics]


def topics_by_id(serving: Serving, version: int) -> Mapping[str, Any]:
    ids = (serving.open_id, serving.closed_id)
    return {"topics": [{"name": None, "topic_id": topic_id} for topic_id in ids]}


def topics_by_name(serving: Serving, version: int) -> Mapping[str, Any]:
    return {
        "topics": [{"name": name, "topic_id": None} for name in ("open", "closed")],
        "topic_names": ["open", "closed"],
    }


def new_topics(serving: Serving, version: int) -> Mapping[str, Any]:
    topics = both(
        lambda name: {
            "name": f"{name}-new",
            "num_partitions": 2,
            "replication_factor": 1,
            "assignments": [],
            "configs": [],
        }
    )
    return {"topics": topics, "validate_only": False}


def configs(*kinds: int) -> Callable[[Serving, int], Mapping[str, Any]]:
    """Of open and closed topics or groups, and of the broker."""
    names = {2: ("open", "closed"), 4: ("0",), 32: ("open", "closed")}
    resources = [
        {
            "resource_type": kind,
            "resource_name": name,
            "configuration_keys": None,
            "configs": [{"name": "retention.ms", "value": "5", "config_operation": 0}],
        }
        for kind in kinds
        for name in names[kind]
    ]
    return always(resources=resources, validate_only=False)


def names_and_codes(answer: Any) -> Sequence[tuple[str | None, int]]:
    rows = answer.topics if hasattr(answer, "topics") else answer.responses
    return [(row.name or None, int(row.error_code)) for row in rows]


def partitions_of(name: str) -> Callable[[Serving, int], Mapping[str, Any]]:
    return always(
        v3_and_below_transactional_id=name,
        v3_and_below_topics=both(lambda topic: {"name": topic, "partitions": [0]}),
    )


def codes_of_added(answer: Any) -> Sequence[int]:
    return [
        int(row.partition_error_code)
        for topic in answer.results_by_topic_v3_and_below
        for row in topic.results_by_partition
    ]


TOPICS_OF = both(lambda name: {"name": name, "partitions": [{"partition_index": 0, "offset": 0}]})
QUOTA = {"entity": [{"entity_type": "user", "entity_name": "u"}], "ops": []}
PARTITIONS = codes("topics", "partitions")
