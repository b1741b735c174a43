"""Configs altered, partitions created, records deleted, and what else admin tools ask for: raw."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from diskless.ports import ActiveProducer
from metadata import operations as ops
from tests.support.brokers.fake_logs import HIGH_WATERMARK, FakeLog
from tests.support.brokers.kafka_fakes import connected
from tests.support.questions.kafka_raw_client import RawClient
from wal.coordinates import TopicIdPartition
from wal.errors import CommitFailed, CorruptState, DisklessError, NotCoordinator, UnknownTopicId

DELETE_RECORDS, LEADER_EPOCHS, LOG_DIRS, PARTITIONS = 21, 23, 35, 37
PRODUCERS, CONFIG_RESOURCES, TOPIC_PARTITIONS = 61, 74, 75
TOPIC, BROKER, GROUP = 2, 4, 32


# --- resources with configs -----------------------------------------------------------------------


async def resources(client: RawClient, *types: int, version: int = 1) -> Any:
    return await client.ask(CONFIG_RESOURCES, version, resource_types=types)


async def test_topics_and_brokers_are_what_has_configs():
    async with connected() as (broker, client):
        for name in ("z", "a"):
            broker.topics.add(name)
        brokers, topics = [("0", BROKER)], [("a", TOPIC), ("z", TOPIC)]
        for types, expected in (
            ((), topics + brokers),
            ((BROKER,), brokers),
            ((TOPIC, TOPIC), topics),
            ((8, 16, GROUP), []),
            ((GROUP, BROKER), brokers),
        ):
            answer = await resources(client, *types)
            assert answer.error_code == 0
            found = [(item.resource_name, item.resource_type) for item in answer.config_resources]
            assert found == expected, types


async def test_the_first_version_asks_for_client_metrics_of_which_there_are_none():
    async with connected() as (broker, client):
        broker.topics.add("t")
        answer = await resources(client, version=0)
        assert (answer.error_code, answer.config_resources) == (0, ())


@pytest.mark.parametrize("unknown", [0, 3, 127, -1])
async def test_resources_of_a_type_that_is_not_known_cannot_be_listed(unknown):
    async with connected() as (_, client):
        answer = await resources(client, BROKER, unknown)
        assert (answer.error_code, answer.config_resources) == (35, ())


# --- partitions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(4))
async def test_topics_grow_and_each_bad_request_is_refused_for_its_own_reason(version):
    async with connected() as (broker, client):
        broker.add_metadata_topic()
        broker.topics.max_partition_count = 10
        for name in ("grown", "assigned", "same", "fewer", "many", "twice", "short"):
            broker.topics.add(name, partitions=3)
        two = [{"broker_ids": [7]}, {"broker_ids": [8, 9]}]
        cases = [
            ("grown", 5, None, 0, ""),
            ("assigned", 5, two, 0, ""),
            ("same", 3, None, 37, "Topic already has 3 partition(s)."),
            ("fewer", 2, None, 37, "The topic fewer currently has 3 partition(s); 2 would not be"),
            ("many", 11, None, 37, "11 partitions"),
            ("twice", 4, None, 42, "Duplicate topic name."),
            ("twice", 5, None, 42, "Duplicate topic name."),
            ("short", 6, two, 39, "Attempted to add 3 additional partition(s), but only 2"),
            ("unknown", 2, None, 3, "The topic 'unknown' does not exist."),
            (ops.METADATA_TOPIC, 2, None, 17, "__diskless_metadata is the cluster's own"),
        ]
        asked = [
            {"name": name, "count": count, "assignments": assignments}
            for name, count, assignments, _, _ in cases
        ]
        for validate_only in (True, False):
            answer = await client.ask(
                PARTITIONS, version, topics=asked, validate_only=validate_only
            )
            for result, (name, _, _, code, message) in zip(answer.results, cases, strict=True):
                assert (result.name, result.error_code) == (name, code)
                assert (result.error_message or "").startswith(message)
            counts = {name: topic.partition_count for name, topic in broker.topics.known.items()}
            expected = 3 if validate_only else 5
            assert (counts["grown"], counts["assigned"]) == (expected, expected)
            assert {counts[name] for name in ("same", "fewer", "many", "twice", "short")} == {3}


async def test_a_growth_that_fails_is_the_error_of_what_was_asked_of_the_coordinator():
    async with connected() as (broker, client):
        broker.topics.add("t")
        broker.topics.failure = CommitFailed("no")
        asked = [{"name": name, "count": 2, "assignments": None} for name in ("t", "unknown")]
        answer = await client.ask(PARTITIONS, 3, topics=asked, validate_only=False)
        assert [r.error_code for r in answer.results] == [56, 3]


async def test_a_topic_that_is_deleted_while_it_should_grow_is_unknown():
    async with connected() as (broker, client):
        broker.topics.add("t")

        async def create_partitions(
            topics: Sequence[ops.CreatePartitions],
        ) -> Sequence[DisklessError]:
            return [UnknownTopicId("deleted")]

        broker.topics.create_partitions = create_partitions  # type: ignore[method-assign]
        asked = [{"name": "t", "count": 2, "assignments": None}]
        answer = await client.ask(PARTITIONS, 3, topics=asked, validate_only=False)
        (result,) = answer.results
        assert (result.error_code, result.error_message) == (3, "The topic 't' does not exist.")


# --- records --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
async def test_records_are_deleted_up_to_an_offset_partition_by_partition(version):
    async with connected() as (broker, client):
        broker.add_metadata_topic()
        topic = broker.topics.add("t", partitions=4)
        broker.topics.add("compacted", configs={"cleanup.policy": "compact"})
        broker.topics.add("both", configs={"cleanup.policy": "compact,delete"})
        cases = {
            "t": [(0, 3, 3, 0), (1, -1, HIGH_WATERMARK, 0), (2, 8, -1, 1), (3, -2, -1, 1),
                  (4, 0, -1, 3), (-1, 0, -1, 3)],
            "unknown": [(0, 0, -1, 3)],
            "compacted": [(0, 0, -1, 44)],
            "both": [(0, 1, 1, 0)],
            ops.METADATA_TOPIC: [(0, 0, -1, 17)],
            "a b": [(0, 0, -1, 17)],
        }  # fmt: skip
        asked = [
            {
                "name": name,
                "partitions": [
                    {"partition_index": index, "offset": at} for index, at, _, _ in rows
                ],
            }
            for name, rows in cases.items()
        ]
        answer = await client.ask(DELETE_RECORDS, version, topics=asked)
        assert {
            topic.name: [
                (p.partition_index, p.low_watermark, p.error_code) for p in topic.partitions
            ]
            for topic in answer.topics
        } == {
            name: [(index, low, code) for index, _, low, code in rows]
            for name, rows in cases.items()
        }
        assert broker.topics.deletions[:2] == [
            ops.DeleteRecords(TopicIdPartition(topic.topic_id, 0), 3),
            ops.DeleteRecords(TopicIdPartition(topic.topic_id, 1), -1),
        ]


async def test_a_deletion_that_fails_is_the_error_of_its_partitions():
    async with connected() as (broker, client):
        broker.topics.add("t")
        broker.topics.failure = CommitFailed("no")
        partitions = [{"partition_index": index, "offset": 0} for index in (0, 9)]
        answer = await client.ask(
            DELETE_RECORDS, 2, topics=[{"name": "t", "partitions": partitions}]
        )
        assert [p.error_code for p in answer.topics[0].partitions] == [56, 3]


# --- leader epochs --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(2, 5))
async def test_the_one_leader_epoch_ends_where_the_log_does(version):
    async with connected() as (broker, client):
        broker.topics.add("t")
        broker.manager.logs["t", 0] = FakeLog(next_offset=42)
        cases = [(0, 0, 0, 42), (0, 1, -1, -1), (0, -1, -1, -1)]
        for partition, epoch, expected_epoch, end_offset in cases:
            item = {"partition": partition, "current_leader_epoch": 0, "leader_epoch": epoch}
            topics = [
                {"topic": "t", "partitions": [item]},
                {"topic": "unknown", "partitions": [item]},
            ]
            answer = await client.ask(LEADER_EPOCHS, version, replica_id=-1, topics=topics)
            told = [
                (t.topic, p.partition, p.error_code, p.leader_epoch, p.end_offset)
                for t in answer.topics
                for p in t.partitions
            ]
            assert told == [("t", 0, 0, expected_epoch, end_offset), ("unknown", 0, 3, -1, -1)]


async def test_a_leader_epoch_is_not_answered_when_the_end_of_the_log_cannot_be_known():
    async with connected() as (broker, client):
        broker.topics.add("t")
        broker.manager.raises = NotCoordinator("nobody leads")
        item = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
        topics = [{"topic": "t", "partitions": [item]}]
        answer = await client.ask(LEADER_EPOCHS, 4, replica_id=-1, topics=topics)
        (told,) = answer.topics[0].partitions
        assert (told.error_code, told.leader_epoch, told.end_offset) == (56, -1, -1)


# --- log directories and producers ----------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 5))
async def test_the_object_store_is_the_one_log_directory(version):
    async with connected() as (broker, client):
        broker.add_metadata_topic()
        topic = broker.topics.add("t", partitions=3)
        broker.topics.add("not.heard.of")
        for index, size in enumerate((5, 0, 7)):
            broker.stored.sizes[TopicIdPartition(topic.topic_id, index)] = size
        for asked, expected in (
            (None, {"t": {0: 5, 1: 0, 2: 7}}),
            ([], {}),
            (
                [
                    {"topic": "t", "partitions": [2, 3, -1]},
                    {"topic": "unknown", "partitions": [0]},
                ],
                {"t": {2: 7}},
            ),
        ):
            answer = await client.ask(LOG_DIRS, version, topics=asked)
            (directory,) = answer.results
            assert (directory.error_code, directory.log_dir) == (0, "memory://fake")
            if version >= 3:
                assert answer.error_code == 0
            if version >= 4:
                assert (directory.total_bytes, directory.usable_bytes) == (-1, -1)
            assert {
                t.name: {p.partition_index: p.partition_size for p in t.partitions}
                for t in directory.topics
            } == expected
            assert not any(
                p.offset_lag or p.is_future_key for t in directory.topics for p in t.partitions
            )


async def test_a_partition_is_in_the_directory_of_the_broker_that_metadata_names():
    async with connected() as (broker, client):
        topic = broker.topics.add("t", partitions=4)
        for index in range(4):
            broker.stored.sizes[TopicIdPartition(topic.topic_id, index)] = 1
        broker.cluster.leader_of = lambda topic_id, partition, client: partition % 2  # type: ignore[method-assign]
        answer = await client.ask(LOG_DIRS, 4, topics=None)
        (described,) = answer.results[0].topics
        assert [p.partition_index for p in described.partitions] == [0, 2]


async def test_the_producers_of_partitions_are_described():
    async with connected() as (broker, client):
        topic = broker.topics.add("t", partitions=2)
        broker.stored.active[TopicIdPartition(topic.topic_id, 0)] = [
            ActiveProducer(1_000, 3, 8, 123_456),
            ActiveProducer(1_001, 3, 8, 123_456, 6, 77),
        ]
        asked = [
            {"name": "t", "partition_indexes": [0, 1, 2]},
            {"name": "unknown", "partition_indexes": [0]},
        ]
        answer = await client.ask(PRODUCERS, 0, topics=asked)
        codes = [[p.error_code for p in t.partitions] for t in answer.topics]
        assert codes == [[0, 0, 3], [3]]
        producer, transactional = answer.topics[0].partitions[0].active_producers
        assert (transactional.coordinator_epoch, transactional.current_txn_start_offset) == (6, 77)
        assert (
            producer.producer_id,
            producer.producer_epoch,
            producer.last_sequence,
            producer.last_timestamp,
            producer.coordinator_epoch,
            producer.current_txn_start_offset,
        ) == (1_000, 3, 8, 123_456, -1, -1)
        assert answer.topics[0].partitions[1].active_producers == ()


async def test_damaged_producer_rows_are_the_error_of_their_partition():
    async with connected() as (broker, client):
        broker.topics.add("t")

        async def producers(partition: TopicIdPartition, *, limit: int) -> Sequence[ActiveProducer]:
            raise CorruptState("bits")

        broker.stored.producers = producers  # type: ignore[method-assign]
        answer = await client.ask(PRODUCERS, 0, topics=[{"name": "t", "partition_indexes": [0]}])
        assert answer.topics[0].partitions[0].error_code == 2


# --- topics, a page at a time ---------------------------------------------------------------------


async def pages(
    client: RawClient, names: Sequence[str], limit: int, cursor: Mapping[str, Any] | None = None
) -> list[list[tuple[str, int, list[int]]]]:
    """(name, error code, partitions) per topic, per page."""
    found = []
    while True:
        answer = await client.ask(
            TOPIC_PARTITIONS,
            0,
            topics=[{"name": name} for name in names],
            response_partition_limit=limit,
            cursor=cursor,
        )
        found.append(
            [
                (t.name, t.error_code, [p.partition_index for p in t.partitions])
                for t in answer.topics
            ]
        )
        if answer.next_cursor is None:
            return found
        cursor = {
            "topic_name": answer.next_cursor.topic_name,
            "partition_index": answer.next_cursor.partition_index,
        }


async def test_topics_are_described_page_by_page():
    async with connected() as (broker, client):
        for name, count in (("c", 1), ("a", 3), ("b", 2)):
            broker.topics.add(name, partitions=count)
        whole = [("a", 0, [0, 1, 2]), ("b", 0, [0, 1]), ("c", 0, [0])]
        assert await pages(client, [], 100) == [whole]
        assert await pages(client, ["c", "a", "b", "a"], 6) == [whole]
        assert await pages(client, [], 2) == [
            [("a", 0, [0, 1])],
            [("a", 0, [2]), ("b", 0, [0])],
            [("b", 0, [1]), ("c", 0, [0])],
        ]
        assert await pages(client, [], 3) == [whole[:1], whole[1:]]
        assert len(await pages(client, [], 0)) == 6
        assert await pages(client, ["a", "aa"], 100) == [[whole[0], ("aa", 3, [])]]


async def test_a_page_begins_where_the_cursor_says_whatever_became_of_the_topic():
    async with connected() as (broker, client):
        for name in ("a", "c"):
            broker.topics.add(name, partitions=2)
        at = {"topic_name": "b", "partition_index": 7}
        assert await pages(client, [], 9, at) == [[("c", 0, [0, 1])]]
        at = {"topic_name": "a", "partition_index": 5}
        assert await pages(client, [], 9, at) == [[("a", 0, []), ("c", 0, [0, 1])]]
        at = {"topic_name": "a", "partition_index": -1}
        assert await pages(client, ["a"], 9, at) == [[("a", 42, [])]]


async def test_a_described_topic_is_as_in_metadata():
    async with connected() as (broker, client):
        broker.add_metadata_topic()
        topic = broker.topics.add("t")
        answer = await client.ask(
            TOPIC_PARTITIONS, 0, topics=[], response_partition_limit=10, cursor=None
        )
        internal, described = answer.topics
        assert (internal.name, internal.is_internal) == (ops.METADATA_TOPIC, True)
        assert (described.topic_id, described.is_internal) == (topic.topic_id, False)
        assert described.topic_authorized_operations & (1 << 4)
        (partition,) = described.partitions
        assert (partition.leader_id, partition.leader_epoch, partition.error_code) == (0, 0, 0)
        assert partition.replica_nodes == partition.isr_nodes == (0,)
        assert partition.offline_replicas == partition.eligible_leader_replicas == ()
