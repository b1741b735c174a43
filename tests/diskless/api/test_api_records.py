"""Produce, Fetch and ListOffsets over a real socket, in all their versions."""

from collections.abc import Sequence
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from diskless.ports import FetchPartition, FetchResult, ListOffsetsPartition, ListOffsetsResult
from tests.support.brokers import kafka_fakes
from tests.support.questions.kafka_raw_client import (
    RawClient,
    a_batch,
    fetch_frame,
    frame,
    produce_frame,
    request_body,
)
from wal.errors import CommitOutcomeUnknown, CorruptBatch, ObjectStoreUnavailable

connected = partial(kafka_fakes.connected, partitions=3)


def _read(key: int, version: int, rest: bytes) -> Any:
    schema = load_response_schema(key, version)
    start = 1 if schema.__header_schema__.__flexible__ else 0
    response, size = entity_reader(schema)(rest, start)
    assert start + size == len(rest)
    return response


async def _produce(client: RawClient, version: int, data: Sequence[bytes], **more: Any) -> Any:
    await client.send(produce_frame(4, data, version=version, **more))
    correlation_id, rest = await client.receive()
    assert correlation_id == 4
    return _read(0, version, rest)


def _fetch_topics(version: int, topic: tuple[str, UUID], offsets: Sequence[int]) -> tuple[Any, ...]:
    """Partitions 0, 1 … of one topic, each from its offset."""
    kind = load_request_schema(1, version).__dataclass_fields__["topics"].type.__args__[0]
    part = kind.__dataclass_fields__["partitions"].type.__args__[0]
    partitions = tuple(
        part(partition=i, fetch_offset=offset, partition_max_bytes=1 << 20)
        for i, offset in enumerate(offsets)
    )
    if version >= 13:
        return (kind(topic_id=topic[1], partitions=partitions),)
    return (kind(topic=topic[0], partitions=partitions),)


async def _fetch(client: RawClient, version: int, topics: tuple[Any, ...], **more: Any) -> Any:
    values = {"topics": topics, "forgotten_topics_data": (), "max_bytes": 1 << 20, **more}
    known = load_request_schema(1, version).__dataclass_fields__
    return await client.call(1, version, **{k: v for k, v in values.items() if k in known})


@pytest.mark.parametrize("version", range(3, 14))
async def test_every_produce_version_stores_and_tells_the_offset(version):
    async with connected() as (broker, client):
        topic = broker.topics.topics()["t"].topic_id if version >= 13 else "t"
        batches = [a_batch(100, record_count=4), a_batch(5_000, record_count=2)]
        for base_offset, batch in zip((0, 4), batches, strict=True):
            answer = await _produce(client, version, [batch], topic=topic)
            ((part,),) = (topic.partition_responses for topic in answer.responses)
            assert (part.error_code, part.base_offset) == (0, base_offset)
            assert part.log_append_time is None
        assert broker.manager.appended == batches
        assert broker.manager.clients[0].client_id == "raw"


async def test_a_batch_for_the_id_of_no_topic_is_refused_alone():
    schema = load_request_schema(0, 13)
    topic_type = schema.__dataclass_fields__["topic_data"].type.__args__[0]
    part_type = topic_type.__dataclass_fields__["partition_data"].type.__args__[0]
    async with connected() as (broker, client):
        known = broker.topics.topics()["t"].topic_id
        data = tuple(
            topic_type(topic_id=topic_id, partition_data=(part_type(index=0, records=a_batch()),))
            for topic_id in (UUID(int=77), known, None)
        )
        answer = await client.call(0, 13, acks=1, topic_data=data)
        assert [
            (topic.topic_id, [part.error_code for part in topic.partition_responses])
            for topic in answer.responses
        ] == [(UUID(int=77), [100]), (known, [0]), (None, [100])]


@pytest.mark.parametrize("version", range(3, 13))
async def test_one_refused_partition_does_not_hinder_the_others(version):
    schema = load_request_schema(0, version)
    topic_type = schema.__dataclass_fields__["topic_data"].type.__args__[0]
    part_type = topic_type.__dataclass_fields__["partition_data"].type.__args__[0]
    data = tuple(
        topic_type(name=name, partition_data=tuple(part_type(index=i, records=r) for i, r in parts))
        for name, parts in (
            ("t", ((0, a_batch()), (9, a_batch()), (1, a_batch()))),
            ("unknown", ((0, a_batch()),)),
            ("t", ((2, None),)),
        )
    )
    async with connected() as (_, client):
        answer = await client.call(0, version, acks=1, topic_data=data)
        assert [
            (topic.name, [(p.index, p.error_code) for p in topic.partition_responses])
            for topic in answer.responses
        ] == [("t", [(0, 0), (9, 3), (1, 0)]), ("unknown", [(0, 3)]), ("t", [(2, 87)])]
        if version >= 8:
            assert "unknown" in answer.responses[1].partition_responses[0].error_message


