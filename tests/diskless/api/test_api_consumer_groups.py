"""ConsumerGroupHeartbeat and ConsumerGroupDescribe over a real socket, byte by byte."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from diskless.groups.requests import JoinedGroup
from tests.support.brokers.kafka_fakes import running_broker
from tests.support.groups.consumer_requests import consumer_join
from tests.support.groups.group_requests import CLIENT
from tests.support.groups.groups_bench import GroupsBench
from tests.support.questions.kafka_raw_client import RawClient, frame

HEARTBEAT, DESCRIBE, COMMIT, FETCH, LIST, CLASSIC_DESCRIBE = 68, 69, 8, 9, 16, 15
TOPIC = UUID(int=1)

INVALID_REQUEST, UNKNOWN_MEMBER, GROUP_FULL, GROUP_ID_NOT_FOUND = 42, 25, 81, 69
FENCED_EPOCH, UNRELEASED, UNSUPPORTED_ASSIGNOR, STALE_EPOCH, INVALID_PATTERN = (
    110, 111, 112, 113, 128,
)  # fmt: skip
UNSUPPORTED_VERSION = 35

versions = pytest.mark.parametrize("version", [0, 1])


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[GroupsBench, Any]]:
    """A broker's groups, and a connection to it."""
    bench = GroupsBench()
    await bench.start()
    async with running_broker(coordinated=bench.router) as broker:
        client = await RawClient.connect(broker.server.address)
        try:
            yield bench, client
        finally:
            await client.close()
    await bench.stop()


async def heartbeat(client: RawClient, version: int, epoch: int, **more: Any) -> Any:
    """Of member "m"; it joins when its epoch is 0."""
    joins = {
        "rebalance_timeout": timedelta(seconds=60),
        "subscribed_topic_names": ["topic"],
        "topic_partitions": [],
    }
    asked = {
        "group_id": "group",
        "member_id": "m",
        "member_epoch": epoch,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": timedelta(milliseconds=-1),
        "subscribed_topic_names": None,
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": None,
        **(joins if epoch == 0 else {}),
        **more,
    }
    return await client.ask(HEARTBEAT, version, **asked)


def hexed(text: str) -> bytes:
    return bytes.fromhex(text)


PARTITIONS = (
    "02"  # one topic
    " 00000000000000000000000000000001"
    " 05 00000000 00000001 00000002 00000003"
    " 00"
)


async def test_the_first_heartbeat_and_its_answer_byte_by_byte() -> None:
    async with connected() as (_, client):
        for version, pattern in ((0, ""), (1, "00")):
            joined = hexed(
                "06 67 72 6f 75 70"  # group
                " 02 6d"  # member m
                " 00000000"  # joins
                " 00 00"  # no instance id, no rack
                " 0000ea60"  # a minute to give partitions up
                " 02 06 74 6f 70 69 63"  # topic
                f" {pattern}"
                " 00"  # any assignor
                " 01"  # has nothing
                " 00"
            )
            await client.send(frame(HEARTBEAT, version, 7, joined))
            correlation_id, answer = await client.receive()
            assert correlation_id == 7
            assert answer == hexed(
                "00"  # header
                " 00000000 0000 00"  # not throttled, no error, no message
                " 02 6d 00000001"  # member m, epoch 1
                " 00001388"  # every five seconds
                f" 01 {PARTITIONS} 00"  # what it has
                " 00"
            )


async def test_a_heartbeat_that_changes_nothing_and_its_answer_byte_by_byte() -> None:
    async with connected() as (_, client):
        await heartbeat(client, 1, 0)
        for version, pattern in ((0, ""), (1, "00")):
            alive = hexed(
                "06 67 72 6f 75 70 02 6d 00000001 00 00 ffffffff 00"  # nothing new
                f" {pattern} 00 00 00"
            )
            await client.send(frame(HEARTBEAT, version, 8, alive))
            _, answer = await client.receive()
            assert answer == hexed("00 00000000 0000 00 02 6d 00000001 00001388 ff 00")


