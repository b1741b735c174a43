"""Heartbeats of KIP-848 members with everything that a test does not care about left unsaid."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from diskless.groups.assignors.assignors import ASSIGNORS
from diskless.groups.consumer.consumer_group import ConsumerGroup
from diskless.groups.consumer.topic_patterns import PatternsInUse, TopicPattern
from diskless.groups.requests import ConsumerHeartbeat
from diskless.groups.settings import GroupSettings
from metadata.operations import TopicDescription

SETTINGS: Final = GroupSettings(initial_rebalance_delay_ms=0)
SESSION_S: Final = SETTINGS.consumer_session_timeout_ms / 1000

Partitions = Mapping[UUID, frozenset[int]]


def consumer_heartbeat(
    member_id: str,
    member_epoch: int,
    *,
    group_id: str = "group",
    instance_id: str | None = None,
    rack_id: str | None = None,
    rebalance_timeout_ms: int = -1,
    topic_names: Sequence[str] | None = None,
    topic_pattern: str | None = None,
    assignor: str | None = None,
    owned: Partitions | None = None,
    makes_own_id: bool = True,
) -> ConsumerHeartbeat:
    return ConsumerHeartbeat(
        group_id,
        member_id,
        member_epoch,
        instance_id,
        rack_id,
        rebalance_timeout_ms,
        topic_names,
        topic_pattern,
        assignor,
        owned,
        makes_own_id,
    )


def consumer_join(
    member_id: str,
    *topic_names: str,
    instance_id: str | None = None,
    rebalance_timeout_ms: int = 60_000,
    topic_pattern: str | None = None,
    assignor: str | None = None,
) -> ConsumerHeartbeat:
    """Epoch 0; of "topic" unless it is said of what."""
    names = topic_names or (() if topic_pattern else ("topic",))
    return consumer_heartbeat(
        member_id,
        0,
        instance_id=instance_id,
        rebalance_timeout_ms=rebalance_timeout_ms,
        topic_names=names,
        topic_pattern=topic_pattern,
        assignor=assignor,
        owned={},
    )


@dataclass
class NumberedTopics:
    """`Topics` in a dictionary; the nth topic that is created has the id n."""

    version: int = 0
    known: dict[str, TopicDescription] = field(default_factory=dict)
    made: int = 0
    patterns: PatternsInUse = field(default_factory=PatternsInUse)

    def topics(self) -> Mapping[str, TopicDescription]:
        return self.known

    def topic(self, name: str) -> TopicDescription | None:
        return self.known.get(name)

    def named(self, names: AbstractSet[str]) -> Sequence[TopicDescription]:
        return [self.known[name] for name in names if name in self.known]

    def topic_by_id(self, topic_id: UUID) -> TopicDescription | None:
        return next((one for one in self.known.values() if one.topic_id == topic_id), None)

    def pattern(self, pattern: str) -> TopicPattern:
        return self.patterns.get(pattern)

    def create(self, name: str, partitions: int) -> UUID:
        self.made += 1
        self.version += 1
        topic_id = UUID(int=self.made)
        self.known[name] = TopicDescription(
            topic_id=topic_id, name=name, partition_count=partitions
        )
        return topic_id

    def grow(self, name: str, partitions: int) -> None:
        self.version += 1
        self.known[name] = replace(self.known[name], partition_count=partitions)

    def delete(self, name: str) -> None:
        self.version += 1
        del self.known[name]


def new_consumer_group(topics: NumberedTopics, settings: GroupSettings = SETTINGS) -> ConsumerGroup:
    return ConsumerGroup("group", topics, settings=settings, assignors=ASSIGNORS)