@pytest.mark.parametrize(
    ("values", "code"),
    [({"acks": 2}, 21), ({"acks": -2}, 21), ({"acks": 2, "transactional_id": "mine"}, 21)],
)
async def test_a_request_that_cannot_be_served_is_refused_for_every_partition(values, code):
    schema = load_request_schema(0, 9)
    topic_type = schema.__dataclass_fields__["topic_data"].type.__args__[0]
    part_type = topic_type.__dataclass_fields__["partition_data"].type.__args__[0]
    parts = tuple(part_type(index=i, records=a_batch()) for i in range(2))
    data = (topic_type(name="t", partition_data=parts),)
    async with connected() as (broker, client):
        answer = await client.call(0, 9, topic_data=data, **{"acks": -1, **values})
        assert [p.error_code for p in answer.responses[0].partition_responses] == [code] * 2
        assert not broker.manager.appended
        assert broker.pool.statistics().in_use_bytes == 0


@pytest.mark.parametrize(
    ("error", "code"),
    [(CommitOutcomeUnknown("?"), 7), (ObjectStoreUnavailable("out"), 56), (CorruptBatch("x"), 2)],
)
async def test_the_managers_error_becomes_its_code(error, code):
    async with connected() as (broker, client):
        broker.manager.append_error = error
        answer = await _produce(client, 11, [a_batch()])
        part = answer.responses[0].partition_responses[0]
        assert (part.error_code, part.base_offset, part.log_start_offset) == (code, -1, -1)


@pytest.mark.parametrize("version", range(4, 19))
async def test_every_fetch_version_returns_what_was_produced(version):
    async with connected() as (broker, client):
        for _ in range(2):
            await _produce(client, 9, [a_batch(200)])
        topic = ("t", broker.topics.known["t"].topic_id)
        answer = await _fetch(client, version, _fetch_topics(version, topic, [1, 0, 0]))
        (found,) = answer.responses
        if version >= 13:
            assert found.topic_id == topic[1]
        else:
            assert found.topic == "t"
        assert [p.partition_index for p in found.partitions] == [0, 1, 2]
        assert [p.error_code for p in found.partitions] == [0, 0, 0]
        assert [p.high_watermark for p in found.partitions] == [2, 0, 0]
        assert [len(p.records) for p in found.partitions] == [200, 0, 0]
        (_, _, stored) = broker.manager.logs["t", 0].batches[1]
        assert found.partitions[0].records == stored


@pytest.mark.parametrize("version", [4, 12, 13, 16])
async def test_a_fetch_error_belongs_to_its_partition_and_carries_no_offsets(version):
    async with connected() as (broker, client):
        await _produce(client, 9, [a_batch()])
        topic = ("t", broker.topics.known["t"].topic_id)
        known = _fetch_topics(version, topic, [0, 99])
        unknown = _fetch_topics(version, ("gone", UUID(int=9)), [0])
        answer = await _fetch(client, version, known + unknown)
        parts = [p for found in answer.responses for p in found.partitions]
        assert [p.error_code for p in parts] == [0, 1, 100 if version >= 13 else 3]
        for part in parts[1:]:
            assert (part.high_watermark, part.last_stable_offset) == (-1, -1)
            assert part.records == b""


@pytest.mark.parametrize(("session_id", "session_epoch"), [(0, 1), (7, 1), (7, 5)])
async def test_an_incremental_fetch_of_no_session_is_refused_as_a_whole(session_id, session_epoch):
    async with connected() as (_, client):
        answer = await _fetch(client, 12, (), session_id=session_id, session_epoch=session_epoch)
        assert (answer.error_code, answer.session_id, answer.responses) == (70, 0, ())


@pytest.mark.parametrize("session_id", [0, 7])
async def test_a_full_fetch_is_served_without_a_session_when_it_wants_none(session_id):
    async with connected() as (_, client):
        topics = _fetch_topics(12, ("t", UUID(int=0)), [0])
        answer = await _fetch(client, 12, topics, session_id=session_id, session_epoch=-1)
        assert (answer.error_code, answer.session_id) == (0, 0)
        assert len(answer.responses[0].partitions) == 1


@pytest.mark.parametrize("version", range(7, 19))
async def test_every_version_with_sessions_has_them(version):
    async with connected() as (broker, client):
        topic = ("t", broker.topics.known["t"].topic_id)
        answer = await _fetch(
            client, version, _fetch_topics(version, topic, [0, 0, 0]), session_epoch=0
        )
        session_id = answer.session_id
        assert session_id > 0
        assert len(answer.responses[0].partitions) == 3
        await _produce(client, 9, [a_batch(200)])
        answer = await _fetch(client, version, (), session_id=session_id, session_epoch=1)
        assert (answer.error_code, answer.session_id) == (0, session_id)
        ((part,),) = (found.partitions for found in answer.responses)
        assert (part.partition_index, len(part.records)) == (0, 200)
        answer = await _fetch(client, version, (), session_id=session_id, session_epoch=1)
        assert (answer.error_code, answer.session_id, answer.responses) == (71, 0, ())
        other = 12 if version >= 13 else 13
        answer = await _fetch(client, other, (), session_id=session_id, session_epoch=2)
        assert (answer.error_code, answer.session_id, answer.responses) == (106, 0, ())
        moved = _fetch_topics(version, topic, [1])
        answer = await _fetch(client, version, moved, session_id=session_id, session_epoch=2)
        assert (answer.error_code, answer.responses) == (0, ())


