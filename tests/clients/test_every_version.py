"""Every API in every version that the broker advertises, asked with schemas that are not its own.

Each answer is decoded to its last byte, and has to say what was asked for.
"""

import itertools
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import pytest
from confluent_kafka import TopicCollection

from tests.support.live_broker import LiveBroker
from tests.support.stock_clients import TIMEOUT_S, ConfluentKafka, Record, confluent_admin
from tests.support.versioned_requests import PlainConnection, kafka_python_versions

with warnings.catch_warnings():
    # As in tests/support/stock_clients.py.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatchBuilder

pytestmark = pytest.mark.clients

SETTINGS: Final = {
    "wal.commit.interval.ms": "5",
    "group.initial.rebalance.delay.ms": "0",
    "num.partitions": "1",
}
NOTHING: Final = 0
ILLEGAL_SASL_STATE: Final = 34
SECURITY_DISABLED: Final = 54
MEMBER_ID_REQUIRED: Final = 79
TOPIC: Final = "t"
TOPIC_RESOURCE: Final = 2
PRODUCE, FETCH, API_VERSIONS = 0, 1, 18
JOIN_GROUP, SYNC_GROUP, OFFSET_COMMIT, CREATE_TOPICS, METADATA = 11, 14, 8, 19, 3

Ask = Callable[..., Any]

_names = itertools.count()


def a_name(what: str) -> str:
    return f"{what}-{next(_names)}"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path_factory.mktemp("broker") / "data", SETTINGS) as broker:
        records = [Record(b"k", b"v", (("h", b"x"),), 1_000 + number) for number in range(10)]
        ConfluentKafka().produce(broker.bootstrap, TOPIC, records)
        yield broker


@pytest.fixture(scope="module")
def topic_id(broker: LiveBroker) -> UUID:
    admin = confluent_admin(broker.bootstrap)
    described = admin.describe_topics(TopicCollection([TOPIC]))[TOPIC].result(TIMEOUT_S)
    most, least = (
        described.topic_id.get_most_significant_bits(),
        described.topic_id.get_least_significant_bits(),
    )
    return UUID(int=(most % (1 << 64) << 64) | least % (1 << 64))