async def test_a_refusal_byte_by_byte() -> None:
    async with connected() as (_, client):
        unknown = hexed("06 67 72 6f 75 70 02 6d 00000005 00 00 ffffffff 00 00 00 00 00")
        await client.send(frame(HEARTBEAT, 1, 9, unknown))
        _, answer = await client.receive()
        text = b"the group has no members of this kind"
        assert answer == (
            hexed("00 00000000 0019")
            + bytes([len(text) + 1])
            + text
            + hexed(
                "00 00000000 00000000 ff 00"  # no member, no epoch, no interval, no assignment
            )
        )


async def test_a_group_is_described_byte_by_byte() -> None:
    async with connected() as (_, client):
        await heartbeat(client, 1, 0, server_assignor="range", rack_id="r", instance_id="i")
        assignment = PARTITIONS.replace("0001 05", "0001 06 74 6f 70 69 63 05", 1)
        for version, member_type in ((0, ""), (1, "01")):
            await client.send(frame(DESCRIBE, version, 3, hexed("02 06 67 72 6f 75 70 00 00")))
            _, answer = await client.receive()
            assert answer == hexed(
                "00 00000000"
                " 02 0000 00 06 67 72 6f 75 70"  # one group, no error, no message
                " 07 53 74 61 62 6c 65"  # Stable
                " 00000001 00000001"
                " 06 72 61 6e 67 65"  # range
                " 02 02 6d 02 69 02 72 00000001"  # m, i, r, epoch 1
                " 04 72 61 77"  # client id
                " 0a 31 32 37 2e 30 2e 30 2e 31"  # 127.0.0.1
                " 02 06 74 6f 70 69 63 00"  # topic, no pattern
                f" {assignment} 00 {assignment} 00 {member_type} 00"
                " 80000000 00"  # operations: not asked
                " 00"
            )


@versions
async def test_all_that_goes_wrong_has_its_code(version: int) -> None:
    async with connected() as (_, client):
        assert (await heartbeat(client, version, 0, group_id="")).error_code == INVALID_REQUEST
        assert (await heartbeat(client, version, -3)).error_code == INVALID_REQUEST
        nameless = await heartbeat(client, version, 0, member_id="")
        assert nameless.error_code == (0 if version == 0 else INVALID_REQUEST)
        unknown = await heartbeat(client, version, 0, server_assignor="best")
        assert unknown.error_code == UNSUPPORTED_ASSIGNOR
        assert "uniform, range" in unknown.error_message
        assert (await heartbeat(client, version, 9)).error_code == UNKNOWN_MEMBER
        assert (await heartbeat(client, version, 0, instance_id="i")).error_code == 0
        assert (await heartbeat(client, version, 9)).error_code == FENCED_EPOCH
        other = await heartbeat(client, version, 0, member_id="n", instance_id="i")
        assert (other.error_code, other.assignment) == (UNRELEASED, None)
        if version == 1:
            wrong = await heartbeat(client, version, 0, subscribed_topic_regex="(")
            assert wrong.error_code == INVALID_PATTERN


@versions
async def test_a_member_has_what_is_assigned_until_it_leaves(version: int) -> None:
    async with connected() as (_, client):
        joined = await heartbeat(client, version, 0)
        (topic,) = joined.assignment.topic_partitions
        assert (topic.topic_id, topic.partitions) == (TOPIC, (0, 1, 2, 3))
        owned = [{"topic_id": TOPIC, "partitions": [0, 1, 2, 3]}]
        again = await heartbeat(client, version, 1, topic_partitions=owned)
        assert (again.error_code, again.assignment) == (0, None)
        assert (await heartbeat(client, version, -1)).member_epoch == -1
        assert (await heartbeat(client, version, 1)).error_code == UNKNOWN_MEMBER


async def test_a_member_subscribes_by_pattern() -> None:
    async with connected() as (bench, client):
        bench.topics.create("t-2", 1)
        joined = await heartbeat(
            client, 1, 0, subscribed_topic_names=None, subscribed_topic_regex="t-.*"
        )
        assert [one.topic_id for one in joined.assignment.topic_partitions] == [UUID(int=2)]
        (group,) = (
            await client.ask(DESCRIBE, 1, group_ids=["group"], include_authorized_operations=True)
        ).groups
        assert group.members[0].subscribed_topic_regex == "t-.*"
        assert group.authorized_operations == 0b110101001000


