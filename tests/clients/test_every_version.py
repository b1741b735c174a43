"""Every API in every version that the broker advertises, asked with schemas that are not its own.

Each answer is decoded to its last byte, and has to say what was asked for.
"""

from collections.abc import Callable, Iterator
from typing import Final
from uuid import UUID

import pytest
from confluent_kafka import TopicCollection

from tests.support.brokers.live_broker import LiveBroker
from tests.support.clients.stock_clients import TIMEOUT_S, ConfluentKafka, Record, confluent_admin
from tests.support.questions.admin_questions import AdminQuestions
from tests.support.questions.asker import API_VERSIONS, PRODUCE, TOPIC
from tests.support.questions.group_questions import GroupQuestions
from tests.support.questions.record_questions import RecordQuestions
from tests.support.questions.versioned_requests import PlainConnection, kafka_python_versions

pytestmark = pytest.mark.clients

SETTINGS: Final = {
    "wal.commit.interval.ms": "5",
    "group.initial.rebalance.delay.ms": "0",
    "num.partitions": "1",
}


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


class Questions(RecordQuestions, AdminQuestions, GroupQuestions):
    """Every API's question."""


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
    57: Questions.update_features,
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