class Questions:
    """One method per API: asks it in a version, and looks at the answer."""

    def __init__(self, connection: PlainConnection, topic_id: UUID) -> None:
        self._ask = connection.ask
        self._topic_id = topic_id

    def _topic(self, name: str = "name") -> dict[str, Any]:
        """A topic by name, and by id in versions that have it."""
        return {name: TOPIC, "topic_id": self._topic_id}

    # -- records

    def produce(self, version: int) -> None:
        builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
        for offset in range(3):
            builder.append(offset, timestamp=1_000, key=b"k", value=b"v", headers=[])
        topic = a_name("produced") if version < 13 else TOPIC
        if version < 13:
            self._create(topic)
        answer = self._ask(
            0,
            version,
            acks=-1,
            timeout_ms=5_000,
            topic_data=[
                {
                    "name": topic,
                    "topic_id": self._topic_id,
                    "partition_data": [{"index": 0, "records": bytes(builder.build())}],
                }
            ],
        )
        (partition,) = answer.responses[0].partition_responses
        assert partition.error_code == NOTHING
        assert partition.base_offset == 0 if version < 13 else partition.base_offset >= 10

    def fetch(self, version: int) -> None:
        answer = self._ask(
            1,
            version,
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=1 << 20,
            session_epoch=-1,
            topics=[
                {
                    **self._topic("topic"),
                    "partitions": [
                        {
                            "partition": 0,
                            "fetch_offset": 2,
                            "current_leader_epoch": -1,
                            "last_fetched_epoch": -1,
                            "partition_max_bytes": 1 << 20,
                        }
                    ],
                }
            ],
        )
        (partition,) = answer.responses[0].partitions
        assert (partition.error_code, partition.high_watermark >= 10) == (NOTHING, True)
        assert b"v" in bytes(partition.records)

    def list_offsets(self, version: int) -> None:
        asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": 1_004}
        answer = self._ask(
            2,
            version,
            replica_id=-1,
            timeout_ms=1_000,
            topics=[{"name": TOPIC, "partitions": [asked]}],
        )
        (partition,) = answer.topics[0].partitions
        assert (partition.error_code, partition.offset) == (NOTHING, 4)
        assert partition.timestamp == 1_004

    def offset_for_leader_epoch(self, version: int) -> None:
        asked = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
        answer = self._ask(
            23, version, replica_id=-1, topics=[{"topic": TOPIC, "partitions": [asked]}]
        )
        (partition,) = answer.topics[0].partitions
        assert (partition.error_code, partition.end_offset >= 10) == (NOTHING, True)

    def delete_records(self, version: int) -> None:
        topic = self._create(a_name("emptied"))
        answer = self._ask(
            21,
            version,
            timeout_ms=5_000,
            topics=[{"name": topic, "partitions": [{"partition_index": 0, "offset": 0}]}],
        )
        (partition,) = answer.topics[0].partitions
        assert (partition.error_code, partition.low_watermark) == (NOTHING, 0)

    def init_producer_id(self, version: int) -> None:
        answer = self._ask(
            22,
            version,
            transactional_id=None,
            transaction_timeout_ms=1_000,
            producer_id=-1,
            producer_epoch=-1,
        )
        assert answer.error_code == NOTHING
        assert (answer.producer_id >= 0, answer.producer_epoch) == (True, 0)
        self._producer(version)

    # -- transactions

    def _producer(self, version: int = 4) -> dict[str, Any]:
        """Of a new transactional id."""
        name = a_name("id")
        answer = self._ask(
            22,
            version,
            transactional_id=name,
            transaction_timeout_ms=60_000,
            producer_id=-1,
            producer_epoch=-1,
        )
        assert (answer.error_code, answer.producer_epoch) == (NOTHING, 0)
        return {
            "transactional_id": name,
            "producer_id": answer.producer_id,
            "producer_epoch": answer.producer_epoch,
        }

    def _begun(self, version: int = 3) -> dict[str, Any]:
        """Of a new transactional id with an open transaction."""
        producer = self._producer()
        topics = [{"name": TOPIC, "partitions": [0]}]
        answer = self._ask(
            24,
            version,
            **{f"v3_and_below_{name}": value for name, value in producer.items()},
            v3_and_below_topics=topics,
            transactions=[{**producer, "verify_only": False, "topics": topics}],
        )
        if version < 4:
            (topic,) = answer.results_by_topic_v3_and_below
        else:
            (topic,) = answer.results_by_transaction[0].topic_results
        (partition,) = topic.results_by_partition
        assert (topic.name, partition.partition_index) == (TOPIC, 0)
        assert partition.partition_error_code == NOTHING
        return producer

    def _end(self, producer: dict[str, Any], version: int = 3) -> None:
        answer = self._ask(26, version, **producer, committed=version % 2 == 0)
        assert answer.error_code == NOTHING

    def add_partitions_to_txn(self, version: int) -> None:
        self._end(self._begun(version))

    def add_offsets_to_txn(self, version: int) -> None:
        producer = self._producer()
        answer = self._ask(25, version, **producer, group_id=a_name("group"))
        assert answer.error_code == NOTHING
        self._end(producer)

    def txn_offset_commit(self, version: int) -> None:
        producer, group = self._producer(), {"group_id": a_name("group")}
        assert self._ask(25, 3, **producer, **group).error_code == NOTHING
        offset = {
            "partition_index": 0,
            "committed_offset": 1,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        nobody = {"generation_id": -1, "member_id": "", "group_instance_id": None}
        topics = [{"name": TOPIC, "partitions": [offset]}]
        answer = self._ask(28, version, **producer, **group, **nobody, topics=topics)
        (partition,) = answer.topics[0].partitions
        assert partition.error_code == NOTHING
        self._end(producer)

    def end_txn(self, version: int) -> None:
        self._end(self._begun(), version)

    def describe_transactions(self, version: int) -> None:
        producer = self._begun()
        answer = self._ask(65, version, transactional_ids=[producer["transactional_id"]])
        (found,) = answer.transaction_states
        assert (found.error_code, found.transaction_state) == (NOTHING, "Ongoing")
        assert (found.producer_id, found.transaction_timeout_ms) == (
            producer["producer_id"],
            60_000,
        )
        assert [(topic.topic, [*topic.partitions]) for topic in found.topics] == [(TOPIC, [0])]
        self._end(producer)

    def list_transactions(self, version: int) -> None:
        producer = self._begun()
        answer = self._ask(
            66,
            version,
            state_filters=["Ongoing"],
            producer_id_filters=[producer["producer_id"]],
            duration_filter=-1,
            transactional_id_pattern="id-.*",
        )
        assert (answer.error_code, [*answer.unknown_state_filters]) == (NOTHING, [])
        (found,) = answer.transaction_states
        assert found.transactional_id == producer["transactional_id"]
        assert (found.producer_id, found.transaction_state) == (producer["producer_id"], "Ongoing")
        self._end(producer)

    # -- the cluster

    def api_versions(self, version: int) -> None:
        answer = self._ask(18, version, client_software_name="raw", client_software_version="1.0")
        assert answer.error_code == NOTHING
        assert API_VERSIONS in {row.api_key for row in answer.api_keys}

    def metadata(self, version: int) -> None:
        answer = self._ask(
            3,
            version,
            topics=[{"name": TOPIC, "topic_id": UUID(int=0)}],
            allow_auto_topic_creation=False,
        )
        (topic,) = answer.topics
        assert (topic.error_code, topic.name) == (NOTHING, TOPIC)
        assert version < 10 or UUID(str(topic.topic_id)) == self._topic_id
        (partition,) = topic.partitions
        assert partition.leader_id == answer.brokers[0].node_id

    def describe_cluster(self, version: int) -> None:
        answer = self._ask(60, version, endpoint_type=1)
        assert (answer.error_code, len(answer.brokers)) == (NOTHING, 1)
        assert answer.brokers[0].broker_id == answer.controller_id

    def find_coordinator(self, version: int) -> None:
        for kind in (0, 1) if version > 0 else (0,):
            answer = self._ask(10, version, key="g", key_type=kind, coordinator_keys=["g", "h"])
            if version < 4:
                assert (answer.error_code, answer.host) == (NOTHING, "127.0.0.1")
                continue
            assert [(one.key, one.error_code) for one in answer.coordinators] == [
                ("g", NOTHING),
                ("h", NOTHING),
            ]

    # -- topics and configs

    def _create(self, topic: str, version: int = 7) -> str:
        answer = self._ask(
            CREATE_TOPICS,
            version,
            timeout_ms=5_000,
            validate_only=False,
            topics=[
                {
                    "name": topic,
                    "num_partitions": 2,
                    "replication_factor": 1,
                    "assignments": [],
                    "configs": [{"name": "retention.ms", "value": "5000"}],
                }
            ],
        )
        (created,) = answer.topics
        assert (created.name, created.error_code) == (topic, NOTHING)
        return topic

    def create_topics(self, version: int) -> None:
        self._create(a_name("created"), version)

    def delete_topics(self, version: int) -> None:
        topic = self._create(a_name("deleted"))
        answer = self._ask(
            20,
            version,
            timeout_ms=5_000,
            topic_names=[topic],
            topics=[{"name": topic, "topic_id": UUID(int=0)}],
        )
        (deleted,) = answer.responses
        assert (deleted.name, deleted.error_code) == (topic, NOTHING)

    def create_partitions(self, version: int) -> None:
        topic = self._create(a_name("grown"))
        answer = self._ask(
            37,
            version,
            timeout_ms=5_000,
            validate_only=False,
            topics=[{"name": topic, "count": 5, "assignments": None}],
        )
        (grown,) = answer.results
        assert (grown.name, grown.error_code) == (topic, NOTHING)

    def describe_topic_partitions(self, version: int) -> None:
        answer = self._ask(
            75, version, topics=[{"name": TOPIC}], response_partition_limit=10, cursor=None
        )
        (topic,) = answer.topics
        assert (topic.name, topic.error_code, len(topic.partitions)) == (TOPIC, NOTHING, 1)

    def describe_configs(self, version: int) -> None:
        resource = {
            "resource_type": TOPIC_RESOURCE,
            "resource_name": TOPIC,
            "configuration_keys": ["retention.ms", "cleanup.policy"],
        }
        answer = self._ask(
            32, version, resources=[resource], include_synonyms=True, include_documentation=True
        )
        (found,) = answer.results
        assert (found.error_code, found.resource_name) == (NOTHING, TOPIC)
        assert {row.name for row in found.configs} == {"retention.ms", "cleanup.policy"}

    def alter_configs(self, version: int) -> None:
        resource = {
            "resource_type": TOPIC_RESOURCE,
            "resource_name": self._create(a_name("altered")),
            "configs": [{"name": "segment.bytes", "value": "77"}],
        }
        answer = self._ask(33, version, resources=[resource], validate_only=False)
        (altered,) = answer.responses
        assert (altered.error_code, altered.resource_type) == (NOTHING, TOPIC_RESOURCE)

    def incremental_alter_configs(self, version: int) -> None:
        config = {"name": "segment.bytes", "config_operation": 0, "value": "77"}
        resource = {
            "resource_type": TOPIC_RESOURCE,
            "resource_name": self._create(a_name("altered")),
            "configs": [config],
        }
        answer = self._ask(44, version, resources=[resource], validate_only=False)
        (altered,) = answer.responses
        assert (altered.error_code, altered.resource_type) == (NOTHING, TOPIC_RESOURCE)

    def list_config_resources(self, version: int) -> None:
        answer = self._ask(74, version, resource_types=[])
        assert answer.error_code == NOTHING

    def elect_leaders(self, version: int) -> None:
        wanted = [{"topic": TOPIC, "partitions": [0]}]
        answer = self._ask(43, version, election_type=0, topic_partitions=wanted, timeout_ms=1_000)
        (topic,) = answer.replica_election_results
        assert [int(row.error_code) for row in topic.partition_result] == [84]

    def alter_partition_reassignments(self, version: int) -> None:
        moved = [{"partition_index": 0, "replicas": [0]}]
        answer = self._ask(
            *(45, version),
            topics=[{"name": TOPIC, "partitions": moved}],
            allow_replication_factor_change=False,
            timeout_ms=1_000,
        )
        assert int(answer.error_code) == NOTHING
        assert [int(row.error_code) for row in answer.responses[0].partitions] == [NOTHING]

    def list_partition_reassignments(self, version: int) -> None:
        answer = self._ask(46, version, topics=None, timeout_ms=1_000)
        assert (int(answer.error_code), len(answer.topics)) == (NOTHING, 0)

    def describe_log_dirs(self, version: int) -> None:
        answer = self._ask(35, version, topics=[{"topic": TOPIC, "partitions": [0]}])
        (directory,) = answer.results
        assert directory.error_code == NOTHING
        assert [topic.name for topic in directory.topics] == [TOPIC]

    def describe_producers(self, version: int) -> None:
        answer = self._ask(61, version, topics=[{"name": TOPIC, "partition_indexes": [0]}])
        (partition,) = answer.topics[0].partitions
        assert partition.error_code == NOTHING

    # -- quotas

    def describe_client_quotas(self, version: int) -> None:
        component = {"entity_type": "client-id", "match_type": 2, "match": None}
        answer = self._ask(48, version, components=[component], strict=False)
        assert answer.error_code == NOTHING

    def alter_client_quotas(self, version: int) -> None:
        entry = {
            "entity": [{"entity_type": "client-id", "entity_name": a_name("client")}],
            "ops": [{"key": "producer_byte_rate", "value": 1e9, "remove": False}],
        }
        answer = self._ask(49, version, entries=[entry], validate_only=False)
        assert [row.error_code for row in answer.entries] == [NOTHING]

    # -- access control, at a broker without an authorizer

    def describe_acls(self, version: int) -> None:
        answer = self._ask(
            29,
            version,
            resource_type_filter=1,
            resource_name_filter=None,
            pattern_type_filter=1,
            principal_filter=None,
            host_filter=None,
            operation=1,
            permission_type=1,
        )
        assert answer.error_code == SECURITY_DISABLED

    def create_acls(self, version: int) -> None:
        rule = {
            "resource_type": 2,
            "resource_name": TOPIC,
            "resource_pattern_type": 3,
            "principal": "User:u",
            "host": "*",
            "operation": 3,
            "permission_type": 3,
        }
        answer = self._ask(30, version, creations=[rule])
        assert [row.error_code for row in answer.results] == [SECURITY_DISABLED]

    def delete_acls(self, version: int) -> None:
        wanted = {
            "resource_type_filter": 1,
            "resource_name_filter": None,
            "pattern_type_filter": 1,
            "principal_filter": None,
            "host_filter": None,
            "operation": 1,
            "permission_type": 1,
        }
        answer = self._ask(31, version, filters=[wanted])
        assert [row.error_code for row in answer.filter_results] == [SECURITY_DISABLED]

    # -- users

    def sasl_handshake(self, version: int) -> None:
        answer = self._ask(17, version, mechanism="PLAIN")
        assert answer.error_code == ILLEGAL_SASL_STATE

    def sasl_authenticate(self, version: int) -> None:
        answer = self._ask(36, version, auth_bytes=b"")
        assert answer.error_code == ILLEGAL_SASL_STATE

    def describe_user_scram_credentials(self, version: int) -> None:
        answer = self._ask(50, version, users=None)
        assert answer.error_code == NOTHING

    def alter_user_scram_credentials(self, version: int) -> None:
        user = {
            "name": a_name("user"),
            "mechanism": 1,
            "iterations": 4_096,
            "salt": b"salt",
            "salted_password": bytes(32),
        }
        answer = self._ask(51, version, deletions=[], upsertions=[user])
        assert [row.error_code for row in answer.results] == [NOTHING]

    # -- groups

    def _join(self, group: str, version: int = 5) -> tuple[str, int]:
        """(member id, generation) of the only member."""
        values = {
            "group_id": group,
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 10_000,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"\x00\x00" + b"\x00" * 8}],
            "reason": "a test",
        }
        answer = self._ask(JOIN_GROUP, version, **values, member_id="")
        if version >= 4:
            assert answer.error_code == MEMBER_ID_REQUIRED
            answer = self._ask(JOIN_GROUP, version, **values, member_id=answer.member_id)
        assert (answer.error_code, answer.leader) == (NOTHING, answer.member_id)
        assert [row.member_id for row in answer.members] == [answer.member_id]
        return answer.member_id, answer.generation_id

    def _sync(self, group: str, version: int = 3) -> tuple[str, int]:
        member, generation = self._join(group)
        answer = self._ask(
            SYNC_GROUP,
            version,
            group_id=group,
            generation_id=generation,
            member_id=member,
            group_instance_id=None,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[{"member_id": member, "assignment": b"all of it"}],
        )
        assert (answer.error_code, bytes(answer.assignment)) == (NOTHING, b"all of it")
        return member, generation

    def join_group(self, version: int) -> None:
        self._join(a_name("group"), version)

    def sync_group(self, version: int) -> None:
        self._sync(a_name("group"), version)

    def heartbeat(self, version: int) -> None:
        group = a_name("group")
        member, generation = self._sync(group)
        answer = self._ask(12, version, group_id=group, generation_id=generation, member_id=member)
        assert answer.error_code == NOTHING

    def leave_group(self, version: int) -> None:
        group = a_name("group")
        member, _ = self._sync(group)
        answer = self._ask(
            13,
            version,
            group_id=group,
            member_id=member,
            members=[{"member_id": member, "group_instance_id": None, "reason": "a test"}],
        )
        assert answer.error_code == NOTHING
        if version >= 3:
            assert [(row.member_id, row.error_code) for row in answer.members] == [
                (member, NOTHING)
            ]

    def _commit(self, group: str, version: int = 8) -> None:
        asked = {
            "partition_index": 0,
            "committed_offset": 7,
            "committed_leader_epoch": -1,
            "committed_metadata": "a note",
        }
        answer = self._ask(
            OFFSET_COMMIT,
            version,
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            retention_time_ms=-1,
            topics=[{**self._topic(), "partitions": [asked]}],
        )
        (partition,) = answer.topics[0].partitions
        assert partition.error_code == NOTHING

    def offset_commit(self, version: int) -> None:
        self._commit(a_name("group"), version)

    def offset_fetch(self, version: int) -> None:
        group = a_name("group")
        self._commit(group)
        if version < 8:
            topics = [{"name": TOPIC, "partition_indexes": [0]}]
            answer = self._ask(9, version, group_id=group, topics=topics, require_stable=True)
            (topic,) = answer.topics
        else:
            asked = {
                "group_id": group,
                "member_id": None,
                "member_epoch": -1,
                "topics": [{**self._topic(), "partition_indexes": [0]}],
            }
            answer = self._ask(9, version, groups=[asked], require_stable=True)
            (found,) = answer.groups
            assert (found.group_id, found.error_code) == (group, NOTHING)
            (topic,) = found.topics
        (partition,) = topic.partitions
        assert (partition.error_code, partition.committed_offset) == (NOTHING, 7)
        assert partition.metadata == "a note"

    def offset_delete(self, version: int) -> None:
        group = a_name("group")
        self._commit(group)
        answer = self._ask(
            47,
            version,
            group_id=group,
            topics=[{"name": TOPIC, "partitions": [{"partition_index": 0}]}],
        )
        (partition,) = answer.topics[0].partitions
        assert (answer.error_code, partition.error_code) == (NOTHING, NOTHING)

    def describe_groups(self, version: int) -> None:
        group = a_name("group")
        member, _ = self._sync(group)
        answer = self._ask(15, version, groups=[group], include_authorized_operations=True)
        (found,) = answer.groups
        assert (found.group_id, found.error_code, found.group_state) == (group, NOTHING, "Stable")
        assert [row.member_id for row in found.members] == [member]

    def list_groups(self, version: int) -> None:
        group = a_name("group")
        self._sync(group)
        answer = self._ask(16, version, states_filter=["Stable"], types_filter=["classic"])
        assert answer.error_code == NOTHING
        assert group in {row.group_id for row in answer.groups}

    def delete_groups(self, version: int) -> None:
        group = a_name("group")
        self._commit(group)
        answer = self._ask(42, version, groups_names=[group])
        assert [(row.group_id, row.error_code) for row in answer.results] == [(group, NOTHING)]

    def consumer_group_heartbeat(self, version: int) -> None:
        group, member = a_name("group"), str(UUID(int=next(_names) + 1))
        self._beat(group, member, version)

    def _beat(self, group: str, member: str, version: int) -> None:
        answer = self._ask(
            68,
            version,
            group_id=group,
            member_id=member,
            member_epoch=0,
            instance_id=None,
            rack_id=None,
            rebalance_timeout=timedelta(seconds=10),
            subscribed_topic_names=(TOPIC,),
            subscribed_topic_regex=None,
            server_assignor=None,
            topic_partitions=(),
        )
        assert (int(answer.error_code), answer.member_epoch > 0) == (NOTHING, True)
        assert version == 0 or answer.member_id == member
        (assigned,) = answer.assignment.topic_partitions
        assert (assigned.topic_id, assigned.partitions) == (self._topic_id, (0,))

    def consumer_group_describe(self, version: int) -> None:
        group, member = a_name("group"), str(UUID(int=next(_names) + 1))
        self._beat(group, member, 1)
        answer = self._ask(69, version, group_ids=(group,), include_authorized_operations=False)
        (found,) = answer.groups
        assert (found.group_id, int(found.error_code)) == (group, NOTHING)
        assert [row.member_id for row in found.members] == [member]


