"""The APIs of consumer groups over a real socket, in all their versions."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from diskless.ports import BrokerEndpoint
from tests.support.brokers.kafka_fakes import running_broker
from tests.support.groups.group_requests import subscription
from tests.support.groups.groups_bench import GroupsBench
from tests.support.questions.kafka_raw_client import RawClient
from wal.errors import CommitFailed

COMMIT, FETCH, FIND, JOIN, HEARTBEAT, LEAVE, SYNC, DESCRIBE, LIST, DELETE, DELETE_OFFSETS = (
    8, 9, 10, 11, 12, 13, 14, 15, 16, 42, 47,
)  # fmt: skip

NOT_COORDINATOR, ILLEGAL_GENERATION, UNKNOWN_MEMBER, REBALANCE = 16, 22, 25, 27
MEMBER_ID_REQUIRED, FENCED = 79, 82
LATEST = {JOIN: 9, SYNC: 5, HEARTBEAT: 4, LEAVE: 5, COMMIT: 9, FETCH: 9}


def versions(key: int, first: int, last: int) -> Any:
    return pytest.mark.parametrize("version", range(first, last + 1))


class Member(RawClient):
    """A member of "group", speaking one version of whatever it asks."""

    member_id = ""
    generation_id = -1
    instance_id: str | None = None

    async def join(self, version: int = LATEST[JOIN], **more: Any) -> Any:
        answer = await self.ask(
            JOIN,
            version,
            group_id="group",
            session_timeout=timedelta(seconds=10),
            rebalance_timeout=timedelta(seconds=60),
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": subscription("topic")}],
            **more,
        )
        self.member_id = answer.member_id
        self.generation_id = answer.generation_id
        return answer

    def whoami(self) -> dict[str, Any]:
        return {
            "group_id": "group",
            "generation_id": self.generation_id,
            "generation_id_or_member_epoch": self.generation_id,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
        }

    async def sync(self, version: int = LATEST[SYNC], **more: Any) -> Any:
        assignments = [{"member_id": self.member_id, "assignment": b"all"}]
        names = {"protocol_type": "consumer", "protocol_name": "range"}
        asked = {**names, "assignments": assignments, **self.whoami(), **more}
        return await self.ask(SYNC, version, **asked)

    async def heartbeat(self, version: int = LATEST[HEARTBEAT]) -> int:
        return int((await self.ask(HEARTBEAT, version, **self.whoami())).error_code)

    async def commit(
        self, *offsets: tuple[int, int], version: int = LATEST[COMMIT], **more: Any
    ) -> Sequence[int]:
        """(partition, offset) each, of "topic"; the error codes."""
        partitions = [
            {
                "partition_index": partition,
                "committed_offset": offset,
                "committed_leader_epoch": 0,
                "committed_metadata": None,
            }
            for partition, offset in offsets
        ]
        topics = [{"name": "topic", "partitions": partitions}]
        asked = {"topics": topics, "retention_time": timedelta(milliseconds=-1), **more}
        answer = await self.ask(COMMIT, version, **{**self.whoami(), **asked})
        return [int(item.error_code) for item in answer.topics[0].partitions]


@asynccontextmanager
async def connected(
    members: int = 1, *, others: Sequence[BrokerEndpoint] = ()
) -> AsyncIterator[tuple[GroupsBench, Any]]:
    """A broker's groups, and as many connections to it."""
    bench = GroupsBench()
    await bench.start()
    async with running_broker(coordinated=bench.router) as broker:
        broker.cluster.others = others
        clients = [await Member.connect(broker.server.address) for _ in range(members)]
        yield bench, clients[0] if members == 1 else clients
        for client in clients:
            await client.close()
    await bench.stop()


# -- members


