"""Altering a topic's configs at the coordinator: what is set is replaced, once, by who saw it."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import UUID

import pytest

from metadata.operations import AlteredTopicConfigs, AlterTopicConfigs, TopicDescription
from metadata.records.records import TopicConfigsRecord
from tests.support.coordinators.coordinator_bench import (
    CoordinatorBench,
    MemoryMetadataLog,
    running_coordinator,
)
from wal.errors import CommitFailed, UnknownTopicId


def alter(
    topic: TopicDescription, before: Mapping[str, str], configs: Mapping[str, str]
) -> AlterTopicConfigs:
    return AlterTopicConfigs(topic_id=topic.topic_id, before=before, configs=configs)


async def altered(
    bench: CoordinatorBench, *requests: AlterTopicConfigs
) -> Sequence[AlteredTopicConfigs]:
    return await bench.coordinator.catalogue.alter_topic_configs(requests)


def known(bench: CoordinatorBench, topic: TopicDescription) -> Mapping[str, str]:
    configs = bench.coordinator.replica.topic_configs(topic.topic_id)
    assert configs is not None
    return configs


async def test_new_configs_replace_those_that_were_set(bench: CoordinatorBench) -> None:
    topic = await bench.topic("t", 3, segment_bytes="5", retention_ms="1")
    wanted = {"segment.bytes": "6", "retention.bytes": "9"}
    assert await altered(bench, alter(topic, topic.configs, wanted)) == [
        AlteredTopicConfigs(True, wanted)
    ]
    assert known(bench, topic) == wanted
    now = bench.coordinator.replica.topics()["t"]
    assert (now.topic_id, now.partition_count) == (topic.topic_id, 3)
    assert await altered(bench, alter(topic, wanted, {})) == [AlteredTopicConfigs(True, {})]
    assert known(bench, topic) == {}


async def test_who_saw_other_configs_changes_nothing_and_hears_what_there_is(
    bench: CoordinatorBench,
) -> None:
    topic = await bench.topic("t", 1, segment_bytes="5")
    late = alter(topic, {"segment.bytes": "4"}, {"segment.bytes": "9"})
    assert await altered(bench, late) == [AlteredTopicConfigs(False, {"segment.bytes": "5"})]
    assert known(bench, topic) == {"segment.bytes": "5"}


async def test_of_two_who_saw_the_same_the_first_one_alters_and_the_other_hears_of_it(
    bench: CoordinatorBench,
) -> None:
    topic = await bench.topic("t")
    first, second = {"segment.bytes": "1"}, {"segment.ms": "2"}
    # Decided together, so that the second one is decided on what is pending.
    (one,), (other,) = await asyncio.gather(
        altered(bench, alter(topic, {}, first)), altered(bench, alter(topic, {}, second))
    )
    assert (one, other) == (AlteredTopicConfigs(True, first), AlteredTopicConfigs(False, first))
    assert known(bench, topic) == first


async def test_the_same_alteration_again_is_a_success_and_writes_nothing(
    bench: CoordinatorBench, log: MemoryMetadataLog
) -> None:
    topic = await bench.topic("t")
    request = alter(topic, {}, {"segment.bytes": "1"})
    for _ in range(3):
        assert await altered(bench, request) == [AlteredTopicConfigs(True, request.configs)]
    assert [type(record) for record in log.records()].count(TopicConfigsRecord) == 1


async def test_a_topic_that_is_not_there_is_unknown_and_the_others_are_altered(
    bench: CoordinatorBench,
) -> None:
    topic = await bench.topic("t")
    gone = AlterTopicConfigs(topic_id=UUID(int=5), before={}, configs={"segment.ms": "1"})
    first, second = await altered(bench, gone, alter(topic, {}, {"segment.ms": "2"}))
    assert isinstance(first.error, UnknownTopicId)
    assert not first.is_altered
    assert second == AlteredTopicConfigs(True, {"segment.ms": "2"})


async def test_an_alteration_that_was_not_appended_did_not_happen(
    bench: CoordinatorBench, log: MemoryMetadataLog
) -> None:
    topic = await bench.topic("t", 1, segment_ms="1")
    request = alter(topic, topic.configs, {"segment.ms": "2"})
    log.failures.append(CommitFailed("disk"))
    with pytest.raises(CommitFailed):
        await altered(bench, request)
    assert known(bench, topic) == {"segment.ms": "1"}
    assert await altered(bench, request) == [AlteredTopicConfigs(True, {"segment.ms": "2"})]


async def test_altered_configs_are_there_after_a_restart_from_the_log(
    tmp_path: Path, log: MemoryMetadataLog
) -> None:
    async with running_coordinator(tmp_path / "one", log) as bench:
        topic = await bench.topic("t", 1, segment_ms="1")
        await altered(bench, alter(topic, topic.configs, {"segment.bytes": "2"}))
        state_hash = bench.coordinator.replica.state_hash
    async with running_coordinator(tmp_path / "two", log) as bench:
        assert known(bench, topic) == {"segment.bytes": "2"}
        assert bench.coordinator.replica.state_hash == state_hash
