"""aiokafka beyond plain reading and writing: groups that commit by time, listeners, seeks, admin.

It speaks old versions of all APIs, none of them flexible.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import IllegalStateError, TopicAlreadyExistsError, for_code

from tests.support.brokers.live_broker import LiveBroker
from tests.support.clients.stock_clients import TIMEOUT_S

pytestmark = pytest.mark.clients

SETTINGS: Final = {
    "wal.commit.interval.ms": "5",
    "num.partitions": "4",
    "group.initial.rebalance.delay.ms": "100",
    "group.min.session.timeout.ms": "100",
}
TIMES: Final = {"session_timeout_ms": 20_000, "heartbeat_interval_ms": 100}
ALL: Final = {0, 1, 2, 3}
BASE_MS: Final = 1_700_000_000_000


@pytest.fixture
async def producer(broker: LiveBroker) -> AsyncIterator[AIOKafkaProducer]:
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        yield producer


@pytest.fixture
async def admin(broker: LiveBroker) -> AsyncIterator[AIOKafkaAdminClient]:
    client = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await client.start()
    yield client
    await client.close()


def consumer_of(broker: LiveBroker, group: str, **more: Any) -> AIOKafkaConsumer:
    settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False, **TIMES, **more}
    return AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=group, **settings)


async def write(producer: AIOKafkaProducer, topic: str, numbers: range) -> None:
    """The number is the value, the time, and modulo 4 the partition."""
    sends = [
        await producer.send(topic, str(n).encode(), partition=n % 4, timestamp_ms=BASE_MS + n)
        for n in numbers
    ]
    await asyncio.gather(*sends)


async def read(consumer: AIOKafkaConsumer, count: int) -> list[int]:
    found: list[int] = []
    async with asyncio.timeout(TIMEOUT_S):
        while len(found) < count:
            for messages in (await consumer.getmany(timeout_ms=100)).values():
                found += [int(message.value) for message in messages]
    return sorted(found)


async def until(is_so: Any, what: str) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not is_so():  # noqa: ASYNC110  # the client has no event to wait for
            await asyncio.sleep(0.01)


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, set[int]]] = []

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        self.told.append(("revoked", {place.partition for place in revoked}))

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        self.told.append(("assigned", {place.partition for place in assigned}))


# -- groups


async def test_a_member_that_commits_by_time_goes_on_where_it_was(
    broker: LiveBroker, producer: AIOKafkaProducer, topic: str
) -> None:
    await write(producer, topic, range(40))
    settings = {"enable_auto_commit": True, "auto_commit_interval_ms": 50}
    async with consumer_of(broker, topic, **settings) as consumer:
        consumer.subscribe([topic])
        assert await read(consumer, 40) == [*range(40)]
        place = TopicPartition(topic, 2)
        async with asyncio.timeout(TIMEOUT_S):
            while await consumer.committed(place) != 10:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    await write(producer, topic, range(40, 48))
    async with consumer_of(broker, topic) as consumer:
        consumer.subscribe([topic])
        assert await read(consumer, 8) == [*range(40, 48)]


async def test_offsets_are_committed_with_a_note_and_read_again(
    broker: LiveBroker, producer: AIOKafkaProducer, topic: str
) -> None:
    await write(producer, topic, range(8))
    place = TopicPartition(topic, 1)
    async with consumer_of(broker, topic) as consumer:
        consumer.assign([place])
        await consumer.commit({place: (1, "a note")})
        assert await consumer.committed(place) == 1
        assert await consumer.committed(TopicPartition(topic, 2)) is None
        await consumer.seek_to_committed(place)
        assert (await consumer.getone()).value == b"5"


async def test_a_listener_is_told_of_every_rebalance(
    broker: LiveBroker, producer: AIOKafkaProducer, topic: str
) -> None:
    await write(producer, topic, range(4))
    first, second = Listener(), Listener()
    async with consumer_of(broker, topic) as stays:
        stays.subscribe([topic], listener=first)
        await read(stays, 4)
        assert first.told[-1] == ("assigned", ALL)
        async with consumer_of(broker, topic) as comes:
            comes.subscribe([topic], listener=second)
            await until(lambda: second.told and len(second.told[-1][1]) == 2, "a share")
            await until(lambda: len(first.told[-1][1]) == 2, "the other share")
            assert first.told[-2] == ("revoked", ALL)
            assert first.told[-1][1] | second.told[-1][1] == ALL
            await stays.commit()
        await until(lambda: first.told[-1] == ("assigned", ALL), "everything again")


async def test_sticky_members_keep_what_they_can(
    broker: LiveBroker, producer: AIOKafkaProducer, topic: str
) -> None:
    await write(producer, topic, range(4))
    sticky = {"partition_assignment_strategy": (StickyPartitionAssignor,)}
    first, second = Listener(), Listener()
    async with consumer_of(broker, topic, **sticky) as stays:
        stays.subscribe([topic], listener=first)
        await until(lambda: first.told and first.told[-1] == ("assigned", ALL), "everything")
        async with consumer_of(broker, topic, **sticky) as comes:
            comes.subscribe([topic], listener=second)
            await until(lambda: second.told and len(second.told[-1][1]) == 2, "a share")
        await until(lambda: first.told[-1] == ("assigned", ALL), "everything again")


async def test_a_pattern_takes_in_topics_as_they_come(
    broker: LiveBroker, producer: AIOKafkaProducer, topic: str
) -> None:
    await write(producer, f"{topic}-a", range(4))
    async with consumer_of(broker, topic, metadata_max_age_ms=200) as consumer:
        consumer.subscribe(pattern=f"^{topic}-.*")
        assert await read(consumer, 4) == [*range(4)]
        await consumer.commit()
        await write(producer, f"{topic}-b", range(4, 8))
        assert await read(consumer, 4) == [*range(4, 8)]


async def test_what_was_unsubscribed_is_nobodys(
    broker: LiveBroker, producer: AIOKafkaProducer, topic: str
) -> None:
    await write(producer, topic, range(4))
    async with consumer_of(broker, topic) as consumer:
        consumer.subscribe([topic])
        await read(consumer, 4)
        consumer.unsubscribe()
        with pytest.raises(IllegalStateError):
            await consumer.commit()
        consumer.subscribe([topic])
        assert await read(consumer, 4) == [*range(4)]


# -- positions


async def test_a_consumer_goes_where_it_is_told(
    broker: LiveBroker, producer: AIOKafkaProducer, topic: str
) -> None:
    await write(producer, topic, range(40))
    place = TopicPartition(topic, 3)
    async with AIOKafkaConsumer(bootstrap_servers=broker.bootstrap) as consumer:
        consumer.assign([place])
        for go, expected in (
            (consumer.seek_to_beginning, 3),
            (lambda _: seek(consumer, place, 7), 31),
        ):
            await go(place)
            assert int((await consumer.getone()).value) == expected
        found = await consumer.offsets_for_times({place: BASE_MS + 16})
        assert (found[place].offset, found[place].timestamp) == (4, BASE_MS + 19)
        assert await consumer.beginning_offsets([place]) == {place: 0}
        assert await consumer.end_offsets([place]) == {place: 10}
        await consumer.seek_to_end(place)
        assert await consumer.position(place) == 10
        consumer.pause(place)
        await write(producer, topic, range(40, 44))
        assert await consumer.getmany(timeout_ms=50) == {}
        consumer.resume(place)
        assert (await consumer.getone()).value == b"43"
        assert consumer.highwater(place) == 11


async def seek(consumer: AIOKafkaConsumer, place: TopicPartition, offset: int) -> None:
    consumer.seek(place, offset)


# -- administration


async def test_topics_are_created_grown_described_and_deleted(
    admin: AIOKafkaAdminClient, topic: str
) -> None:
    new = NewTopic(topic, 2, 1, topic_configs={"retention.ms": "5000"})
    created = await admin.create_topics([new])
    assert [row[:2] for row in created.topic_errors] == [(topic, 0)]
    again = await admin.create_topics([new])
    assert for_code(again.topic_errors[0][1]) is TopicAlreadyExistsError
    assert topic in await admin.list_topics()
    await admin.create_partitions({topic: NewPartitions(5)})
    (described,) = await admin.describe_topics([topic])
    assert {row["partition"] for row in described["partitions"]} == set(range(5))
    await admin.delete_topics([topic])
    assert topic not in await admin.list_topics()


async def test_configs_are_described_and_altered(admin: AIOKafkaAdminClient, topic: str) -> None:
    await admin.create_topics([NewTopic(topic, 1, 1)])

    async def shown() -> dict[str, str]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        (answer,) = await admin.describe_configs([resource])
        ((code, _, _, _, entries),) = answer.resources
        assert code == 0
        return {entry[0]: entry[1] for entry in entries}

    assert (await shown())["segment.bytes"] != "77"
    altered = ConfigResource(ConfigResourceType.TOPIC, topic, {"segment.bytes": "77"})
    (answer,) = await admin.alter_configs([altered])
    assert [row[0] for row in answer.resources] == [0]
    assert (await shown())["segment.bytes"] == "77"


async def test_groups_and_their_offsets_are_seen_and_records_deleted(
    broker: LiveBroker, producer: AIOKafkaProducer, admin: AIOKafkaAdminClient, topic: str
) -> None:
    await write(producer, topic, range(40))
    async with consumer_of(broker, topic) as consumer:
        consumer.subscribe([topic])
        await read(consumer, 40)
        await consumer.commit()
        assert (topic, "consumer") in await admin.list_consumer_groups()
        (described,) = await admin.describe_consumer_groups([topic])
        (group,) = described.groups
        assert group[:3] == (0, topic, "Stable")
    offsets = await admin.list_consumer_group_offsets(topic)
    assert {place.partition: found.offset for place, found in offsets.items()} == dict.fromkeys(
        ALL, 10
    )
    place = TopicPartition(topic, 1)
    assert await admin.delete_records({place: RecordsToDelete(4)}) == {place: 4}
    cluster = await admin.describe_cluster()
    assert len(cluster["brokers"]) == 1