@versions(JOIN, 0, 9)
async def test_a_member_joins(version: int) -> None:
    async with connected() as (_, member):
        joined = await member.join(version)
        if version >= 4:
            assert joined.error_code == MEMBER_ID_REQUIRED
            assert joined.generation_id == -1
            joined = await member.join(version)
        assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 1, "range")
        assert joined.leader == joined.member_id
        (listed,) = joined.members
        assert (listed.member_id, listed.metadata) == (joined.member_id, subscription("topic"))
        if version >= 7:
            assert joined.protocol_type == "consumer"


@versions(JOIN, 0, 9)
async def test_a_refused_join_has_an_answer_in_every_version(version: int) -> None:
    async with connected() as (_, member):
        member.member_id = "nobody"
        refused = await member.join(version)
        assert (refused.error_code, refused.generation_id) == (UNKNOWN_MEMBER, -1)
        assert refused.protocol_name == (None if version >= 7 else "")
        assert refused.members == ()


@versions(JOIN, 5, 9)
async def test_a_static_member_takes_over(version: int) -> None:
    async with connected(2) as (_, (old, new)):
        old.instance_id = new.instance_id = "i"
        await old.join(version)
        await old.sync()
        joined = await new.join(version)
        assert (joined.error_code, joined.generation_id) == (0, 1)
        if version >= 9:
            assert joined.skip_assignment
        else:
            assert joined.leader == old.member_id
        assert await old.heartbeat() == FENCED
        assert (await new.sync()).assignment == b"all"


@versions(SYNC, 0, 5)
async def test_a_member_syncs(version: int) -> None:
    async with connected() as (_, member):
        await member.join(0)
        synced = await member.sync(version)
        assert (synced.error_code, synced.assignment) == (0, b"all")
        if version >= 5:
            assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")
        wrong = await member.sync(version, generation_id=9)
        assert (wrong.error_code, wrong.assignment) == (ILLEGAL_GENERATION, b"")


@versions(HEARTBEAT, 0, 4)
async def test_a_member_sends_heartbeats(version: int) -> None:
    async with connected(2) as (_, (member, other)):
        await member.join(0)
        await member.sync()
        assert await member.heartbeat(version) == 0
        joining = asyncio.ensure_future(other.join(0))
        while await member.heartbeat(version) == 0:
            pass  # until the broker has heard of the other one
        assert await member.heartbeat(version) == REBALANCE
        assert (await member.join(0)).error_code == 0
        assert (await joining).generation_id == 2


@versions(LEAVE, 0, 5)
async def test_members_leave(version: int) -> None:
    async with connected() as (_, member):
        await member.join(0)
        one = {"member_id": member.member_id, "group_instance_id": None}
        stranger = {"member_id": "stranger", "group_instance_id": None}
        asked = {"group_id": "group", "member_id": member.member_id, "members": [one, stranger]}
        left = await member.ask(LEAVE, version, **asked)
        assert left.error_code == 0
        if version >= 3:
            assert [item.error_code for item in left.members] == [0, UNKNOWN_MEMBER]
            assert [item.member_id for item in left.members] == [member.member_id, "stranger"]
        else:
            left = await member.ask(LEAVE, version, **asked)
            assert left.error_code == UNKNOWN_MEMBER
        left = await member.ask(LEAVE, version, **{**asked, "group_id": ""})
        assert left.error_code == 24


# -- offsets


@versions(COMMIT, 2, 9)
async def test_offsets_are_committed(version: int) -> None:
    async with connected() as (bench, member):
        assert await member.commit((0, 5), (1, 6), (9, 7), version=version) == [0, 0, 3]
        assert await bench.fetched() == {("topic", 0): 5, ("topic", 1): 6}
        member.generation_id, member.member_id = 4, "m"
        assert await member.commit((0, 5), version=version) == [UNKNOWN_MEMBER]
        bench.store.failures.append(CommitFailed("away"))
        member.generation_id, member.member_id = -1, ""
        assert await member.commit((0, 8), version=version) == [15]


