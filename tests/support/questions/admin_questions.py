"""What is asked of a broker in each version about the cluster, topics and users."""

from uuid import UUID

from tests.support.questions.asker import (
    API_VERSIONS,
    ILLEGAL_SASL_STATE,
    NOTHING,
    SECURITY_DISABLED,
    TOPIC,
    TOPIC_RESOURCE,
    Asker,
    a_name,
)


class AdminQuestions(Asker):
    """The cluster, topics and configs, quotas, access control, users."""

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

    def update_features(self, version: int) -> None:
        wanted = {"feature": "transaction.version", "max_version_level": 2}
        updates = [{**wanted, "allow_downgrade": False, "upgrade_type": 1}]
        answer = self._ask(
            57, version, feature_updates=updates, timeout_ms=1_000, validate_only=False
        )
        assert answer.error_code == NOTHING

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
