"""Topics that only a coordinator beside the catalogue still has."""

from collections.abc import Sequence
from uuid import UUID

import pytest

from metadata.operations import TopicDescription
from metadata.workers.catalogue_sweep import ABANDONED_AFTER_S, CatalogueSweep
from wal.clock import ManualClock
from wal.errors import CommitFailed, DisklessError

KEPT, ABANDONED = UUID(int=1), UUID(int=2)


class Owner:
    """The topics of one coordinator."""

    def __init__(self) -> None:
        self.topics = {
            topic_id: TopicDescription(topic_id=topic_id, name=str(topic_id), partition_count=1)
            for topic_id in (KEPT, ABANDONED)
        }
        self.failures = 0

    async def delete_topics(self, topic_ids: Sequence[UUID]) -> Sequence[DisklessError | None]:
        if self.failures:
            self.failures -= 1
            raise CommitFailed("not now")
        for topic_id in topic_ids:
            del self.topics[topic_id]
        return [None] * len(topic_ids)


class Swept:
    """A sweep over an `Owner`, and the catalogue it compares with."""

    def __init__(self) -> None:
        self.owner = Owner()
        self.catalogue = {KEPT}
        self.is_followed = True
        self.clock = ManualClock()
        self.sweep = CatalogueSweep(
            self.owner,
            have=lambda: self.owner.topics.keys(),
            catalogue_has=lambda topic_id: topic_id in self.catalogue,
            is_catalogue_followed=lambda: self.is_followed,
            clock=self.clock,
        )

    async def after(self, seconds: float) -> set[UUID]:
        """The topics that are left when it sweeps `seconds` later."""
        self.clock.advance(seconds)
        await self.sweep.sweep_once()
        return set(self.owner.topics)


@pytest.fixture
def swept() -> Swept:
    return Swept()


async def test_only_a_topic_that_stays_missing_is_deleted(swept: Swept) -> None:
    assert await swept.after(0) == {KEPT, ABANDONED}
    assert await swept.after(ABANDONED_AFTER_S - 1) == {KEPT, ABANDONED}
    assert await swept.after(1) == {KEPT}
    assert swept.sweep.topics_deleted == 1


async def test_a_topic_that_is_being_created_is_left_alone(swept: Swept) -> None:
    await swept.after(0)
    swept.catalogue.add(ABANDONED)
    await swept.after(ABANDONED_AFTER_S)
    swept.catalogue.discard(ABANDONED)
    assert await swept.after(1) == {KEPT, ABANDONED}, "its time starts anew"


async def test_nothing_is_missing_while_the_catalogue_is_not_followed(swept: Swept) -> None:
    await swept.after(0)
    swept.is_followed = False
    assert await swept.after(ABANDONED_AFTER_S * 2) == {KEPT, ABANDONED}
    swept.is_followed = True
    assert await swept.after(1) == {KEPT, ABANDONED}


async def test_a_failed_deletion_is_made_later(swept: Swept) -> None:
    await swept.after(0)
    swept.owner.failures = 1
    with pytest.raises(CommitFailed):
        await swept.after(ABANDONED_AFTER_S)
    assert await swept.after(1) == {KEPT}
