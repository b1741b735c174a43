"""What the server does with quotas of processor time, of changes and of connections."""

import struct
from datetime import timedelta
from typing import Any

import pytest
from kio.index import load_response_schema
from kio.serial import entity_reader

from diskless.protocol.throttle_time import with_throttle_time
from diskless.quotas.quota_settings import QuotaSettings
from tests.support.brokers.kafka_fakes import connected, running_broker
from tests.support.loops.until import until
from tests.support.questions.kafka_raw_client import RawClient, a_batch, frame, produce_frame
from wal.clock import ManualClock

ONE_SECOND = QuotaSettings(window_count=2, window_s=1)
METADATA, CREATE_TOPICS = 3, 19
ME = (("user", "ANONYMOUS"),)


class Ticks:
    """A processor that takes as long as the test says, each time it is asked."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.each_s = 0.0

    def __call__(self) -> float:
        self.now_s += self.each_s
        return self.now_s


async def ask_metadata(client: RawClient) -> Any:
    return await client.ask(
        METADATA,
        12,
        topics=[],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )


async def test_who_takes_too_much_of_the_processor_is_told_and_not_read() -> None:
    clock, ticks = ManualClock(), Ticks()
    async with connected(clock=clock, quota_settings=ONE_SECOND, processor_time=ticks) as (
        broker,
        client,
    ):
        broker.quotas.set(ME, request_percentage=10.0)
        answer = await ask_metadata(client)
        assert answer.throttle_time.total_seconds() == 0
        # A request of 200 ms, where a tenth of a second may come at once.
        ticks.each_s = 0.2
        answer = await ask_metadata(client)
        told_s = answer.throttle_time.total_seconds()
        assert 0 < told_s <= 1
        await client.send(frame(18, 0, 9, b""))
        other = await RawClient.connect(broker.server.address)
        ticks.each_s = 0.0
        await until(lambda: broker.open_connections == 2)
        assert broker.metrics.answered["ApiVersions"] == 0
        clock.advance(1.0)
        assert (await client.receive())[0] == 9
        await other.close()


async def test_processor_time_is_asked_for_only_where_it_counts() -> None:
    ticks = Ticks()
    ticks.each_s = 1.0
    async with connected(processor_time=ticks) as (broker, client):
        await ask_metadata(client)
        assert ticks.now_s == 0.0
        broker.quotas.set(ME, request_percentage=1e9)
        await ask_metadata(client)
        assert ticks.now_s > 0.0


async def test_partitions_are_counted_as_they_are_created() -> None:
    clock = ManualClock()
    async with connected(clock=clock, quota_settings=ONE_SECOND) as (broker, client):
        broker.quotas.set(ME, controller_mutation_rate=5.0)

        async def create(name: str, partitions: int) -> float:
            topic = {
                "name": name,
                "num_partitions": partitions,
                "replication_factor": 1,
                "assignments": [],
                "configs": [],
            }
            answer = await client.ask(
                CREATE_TOPICS, 7, topics=[topic], timeout=timedelta(seconds=10), validate_only=False
            )
            assert answer.topics[0].error_code == 0, answer
            told_s: float = answer.throttle_time.total_seconds()
            return told_s

        assert await create("a", 5) == 0
        assert await create("b", 10) == 2.0
        clock.advance(2.0)
        assert await create("c", 1) > 0


async def test_an_address_with_a_quota_is_heard_later() -> None:
    clock = ManualClock()
    async with running_broker(clock=clock, quota_settings=ONE_SECOND) as broker:
        broker.quotas.set((("ip", "127.0.0.1"),), connection_creation_rate=2.0)
        first = [await broker.connect() for _ in range(2)]
        for client in first:
            await client.call(18, 0)
        late = await broker.connect()
        await late.send(frame(18, 0, 1, b""))
        await until(lambda: broker.open_connections == 3)
        other = await broker.connect("127.0.0.2")
        await other.call(18, 0)
        assert broker.metrics.answered["ApiVersions"] == 3
        clock.advance(0.5)
        assert (await late.receive())[0] == 1
        assert not broker.metrics.refused


@pytest.mark.parametrize("version", [3, 8, 9, 12])
async def test_a_producer_is_told_too(version: int) -> None:
    ticks = Ticks()
    async with connected(
        partitions=1, clock=ManualClock(), quota_settings=ONE_SECOND, processor_time=ticks
    ) as (broker, client):
        broker.quotas.set(ME, request_percentage=10.0)
        ticks.each_s = 0.2
        await client.send(produce_frame(1, [a_batch(100)], version=version))
        _, rest = await client.receive()
        schema = load_response_schema(0, version)
        answer, _ = entity_reader(schema)(rest, 1 if schema.__header_schema__.__flexible__ else 0)
        assert answer.responses[0].partition_responses[0].error_code == 0
        assert answer.throttle_time.total_seconds() > 0


def test_what_has_no_place_for_it_stays_as_it_is() -> None:
    for key, version in ((18, 3), (17, 1), (10_000, 0)):
        assert with_throttle_time(key, version, [b"12345678"], 7, flexible=True) == [b"12345678"]
    told = with_throttle_time(METADATA, 12, [b"12345678", b"9"], 7, flexible=True)
    assert told == [struct.pack(">i", 7) + b"5678", b"9"]
