"""Finds what creating and deleting topics left behind at a coordinator beside the catalogue.

A topic's partitions are created at their coordinators before the catalogue knows them, and deleted
after it has forgotten them. A crash in between, or a coordinator that could not be reached, leaves
partitions that no topic owns. The sweep compares the two from time to time and deletes a topic here
that the catalogue has not had for long enough.

"Long enough" (`ABANDONED_AFTER_S`) is measured here, by the monotonic clock, from the first time it
was missing, and starts anew with every leader. It is far beyond the time that any creation takes,
and beyond the time by which this broker's replica of the catalogue may lag; while that replica has
no leader to follow, nothing counts as missing.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final, Protocol
from uuid import UUID

from metadata.workers.periodic import repeat
from wal.clock import Clock, Sleep
from wal.errors import DisklessError

ABANDONED_AFTER_S: Final = 15 * 60.0
CHECK_INTERVAL_S: Final = 60.0

_logger = logging.getLogger(__name__)


class TopicOwner(Protocol):
    """The coordinator whose topics are compared."""

    async def delete_topics(self, topic_ids: Sequence[UUID]) -> Sequence[DisklessError | None]: ...


class CatalogueSweep:
    """One background worker per coordinator beside the catalogue."""

    def __init__(
        self,
        coordinator: TopicOwner,
        *,
        have: Callable[[], Collection[UUID]],
        catalogue_has: Callable[[UUID], bool],
        is_catalogue_followed: Callable[[], bool],
        clock: Clock,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`have`: the topics at `coordinator`; the other two ask this broker's catalogue."""
        self._coordinator = coordinator
        self._have = have
        self._catalogue_has = catalogue_has
        self._is_catalogue_followed = is_catalogue_followed
        self._clock = clock
        self._sleep = sleep
        self._missing_since: dict[UUID, float] = {}
        self.topics_deleted = 0

    async def run(self) -> None:
        """Sweep until cancelled."""
        await repeat(
            self.sweep_once,
            interval_s=CHECK_INTERVAL_S,
            backoff_max_s=0,
            sleep=self._sleep,
            failed=partial(_logger.warning, "abandoned topics are deleted later: %s"),
        )

    async def sweep_once(self) -> None:
        """Look once. Raises: CommitFailed, CommitOutcomeUnknown, NotCoordinator."""
        if not self._is_catalogue_followed():
            self._missing_since.clear()
            return
        now = self._clock.monotonic()
        missing = {topic_id for topic_id in self._have() if not self._catalogue_has(topic_id)}
        self._missing_since = {
            topic_id: self._missing_since.get(topic_id, now) for topic_id in missing
        }
        abandoned = [
            topic_id
            for topic_id, since in self._missing_since.items()
            if now - since >= ABANDONED_AFTER_S
        ]
        if abandoned:
            _logger.info("topics that the catalogue does not have are deleted: %s", abandoned)
            await self._coordinator.delete_topics(abandoned)
            self.topics_deleted += len(abandoned)
