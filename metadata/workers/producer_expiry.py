"""Forgets producers, and sinks, that were silent for too long, so that state cannot grow.

Every idempotent producer leaves a row per partition that it writes to, and clients take a new
producer id with every start. Whether one has expired is decided where its batches are checked, by
the time of its last batch; this worker only deletes the rows of those that have.

It asks for one bounded step after the other until nothing is left. A step is a record
(ProducersExpired: silent since when, and at most how many), so that every replica forgets the same
ones, the longest silent first. The coordinator sets the time, by the clock with which it judges
batches, and which a wall clock that jumps ahead does not move (wal/steady_clock.py). A batch that
is decided behind that record finds its producer expired, row or no row, so it makes no difference
that the record may not have been applied yet.

The numbers of transactions that were closed (metadata/rules/transactions/parts.py) leave rows as
well, and are forgotten alike, in steps of their own.

Sinks (metadata/rules/sinks) are few and in memory; those that committed nothing for
`sink.id.expiration.ms` go in the same passes.

One worker per coordinator, running where it is led. Ends by cancellation; what fails is tried again
after the next pause.
"""

import asyncio
import logging
from functools import partial
from typing import Final, Protocol

from metadata.replica.replica import Replica
from metadata.retention_settings import RetentionSettings
from metadata.state.producer_rows import expired_producers
from metadata.workers.periodic import repeat
from wal.clock import Sleep
from wal.failpoint import failpoint

BACKOFF_MAX_S: Final = 600.0
SINKS_AT_ONCE: Final = 1_000

_logger = logging.getLogger(__name__)


class ClosedTransactions(Protocol):
    """`metadata.coordinator.transactions.Transactions`."""

    async def expire_closed(self, limit: int) -> bool:
        """Forget up to `limit` numbers that are old enough; False: there are none."""
        ...


class ExpiringCoordinator(Protocol):
    """What expiry needs of a coordinator."""

    @property
    def replica(self) -> Replica: ...

    @property
    def steady_ms(self) -> int:
        """The time by which producers expire."""
        ...

    async def expire_producers(self, limit: int) -> None:
        """Forget up to `limit` of the producers that have expired by now."""
        ...

    async def expire_sinks(self, limit: int) -> int:
        """The same of sinks; returns how many they were."""
        ...

    @property
    def transactions(self) -> ClosedTransactions: ...


class ProducerExpiry:
    """One background worker per coordinator."""

    def __init__(
        self,
        coordinator: ExpiringCoordinator,
        *,
        expiration_ms: int,
        settings: RetentionSettings,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`expiration_ms` is `producer.id.expiration.ms` as the coordinator has it."""
        self._coordinator = coordinator
        self._expiration_ms = expiration_ms
        self._settings = settings
        self._sleep = sleep

    async def run(self) -> None:
        """Look for expired producers again and again, until cancelled."""
        await repeat(
            self.pass_once,
            interval_s=self._settings.producer_check_interval_ms / 1000,
            backoff_max_s=BACKOFF_MAX_S,
            sleep=self._sleep,
            failed=partial(_logger.warning, "expiring producers failed, trying again later: %s"),
        )

    async def pass_once(self) -> int:
        """Forget all that have expired; returns how many steps that took.

        Raises: CommitFailed, NotCoordinator, CommitOutcomeUnknown, StorageFailed.
        """
        steps = 0
        while await self._has_expired():
            await self._coordinator.expire_producers(self._settings.step_rows_max)
            failpoint("expiry.after_step")
            steps += 1
        while await self._coordinator.transactions.expire_closed(self._settings.step_rows_max):
            failpoint("expiry.after_step")
            steps += 1
        while self._coordinator.replica.image.sinks and await self._coordinator.expire_sinks(
            SINKS_AT_ONCE
        ):
            steps += 1
        return steps

    async def _has_expired(self) -> bool:
        before_ms = self._coordinator.steady_ms - self._expiration_ms
        look = partial(expired_producers, before_ms=before_ms, limit=1)
        return bool(await self._coordinator.replica.state.read(look))