@versions(COMMIT, 2, 4)
async def test_offsets_may_have_a_retention_of_their_own(version: int) -> None:
    async with connected() as (bench, member):
        await member.commit((0, 5), version=version, retention_time=timedelta(seconds=10))
        await member.commit((1, 5), version=version)
        await bench.advance(11)
        await bench.led.forget_unused()
        assert await bench.fetched() == {("topic", 1): 5}


@versions(FETCH, 1, 9)
async def test_offsets_are_fetched(version: int) -> None:
    async with connected() as (bench, member):
        await bench.commit(("topic", 1, 5), metadata="m")
        topics = [{"name": "topic", "partition_indexes": [0, 1]}]
        group = {"group_id": "group", "topics": topics, "member_epoch": -1}
        answer = await member.ask(FETCH, version, groups=[group], **group)
        (found,) = answer.groups if version >= 8 else [answer]
        (topic,) = found.topics
        assert [
            (item.partition_index, item.committed_offset, item.metadata, item.error_code)
            for item in topic.partitions
        ] == [(0, -1, "", 0), (1, 5, "m", 0)]
        if version >= 5:
            assert [item.committed_leader_epoch for item in topic.partitions] == [-1, 0]
        if version >= 2:
            assert found.error_code == 0


@versions(FETCH, 2, 9)
async def test_all_offsets_are_fetched(version: int) -> None:
    async with connected() as (bench, member):
        bench.topics.create("other")
        await bench.commit(("topic", 1, 5), ("other", 0, 6), ("topic", 0, 4))
        group = {"group_id": "group", "topics": None, "member_epoch": -1}
        answer = await member.ask(FETCH, version, groups=[group], **group)
        (found,) = answer.groups if version >= 8 else [answer]
        assert {
            (topic.name, item.partition_index): item.committed_offset
            for topic in found.topics
            for item in topic.partitions
        } == {("topic", 0): 4, ("topic", 1): 5, ("other", 0): 6}
        assert len(found.topics) == 2


@versions(FETCH, 8, 9)
async def test_offsets_of_many_groups_are_fetched_at_once(version: int) -> None:
    async with connected() as (bench, member):
        await bench.commit(("topic", 0, 1), group_id="a")
        await bench.commit(("topic", 0, 2), group_id="b")
        groups = [
            {"group_id": name, "topics": None, "member_id": None, "member_epoch": -1}
            for name in "abc"
        ]
        answer = await member.ask(FETCH, version, groups=groups)
        assert [
            (group.group_id, [p.committed_offset for t in group.topics for p in t.partitions])
            for group in answer.groups
        ] == [("a", [1]), ("b", [2]), ("c", [])]


@versions(FETCH, 1, 9)
async def test_a_fetch_from_the_wrong_broker_says_so_in_every_version(version: int) -> None:
    async with connected() as (bench, member):
        bench.router.close()
        topics = [{"name": "topic", "partition_indexes": [0, 1]}]
        group = {"group_id": "group", "topics": topics, "member_epoch": -1}
        answer = await member.ask(FETCH, version, groups=[group], **group)
        if version == 1:
            codes = {p.error_code for t in answer.topics for p in t.partitions}
        elif version < 8:
            codes = {answer.error_code}
            assert answer.topics == ()
        else:
            codes = {group.error_code for group in answer.groups}
        assert codes == {NOT_COORDINATOR}


async def test_offsets_are_deleted() -> None:
    async with connected() as (bench, member):
        await bench.commit(("topic", 0, 1), ("topic", 1, 1))
        partitions = [{"partition_index": index} for index in (1, 9)]
        asked = {"topics": [{"name": "topic", "partitions": partitions}]}
        answer = await member.ask(DELETE_OFFSETS, 0, group_id="group", **asked)
        assert answer.error_code == 0
        assert [item.error_code for item in answer.topics[0].partitions] == [0, 3]
        assert await bench.fetched() == {("topic", 0): 1}
        answer = await member.ask(DELETE_OFFSETS, 0, group_id="unheard of", **asked)
        assert (answer.error_code, answer.topics) == (69, ())