async def test_a_fetch_passes_on_what_was_asked_and_who_says_how_much_is_granted():
    asked: list[dict[str, Any]] = []

    async def fetch(requests: Sequence[FetchPartition], **arguments: Any) -> Sequence[FetchResult]:
        asked.append({"requests": list(requests), **arguments})
        return [FetchResult(None, 0, 0) for _ in requests]

    async with connected(fetched_max_bytes=2 << 20) as (broker, client):
        broker.manager.fetch = fetch  # type: ignore[method-assign,assignment]
        await client.send(
            fetch_frame(1, max_wait_ms=500, max_bytes=1 << 30, min_bytes=1 << 20),
            fetch_frame(2, max_wait_ms=-5, max_bytes=-1, min_bytes=-1, isolation_level=1),
        )
        assert [(await client.receive())[0] for _ in range(2)] == [1, 2]
    first, second = asked
    assert list(first["requests"]) == [FetchPartition(None, "t", 0, 0, 1 << 20, -1)]
    assert (first["max_wait_ms"], first["min_bytes"], first["max_bytes"]) == (500, 1 << 20, 1 << 30)
    assert first["reserve"](1 << 30) == 1 << 20
    assert (second["max_wait_ms"], second["min_bytes"], second["max_bytes"]) == (0, 0, 0)
    assert (first["isolation"], second["isolation"]) == (0, 1)


async def test_a_consumer_waiting_for_records_gets_them_when_they_come():
    async with connected() as (broker, client):
        await client.send(fetch_frame(1, max_wait_ms=3_600_000, version=12))
        other = await RawClient.connect(broker.server.address)
        await _produce(other, 9, [a_batch(300)])
        _, rest = await client.receive()
        assert len(_read(1, 12, rest).responses[0].partitions[0].records) == 300
        await other.close()


def _offsets_body(version: int, *timestamps: int) -> bytes:
    schema = load_request_schema(2, version)
    kind = schema.__dataclass_fields__["topics"].type.__args__[0]
    part = kind.__dataclass_fields__["partitions"].type.__args__[0]
    parts = tuple(part(partition_index=i, timestamp=t) for i, t in enumerate(timestamps))
    return request_body(2, version, topics=(kind(name="t", partitions=parts),))


@pytest.mark.parametrize("version", range(1, 10))
async def test_every_listoffsets_version_knows_the_ends_of_a_log(version):
    async with connected() as (_, client):
        await _produce(client, 9, [a_batch(record_count=5)])
        await client.send(frame(2, version, 3, _offsets_body(version, -1, -2)))
        found = _read(2, version, (await client.receive())[1]).topics[0].partitions
        assert [(p.partition_index, p.error_code, p.offset) for p in found] == [
            (0, 0, 5),
            (1, 0, 0),
        ]
        if version >= 4:
            assert [p.leader_epoch for p in found] == [0, 0]


async def test_special_timestamps_are_answered_or_refused_and_the_rest_reaches_the_manager():
    asked: list[int] = []

    async def list_offsets(
        requests: Sequence[ListOffsetsPartition], **_: Any
    ) -> Sequence[ListOffsetsResult]:
        asked.extend(request.timestamp for request in requests)
        return [ListOffsetsResult(None, 10 + i, 99) for i in range(len(requests))]

    async with connected() as (broker, client):
        broker.manager.list_offsets = list_offsets  # type: ignore[method-assign,assignment]
        await client.send(frame(2, 7, 3, _offsets_body(7, 1_000, -5, -3, -6, -4, -(2**63))))
        found = _read(2, 7, (await client.receive())[1]).topics[0].partitions
        assert asked == [1_000, -5, -3, -4]
        assert [(p.error_code, p.offset, p.timestamp) for p in found] == [
            (0, 10, 99), (0, 11, 99), (0, 12, 99), (35, -1, -1), (0, 13, 99), (35, -1, -1),
        ]  # fmt: skip
        assert [p.leader_epoch for p in found] == [0, 0, 0, -1, 0, -1]


async def test_listoffsets_that_fail_as_a_whole_fail_for_every_partition():
    async with connected() as (broker, client):
        broker.manager.raises = ObjectStoreUnavailable("out")
        await client.send(frame(2, 7, 3, _offsets_body(7, -1, -2)))
        found = _read(2, 7, (await client.receive())[1]).topics[0].partitions
        assert [(p.error_code, p.offset) for p in found] == [(56, -1), (56, -1)]


async def test_a_produce_request_with_nothing_in_it_is_answered_with_nothing():
    async with connected() as (_, client):
        assert (await client.call(0, 9, acks=-1, topic_data=())).responses == ()