@versions
async def test_every_group_that_was_asked_for_is_described(version: int) -> None:
    async with connected() as (bench, client):
        await bench.member("classic")
        await heartbeat(client, version, 0)
        classic_member = await bench.join()
        asked = {"group_ids": ["group", "classic", "unheard of"]}
        answer = await client.ask(DESCRIBE, version, include_authorized_operations=False, **asked)
        found, classic, unknown = answer.groups
        assert (found.error_code, found.group_state) == (0, "Reconciling")
        if version >= 1:
            kinds = {member.member_id: member.member_type for member in found.members}
            assert kinds == {"m": 1, classic_member.member_id: 0}
        for missing, name in ((classic, "classic"), (unknown, "unheard of")):
            assert (missing.error_code, missing.group_id) == (GROUP_ID_NOT_FOUND, name)
            assert (missing.group_state, missing.members) == ("", ())


@pytest.mark.parametrize("version", range(5, 7))
async def test_such_a_group_is_no_classic_group(version: int) -> None:
    async with connected() as (_, client):
        await heartbeat(client, 1, 0)
        answer = await client.ask(
            CLASSIC_DESCRIBE, version, groups=["group"], include_authorized_operations=False
        )
        (group,) = answer.groups
        assert group.group_state == "Dead"
        assert group.error_code == (GROUP_ID_NOT_FOUND if version >= 6 else 0)


async def test_groups_are_listed_by_their_type() -> None:
    async with connected() as (bench, client):
        await bench.member("classic")
        await heartbeat(client, 1, 0)
        answer = await client.ask(LIST, 5, states_filter=[], types_filter=["Consumer"])
        (group,) = answer.groups
        assert (group.group_id, group.group_type) == ("group", "consumer")
        assert (group.protocol_type, group.group_state) == ("consumer", "Stable")


async def test_members_commit_and_fetch_in_their_epoch() -> None:
    async with connected() as (bench, client):
        await heartbeat(client, 1, 0)

        async def commit(epoch: int, version: int, member_id: str = "m") -> int:
            partition = {
                "partition_index": 0,
                "committed_offset": 5,
                "committed_leader_epoch": 0,
                "committed_metadata": None,
            }
            answer = await client.ask(
                COMMIT,
                version,
                group_id="group",
                generation_id_or_member_epoch=epoch,
                member_id=member_id,
                group_instance_id=None,
                topics=[{"name": "topic", "partitions": [partition]}],
            )
            return int(answer.topics[0].partitions[0].error_code)

        assert await commit(1, 9) == 0
        assert await commit(0, 9) == STALE_EPOCH
        assert await commit(1, 8) == UNSUPPORTED_VERSION
        assert await commit(1, 9, "nobody") == UNKNOWN_MEMBER

        async def fetch(epoch: int, member_id: str | None = "m") -> tuple[int, int]:
            group = {
                "group_id": "group",
                "member_id": member_id,
                "member_epoch": epoch,
                "topics": [{"name": "topic", "partition_indexes": [0]}],
            }
            (found,) = (await client.ask(FETCH, 9, groups=[group], require_stable=True)).groups
            offsets = [item.committed_offset for one in found.topics for item in one.partitions]
            return int(found.error_code), offsets[0] if offsets else -1

        assert await fetch(1) == (0, 5)
        assert await fetch(0) == (STALE_EPOCH, -1)
        assert await fetch(1, "nobody") == (UNKNOWN_MEMBER, -1)
        assert await fetch(-1, None) == (0, 5)
        assert await bench.fetched() == {("topic", 0): 5}


async def test_a_classic_member_joins_beside_the_others() -> None:
    async with connected() as (bench, client):
        await heartbeat(client, 1, 0)
        joined: JoinedGroup = await bench.join()
        assert (joined.error, joined.leader, joined.members) == (None, "", ())
        answer = await bench.router.consumer_heartbeat(consumer_join("n"), CLIENT)
        assert answer.error is None