QUESTIONS: Final[dict[int, Callable[[Questions, int], None]]] = {
    0: Questions.produce,
    1: Questions.fetch,
    2: Questions.list_offsets,
    3: Questions.metadata,
    8: Questions.offset_commit,
    9: Questions.offset_fetch,
    10: Questions.find_coordinator,
    11: Questions.join_group,
    12: Questions.heartbeat,
    13: Questions.leave_group,
    14: Questions.sync_group,
    15: Questions.describe_groups,
    16: Questions.list_groups,
    17: Questions.sasl_handshake,
    18: Questions.api_versions,
    19: Questions.create_topics,
    20: Questions.delete_topics,
    21: Questions.delete_records,
    22: Questions.init_producer_id,
    23: Questions.offset_for_leader_epoch,
    24: Questions.add_partitions_to_txn,
    25: Questions.add_offsets_to_txn,
    26: Questions.end_txn,
    28: Questions.txn_offset_commit,
    29: Questions.describe_acls,
    30: Questions.create_acls,
    31: Questions.delete_acls,
    32: Questions.describe_configs,
    33: Questions.alter_configs,
    35: Questions.describe_log_dirs,
    36: Questions.sasl_authenticate,
    37: Questions.create_partitions,
    42: Questions.delete_groups,
    43: Questions.elect_leaders,
    44: Questions.incremental_alter_configs,
    45: Questions.alter_partition_reassignments,
    46: Questions.list_partition_reassignments,
    47: Questions.offset_delete,
    48: Questions.describe_client_quotas,
    49: Questions.alter_client_quotas,
    50: Questions.describe_user_scram_credentials,
    51: Questions.alter_user_scram_credentials,
    60: Questions.describe_cluster,
    61: Questions.describe_producers,
    65: Questions.describe_transactions,
    66: Questions.list_transactions,
    68: Questions.consumer_group_heartbeat,
    69: Questions.consumer_group_describe,
    74: Questions.list_config_resources,
    75: Questions.describe_topic_partitions,
}
FIRST_KEY_BETWEEN_BROKERS: Final = 93
"""From here on they are not Kafka's; they have tests of their own."""
NO_LONGER_SERVED: Final = {PRODUCE: range(3), 17: range(1)}
"""Advertised because clients take their absence for that of compression, and refused."""


