"""Topics, configs and records in the hands of stock admin clients, against whole brokers."""

import warnings
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from diskless.loop.early_end import EarlyEnd
from diskless.ports import ClientInfo, FetchPartition
from metadata.workers.retention import RetentionWorker
from tests.support.brokers.live_broker import LiveBroker
from tests.support.clients.stock_clients import (
    TIMEOUT_S,
    ConfluentKafka,
    KafkaAdminClient,
    KafkaPython,
    PythonTopicPartition,
    Record,
    confluent_admin,
    confluent_consumer,
    confluent_producer,
    create_topic,
)
from wal.records.record_batch import iterate_headers

with warnings.catch_warnings():
    # As in tests/support/clients/stock_clients.py.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.admin import ConfigResource as PythonConfigResource
    from kafka.admin import ConfigResourceType

pytestmark = pytest.mark.clients

COORDINATORS = 3
SETTINGS = {
    "wal.commit.interval.ms": "5",
    "diskless.metadata.topic.num.partitions": str(COORDINATORS),
    "log.retention.ms": "-1",
}
OFFSET_OUT_OF_RANGE, INVALID_PARTITIONS, INVALID_CONFIG, POLICY_VIOLATION = 1, 37, 40, 44


def alter(
    admin: AdminClient,
    topic: str,
    name: str,
    value: str | None,
    operation: AlterConfigOpType = AlterConfigOpType.SET,
) -> None:
    """Raises KafkaException."""
    entry = ConfigEntry(name, value, incremental_operation=operation)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)


def shown(admin: AdminClient, topic: str) -> Mapping[str, ConfigEntry]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    described: Mapping[str, ConfigEntry] = admin.describe_configs([resource])[resource].result(
        TIMEOUT_S
    )
    return described


def set_on(admin: AdminClient, topic: str) -> Mapping[str, str | None]:
    """What was set on the topic itself."""
    return {
        name: entry.value
        for name, entry in shown(admin, topic).items()
        if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    }


def code_of(raised: "pytest.ExceptionInfo[KafkaException]") -> int:
    code: int = raised.value.args[0].code()
    return code


def bounds(admin: AdminClient, topic: str, partition: int = 0) -> tuple[int, int]:
    """(log start offset, high watermark)"""
    found = []
    for spec in (OffsetSpec.earliest(), OffsetSpec.latest()):
        place = TopicPartition(topic, partition)
        found.append(admin.list_offsets({place: spec})[place].result(TIMEOUT_S).offset)
    return found[0], found[1]


# --- configs --------------------------------------------------------------------------------------


def test_configs_are_set_deleted_appended_and_subtracted(admin: AdminClient, topic: str) -> None:
    create_topic(admin, topic, retention_ms="5000")
    alter(admin, topic, "segment.bytes", "77")
    alter(admin, topic, "cleanup.policy", "compact", AlterConfigOpType.APPEND)
    configs = shown(admin, topic)
    for name, value in (
        ("segment.bytes", "77"),
        ("cleanup.policy", "delete,compact"),
        ("retention.ms", "5000"),
    ):
        assert (configs[name].value, configs[name].source) == (
            value,
            ConfigSource.DYNAMIC_TOPIC_CONFIG.value,
        )
    alter(admin, topic, "cleanup.policy", "delete", AlterConfigOpType.SUBTRACT)
    alter(admin, topic, "retention.ms", None, AlterConfigOpType.DELETE)
    configs = shown(admin, topic)
    assert configs["cleanup.policy"].value == "compact"
    assert (configs["retention.ms"].value, configs["retention.ms"].source) == (
        "-1",
        ConfigSource.STATIC_BROKER_CONFIG.value,
    )
    assert configs["segment.bytes"].synonyms.keys() == {"segment.bytes"}
    assert configs["retention.ms"].synonyms.keys() == {"log.retention.ms"}


@pytest.mark.parametrize(("name", "value"), [("nonsense", "1"), ("segment.ms", "soon")])
def test_a_bad_config_is_refused(admin: AdminClient, topic: str, name: str, value: str) -> None:
    create_topic(admin, topic)
    with pytest.raises(KafkaException) as raised:
        alter(admin, topic, name, value)
    assert code_of(raised) == INVALID_CONFIG


