"""The metadata topic on the wire: by name and by id, in every version, and from a follower."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from kio.index import load_request_schema

from metadata.coordinator.metadata_partition import MetadataPartition
from metadata.operations import CreateTopic, TopicDescription
from tests.support.brokers.live_broker import DEADLINE_S, LiveBroker, until
from tests.support.questions.kafka_raw_client import RawClient
from tests.support.samples.kio_entities import smallest
from wal.records.record_batch import iterate_headers

NAME = "__diskless_metadata"
TOPIC_ID = UUID("6469736b-6c65-8373-8000-6d6574616461")
"""Written out: clients may keep it."""

UNKNOWN_TOPIC_OR_PARTITION = 3
OFFSET_OUT_OF_RANGE = 1

FETCH, LIST_OFFSETS, METADATA, DESCRIBE_CONFIGS, DESCRIBE_PRODUCERS = 1, 2, 3, 32, 61


class Fetched(NamedTuple):
    error_code: int
    high_watermark: int
    records: bytes


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    settings = {"diskless.metadata.topic.num.partitions": "2"}
    with LiveBroker(tmp_path_factory.mktemp("broker") / "data", settings) as broker:
        create(broker, "flights", 4)
        yield broker


def create(broker: LiveBroker, name: str, partitions: int = 1) -> None:
    (created,) = broker.run(
        broker.broker.coordination.client.create_topics(
            [CreateTopic(name=name, partition_count=partitions)]
        )
    )
    assert isinstance(created, TopicDescription)


def metadata_partition(broker: LiveBroker, index: int = 0) -> MetadataPartition:
    return broker.broker.coordination.partitions[index]


def stored_bytes(broker: LiveBroker, index: int = 0) -> bytes:
    """The batches of a log, back to back."""
    log = metadata_partition(broker, index).log
    return b"".join(broker.run(log.read_encoded(0, 1 << 20)))


async def call(broker: LiveBroker, key: int, version: int, **values: Any) -> Any:
    client = await RawClient.connect(("127.0.0.1", broker.port))
    try:
        return await client.call(key, version, **values)
    finally:
        client.writer.close()
        await client.writer.wait_closed()


async def fetch(
    broker: LiveBroker,
    version: int = 16,
    *,
    offset: int = 0,
    partitions: Sequence[int] = (0,),
    max_wait_ms: int = 0,
    max_bytes: int = 1 << 20,
    topic_id: UUID = TOPIC_ID,
) -> list[Fetched]:
    example = smallest(load_request_schema(FETCH, version))
    topic = example.topics[0]
    asked = [
        replace(
            topic.partitions[0],
            partition=index,
            fetch_offset=offset,
            partition_max_bytes=max_bytes,
            **({"current_leader_epoch": -1} if version >= 9 else {}),
        )
        for index in partitions
    ]
    named = {"topic_id": topic_id} if version >= 13 else {"topic": NAME}
    values: dict[str, Any] = {
        "topics": (replace(topic, partitions=tuple(asked), **named),),
        "max_wait": replace_wait(example.max_wait, max_wait_ms),
        "min_bytes": 1,
        "max_bytes": 1 << 20,
    }
    if version >= 7:
        values |= {"session_epoch": -1, "forgotten_topics_data": ()}
    answer = await call(broker, FETCH, version, **values)
    (answered,) = answer.responses
    return [
        Fetched(int(item.error_code), item.high_watermark, bytes(item.records or b""))
        for item in answered.partitions
    ]


def replace_wait(example: Any, milliseconds: int) -> Any:
    """kio's own type of a duration."""
    return type(example)(milliseconds=milliseconds)


# Metadata


@pytest.mark.parametrize("version", [1, 8, 9, 10, 12])
async def test_metadata_lists_it_as_internal_whenever_it_is_asked(
    broker: LiveBroker, version: int
) -> None:
    example = smallest(load_request_schema(METADATA, version)).topics[0]
    questions: list[tuple[Any, ...] | None] = [(replace(example, name=NAME),)]
    if version >= 12:
        questions = [
            (replace(example, name=NAME, topic_id=None),),
            (replace(example, name=None, topic_id=TOPIC_ID),),
        ]
    elif version < 9:
        # Later versions have a tagged field of ours for the other topic, which kio cannot read.
        questions.append(None)
    for topics in questions:
        answer = await call(broker, METADATA, version, topics=topics)
        (topic,) = (topic for topic in answer.topics if topic.name == NAME)
        assert topic.error_code == 0
        assert topic.is_internal
        assert [part.partition_index for part in topic.partitions] == [0, 1]
        assert all(part.leader_id == 0 for part in topic.partitions)
        if version >= 10:
            assert topic.topic_id == TOPIC_ID
        if topics is None:
            (other,) = (topic for topic in answer.topics if topic.name != NAME)
            assert (other.name, other.is_internal) == ("flights", False)


async def test_describe_configs_shows_that_time_and_size_delete_nothing(
    broker: LiveBroker,
) -> None:
    example = smallest(load_request_schema(DESCRIBE_CONFIGS, 4)).resources[0]
    resource = replace(example, resource_type=2, resource_name=NAME, configuration_keys=None)
    answer = await call(broker, DESCRIBE_CONFIGS, 4, resources=(resource,))
    (result,) = answer.results
    assert result.error_code == 0
    values = {config.name: config.value for config in result.configs}
    assert (values["retention.ms"], values["retention.bytes"]) == ("-1", "-1")


# Fetch


@pytest.mark.parametrize("version", range(4, 19))
async def test_every_version_of_fetch_gives_the_log_byte_for_byte(
    broker: LiveBroker, version: int
) -> None:
    for fetched, index in zip(await fetch(broker, version, partitions=[0, 1]), (0, 1), strict=True):
        end = metadata_partition(broker, index).replica.applied_offset
        assert fetched == (0, end, stored_bytes(broker, index))


