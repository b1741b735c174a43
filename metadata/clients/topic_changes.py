"""Creating, growing and deleting topics: the catalogue and the other coordinators together.

The catalogue's leader has to reach the other coordinators for that, wherever they are led, and does
it through `peers`. Partitions come into being at their coordinators first and in the catalogue
last, so a topic that can be seen is complete; deleting goes the other way. What a crash leaves half
done is repeated by the next caller, or collected by `metadata.workers.catalogue_sweep`.

Used by `metadata.clients.local_client`. Every method raises NotCoordinator where the catalogue is
not led here, CommitFailed and CommitOutcomeUnknown.
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from uuid import UUID

from metadata import operations as ops
from metadata.clients.coordinator_client import CoordinatorClient
from metadata.coordinator.coordinator import PartitionCoordinator
from metadata.messages.brokers import CREATE_PARTITIONS_AT, DELETE_TOPICS_AT
from metadata.messages.shapes import Addressed
from metadata.rules.topics import coordinator_assignments
from wal.errors import DisklessError, UnknownTopicId
from wal.failpoint import failpoint


class TopicChanges:
    """Changes of topics at the catalogue that `catalogue` gives, or raises NotCoordinator."""

    def __init__(
        self,
        catalogue: Callable[[], PartitionCoordinator],
        *,
        coordinator_count: int,
        peers: CoordinatorClient,
        rng: random.Random,
    ) -> None:
        self._catalogue = catalogue
        self._coordinator_count: Final = coordinator_count
        self.peers = peers
        """Reaches all coordinators, led here or not."""
        self._rng = rng
        self._changing = asyncio.Lock()
        """Held by the catalogue's leader while a change goes through the coordinators. A creation
        of the same name in between would take the partitions that another one has made for those of
        a topic that is no more, and delete them."""

    async def create(
        self, topics: Sequence[ops.CreateTopic]
    ) -> Sequence[ops.TopicDescription | DisklessError]:
        catalogue = self._catalogue()
        if self._coordinator_count == 1:
            return await catalogue.create_topics(topics)
        async with self._changing:
            placed = [self._placed(topic) for topic in topics]
            failed = await self._create_shares(
                [
                    (topic.topic_id, topic.name, topic.assignments)
                    for topic in placed
                    if topic.topic_id is not None and topic.name not in catalogue.replica.topics()
                ]
            )
            failpoint("topic.after_shares")
            created = iter(
                await catalogue.create_topics(
                    [topic for topic in placed if topic.topic_id not in failed]
                )
            )
            return [
                failed[topic.topic_id] if topic.topic_id in failed else next(created)
                for topic in placed
                if topic.topic_id is not None
            ]

    def _placed(self, topic: ops.CreateTopic) -> ops.CreateTopic:
        topic_id = topic.topic_id or UUID(int=self._rng.getrandbits(128), version=4)
        return ops.CreateTopic(
            name=topic.name,
            partition_count=topic.partition_count,
            configs=topic.configs,
            topic_id=topic_id,
            assignments=coordinator_assignments(
                topic_id, 0, topic.partition_count, self._coordinator_count
            ),
        )

    async def grow(self, topics: Sequence[ops.CreatePartitions]) -> Sequence[DisklessError | None]:
        """New partitions are spread over all coordinators there are now.

        A topic that was deleted while somebody wanted it to grow is not made anew.
        """
        catalogue = self._catalogue()
        async with self._changing:
            placed = [self._grown(catalogue, topic) for topic in topics]
            failed: dict[UUID, DisklessError] = {
                topic.topic_id: UnknownTopicId(f"{topic.name} was deleted")
                for topic in placed
                if catalogue.replica.deleted_topic(topic.topic_id) is not None
            }
            failed.update(
                await self._create_shares(
                    [
                        (topic.topic_id, topic.name, topic.assignments)
                        for topic in placed
                        if topic.topic_id not in failed and _may_be_created(catalogue, topic)
                    ]
                )
            )
            failpoint("topic.after_shares")
            created = iter(
                await catalogue.create_partitions(
                    [topic for topic in placed if topic.topic_id not in failed]
                )
            )
            return [
                failed[topic.topic_id] if topic.topic_id in failed else next(created)
                for topic in placed
            ]

    def _grown(
        self, catalogue: PartitionCoordinator, topic: ops.CreatePartitions
    ) -> ops.CreatePartitions:
        known = catalogue.replica.topic_by_id(topic.topic_id)
        return ops.CreatePartitions(
            topic_id=topic.topic_id,
            name=topic.name,
            partition_count=topic.partition_count,
            assignments=coordinator_assignments(
                topic.topic_id,
                0 if known is None else known.partition_count,
                topic.partition_count,
                self._coordinator_count,
            ),
        )

    async def _create_shares(
        self, topics: Sequence[tuple[UUID, str, Mapping[int, int]]]
    ) -> Mapping[UUID, DisklessError]:
        """Create the partitions that live beside the catalogue; the topics that failed, and why.

        Of several topics of one name, or names of one topic, the catalogue will take the first.
        """
        ids: dict[str, UUID] = {}
        names: dict[UUID, str] = {}
        wanted_at: dict[int, dict[UUID, set[int]]] = {}
        for topic_id, name, assignments in topics:
            is_known_as = names.setdefault(topic_id, name)
            if ids.setdefault(name, topic_id) == topic_id and is_known_as == name:
                for index, coordinator in assignments.items():
                    wanted_at.setdefault(coordinator, {}).setdefault(topic_id, set()).add(index)
        shares = {
            coordinator: {
                topic_id: ops.CreatePartitionsAt(
                    topic_id=topic_id, name=names[topic_id], partitions=sorted(indexes)
                )
                for topic_id, indexes in wanted.items()
            }
            for coordinator, wanted in wanted_at.items()
        }

        async def create(coordinator: int) -> Sequence[tuple[UUID, DisklessError | None]]:
            wanted = shares[coordinator]
            try:
                asked = Addressed(coordinator, [*wanted.values()])
                errors = await self.peers.call(CREATE_PARTITIONS_AT, asked)
            except DisklessError as error:
                return [(topic_id, error) for topic_id in wanted]
            return list(zip(wanted, errors, strict=True))

        outcomes = await asyncio.gather(*[create(coordinator) for coordinator in shares])
        failed = {
            topic_id: error
            for outcome in outcomes
            for topic_id, error in outcome
            if error is not None
        }
        # The next one of its name would become a topic without these partitions.
        return {
            topic_id: failed[ids[name]] for topic_id, name in names.items() if ids[name] in failed
        }

    async def delete(self, topic_ids: Sequence[UUID]) -> Sequence[DisklessError | None]:
        catalogue = self._catalogue()
        shares: dict[int, list[UUID]] = {}
        async with self._changing:
            for topic_id in topic_ids:
                topic = catalogue.replica.topic_by_id(topic_id)
                for coordinator in set(() if topic is None else topic.assignments.values()):
                    shares.setdefault(coordinator, []).append(topic_id)
            deleted = await catalogue.delete_topics(topic_ids)
            failpoint("topic.after_deletion")
        # Gone for everybody now; what a coordinator that cannot be reached keeps of it is found by
        # the sweep later.
        await asyncio.gather(
            *[self.peers.call(DELETE_TOPICS_AT, Addressed(*share)) for share in shares.items()],
            return_exceptions=True,
        )
        return deleted


def _may_be_created(catalogue: PartitionCoordinator, topic: ops.CreatePartitions) -> bool:
    """Whether the catalogue will take it, so that its shares are worth creating."""
    named = catalogue.replica.topics().get(topic.name)
    known = catalogue.replica.topic_by_id(topic.topic_id)
    return named == known