def test_replacing_all_configs_forgets_what_is_left_out(admin: AdminClient, topic: str) -> None:
    create_topic(admin, topic, retention_ms="5000", segment_ms="6")
    resource = ConfigResource(ResourceType.TOPIC, topic, set_config={"segment.bytes": "77"})
    with pytest.warns(DeprecationWarning, match="alter_configs has been deprecated"):
        admin.alter_configs([resource])[resource].result(TIMEOUT_S)
    assert set_on(admin, topic) == {"segment.bytes": "77"}


@pytest.mark.parametrize("incremental", [True, False])
def test_configs_are_altered_and_reset_through_kafka_python(
    python_admin: KafkaAdminClient, admin: AdminClient, topic: str, incremental: bool
) -> None:
    create_topic(admin, topic, retention_ms="5000")
    resource = PythonConfigResource(ConfigResourceType.TOPIC, topic, {"segment.bytes": "77"})
    python_admin.alter_configs([resource], incremental=incremental)
    assert set_on(admin, topic) == {"retention.ms": "5000", "segment.bytes": "77"}
    resource = PythonConfigResource(ConfigResourceType.TOPIC, topic, ["retention.ms"])
    python_admin.reset_configs([resource], incremental=incremental)
    assert set_on(admin, topic) == {"segment.bytes": "77"}


def test_many_alterations_at_once_are_all_there_in_the_end(admin: AdminClient, topic: str) -> None:
    create_topic(admin, topic)
    names = [
        "segment.ms", "segment.bytes", "retention.ms", "retention.bytes", "flush.ms",
        "flush.messages", "max.message.bytes", "index.interval.bytes",
    ]  # fmt: skip
    futures = []
    for name in names:
        entry = ConfigEntry(name, "99", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        futures.append(admin.incremental_alter_configs([resource])[resource])
    for future in futures:
        future.result(TIMEOUT_S)
    configs = shown(admin, topic)
    assert {configs[name].value for name in names} == {"99"}


def test_the_brokers_own_configs_are_read_only(broker: LiveBroker, admin: AdminClient) -> None:
    entry = ConfigEntry("num.partitions", "9", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.BROKER, "0", incremental_configs=[entry])
    with pytest.raises(KafkaException, match="Cannot update these configs dynamically"):
        admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)
    resource = ConfigResource(ResourceType.BROKER, "0")
    described = admin.describe_configs([resource])[resource].result(TIMEOUT_S)
    assert described["log.retention.ms"].value == "-1"
    assert described["delete.topic.enable"].value == "true"
    assert all(entry.is_read_only for entry in described.values())
    listeners = described["advertised.listeners"]
    assert listeners.value == f"PLAINTEXT://{broker.bootstrap}"
    assert listeners.source == ConfigSource.STATIC_BROKER_CONFIG.value


# --- configs act, without a restart ---------------------------------------------------------------


def test_the_largest_message_is_what_the_altered_config_says(
    broker: LiveBroker, admin: AdminClient, topic: str
) -> None:
    create_topic(admin, topic)
    large = [Record(value=b"x" * 50_000)]
    assert ConfluentKafka().produce(broker.bootstrap, topic, large) == [0]
    alter(admin, topic, "max.message.bytes", "10000")
    with pytest.raises(AssertionError, match="MSG_SIZE_TOO_LARGE"):
        ConfluentKafka().produce(broker.bootstrap, topic, large)
    alter(admin, topic, "max.message.bytes", None, AlterConfigOpType.DELETE)
    assert ConfluentKafka().produce(broker.bootstrap, topic, large) == [1]


def test_timestamps_are_what_the_altered_configs_say(
    broker: LiveBroker, admin: AdminClient, topic: str
) -> None:
    create_topic(admin, topic)
    old = [Record(timestamp_ms=1_000)]
    client = ConfluentKafka()
    client.produce(broker.bootstrap, topic, old)
    for bound in ("message.timestamp.before.max.ms", "message.timestamp.difference.max.ms"):
        alter(admin, topic, bound, "60000")
        with pytest.raises(AssertionError, match="INVALID_TIMESTAMP"):
            client.produce(broker.bootstrap, topic, old)
        alter(admin, topic, bound, None, AlterConfigOpType.DELETE)
    alter(admin, topic, "message.timestamp.type", "LogAppendTime")
    client.produce(broker.bootstrap, topic, old)
    timestamps = [
        stored.record.timestamp_ms for stored in KafkaPython().read(broker.bootstrap, topic, 2)
    ]
    assert timestamps[0] == 1_000
    assert timestamps[1] > 1_700_000_000_000


