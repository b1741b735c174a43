"""Deletes the rows that deleted topics have left behind, a bounded number at a time.

TopicDeleted makes a topic disappear and deletes its first rows; what is left is written down in the
table `swept` (see `RowsSweptRecord`). This worker looks there every few seconds, which costs one
look at an index, and asks for one step after the other until nothing is left. Between two steps
everybody else has their turn.

One worker per coordinator, running where it is led; a new leader finds the same rows and goes on.
Ends by cancellation; what fails is tried again after the next pause.
"""

import asyncio
import logging
from functools import partial
from typing import Final, Protocol

from sqlalchemy import Connection, select

from metadata.replica.replica import Replica
from metadata.retention_settings import RetentionSettings
from metadata.state.schema import SWEPT
from metadata.workers.periodic import repeat
from wal.clock import Sleep
from wal.failpoint import failpoint

BACKOFF_MAX_S: Final = 60.0

_logger = logging.getLogger(__name__)


class SweepingCoordinator(Protocol):
    """What sweeping needs of a coordinator."""

    @property
    def replica(self) -> Replica: ...

    async def sweep_rows(self, limit: int) -> None:
        """Delete up to `limit` rows of deleted topics."""
        ...


class RowSweeper:
    """One background worker per coordinator."""

    def __init__(
        self,
        coordinator: SweepingCoordinator,
        *,
        settings: RetentionSettings,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._coordinator = coordinator
        self._settings = settings
        self._sleep = sleep

    async def run(self) -> None:
        """Sweep whenever there is something, until cancelled."""
        await repeat(
            self.pass_once,
            interval_s=self._settings.sweep_interval_ms / 1000,
            backoff_max_s=BACKOFF_MAX_S,
            sleep=self._sleep,
            failed=partial(_logger.warning, "sweeping rows failed, trying again later: %s"),
        )

    async def pass_once(self) -> int:
        """Sweep until nothing is left; returns how many steps that took.

        Raises: CommitFailed, NotCoordinator, CommitOutcomeUnknown, StorageFailed.
        """
        steps = 0
        while await self._coordinator.replica.state.read(is_anything_swept):
            await self._coordinator.sweep_rows(self._settings.step_rows_max)
            failpoint("sweep.after_step")
            steps += 1
        return steps


def is_anything_swept(connection: Connection) -> bool:
    """Whether a deleted topic has rows left."""
    return connection.execute(select(SWEPT.table.c.partition).limit(1)).first() is not None