def advertised(port: int) -> dict[int, range]:
    with PlainConnection(port) as connection:
        answer = connection.ask(API_VERSIONS, 0)
    return {
        row.api_key: range(row.min_version, row.max_version + 1)
        for row in answer.api_keys
        if row.api_key < FIRST_KEY_BETWEEN_BROKERS
    }


def test_there_is_a_question_for_every_api_that_is_advertised(broker: LiveBroker) -> None:
    assert set(advertised(broker.port)) <= set(QUESTIONS)


@pytest.mark.parametrize("key", QUESTIONS, ids=lambda key: QUESTIONS[key].__name__)
def test_every_advertised_version_is_answered_as_it_should_be(
    broker: LiveBroker, topic_id: UUID, key: int
) -> None:
    for version in advertised(broker.port)[key]:
        if version in NO_LONGER_SERVED.get(key, ()):
            continue
        with PlainConnection(broker.port) as connection:
            try:
                QUESTIONS[key](Questions(connection, topic_id), version)
            except Exception as error:
                error.add_note(f"version {version}")
                raise


def test_a_version_above_the_advertised_ones_closes_the_connection(
    broker: LiveBroker, topic_id: UUID
) -> None:
    asked = 0
    for key, versions in advertised(broker.port).items():
        if versions.stop not in kafka_python_versions(key):
            continue
        asked += 1
        with PlainConnection(broker.port) as connection, pytest.raises(ConnectionError):
            QUESTIONS[key](Questions(connection, topic_id), versions.stop)
    assert asked > 0


@pytest.mark.parametrize("version", NO_LONGER_SERVED[PRODUCE])
def test_versions_of_produce_that_clients_only_look_for_are_refused(
    broker: LiveBroker, topic_id: UUID, version: int
) -> None:
    with PlainConnection(broker.port) as connection, pytest.raises(ConnectionError):
        Questions(connection, topic_id).produce(version)