def test_retention_follows_the_altered_config_wherever_partitions_live(
    broker: LiveBroker, admin: AdminClient, topic: str
) -> None:
    create_topic(admin, topic, COORDINATORS)
    for partition in range(COORDINATORS):
        ConfluentKafka().produce(
            broker.bootstrap, topic, [Record(timestamp_ms=1_000)] * 3, partition=partition
        )

    async def pass_everywhere() -> None:
        for metadata_partition in broker.broker.coordination.partitions:
            assert metadata_partition.coordinator is not None
            await RetentionWorker(
                metadata_partition.coordinator,
                settings=broker.broker.base.config.retention,
                clock=broker.broker.base.clock,
            ).pass_once()

    broker.run(pass_everywhere())
    assert [bounds(admin, topic, index)[0] for index in range(COORDINATORS)] == [0] * COORDINATORS
    alter(admin, topic, "retention.ms", "60000")
    broker.run(pass_everywhere())
    assert [bounds(admin, topic, index)[0] for index in range(COORDINATORS)] == [3] * COORDINATORS


def test_segments_are_planned_by_the_altered_config(
    broker: LiveBroker, admin: AdminClient, topic: str
) -> None:
    create_topic(admin, topic)
    ConfluentKafka().produce(broker.bootstrap, topic, [Record(value=b"x" * 1_000)])
    planned = broker.run(broker.broker.coordination.client.plan_segments())
    assert topic not in {plan.topic_name for plan in planned}
    alter(admin, topic, "segment.bytes", "100")
    planned = broker.run(broker.broker.coordination.client.plan_segments())
    assert topic in {plan.topic_name for plan in planned}


def test_keys_are_mandatory_once_a_topic_is_to_be_compacted(
    broker: LiveBroker, admin: AdminClient, topic: str
) -> None:
    create_topic(admin, topic)
    without_key = [Record(key=None)]
    ConfluentKafka().produce(broker.bootstrap, topic, without_key)
    alter(admin, topic, "cleanup.policy", "compact")
    with pytest.raises(AssertionError, match="INVALID_RECORD"):
        ConfluentKafka().produce(broker.bootstrap, topic, without_key)
    ConfluentKafka().produce(broker.bootstrap, topic, [Record(key=b"k")])
    assert bounds(admin, topic) == (0, 2)


def test_altered_configs_survive_a_restart(tmp_path: Path) -> None:
    with LiveBroker(tmp_path / "data", SETTINGS) as broker:
        create_topic(confluent_admin(broker.bootstrap), "t", segment_ms="5")
        alter(confluent_admin(broker.bootstrap), "t", "segment.bytes", "77")
        alter(confluent_admin(broker.bootstrap), "t", "segment.ms", None, AlterConfigOpType.DELETE)
    with LiveBroker(tmp_path / "data", SETTINGS) as broker:
        configs = shown(confluent_admin(broker.bootstrap), "t")
        assert configs["segment.bytes"].value == "77"
        assert configs["segment.ms"].source == ConfigSource.DEFAULT_CONFIG.value


def codecs_of(broker: LiveBroker, topic: str) -> list[int]:
    """The codec of every stored batch of a topic's first partition."""

    async def fetched() -> bytes:
        (found,) = await broker.broker.reads.replicas.fetch(
            [FetchPartition(None, topic, 0, 0, 1 << 20, -1)],
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation=0,
            client=ClientInfo(0, "test", "here"),
            wake=EarlyEnd(),
            reserve=lambda wanted: wanted,
        )
        assert found.error is None
        return b"".join(found.records)

    return [header.codec for _, header in iterate_headers(broker.run(fetched()))]


@pytest.mark.parametrize(
    ("compression", "codec"),
    [("uncompressed", 0), ("gzip", 1), ("snappy", 2), ("lz4", 3), ("zstd", 4)],
)
def test_batches_are_stored_under_the_topics_codec(
    broker: LiveBroker, admin: AdminClient, topic: str, compression: str, codec: int
) -> None:
    create_topic(admin, topic)
    sent = [Record(b"key", b"a value that repeats itself " * 20, (("h", b"v"),))] * 10
    expected: list[int] = []
    for wanted, stored_with in (("producer", None), (compression, codec), ("producer", None)):
        alter(admin, topic, "compression.type", wanted)
        for name, own in (("none", 0), ("gzip", 1), ("zstd", 4)):
            ConfluentKafka().produce(broker.bootstrap, topic, sent, codec=name)
            expected.append(own if stored_with is None else stored_with)
    assert codecs_of(broker, topic) == expected
    for reader in (ConfluentKafka(), KafkaPython()):
        read = reader.read(broker.bootstrap, topic, 90)
        assert [stored.record for stored in read] == sent * 9


