"""A group of one kind as a group of the other kind."""

from dataclasses import replace
from uuid import UUID

import pytest

from diskless.groups.classic.subscription import write_assignment
from diskless.groups.classic_state import StoredClassicGroup, StoredMember
from diskless.groups.errors import GroupIdNotFound
from diskless.groups.group_migration import downgraded, upgraded
from diskless.groups.requests import GroupProtocol
from tests.support.groups.consumer_requests import NumberedTopics
from tests.support.groups.group_requests import subscription, subscription_with_owned

TOPIC = UUID(int=1)


@pytest.fixture
def topics() -> NumberedTopics:
    topics = NumberedTopics()
    topics.create("topic", 4)
    return topics


def member(member_id: str, *partitions: int, metadata: bytes | None = None) -> StoredMember:
    said = subscription("topic") if metadata is None else metadata
    return StoredMember(
        member_id=member_id,
        instance_id=f"i-{member_id}",
        client_id="client",
        client_host="host",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        protocols=(GroupProtocol("range", said),),
        assignment=write_assignment(0, {"topic": partitions} if partitions else {}),
    )


def group(*members: StoredMember) -> StoredClassicGroup:
    return StoredClassicGroup(
        protocol_type="consumer",
        generation_id=7,
        protocol_name="range",
        leader=members[0].member_id,
        members=members,
    )


def test_a_group_comes_back_from_the_other_kind_as_it_went(topics: NumberedTopics) -> None:
    before = group(member("a", 0, 1), member("b", 2, 3), member("c"))
    between = upgraded(before, topics)
    assert [one.assigned for one in between.members] == [
        {TOPIC: frozenset({0, 1})},
        {TOPIC: frozenset({2, 3})},
        {},
    ]
    assert {one.member_epoch for one in between.members} == {7}
    assert downgraded(between, {TOPIC: "topic"}) == before


def test_what_members_gave_each_other_twice_is_held_once(topics: NumberedTopics) -> None:
    between = upgraded(group(member("a", 0, 1), member("b", 1, 2)), topics)
    assert [one.assigned for one in between.members] == [
        {TOPIC: frozenset({0, 1})},
        {TOPIC: frozenset({2})},
    ]


def test_topics_that_are_gone_are_left_out(topics: NumberedTopics) -> None:
    topics.delete("topic")
    between = upgraded(group(member("a", 0)), topics)
    assert between.members[0].assigned == {}
    assert between.members[0].topic_names == ("topic",)


def test_racks_come_along(topics: NumberedTopics) -> None:
    said = subscription_with_owned(["topic"], {}, 3)
    assert upgraded(group(member("a", metadata=said)), topics).members[0].rack_id == "rack"


def test_a_group_that_says_what_cannot_be_read_stays_what_it_is(topics: NumberedTopics) -> None:
    for unreadable in (
        group(member("a", metadata=b"?")),
        group(replace(member("a"), assignment=b"?")),
        group(replace(member("a"), protocols=())),
        replace(group(member("a")), protocol_type="connect"),
    ):
        with pytest.raises(GroupIdNotFound):
            upgraded(unreadable, topics)