# -- administration


@versions(FIND, 0, 6)
async def test_the_coordinator_is_found(version: int) -> None:
    async with connected(others=[BrokerEndpoint(7, "broker-7", 9092)]) as (bench, member):
        names = {"key": "group", "coordinator_keys": ["group", "other"], "key_type": 0}
        answer = await member.ask(FIND, version, **names)
        found = answer.coordinators if version >= 4 else [answer]
        for one in found:
            assert (one.error_code, one.node_id, one.host, one.port) == (0, 7, "broker-7", 9092)
        if version >= 4:
            assert [one.key for one in found] == ["group", "other"]
        bench.partitions[0].leader = None
        answer = await member.ask(FIND, version, **names)
        found = answer.coordinators if version >= 4 else [answer]
        assert {(one.error_code, one.node_id) for one in found} == {(15, -1)}


async def test_share_groups_have_no_coordinators() -> None:
    async with connected() as (_, member):
        answer = await member.ask(FIND, 2, key="t", key_type=2)
        assert (answer.error_code, answer.node_id) == (42, -1)


@versions(DESCRIBE, 0, 6)
async def test_groups_are_described_each_that_was_asked_for(version: int) -> None:
    async with connected() as (bench, member):
        await bench.member()
        answer = await member.ask(
            DESCRIBE, version, groups=["group", "unheard of"], include_authorized_operations=True
        )
        known, unknown = answer.groups
        assert (known.error_code, known.group_id, known.group_state) == (0, "group", "Stable")
        assert (known.protocol_type, known.protocol_data) == ("consumer", "range")
        (described,) = known.members
        assert described.client_id == "client"
        assert described.member_metadata == subscription("topic")
        assert described.member_assignment == b"all"
        assert (unknown.group_id, unknown.group_state) == ("unheard of", "Dead")
        assert unknown.error_code == (69 if version >= 6 else 0)
        if version >= 6:
            assert "unheard of" in unknown.error_message
        if version >= 3:
            assert known.authorized_operations == 0b110101001000
            unasked = await member.ask(
                DESCRIBE, version, groups=["group"], include_authorized_operations=False
            )
            assert unasked.groups[0].authorized_operations == -(2**31)


@versions(LIST, 0, 5)
async def test_groups_are_listed(version: int) -> None:
    async with connected() as (bench, member):
        await bench.member("stable")
        await bench.commit(("topic", 0, 1), group_id="empty")
        answer = await member.ask(LIST, version, states_filter=["Stable"], types_filter=["classic"])
        groups = {group.group_id: group for group in answer.groups}
        assert set(groups) == ({"stable"} if version >= 4 else {"stable", "empty"})
        assert groups["stable"].protocol_type == "consumer"
        if version >= 5:
            assert (groups["stable"].group_type, groups["stable"].group_state) == (
                "classic",
                "Stable",
            )


@versions(DELETE, 0, 2)
async def test_groups_are_deleted(version: int) -> None:
    async with connected() as (bench, member):
        await bench.member("live")
        await bench.commit(("topic", 0, 1), group_id="empty")
        answer = await member.ask(DELETE, version, groups_names=["live", "empty", "unheard of"])
        assert [(result.group_id, result.error_code) for result in answer.results] == [
            ("live", 68),
            ("empty", 0),
            ("unheard of", 69),
        ]


async def test_who_waits_is_sent_elsewhere_when_the_broker_stops() -> None:
    async with connected(2) as (bench, (member, other)):
        await member.join(0)
        await member.sync()
        joining = asyncio.ensure_future(other.join(0))
        while await member.heartbeat() == 0:
            pass  # until the broker has heard of the other one
        bench.router.close()
        assert (await joining).error_code == NOT_COORDINATOR
        assert await member.heartbeat() == NOT_COORDINATOR