def test_a_producer_stays_in_sequence_while_its_batches_are_recompressed(
    broker: LiveBroker, admin: AdminClient, topic: str
) -> None:
    create_topic(admin, topic, compression_type="zstd", compression_zstd_level="19")
    sent = [Record(value=str(number).encode() * 50) for number in range(1_500)]
    producer = confluent_producer(
        broker.bootstrap,
        **{"enable.idempotence": True, "batch.num.messages": 20, "compression.type": "lz4"},
    )
    for number, record in enumerate(sent):
        if number % 300 == 0:
            # In the midst of it: batches that need no work follow batches that do.
            alter(admin, topic, "compression.type", "zstd" if number % 600 else "producer")
        producer.produce(topic, record.value, partition=0)
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0
    read = KafkaPython().read(broker.bootstrap, topic, len(sent))
    assert [stored.record.value for stored in read] == [record.value for record in sent]


# --- partitions, topics ---------------------------------------------------------------------------


def grow(admin: AdminClient, topic: str, count: int, **options: bool) -> None:
    """Raises KafkaException."""
    admin.create_partitions([NewPartitions(topic, count)], **options)[topic].result(TIMEOUT_S)


def test_a_topic_grows_and_its_new_partitions_are_used_like_the_old_ones(
    broker: LiveBroker, admin: AdminClient, topic: str
) -> None:
    create_topic(admin, topic, 2, segment_ms="5")
    for partition in range(2):
        ConfluentKafka().produce(broker.bootstrap, topic, [Record()], partition=partition)
    grow(admin, topic, 7, validate_only=True)
    assert broker.broker.coordination.client.topics()[topic].partition_count == 2
    grow(admin, topic, 7)
    description = broker.broker.coordination.client.topics()[topic]
    assert {description.coordinator_of(index) for index in range(7)} == set(range(COORDINATORS))
    assert description.configs == {"segment.ms": "5"}
    for partition in range(7):
        offsets = KafkaPython().produce(broker.bootstrap, topic, [Record()], partition=partition)
        assert offsets == [1 if partition < 2 else 0]
    for count in (6, 7):
        with pytest.raises(KafkaException) as raised:
            grow(admin, topic, count)
        assert code_of(raised) == INVALID_PARTITIONS


def test_partitions_are_created_through_kafka_python(
    python_admin: KafkaAdminClient, admin: AdminClient, topic: str
) -> None:
    create_topic(admin, topic)
    python_admin.create_partitions({topic: 3})
    page = python_admin.describe_topic_partitions([topic])
    assert "2" in str(page)
    (described,) = python_admin.describe_topics([topic])
    assert len(described["partitions"]) == 3


@pytest.mark.parametrize("replication_factor", [-1, 1, 3])
def test_any_replication_factor_will_do(
    admin: AdminClient, topic: str, replication_factor: int
) -> None:
    new = NewTopic(topic, -1, replication_factor)
    admin.create_topics([new])[topic].result(TIMEOUT_S)
    assert len(admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions) == 1


def test_a_topic_that_is_deleted_and_created_again_is_another_one(
    broker: LiveBroker, admin: AdminClient, topic: str
) -> None:
    seen = []
    for life in range(3):
        create_topic(admin, topic, 2, segment_ms=str(life + 1))
        described = admin.describe_topics(TopicCollection([topic]))[topic].result(TIMEOUT_S)
        seen.append(str(described.topic_id))
        sent = [Record(value=f"{life}-{number}".encode()) for number in range(5)]
        assert ConfluentKafka().produce(broker.bootstrap, topic, sent) == [0, 1, 2, 3, 4]
        read = KafkaPython().read(broker.bootstrap, topic, 5)
        assert [stored.record.value for stored in read] == [record.value for record in sent]
        assert shown(admin, topic)["segment.ms"].value == str(life + 1)
        admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    assert len(set(seen)) == 3


# --- records --------------------------------------------------------------------------------------


