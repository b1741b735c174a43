"""What each API asks the authorizer, and what a client sees that is refused.

There are two topics, groups and transactional ids, "open" and "closed", and something is denied of
the closed ones or of the cluster. Every API and every version it has is asked about both of them
over a socket: the closed one has Kafka's error, the open one is served, and nothing behind the API
hears of the closed one.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from tests.support.brokers.kafka_fakes import running_broker
from tests.support.security.open_and_closed import (
    PARTITIONS,
    QUOTA,
    TOPICS_OF,
    always,
    both,
    code,
    codes,
    codes_of_added,
    codes_of_groups,
    codes_of_offsets,
    configs,
    fetch,
    names_and_codes,
    new_topics,
    offsets_of_groups,
    offsets_of_topics,
    partitions_of,
    produce,
    produce_to_closed_id,
    topics_by_id,
    topics_by_name,
)
from tests.support.security.refusing_broker import (
    ALTER,
    ALTER_CONFIGS,
    CLUSTER,
    CLUSTER_ACTION,
    CREATE,
    DELETE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    GROUP,
    IDEMPOTENT_WRITE,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    Denial,
    Denying,
    Serving,
    serving,
)


class Case(NamedTuple):
    """One API, what is denied, and what the client then sees in each of some versions."""

    what: str
    key: int
    versions: range
    denied: Sequence[Denial]
    request: Callable[[Serving, int], Mapping[str, Any]]
    seen: Callable[[Any], Any]
    expected: Any
    allowed: Any
    """What is seen when nothing is denied."""
    reaches: bool = True
    """Whether what may be is passed on to something behind the API."""


RULE = {
    "resource_type": 2, "resource_name": "closed", "resource_pattern_type": 3,
    "principal": "User:u", "host": "*", "operation": 3, "permission_type": 3,
}  # fmt: skip
ANY_RULE = {
    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1,
    "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip

CASES = [
    Case("write", 0, range(3, 14), [(WRITE, TOPIC)], produce,
         codes("responses", "partition_responses"), [0, 29], [0, 0]),
    Case("write by id", 0, range(3, 14), [(WRITE, TRANSACTIONAL_ID)],
         produce_to_closed_id,
         codes("responses", "partition_responses"), [53, 53], [0, 0], False),
    Case("read", 1, range(4, 19), [(READ, TOPIC)], fetch,
         codes("responses", "partitions"), [0, 29], [0, 0]),
    Case("offsets", 2, range(1, 10), [(DESCRIBE, TOPIC)],
         always(topics=both(lambda n: {"name": n, "partitions": [{"timestamp": -1}]})),
         PARTITIONS, [0, 29], [0, 0]),
    Case("by name", 3, range(14), [(DESCRIBE, TOPIC)], topics_by_name,
         names_and_codes, [("open", 0), ("closed", 29)], [("open", 0), ("closed", 0)], False),
    Case("by id", 3, range(10, 14), [(DESCRIBE, TOPIC)], topics_by_id,
         names_and_codes, [("open", 0), (None, 29)], [("open", 0), ("closed", 0)], False),
    Case("all", 3, range(1, 14), [(DESCRIBE, TOPIC)], always(topics=None),
         names_and_codes, [("open", 0)], [("closed", 0), ("open", 0)], False),
    Case("all", 3, range(1), [(DESCRIBE, TOPIC)], always(topics=[]),
         names_and_codes, [("open", 0)], [("closed", 0), ("open", 0)], False),
    Case("create", 3, range(14), [(CREATE, TOPIC), (CREATE, CLUSTER)],
         always(allow_auto_topic_creation=True,
                topics=both(lambda n: {"name": f"{n}-new", "topic_id": None})),
         names_and_codes, [("open-new", 0), ("closed-new", 29)],
         [("open-new", 0), ("closed-new", 0)]),
    Case("group", 8, range(2, 10), [(READ, GROUP)],
         always(group_id="closed", topics=TOPICS_OF), PARTITIONS, [30, 30], [0, 0], False),
    Case("topic", 8, range(2, 10), [(READ, TOPIC)],
         always(group_id="open", topics=TOPICS_OF), PARTITIONS, [0, 29], [0, 0]),
    Case("group", 9, range(2, 8), [(DESCRIBE, GROUP)], offsets_of_groups,
         codes_of_groups, [30], [0], False),
    Case("groups", 9, range(8, 10), [(DESCRIBE, GROUP)], offsets_of_groups,
         codes_of_groups, [0, 30], [0, 0]),
    Case("topic", 9, range(1, 10), [(DESCRIBE, TOPIC)], offsets_of_topics,
         codes_of_offsets, [0, 29], [0, 0]),
    Case("coordinator", 10, range(4), [(DESCRIBE, GROUP)], always(key="closed", key_type=0),
         code, 30, 0, False),
    Case("coordinators", 10, range(4, 7), [(DESCRIBE, GROUP)],
         always(coordinator_keys=["open", "closed"], key_type=0),
         codes("coordinators"), [0, 30], [0, 0]),
    Case("coordinator of an id", 10, range(1, 4), [(DESCRIBE, TRANSACTIONAL_ID)],
         always(key="closed", key_type=1), code, 53, 0, False),
    Case("coordinators of ids", 10, range(4, 7), [(DESCRIBE, TRANSACTIONAL_ID)],
         always(coordinator_keys=["open", "closed"], key_type=1),
         codes("coordinators"), [0, 53], [0, 0], False),
    Case("group", 11, range(10), [(READ, GROUP)], always(group_id="closed"), code, 30, 0, False),
    Case("group", 12, range(5), [(READ, GROUP)], always(group_id="closed"), code, 30, 0, False),
    Case("group", 13, range(6), [(READ, GROUP)], always(group_id="closed"), code, 30, 0, False),
    Case("group", 14, range(6), [(READ, GROUP)], always(group_id="closed"), code, 30, 0, False),
    Case("groups", 15, range(7), [(DESCRIBE, GROUP)], always(groups=["open", "closed"]),
         codes("groups"), [0, 30], [0, 0]),
    Case("groups", 16, range(6), [(DESCRIBE, CLUSTER), (DESCRIBE, GROUP)],
         always(states_filter=[], types_filter=[]),
         lambda answer: [group.group_id for group in answer.groups], ["open"],
         ["closed", "open"], False),
    Case("topic", 19, range(2, 8), [(CREATE, TOPIC), (CREATE, CLUSTER)], new_topics,
         names_and_codes, [("open-new", 0), ("closed-new", 29)],
         [("open-new", 0), ("closed-new", 0)]),
    Case("by name", 20, range(1, 7), [(DELETE, TOPIC), (DELETE, CLUSTER)], topics_by_name,
         names_and_codes, [("open", 0), ("closed", 29)], [("open", 0), ("closed", 0)]),
    Case("by id", 20, range(6, 7), [(DELETE, TOPIC), (DELETE, CLUSTER)], topics_by_id,
         names_and_codes, [("open", 0), ("closed", 29)], [("open", 0), ("closed", 0)]),
    Case("hidden by id", 20, range(6, 7),
         [(DELETE, TOPIC), (DESCRIBE, TOPIC), (DELETE, CLUSTER)], topics_by_id,
         names_and_codes, [("open", 0), (None, 29)], [("open", 0), ("closed", 0)]),
    Case("topic", 21, range(3), [(DELETE, TOPIC)], always(topics=TOPICS_OF),
         PARTITIONS, [0, 29], [0, 0]),
    Case("id", 22, range(6), [(IDEMPOTENT_WRITE, CLUSTER), (WRITE, TOPIC)],
         always(transactional_id=None), code, 31, 0, False),
    Case("transactional id", 22, range(6), [(WRITE, TRANSACTIONAL_ID)],
         always(transactional_id="closed", transaction_timeout=timedelta(seconds=1),
                producer_id=-1, producer_epoch=-1), code, 53, 0, False),
    Case("id", 24, range(4), [(WRITE, TRANSACTIONAL_ID)], partitions_of("closed"),
         codes_of_added, [53, 53], [0, 0], False),
    Case("topic", 24, range(4), [(WRITE, TOPIC)], partitions_of("open"),
         codes_of_added, [55, 29], [0, 0], False),
    Case("cluster", 24, range(4, 6), [(CLUSTER_ACTION, CLUSTER)],
         always(transactions=[{"transactional_id": "open", "topics": []}]),
         lambda answer: (code(answer), len(answer.results_by_transaction)), (31, 0), (0, 1), False),
    Case("id", 25, range(5), [(WRITE, TRANSACTIONAL_ID)],
         always(transactional_id="closed", group_id="open"), code, 53, 0, False),
    Case("group", 25, range(5), [(READ, GROUP)],
         always(transactional_id="open", group_id="closed"), code, 30, 0, False),
    Case("id", 26, range(6), [(WRITE, TRANSACTIONAL_ID)],
         always(transactional_id="closed"), code, 53, 0, False),
    Case("topic", 23, range(2, 5), [(DESCRIBE, TOPIC), (CLUSTER_ACTION, CLUSTER)],
         always(topics=both(lambda n: {"topic": n, "partitions": [{"current_leader_epoch": 0}]})),
         PARTITIONS, [0, 29], [0, 0]),
    Case("topics", 32, range(1, 5), [(DESCRIBE_CONFIGS, TOPIC)], configs(2, 4, 32),
         codes("results"), [0, 29, 0, 0, 0], [0, 0, 0, 0, 0], False),
    Case("broker", 32, range(1, 5), [(DESCRIBE_CONFIGS, CLUSTER)], configs(2, 4, 32),
         codes("results"), [0, 0, 31, 0, 0], [0, 0, 0, 0, 0], False),
    Case("groups", 32, range(1, 5), [(DESCRIBE_CONFIGS, GROUP)], configs(2, 4, 32),
         codes("results"), [0, 0, 0, 0, 30], [0, 0, 0, 0, 0], False),
    *[
        case
        for key, versions in ((33, range(3)), (44, range(2)))
        for case in (
            Case("topics", key, versions, [(ALTER_CONFIGS, TOPIC)], configs(2),
                 codes("responses"), [0, 29], [0, 0]),
            Case("broker", key, versions, [(ALTER_CONFIGS, CLUSTER)], configs(4),
                 codes("responses"), [31], [42], False),
            Case("groups", key, versions, [(ALTER_CONFIGS, GROUP)], configs(32),
                 codes("responses"), [42, 30], [42, 42], False),
        )
    ],
    Case("topics", 43, range(3), [(ALTER, CLUSTER)],
         always(election_type=0,
                topic_partitions=both(lambda n: {"topic": n, "partitions": [0]})),
         lambda answer: [int(topic.partition_result[0].error_code)
                         for topic in answer.replica_election_results],
         [31, 31], [84, 84], False),
    Case("topics", 45, range(2), [(ALTER, CLUSTER)],
         always(topics=both(lambda n: {"name": n, "partitions": [
             {"partition_index": 0, "replicas": None}]})),
         lambda answer: [int(topic.partitions[0].error_code) for topic in answer.responses],
         [31, 31], [85, 85], False),
    Case("topics", 46, range(1), [(DESCRIBE, CLUSTER)],
         always(topics=both(lambda n: {"name": n, "partition_indexes": [0]})),
         lambda answer: (code(answer), [topic.name for topic in answer.topics]),
         (31, ["open", "closed"]), (0, []), False),
    Case("sizes", 35, range(1, 3), [(DESCRIBE, CLUSTER)], always(topics=None),
         lambda answer: len(answer.results), 0, 1, False),
    Case("sizes", 35, range(3, 5), [(DESCRIBE, CLUSTER)], always(topics=None),
         lambda answer: (code(answer), len(answer.results)), (31, 0), (0, 1), False),
    Case("id", 28, range(6), [(WRITE, TRANSACTIONAL_ID)],
         always(transactional_id="closed", group_id="open", topics=TOPICS_OF),
         PARTITIONS, [53, 53], [0, 0], False),
    Case("group", 28, range(6), [(READ, GROUP)],
         always(transactional_id="open", group_id="closed", topics=TOPICS_OF),
         PARTITIONS, [30, 30], [0, 0], False),
    Case("topic", 28, range(6), [(READ, TOPIC)],
         always(transactional_id="open", group_id="open", topics=TOPICS_OF),
         PARTITIONS, [0, 29], [0, 0]),
    Case("rules", 29, range(1, 4), [(DESCRIBE, CLUSTER)], always(**ANY_RULE),
         lambda answer: (code(answer), answer.resources), (31, ()), (0, ()), False),
    Case("rules", 30, range(1, 4), [(ALTER, CLUSTER)], always(creations=[RULE, RULE]),
         codes("results"), [31, 31], [0, 0], False),
    Case("rules", 31, range(1, 4), [(ALTER, CLUSTER)], always(filters=[ANY_RULE]),
         codes("filter_results"), [31], [0], False),
    Case("topic", 37, range(4), [(ALTER, TOPIC)],
         always(topics=both(lambda n: {"name": n, "count": 2, "assignments": None}),
                validate_only=False),
         codes("results"), [0, 29], [0, 0]),
    Case("group", 42, range(3), [(DELETE, GROUP)], always(groups_names=["open", "closed"]),
         codes("results"), [0, 30], [0, 0]),
    Case("group", 47, range(1), [(DELETE, GROUP)], always(group_id="closed", topics=TOPICS_OF),
         lambda answer: (code(answer), len(answer.topics)), (30, 0), (0, 2), False),
    Case("topic", 47, range(1), [(READ, TOPIC)], always(group_id="open", topics=TOPICS_OF),
         PARTITIONS, [0, 29], [0, 0]),
    Case("quotas", 48, range(2), [(DESCRIBE_CONFIGS, CLUSTER)], always(components=[]),
         lambda answer: (code(answer), answer.entries), (31, None), (0, ()), False),
    Case("quotas", 49, range(2), [(ALTER_CONFIGS, CLUSTER)],
         always(entries=[QUOTA, QUOTA], validate_only=False),
         codes("entries"), [31, 31], [42, 42], False),
    Case("users", 50, range(1), [(DESCRIBE, CLUSTER)], always(users=None),
         lambda answer: (code(answer), answer.results), (31, ()), (0, ()), False),
    Case("users", 51, range(1), [(ALTER, CLUSTER)],
         always(deletions=[{"name": "ann", "mechanism": 1}, {"name": "bob", "mechanism": 3}],
                upsertions=[]),
         codes("results"), [31, 31], [91, 33], False),
    Case("features", 57, range(3), [(ALTER, CLUSTER)],
         lambda _, version: {"feature_updates": [{
             "feature": "transaction.version", "max_version_level": 2,
             **({"upgrade_type": 1} if version else {})}]},
         code, 31, 0, False),
    Case("operations", 60, range(2), [(DESCRIBE, CLUSTER)],
         always(include_cluster_authorized_operations=True, endpoint_type=1),
         lambda answer: (code(answer), answer.cluster_authorized_operations),
         (0, 0), (0, 0b1111110100000), False),
    Case("producers", 61, range(1), [(READ, TOPIC)],
         always(topics=both(lambda n: {"name": n, "partition_indexes": [0]})),
         PARTITIONS, [0, 29], [0, 0]),
    Case("ids", 65, range(1), [(DESCRIBE, TRANSACTIONAL_ID)],
         always(transactional_ids=["open", "closed"]),
         codes("transaction_states"), [0, 53], [0, 0]),
    Case("topics", 65, range(1), [(DESCRIBE, TOPIC)], always(transactional_ids=["open"]),
         lambda answer: [topic.topic for topic in answer.transaction_states[0].topics],
         ["open"], ["closed", "open"]),
    Case("ids", 66, range(3), [(DESCRIBE, TRANSACTIONAL_ID)],
         always(state_filters=[], producer_id_filters=[], duration_filter=-1),
         lambda answer: sorted(row.transactional_id for row in answer.transaction_states),
         ["open"], ["closed", "open"], False),
    Case("group", 68, range(2), [(READ, GROUP)],
         always(group_id="closed", subscribed_topic_names=["open"]), code, 30, 0, False),
    Case("topic", 68, range(2), [(DESCRIBE, TOPIC)],
         always(group_id="open", subscribed_topic_names=["open", "closed"]), code, 29, 0, False),
    Case("group", 69, range(2), [(DESCRIBE, GROUP)], always(group_ids=["open", "closed"]),
         codes("groups"), [0, 30], [0, 0]),
    Case("configs", 74, range(2), [(DESCRIBE_CONFIGS, CLUSTER)], always(resource_types=[]),
         lambda answer: (code(answer), len(answer.config_resources) > 0), (31, False), ..., False),
    Case("by name", 75, range(1), [(DESCRIBE, TOPIC)],
         always(topics=both(lambda n: {"name": n}), response_partition_limit=9, cursor=None),
         names_and_codes, [("closed", 29), ("open", 0)], [("closed", 0), ("open", 0)], False),
    Case("all", 75, range(1), [(DESCRIBE, TOPIC)],
         always(topics=[], response_partition_limit=9, cursor=None),
         names_and_codes, [("open", 0)], [("closed", 0), ("open", 0)], False),
]  # fmt: skip

EACH_VERSION = [
    pytest.param(case, version, id=f"{case.key}-{case.what}-v{version}")
    for case in CASES
    for version in case.versions
]


@pytest.mark.parametrize(("case", "version"), EACH_VERSION)
async def test_what_is_denied_is_refused_and_the_rest_is_served(case: Case, version: int):
    authorizer = Denying(*case.denied)
    async with serving(authorizer) as broker:
        answer = await broker.client.ask(case.key, version, **case.request(broker, version))
        assert case.seen(answer) == case.expected
        assert broker.heard_of_closed() == []
        assert bool(broker.calls) == case.reaches
        assert {(operation, kind) for operation, kind, _ in authorizer.asked} >= {*case.denied}
        assert authorizer.clients == {"ANONYMOUS"}


@pytest.mark.parametrize(("case", "version"), EACH_VERSION)
async def test_nothing_is_refused_where_nothing_is_denied(case: Case, version: int):
    async with serving(Denying()) as broker:
        answer = await broker.client.ask(case.key, version, **case.request(broker, version))
        assert case.allowed is ... or case.seen(answer) == case.allowed


async def test_every_api_asks_and_in_all_of_its_versions():
    async with running_broker() as broker:
        served = {
            (api.key, version)
            for api in broker.apis
            for version in api.versions
            if api.name not in ("ApiVersions", "SaslHandshake", "SaslAuthenticate")
        }
    asked = {(case.key, version) for case in CASES for version in case.versions}
    assert asked == served


# --- what either of two permissions is enough for


@pytest.mark.parametrize(
    ("key", "version", "denied"),
    [
        (3, 9, (CREATE, TOPIC)),
        (3, 9, (CREATE, CLUSTER)),
        (19, 7, (CREATE, TOPIC)),
        (19, 7, (CREATE, CLUSTER)),
        (20, 6, (DELETE, TOPIC)),
        (20, 6, (DELETE, CLUSTER)),
        (22, 5, (IDEMPOTENT_WRITE, CLUSTER)),
        (22, 5, (WRITE, TOPIC)),
        (23, 4, (DESCRIBE, TOPIC)),
        (23, 4, (CLUSTER_ACTION, CLUSTER)),
        (16, 5, (DESCRIBE, GROUP)),
        (16, 5, (DESCRIBE, CLUSTER)),
    ],
)
async def test_one_of_two_permissions_is_enough(key: int, version: int, denied: Denial):
    case = next(case for case in CASES if case.key == key and len(case.denied) == 2
                and version in case.versions)  # fmt: skip
    assert denied in case.denied
    async with serving(Denying(denied)) as broker:
        answer = await broker.client.ask(key, version, **case.request(broker, version))
        assert case.seen(answer) == case.allowed
