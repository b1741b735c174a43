"""A broker with several metadata partitions: topics whose partitions live at different ones."""

import random
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from metadata.clients.routed_client import RoutedClient
from metadata.operations import CommitFile, CreateTopic, FindBatches, TopicDescription
from metadata.workers.retention import RetentionWorker
from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.clients.stock_clients import (
    QUIET,
    TIMEOUT_S,
    confluent_consumer,
    confluent_producer,
)
from tests.support.coordinators.coordinator_bench import batch
from wal.coordinates import ByteOffset, TopicIdPartition
from wal.errors import InvalidSettings, NotCoordinator
from wal.ulid import mint_ulid, wal_object_key

COORDINATORS = 3
PARTITIONS = 6
SETTINGS = {
    "diskless.metadata.topic.num.partitions": str(COORDINATORS),
    "log.retention.ms": "1",
    "segment.bytes": "1000000",
    "segment.ms": "3600000",
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path / "data", SETTINGS) as broker:
        yield broker


def filled(broker: LiveBroker, topic: str, configs: dict[str, str]) -> list[TopicIdPartition]:
    """A topic with one record, of long ago, in every partition."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap}, logger=QUIET)
    admin.create_topics([NewTopic(topic, PARTITIONS, config=configs)])[topic].result(TIMEOUT_S)
    producer = confluent_producer(broker.bootstrap)
    for index in range(PARTITIONS):
        producer.produce(topic, b"x" * 100, partition=index, timestamp=1_000)
    assert producer.flush(TIMEOUT_S) == 0
    topic_id = broker.broker.coordination.client.topics()[topic].topic_id
    return [TopicIdPartition(topic_id, index) for index in range(PARTITIONS)]


def commit(broker: LiveBroker, places: Sequence[TopicIdPartition]) -> CommitFile:
    """Of a new file with two records for each of `places`."""
    return CommitFile(
        object_key=wal_object_key(mint_ulid(broker.broker.base.clock, random.Random(1))),
        file_size_bytes=10_000,
        uploader_broker_id=0,
        batches=[
            batch(place, 2)._replace(byte_offset=ByteOffset(16 + 100 * at))
            for at, place in enumerate(places)
        ],
    )


def high_watermarks(
    coordinator: RoutedClient, places: Collection[TopicIdPartition]
) -> set[int | None]:
    states = map(coordinator.partition_state, places)
    return {None if state is None else state.high_watermark for state in states}


def test_partitions_are_spread_over_all_coordinators(broker: LiveBroker) -> None:
    partitions = filled(broker, "t", {})
    homes = [
        broker.broker.coordination.client.coordinator_of(partition) for partition in partitions
    ]
    assert sorted(homes) == [0, 0, 1, 1, 2, 2]


def test_a_topics_own_retention_holds_wherever_its_partitions_live(broker: LiveBroker) -> None:
    kept = filled(broker, "kept", {"retention.ms": "-1"})
    expired = filled(broker, "expired", {})

    async def pass_everywhere() -> None:
        for metadata_partition in broker.broker.coordination.partitions:
            assert metadata_partition.coordinator is not None
            await RetentionWorker(
                metadata_partition.coordinator,
                settings=broker.broker.base.config.retention,
                clock=broker.broker.base.clock,
            ).pass_once()

    broker.run(pass_everywhere())
    state_of = broker.broker.coordination.client.partition_state
    assert {state and state.log_start_offset for state in map(state_of, kept)} == {0}
    assert {state and state.log_start_offset for state in map(state_of, expired)} == {1}


def test_a_topics_own_segment_size_holds_wherever_its_partitions_live(broker: LiveBroker) -> None:
    small = filled(broker, "small", {"segment.bytes": "50", "retention.ms": "-1"})
    filled(broker, "large", {"retention.ms": "-1"})
    plans = broker.run(broker.broker.coordination.client.plan_segments())
    assert sorted(plan.partition.partition for plan in plans) == list(range(PARTITIONS))
    assert {plan.partition for plan in plans} == set(small)


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    settings = {**SETTINGS, "log.retention.ms": "-1"}
    with LiveBroker(tmp_path / "data", settings) as broker:
        filled(broker, "t", {})
    with LiveBroker(tmp_path / "data", settings) as broker:
        with closing(confluent_consumer(broker.bootstrap)) as consumer:
            consumer.assign([TopicPartition("t", index, 0) for index in range(PARTITIONS)])
            messages = consumer.consume(PARTITIONS, timeout=TIMEOUT_S)
        assert sorted(message.partition() or 0 for message in messages) == list(range(PARTITIONS))


def test_metadata_partitions_can_be_added_and_serve_new_partitions_only(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with LiveBroker(data, {**SETTINGS, "diskless.metadata.topic.num.partitions": "1"}) as broker:
        filled(broker, "old", {"retention.ms": "-1"})
    with LiveBroker(data, SETTINGS) as broker:
        coordinator = broker.broker.coordination.client
        old = coordinator.topics()["old"]
        assert {old.coordinator_of(index) for index in range(PARTITIONS)} == {0}
        new = filled(broker, "new", {"retention.ms": "-1"})
        assert {coordinator.coordinator_of(partition) for partition in new} == {0, 1, 2}


def test_metadata_partitions_that_are_in_use_cannot_be_taken_away(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with LiveBroker(data, SETTINGS) as broker:
        filled(broker, "t", {})
    fewer = {**SETTINGS, "diskless.metadata.topic.num.partitions": "2"}
    with pytest.raises(ExceptionGroup) as refused, LiveBroker(data, fewer):
        pass
    assert "it can only be raised" in str(refused.value.exceptions[0])


def test_metadata_in_a_local_log_is_not_overlooked_for_one_in_the_object_store(
    tmp_path: Path,
) -> None:
    with LiveBroker(tmp_path / "data", SETTINGS) as broker:
        filled(broker, "t", {"retention.ms": "-1"})
    shared = {
        **SETTINGS,
        "diskless.metadata.log": "object",
        "object.store.url": f"file://{tmp_path / 'bucket'}",
    }
    with pytest.raises(ExceptionGroup) as refused, LiveBroker(tmp_path / "data", shared):
        pass
    assert isinstance(refused.value.exceptions[0], InvalidSettings)
    with LiveBroker(tmp_path / "data", SETTINGS) as broker:
        assert "t" in broker.broker.coordination.client.topics()


def test_a_broker_that_was_not_given_all_metadata_partitions_yet_serves_the_others(
    tmp_path: Path,
) -> None:
    """Brokers are restarted one after the other when the number is raised."""
    shared = {
        **SETTINGS,
        "log.retention.ms": "-1",
        "diskless.metadata.log": "object",
        "object.store.url": f"file://{tmp_path / 'bucket'}",
    }
    fewer = {**shared, "node.id": "1", "diskless.metadata.topic.num.partitions": "2"}
    with LiveBroker(tmp_path / "1", fewer):
        pass  # the cluster begins with two
    with (
        LiveBroker(tmp_path / "0", shared) as broker,
        LiveBroker(tmp_path / "1", fewer) as behind,
    ):
        made = broker.run(
            broker.broker.coordination.client.create_topics(
                [CreateTopic(name="t", partition_count=6)]
            )
        )
        (topic,) = made
        assert isinstance(topic, TopicDescription)
        places = [TopicIdPartition(topic.topic_id, index) for index in range(6)]
        coordinator = behind.broker.coordination.client
        until(lambda: "t" in coordinator.topics(), "the other broker hears of the topic")
        unknown = {place for place in places if coordinator.coordinator_of(place) == 2}
        assert len(unknown) == 2

        answers = behind.run(coordinator.commit_file(commit(behind, places)))
        for place, answer in zip(places, answers, strict=True):
            expected = NotCoordinator if place in unknown else type(None)
            assert isinstance(answer.error, expected)
        known = set(places) - unknown
        until(lambda: high_watermarks(coordinator, known) == {2}, "it is committed")
        assert {*map(coordinator.partition_state, unknown)} == {None}

        asked = [FindBatches(place, 0, 1_000) for place in places]
        found = behind.run(coordinator.find_batches(asked, max_bytes=10_000))
        for place, some in zip(places, found, strict=True):
            assert isinstance(some.error, NotCoordinator) == (place in unknown)
            assert len(some.extents) == (place in known)


def test_a_commit_repeated_after_its_topic_was_deleted_gets_its_first_answer(
    broker: LiveBroker,
) -> None:
    """Its answer was lost, and somebody deleted one of its topics before it was sent again."""
    coordinator = broker.broker.coordination.client
    places = [*filled(broker, "kept", {}), *filled(broker, "deleted", {})]
    request = commit(broker, places)
    first = broker.run(coordinator.commit_file(request))
    assert [answer.error for answer in first] == [None] * len(places)
    broker.run(coordinator.delete_topics([places[-1].topic_id]))
    assert broker.run(coordinator.commit_file(request)) == first
