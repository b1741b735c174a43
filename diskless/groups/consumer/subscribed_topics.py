"""Resolves the topics that the members of a KIP-848 group subscribe to.

Subscriptions are names, a pattern, or both; what counts is the topics there are. What they come to
is kept until topics change, and shared by members with the same subscription. The cluster's own
topics are not found by patterns: a member that wants to read the metadata log names it. Nor are
topics that the member may not describe whose heartbeat made the group look; as in Kafka, that is
whichever member comes first, and a change of its rights counts when topics change next.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from diskless.groups.consumer.topic_patterns import TopicPattern
from diskless.groups.consumer_state import ConsumerMember
from metadata.operations import TopicDescription


class Topics(Protocol):
    """The topics there are; `diskless.groups.offsets.TopicsWith`."""

    @property
    def version(self) -> int:
        """Another one whenever topics were created or deleted, or have more partitions."""
        ...

    def topics(self) -> Mapping[str, TopicDescription]: ...

    def topic(self, name: str) -> TopicDescription | None: ...

    def named(self, names: AbstractSet[str]) -> Sequence[TopicDescription]:
        """Those of these names that there are."""
        ...

    def topic_by_id(self, topic_id: UUID) -> TopicDescription | None: ...

    def pattern(self, pattern: str) -> TopicPattern:
        """The same one for all that use it. Raises: InvalidRegularExpression."""
        ...


_NEVER: Final = -1
"""No version of the topics."""


class _Resolved(NamedTuple):
    names: frozenset[str]
    """Whether there are such topics or not."""
    topic_names: Mapping[UUID, str]
    counts: Mapping[UUID, int]
    ids: frozenset[UUID]


class SubscribedTopics:
    """The topics of one group's members."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._version = _NEVER
        self._resolved: dict[tuple[tuple[str, ...], str | None], _Resolved] = {}
        self._patterns: dict[str, TopicPattern] = {}
        self.described: Callable[[frozenset[str]], frozenset[str]] = frozenset
        """Those of some topics that may be found by a pattern; set by each heartbeat."""
        self.topic_names: Mapping[UUID, str] = {}
        """Of the topics that members mean, as of the last `counts`."""

    @property
    def is_current(self) -> bool:
        """Whether topics are still the same as when they were looked at last."""
        return self._version == self._topics.version

    def look_again(self) -> None:
        """Topics count as not looked at, whether they have changed or not."""
        self._version = _NEVER

    def patterns_to_match(self, members: Iterable[ConsumerMember]) -> AbstractSet[str]:
        """Those that the next `counts` has to match with topics that are new."""
        if self.is_current:
            return frozenset()
        return {one.topic_pattern for one in members if one.topic_pattern is not None}

    def check_pattern(self, pattern: str) -> None:
        """Raises: InvalidRegularExpression."""
        self._pattern(pattern)

    def counts(self, members: Iterable[ConsumerMember]) -> Mapping[UUID, int]:
        """The number of partitions of every topic that any of the members means."""
        if not self.is_current:
            self._version = self._topics.version
            self._resolved.clear()
        counts: dict[UUID, int] = {}
        topic_names: dict[UUID, str] = {}
        in_use = {(member.topic_names, member.topic_pattern) for member in members}
        for names, pattern in in_use:
            resolved = self._resolve(names, pattern)
            counts.update(resolved.counts)
            topic_names.update(resolved.topic_names)
        self.topic_names = topic_names
        self._resolved = {key: self._resolved[key] for key in in_use}
        patterns = {pattern for _, pattern in in_use}
        self._patterns = {
            pattern: compiled for pattern, compiled in self._patterns.items() if pattern in patterns
        }
        return counts

    def ids(self, member: ConsumerMember) -> frozenset[UUID]:
        """The topics that one member means, as of the last `counts`."""
        return self._resolve(member.topic_names, member.topic_pattern).ids

    def includes(self, member: ConsumerMember, topic_name: str) -> bool:
        """Whether a member reads the topic of this name, or would if there were one."""
        if topic_name in member.topic_names:
            return True
        return topic_name in self._resolve(member.topic_names, member.topic_pattern).names

    def names(self, topic_ids: Iterable[UUID]) -> Mapping[UUID, str]:
        found = map(self._topics.topic_by_id, topic_ids)
        return {topic.topic_id: topic.name for topic in found if topic is not None}

    def _resolve(self, names: tuple[str, ...], pattern: str | None) -> _Resolved:
        key = names, pattern
        known = self._resolved.get(key)
        if known is None:
            wanted = frozenset(names)
            if pattern is not None:
                matching = self._pattern(pattern).matching(self._topics.topics())
                wanted |= self.described(matching)
            found = self._topics.named(wanted)
            counts = {topic.topic_id: topic.partition_count for topic in found}
            topic_names = {topic.topic_id: topic.name for topic in found}
            known = _Resolved(wanted, topic_names, counts, frozenset(counts))
            self._resolved[key] = known
        return known

    def _pattern(self, pattern: str) -> TopicPattern:
        compiled = self._patterns.get(pattern)
        if compiled is None:
            compiled = self._patterns[pattern] = self._topics.pattern(pattern)
        return compiled