def test_records_are_deleted_up_to_an_offset(
    broker: LiveBroker, admin: AdminClient, topic: str
) -> None:
    create_topic(admin, topic, COORDINATORS)
    for partition in range(COORDINATORS):
        ConfluentKafka().produce(broker.bootstrap, topic, [Record()] * 10, partition=partition)
    places = [
        TopicPartition(topic, 0, 4),
        TopicPartition(topic, 1, -1),
        TopicPartition(topic, 2, 0),
    ]
    futures = admin.delete_records(places)
    assert [futures[place].result(TIMEOUT_S).low_watermark for place in places] == [4, 10, 0]
    assert [bounds(admin, topic, index) for index in range(3)] == [(4, 10), (10, 10), (0, 10)]
    left = KafkaPython().read(broker.bootstrap, topic, 6, offset=4)
    assert [stored.offset for stored in left] == list(range(4, 10))
    with closing(confluent_consumer(broker.bootstrap)) as consumer:
        assert consumer.get_watermark_offsets(TopicPartition(topic, 1), TIMEOUT_S) == (10, 10)
    assert ConfluentKafka().produce(broker.bootstrap, topic, [Record()], partition=1) == [10]


def test_records_that_are_not_there_cannot_be_deleted(
    broker: LiveBroker, admin: AdminClient, topic: str
) -> None:
    create_topic(admin, topic)
    ConfluentKafka().produce(broker.bootstrap, topic, [Record(key=b"k")])
    place = TopicPartition(topic, 0, 2)
    with pytest.raises(KafkaException) as raised:
        admin.delete_records([place])[place].result(TIMEOUT_S)
    assert code_of(raised) == OFFSET_OUT_OF_RANGE
    alter(admin, topic, "cleanup.policy", "compact")
    place = TopicPartition(topic, 0, 1)
    with pytest.raises(KafkaException) as raised:
        admin.delete_records([place])[place].result(TIMEOUT_S)
    assert code_of(raised) == POLICY_VIOLATION
    assert bounds(admin, topic) == (0, 1)


def test_records_are_deleted_through_kafka_python(
    broker: LiveBroker, python_admin: KafkaAdminClient, admin: AdminClient, topic: str
) -> None:
    create_topic(admin, topic)
    ConfluentKafka().produce(broker.bootstrap, topic, [Record()] * 5)
    deleted = python_admin.delete_records({PythonTopicPartition(topic, 0): 3})
    assert "3" in str(deleted)
    assert bounds(admin, topic) == (3, 5)


# --- what is stored -------------------------------------------------------------------------------


def test_the_log_directory_has_the_size_of_every_partition(
    broker: LiveBroker, python_admin: KafkaAdminClient, admin: AdminClient, topic: str
) -> None:
    create_topic(admin, topic, COORDINATORS)
    sizes = (1_000, 3_000, 0)
    for partition, size in enumerate(sizes):
        if size:
            ConfluentKafka().produce(
                broker.bootstrap, topic, [Record(value=b"x" * size)], partition=partition
            )

    def stored() -> Mapping[int, int]:
        (described,) = python_admin.describe_log_dirs()
        (directory,) = described["log_dirs"]
        assert directory["log_dir"] == broker.broker.storage.store.url
        (mine,) = [row for row in directory["topics"] if row["name"] == topic]
        return {row["partition_index"]: row["partition_size"] for row in mine["partitions"]}

    found = stored()
    assert found[0] in range(1_000, 1_200)
    assert found[1] in range(3_000, 3_200)
    assert found[2] == 0
    place = TopicPartition(topic, 1, -1)
    admin.delete_records([place])[place].result(TIMEOUT_S)
    assert stored()[1] == 0


def test_a_partitions_producers_are_described(
    broker: LiveBroker, python_admin: KafkaAdminClient, admin: AdminClient, topic: str
) -> None:
    create_topic(admin, topic, 2)
    for _ in range(2):
        ConfluentKafka().produce(broker.bootstrap, topic, [Record()] * 7, idempotent=True)
    described = python_admin.describe_producers(
        [PythonTopicPartition(topic, 0), PythonTopicPartition(topic, 1)]
    )
    first, none = (described[PythonTopicPartition(topic, index)] for index in range(2))
    active = first.active_producers
    assert len({producer.producer_id for producer in active}) == 2
    assert {(producer.producer_epoch, producer.last_sequence) for producer in active} == {(0, 6)}
    assert not none.active_producers