async def test_fetch_starts_with_the_batch_that_holds_the_offset(broker: LiveBroker) -> None:
    stored = stored_bytes(broker)
    headers = list(iterate_headers(stored))
    for position, header in headers:
        for offset in range(header.base_offset, header.last_offset + 1):
            (fetched,) = await fetch(broker, offset=offset)
            assert fetched.records == stored[position:]
            (one,) = await fetch(broker, offset=offset, max_bytes=1)
            assert one.records == stored[position : position + header.length_bytes]


async def test_errors_belong_to_their_partition(broker: LiveBroker) -> None:
    good, missing = await fetch(broker, partitions=[1, 2])
    assert (good.error_code, good.records) == (0, stored_bytes(broker, 1))
    assert (missing.error_code, missing.records) == (UNKNOWN_TOPIC_OR_PARTITION, b"")
    for offset in (-1, 1_000_000):
        (fetched,) = await fetch(broker, offset=offset)
        assert (fetched.error_code, fetched.records) == (OFFSET_OUT_OF_RANGE, b"")


async def test_the_end_of_the_log_is_waited_at_no_longer_than_asked(broker: LiveBroker) -> None:
    end = metadata_partition(broker).replica.applied_offset
    (fetched,) = await fetch(broker, offset=end, max_wait_ms=10)
    assert fetched == (0, end, b"")


@pytest.mark.parametrize("version", [1, 7])
async def test_list_offsets_answers_special_times(broker: LiveBroker, version: int) -> None:
    example = smallest(load_request_schema(LIST_OFFSETS, version)).topics[0]
    topic = replace(
        example,
        name=NAME,
        partitions=tuple(
            replace(
                example.partitions[0],
                partition_index=0,
                timestamp=timestamp,
                **({"current_leader_epoch": -1} if version >= 4 else {}),
            )
            for timestamp in (-1, -2, -3, -4, -5, 0, 2**62)
        ),
    )
    isolation = {"isolation_level": 0} if version >= 2 else {}
    answer = await call(broker, LIST_OFFSETS, version, topics=(topic,), **isolation)
    found = [(part.error_code, part.offset) for part in answer.topics[0].partitions]
    stored = [header for _, header in iterate_headers(stored_bytes(broker))]
    newest = max(header.max_timestamp_ms for header in stored)
    first_newest = next(h.base_offset for h in stored if h.max_timestamp_ms == newest)
    end = metadata_partition(broker).replica.applied_offset
    assert found == [(0, end), (0, 0), (0, first_newest), (0, 0), (0, -1), (0, 0), (0, -1)]


async def test_its_partitions_have_no_producers(broker: LiveBroker) -> None:
    wanted = replace(smallest(load_request_schema(DESCRIBE_PRODUCERS, 0)).topics[0], name=NAME)
    wanted = replace(wanted, partition_indexes=(0, 1, 2))
    answer = await call(broker, DESCRIBE_PRODUCERS, 0, topics=(wanted,))
    rows = answer.topics[0].partitions
    assert [row.error_code for row in rows] == [0, 0, UNKNOWN_TOPIC_OR_PARTITION]
    assert not any(row.active_producers for row in rows)


# Two brokers


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[LiveBroker, LiveBroker]]:
    """A leader and a follower on one bucket."""
    with ExitStack() as stack:
        brokers = [
            stack.enter_context(
                LiveBroker(
                    tmp_path / f"data-{node_id}",
                    {
                        "node.id": str(node_id),
                        "object.store.url": f"file://{tmp_path / 'bucket'}",
                        "diskless.metadata.log": "object",
                        "diskless.metadata.follow.interval.ms": "10",
                    },
                )
            )
            for node_id in (0, 1)
        ]
        assert metadata_partition(brokers[0]).coordinator is not None
        assert metadata_partition(brokers[1]).coordinator is None
        yield brokers[0], brokers[1]


async def test_a_follower_serves_the_same_bytes_and_wakes_who_waits_for_more(
    pair: tuple[LiveBroker, LiveBroker],
) -> None:
    leader, follower = pair
    create(leader, "flights", 3)
    end = metadata_partition(leader).replica.applied_offset
    until(lambda: metadata_partition(follower).replica.applied_offset >= end, "the follower")
    (led,), (followed,) = await fetch(leader), await fetch(follower)
    assert led.records.startswith(followed.records) or followed.records.startswith(led.records)
    assert min(led.high_watermark, followed.high_watermark) >= end

    # It waits for longer than anything may take here, so only being woken ends it.
    end = metadata_partition(follower).replica.applied_offset
    waiting = asyncio.create_task(fetch(follower, offset=end, max_wait_ms=int(DEADLINE_S * 4_000)))
    parked = follower.broker.reads.replicas.fetcher.purgatory.statistics
    await asyncio.to_thread(
        until, lambda: parked().watched > 0 or waiting.done(), "a fetch that waits"
    )
    await asyncio.to_thread(create, leader, "more")
    (woken,) = await waiting
    assert woken.error_code == 0
    assert woken.high_watermark > end
    stored = stored_bytes(leader)
    assert woken.records
    assert woken.records in stored


async def test_who_knows_more_than_a_follower_waits_there_for_it(
    pair: tuple[LiveBroker, LiveBroker],
) -> None:
    leader, follower = pair
    create(leader, "flights", 3)
    end = metadata_partition(leader).replica.applied_offset
    # Whether the follower is there already or not: never out of range.
    (fetched,) = await fetch(follower, offset=end)
    assert fetched.error_code == 0
