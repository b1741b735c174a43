"""KIP-848 groups of a broker: what reaches them, what survives, what kind a group is."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from diskless.groups import errors as group_errors
from diskless.groups import requests
from diskless.groups.classic.subscription import read_assignment, write_assignment
from diskless.loop.long_work import SLICE_S, done_at_once
from metadata.records.groups import GroupKind
from tests.support.groups.consumer_requests import SESSION_S, consumer_heartbeat, consumer_join
from tests.support.groups.group_requests import CLIENT, join_request
from tests.support.groups.groups_bench import SETTINGS, GroupsBench
from wal.clock import ManualClock
from wal.errors import AppendTooLarge, CommitFailed, InvalidRequest, NotCoordinator

TOPIC = UUID(int=1)
ALL = frozenset(range(4))
RETENTION_S = SETTINGS.offsets_retention_minutes * 60.0


class ConsumerBench(GroupsBench):
    async def enter(
        self, member_id: str, *topics: str, **more: Any
    ) -> requests.ConsumerHeartbeatAnswer:
        return await self.router.consumer_heartbeat(
            consumer_join(member_id, *topics, **more), CLIENT
        )

    async def beat(
        self, member_id: str, epoch: int, has: Sequence[int] | None = None, **more: Any
    ) -> requests.ConsumerHeartbeatAnswer:
        owned = None if has is None else ({TOPIC: frozenset(has)} if has else {})
        request = consumer_heartbeat(member_id, epoch, owned=owned, **more)
        return await self.router.consumer_heartbeat(request, CLIENT)

    def kind(self) -> str:
        listed = done_at_once(self.router.list_groups())
        assert not isinstance(listed, Exception)
        return listed[0].group_type

    async def classic_member(self, **more: Any) -> requests.JoinedGroup:
        """The leader of a classic group, who has everything."""
        return await self.member(assignment=write_assignment(0, {"topic": range(4)}), **more)


@pytest.fixture
async def bench() -> AsyncIterator[ConsumerBench]:
    bench = ConsumerBench()
    await bench.start()
    yield bench
    await bench.stop()


async def restarted(bench: GroupsBench, **settings: Any) -> ConsumerBench:
    await bench.stop()
    heir = ConsumerBench(replace(SETTINGS, **settings), store=bench.store, clock=bench.clock)
    heir.topics = bench.topics
    heir.known_topics._known = bench.topics
    bench.topics.on_changed.append(heir.known_topics.changed)
    await heir.start()
    return heir


# -- heartbeats


async def test_a_member_joins_and_leaves(bench: ConsumerBench) -> None:
    joined = await bench.enter("a")
    assert (joined.member_epoch, joined.assignment) == (1, {TOPIC: ALL})
    assert done_at_once(bench.router.list_groups()) == [
        requests.ListedGroup("group", "consumer", "Stable", "consumer")
    ]
    assert (await bench.beat("a", -1)).error is None
    assert done_at_once(bench.router.list_groups()) == [
        requests.ListedGroup("group", "consumer", "Empty", "consumer")
    ]
    assert bench.store.writes == ["store_group group"] * 2


class _HurryingClock(ManualClock):
    """Every look at it takes a tenth of a slice."""

    def monotonic(self) -> float:
        self.advance(SLICE_S / 10)
        return super().monotonic()


async def test_members_are_served_while_a_large_assignment_is_worked_out() -> None:
    bench = ConsumerBench(clock=_HurryingClock())
    for number in range(200):
        bench.topics.create(f"t-{number:03}", 1)
    await bench.start()
    first = await bench.enter("a", topic_pattern="t-.*")
    assert len(first.assignment or {}) == 200
    second = asyncio.create_task(bench.enter("b", topic_pattern="t-.*"))
    await asyncio.sleep(0)
    told = await bench.beat("a", 1)
    assert (told.error, told.member_epoch, told.assignment) == (None, 1, None)
    assert not second.done()
    assert (await second).member_epoch == 2
    told = await bench.beat("a", 1)
    assert len(told.assignment or {}) == 100
    await bench.stop()


async def test_who_waits_for_a_large_assignment_is_sent_elsewhere_when_another_broker_leads() -> (
    None
):
    bench = ConsumerBench(clock=_HurryingClock())
    for number in range(200):
        bench.topics.create(f"t-{number:03}", 1)
    await bench.start()
    joining = asyncio.create_task(bench.enter("a", topic_pattern="t-.*"))
    await asyncio.sleep(0)
    await bench.stop()
    assert isinstance((await joining).error, group_errors.NotGroupCoordinator)
    assert not bench.store.writes


async def test_a_heartbeat_that_changes_nothing_stores_nothing_and_sets_no_alarm(
    bench: ConsumerBench,
) -> None:
    await bench.enter("a")
    writes, watched = len(bench.store.writes), bench.router.purgatory.statistics()
    for _ in range(100):
        await bench.advance(0.01)
        assert (await bench.beat("a", 1)).error is None
    assert len(bench.store.writes) == writes
    assert bench.router.purgatory.statistics() == watched
    assert bench.loop.calls == 0


async def test_requests_that_make_no_sense_are_refused(bench: ConsumerBench) -> None:
    join = consumer_join("a")
    for request in (
        join._replace(group_id=""),
        join._replace(member_id=""),
        join._replace(instance_id=""),
        join._replace(rack_id=""),
        join._replace(rack_id="r" * 40_000),
        join._replace(rebalance_timeout_ms=-1),
        join._replace(rebalance_timeout_ms=-2),
        consumer_heartbeat("a", 1, rebalance_timeout_ms=-2),
        join._replace(owned=None),
        join._replace(owned={TOPIC: ALL}),
        join._replace(topic_names=None),
        join._replace(member_epoch=-3),
        join._replace(member_epoch=-2),
        join._replace(member_epoch=1, member_id="", makes_own_id=False),
    ):
        refused = await bench.router.consumer_heartbeat(request, CLIENT)
        assert isinstance(refused.error, InvalidRequest), request
    refused = await bench.enter("a", assignor="best")
    assert isinstance(refused.error, group_errors.UnsupportedAssignor)
    refused = await bench.enter("a", topic_pattern="(")
    assert isinstance(refused.error, group_errors.InvalidRegularExpression)
    assert not bench.store.writes


async def test_a_member_of_the_first_version_is_given_an_id(bench: ConsumerBench) -> None:
    request = consumer_join("")._replace(makes_own_id=False)
    joined = await bench.router.consumer_heartbeat(request, CLIENT)
    assert joined.error is None
    assert joined.member_id
    assert (await bench.beat(joined.member_id, 1)).error is None


async def test_whoever_comes_to_no_group_starts_over(bench: ConsumerBench) -> None:
    """Clients take "no such group" for final."""
    for epoch in (5, -1):
        assert isinstance((await bench.beat("a", epoch)).error, group_errors.UnknownMember)
    assert done_at_once(bench.router.list_groups()) == []


async def test_a_store_that_fails_is_an_error_to_come_back_from(bench: ConsumerBench) -> None:
    bench.store.failures.append(CommitFailed("away"))
    assert isinstance((await bench.enter("a")).error, group_errors.GroupCoordinatorUnavailable)
    assert (await bench.enter("a")).assignment == {TOPIC: ALL}
    bench.store.failures.append(NotCoordinator("deposed"))
    assert isinstance((await bench.enter("b")).error, group_errors.NotGroupCoordinator)


async def test_a_group_that_cannot_be_stored_is_not_there(bench: ConsumerBench) -> None:
    bench.store.failures.append(AppendTooLarge("4 MiB"))
    assert isinstance((await bench.enter("a")).error, group_errors.GroupCoordinatorUnavailable)
    assert done_at_once(bench.router.list_groups()) == []


async def test_a_leader_that_may_have_been_replaced_confirms_nobody(bench: ConsumerBench) -> None:
    await bench.enter("a")
    bench.store.leads = False
    assert isinstance((await bench.beat("a", 1)).error, group_errors.GroupCoordinatorUnavailable)
    bench.store.leads = True
    assert (await bench.beat("a", 1)).error is None


async def test_who_waits_is_sent_elsewhere_when_the_broker_leads_no_more(
    bench: ConsumerBench,
) -> None:
    bench.store.gate.clear()
    joining = asyncio.ensure_future(bench.enter("a"))
    await bench.settled()
    bench.router.close()
    assert isinstance((await joining).error, group_errors.NotGroupCoordinator)
    assert isinstance((await bench.enter("a")).error, group_errors.NotGroupCoordinator)
    bench.store.gate.set()


async def test_a_silent_member_is_forgotten_and_that_is_stored(bench: ConsumerBench) -> None:
    await bench.enter("a")
    await bench.advance(SESSION_S + 1)
    assert done_at_once(bench.router.list_groups()) == [
        requests.ListedGroup("group", "consumer", "Empty", "consumer")
    ]
    heir = await restarted(bench)
    assert isinstance((await heir.beat("a", 1)).error, group_errors.UnknownMember)
    await heir.stop()


async def test_members_hear_of_new_topics_with_their_next_heartbeat(bench: ConsumerBench) -> None:
    await bench.enter("a", topic_pattern="t.*")
    bench.topics.create("t-2", 1)
    answer = await bench.beat("a", 1)
    assert answer.assignment == {TOPIC: ALL, UUID(int=2): frozenset({0})}


# -- what survives


async def test_members_go_on_at_the_next_coordinator(bench: ConsumerBench) -> None:
    await bench.enter("a", instance_id="i")
    await bench.enter("b")
    told = await bench.beat("a", 1)
    kept = (told.assignment or {})[TOPIC]
    heir = await restarted(bench)
    moved = await heir.beat("a", 1, sorted(kept))
    assert (moved.error, moved.member_epoch) == (None, 2)
    assert (await heir.beat("b", 2)).assignment == {TOPIC: ALL - kept}
    assert heir.kind() == "consumer"
    await heir.stop()


async def test_a_group_without_members_goes_on_where_its_epochs_were(bench: ConsumerBench) -> None:
    for epoch in (1, 3, 5):
        assert (await bench.enter("a")).member_epoch == epoch
        await bench.beat("a", -1)
    heir = await restarted(bench)
    described = await heir.router.describe_consumer("group")
    assert (described.state, described.group_epoch) == ("Empty", 6)
    assert (await heir.enter("a")).member_epoch == 7
    await heir.stop()


async def test_a_stored_group_that_cannot_be_read_begins_anew(bench: ConsumerBench) -> None:
    await bench.enter("a")
    await bench.store.store_group("group", GroupKind.CONSUMER, b"?")
    heir = await restarted(bench)
    assert isinstance((await heir.beat("a", 1)).error, group_errors.UnknownMember)
    assert (await heir.enter("a")).error is None
    await heir.stop()


# -- offsets


async def test_members_commit_and_fetch_in_their_epoch(bench: ConsumerBench) -> None:
    await bench.enter("a")

    async def commit(epoch: int, member_id: str = "a", *, knows: bool = True) -> Any:
        joined = requests.JoinedGroup(generation_id=epoch, member_id=member_id)
        committed = await bench.commit(("topic", 0, 5), joined=joined, knows_member_epochs=knows)
        return committed[0]

    assert await commit(1) is None
    assert isinstance(await commit(0), group_errors.StaleMemberEpoch)
    assert isinstance(await commit(1, "b"), group_errors.UnknownMember)
    assert isinstance(await commit(1, knows=False), group_errors.MemberEpochNotSpoken)
    assert isinstance(await commit(-1, ""), group_errors.UnknownMember)

    async def fetch(member_id: str | None, epoch: int, group_id: str = "group") -> Any:
        return await bench.router.fetch_offsets(
            requests.FetchOffsets(group_id, member_id, epoch, None, True)
        )

    assert [one.offset for one in (await fetch("a", 1)).offsets] == [5]
    assert [one.offset for one in (await fetch(None, -1)).offsets] == [5]
    assert isinstance((await fetch("a", 0)).error, group_errors.StaleMemberEpoch)
    assert isinstance((await fetch("b", 1)).error, group_errors.UnknownMember)
    assert isinstance((await fetch("a", 1, "no group")).error, group_errors.UnknownMember)


async def test_offsets_of_topics_that_are_read_stay(bench: ConsumerBench) -> None:
    bench.topics.create("other")
    await bench.commit(("topic", 0, 1), ("other", 0, 2))
    await bench.enter("a")
    deleted = await bench.router.delete_offsets("group", [("topic", 0)])
    assert not isinstance(deleted, Exception)
    assert isinstance(deleted[0], group_errors.GroupSubscribedToTopic)
    waited = 0.0
    while waited < RETENTION_S + 1:
        # A member that is heard of now and then.
        bench.clock.advance(SESSION_S / 2)
        waited += SESSION_S / 2
    await bench.beat("a", 1)
    await bench.led.forget_unused()
    assert await bench.fetched() == {("topic", 0): 1}
    assert await bench.router.delete_offsets("group", [("other", 0)]) == [None]


# -- administration


async def test_a_group_is_described_with_its_members(bench: ConsumerBench) -> None:
    await bench.enter("a", instance_id="i", assignor="range")
    described = await bench.router.describe_consumer("group")
    assert (described.state, described.group_epoch, described.assignment_epoch) == ("Stable", 1, 1)
    assert described.assignor == "range"
    (member,) = described.members
    assert (member.member_id, member.instance_id, member.client_id) == ("a", "i", "client")
    assert (member.topic_names, member.topic_pattern, member.is_classic) == (
        ("topic",),
        None,
        False,
    )
    assert member.assigned == member.target == [(TOPIC, "topic", [0, 1, 2, 3])]
    bench.topics.delete("topic")
    described = await bench.router.describe_consumer("group")
    assert described.members[0].assigned == []


async def test_a_group_is_described_as_what_it_is_alone(bench: ConsumerBench) -> None:
    async def is_missing() -> tuple[bool, bool]:
        classic = await bench.router.describe("group")
        consumer = await bench.router.describe_consumer("group")
        return classic.error is not None, consumer.error is not None

    assert await is_missing() == (True, True)
    joined = await bench.classic_member()
    assert await is_missing() == (False, True)
    await bench.router.leave("group", [requests.LeavingMember(joined.member_id, None, "")])
    await bench.settled()
    assert await is_missing() == (False, True)
    await bench.enter("a")
    assert await is_missing() == (True, False)
    await bench.beat("a", -1)
    await bench.settled()
    assert await is_missing() == (True, False)


async def test_a_group_with_members_is_not_deleted_one_without_is(bench: ConsumerBench) -> None:
    await bench.enter("a")
    await bench.commit(("topic", 0, 1), joined=requests.JoinedGroup(generation_id=1, member_id="a"))
    assert isinstance(await bench.router.delete_group("group"), group_errors.NonEmptyGroup)
    await bench.beat("a", -1)
    assert await bench.router.delete_group("group") is None
    assert done_at_once(bench.router.list_groups()) == []
    assert not bench.store.groups


async def test_a_state_that_is_still_encoded_is_not_written_after_its_deletion(
    bench: ConsumerBench,
) -> None:
    joined = asyncio.ensure_future(bench.enter("a"))
    async with bench.router._led[0]._groups.encoding("group"):
        # The store of the member that joins waits here, and whatever comes after it waits for it.
        await bench.settled()
        left = asyncio.ensure_future(bench.beat("a", -1))
        deleted = asyncio.ensure_future(bench.router.delete_group("group"))
        await bench.settled()
        assert bench.store.writes == []
    assert isinstance((await joined).error, group_errors.UnknownMember)
    await left
    assert await deleted is None
    await bench.settled()
    assert bench.store.writes[-1] == "delete_group group"
    assert not bench.store.groups


async def test_matched_patterns_are_there_for_the_heartbeat(bench: ConsumerBench) -> None:
    join = consumer_join("a", topic_pattern="top.*")
    matched = [*bench.router.match_patterns(join)]
    assert len(matched) == len(bench.topics.topics())
    assert (await bench.router.consumer_heartbeat(join, CLIENT)).assignment == {TOPIC: ALL}
    # The group has the pattern now, and topics are the same.
    again = consumer_heartbeat("a", 1, topic_pattern="top.*")
    assert [*bench.router.match_patterns(again)] == []


async def test_only_what_will_be_looked_at_is_matched(bench: ConsumerBench) -> None:
    for request in (
        consumer_heartbeat("nobody", 1, topic_pattern="top.*"),
        consumer_join("a", topic_pattern="top.*")._replace(group_id=""),
    ):
        assert [*bench.router.match_patterns(request)] == []
    with pytest.raises(group_errors.InvalidRegularExpression):
        done_at_once(bench.router.match_patterns(consumer_join("a", topic_pattern="(")))


# -- one kind becomes the other


async def test_a_group_without_members_is_of_the_kind_of_its_next_member(
    bench: ConsumerBench,
) -> None:
    joined = await bench.classic_member()
    await bench.router.leave("group", [requests.LeavingMember(joined.member_id, None, "")])
    await bench.settled()
    assert bench.kind() == "classic"
    entered = await bench.enter("a")
    assert entered.member_epoch > joined.generation_id
    assert bench.kind() == "consumer"
    await bench.beat("a", -1)
    again = await bench.classic_member()
    assert again.generation_id > entered.member_epoch
    assert bench.kind() == "classic"
    heir = await restarted(bench)
    assert heir.kind() == "classic"
    await heir.stop()


async def test_a_client_that_was_given_an_id_joins_anew_when_another_kind_was_first(
    bench: ConsumerBench,
) -> None:
    required = await bench.join(needs_member_id=True)
    await bench.enter("a")
    assert bench.kind() == "consumer"
    assert isinstance((await bench.join(required.member_id)).error, group_errors.UnknownMember)


async def test_a_classic_group_becomes_one_with_members_of_both_kinds(
    bench: ConsumerBench,
) -> None:
    old = await bench.classic_member()
    entered = await bench.enter("a")
    assert (entered.member_epoch, entered.assignment) == (old.generation_id + 1, {})
    assert bench.kind() == "consumer"
    assert isinstance(bench.heartbeat(old), group_errors.RebalanceInProgress)
    joined = await bench.join(old.member_id)
    synced = await bench.sync(joined)
    kept = (read_assignment(synced.assignment) or {})["topic"]
    assert len(kept) == 2
    assert (await bench.beat("a", entered.member_epoch)).assignment == {TOPIC: ALL - kept}
    heir = await restarted(bench)
    assert heir.heartbeat(joined) is None
    await heir.stop()


async def test_what_a_classic_member_finds_out_with_its_heartbeat_is_stored_at_once(
    bench: ConsumerBench,
) -> None:
    await bench.enter("a")
    joined = await bench.join()
    await bench.sync(joined)
    stored = len(bench.store.writes)
    bench.topics.grow("topic", 6)
    assert isinstance(bench.heartbeat(joined), group_errors.RebalanceInProgress)
    await bench.settled()
    assert bench.store.writes[stored:] == ["store_group group"]


async def test_until_it_has_come_again_a_classic_member_keeps_what_it_had(
    bench: ConsumerBench,
) -> None:
    await bench.classic_member()
    entered = await bench.enter("a")
    for _ in range(3):
        await bench.advance(2)
        assert (await bench.beat("a", entered.member_epoch)).assignment is None
    await bench.advance(11)
    answer = await bench.beat("a", entered.member_epoch)
    assert answer.assignment == {TOPIC: ALL}


async def test_members_who_wait_in_a_classic_group_are_told_to_come_again(
    bench: ConsumerBench,
) -> None:
    old = await bench.classic_member()
    waiting = asyncio.ensure_future(bench.join())
    await bench.settled()
    await bench.enter("a")
    answer = await waiting
    assert isinstance(answer.error, group_errors.RebalanceInProgress)
    assert isinstance(bench.heartbeat(old), group_errors.RebalanceInProgress)


async def test_a_group_that_does_not_read_topics_stays_as_it_is(bench: ConsumerBench) -> None:
    request = join_request(protocol_type="connect", needs_member_id=False)
    await bench.router.join(request, CLIENT)
    assert isinstance((await bench.enter("a")).error, group_errors.GroupIdNotFound)
    assert bench.kind() == "classic"


async def test_a_classic_group_whose_members_cannot_be_understood_stays_as_it_is(
    bench: ConsumerBench,
) -> None:
    await bench.member(assignment=b"?")
    assert isinstance((await bench.enter("a")).error, group_errors.GroupIdNotFound)
    assert bench.kind() == "classic"


async def test_a_refused_member_changes_no_group(bench: ConsumerBench) -> None:
    old = await bench.classic_member()
    assert isinstance(
        (await bench.enter("a", topic_pattern="(")).error, group_errors.InvalidRegularExpression
    )
    assert isinstance((await bench.beat("a", 4)).error, group_errors.UnknownMember)
    assert bench.heartbeat(old) is None
    heir = await restarted(bench, consumer_max_size=1)
    assert isinstance((await heir.enter("a")).error, group_errors.GroupMaxSizeReached)
    assert heir.heartbeat(old) is None
    await heir.stop()


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
async def test_a_classic_group_stays_one_if_the_policy_says_so(
    bench: ConsumerBench, policy: str
) -> None:
    old = await bench.classic_member()
    heir = await restarted(bench, consumer_migration_policy=policy)
    assert isinstance((await heir.enter("a")).error, group_errors.GroupIdNotFound)
    assert heir.heartbeat(old) is None
    await heir.stop()


async def test_a_group_is_classic_again_when_only_classic_members_are_left(
    bench: ConsumerBench,
) -> None:
    old = await bench.classic_member()
    entered = await bench.enter("a")
    joined = await bench.join(old.member_id)
    await bench.sync(joined)
    await bench.beat("a", entered.member_epoch)
    await bench.beat("a", -1)
    assert bench.kind() == "classic"
    assert bench.heartbeat(joined) is not None
    again = await bench.join(old.member_id)
    assert again.generation_id > joined.generation_id
    assert again.leader == old.member_id
    heir = await restarted(bench)
    assert heir.kind() == "classic"
    await heir.stop()


async def test_a_group_of_classic_members_alone_stays_if_the_policy_says_so(
    bench: ConsumerBench,
) -> None:
    heir = await restarted(bench, consumer_migration_policy="upgrade")
    old = await heir.classic_member()
    await heir.enter("a")
    joined = await heir.join(old.member_id)
    await heir.sync(joined)
    await heir.beat("a", -1)
    assert heir.kind() == "consumer"
    joined = await heir.join(old.member_id)
    synced = await heir.sync(joined)
    assert read_assignment(synced.assignment) == {"topic": ALL}
    await heir.stop()


async def test_a_group_that_was_left_to_classic_members_is_classic_at_the_next_coordinator(
    bench: ConsumerBench,
) -> None:
    first = await restarted(bench, consumer_migration_policy="upgrade")
    old = await first.classic_member()
    await first.enter("a")
    await first.beat("a", -1)
    heir = await restarted(first)
    await heir.settled()
    assert heir.kind() == "classic"
    assert (await heir.join(old.member_id)).error is None
    await heir.stop()


async def test_classic_members_that_leave_are_gone_when_they_are_told(
    bench: ConsumerBench,
) -> None:
    await bench.enter("a")
    joined = await bench.join()
    left = await bench.router.leave("group", [requests.LeavingMember(joined.member_id, None, "")])
    assert left == [None]
    heir = await restarted(bench)
    described = await heir.router.describe_consumer("group")
    assert [member.member_id for member in described.members] == ["a"]
    await heir.stop()


async def test_a_departure_that_is_not_stored_is_not_confirmed(bench: ConsumerBench) -> None:
    await bench.enter("a")
    joined = await bench.join()
    bench.store.failures.append(CommitFailed("away"))
    left = await bench.router.leave("group", [requests.LeavingMember(joined.member_id, None, "")])
    assert isinstance(left, group_errors.GroupCoordinatorUnavailable)
