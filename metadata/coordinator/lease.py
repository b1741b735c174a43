"""A leader's lease: how long nobody else can lead, asked for and kept.

Every append to the metadata log prolongs the lease, so commits renew it. An idle leader appends a
NoOp when little of its lease is left.

Strict reads ask for the lease after they have read: as long as it holds, nobody else can have
changed anything that was acknowledged before. When it has run out, an append that succeeds proves
the same.

A leader that resigns holds nothing any more from when it begins to: who stands next does not wait.

Failure cases: a NoOp that the log refuses is tried again until somebody else leads.
"""

import asyncio
import logging
import math
from typing import Final

from metadata.coordinator.pipeline import Pipeline
from metadata.log.log import MetadataLog
from metadata.records.control import NoOpRecord
from metadata.replica.replica import Replica
from metadata.rules.commit import Decision
from wal.clock import Clock, Sleep
from wal.errors import CommitFailed, NotCoordinator, Overloaded

_RETRY_S: Final = 0.5

_logger = logging.getLogger(__name__)


class Lease:
    """The lease of the leader whose appends go through `pipeline`."""

    def __init__(
        self,
        pipeline: Pipeline,
        replica: Replica,
        log: MetadataLog,
        *,
        clock: Clock,
        renewal_ms: int,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`renewal_ms`: an idle leader appends something when its lease has only that long left."""
        self._pipeline = pipeline
        self._replica = replica
        self._log = log
        self._clock = clock
        self._renewal_s = renewal_ms / 1000
        self._sleep = sleep

    def holds(self) -> bool:
        """Whether nobody else can lead now, without asking anybody."""
        expires_at = self._log.lease_expires_at
        if expires_at is None or self._pipeline.is_ending:
            return False
        return self._clock.monotonic() < expires_at

    async def confirm(self) -> None:
        """Return when nobody else can have led until now: by the lease, else by an append.

        Raises: NotCoordinator, CommitFailed, CommitOutcomeUnknown.
        """
        self._pipeline.refuse_when_stopped()
        if self._log.lease_expires_at is None:
            raise NotCoordinator("this process does not lead the metadata log")
        if not self.holds():
            await self.renew()

    async def renew(self) -> None:
        """Prove and prolong leadership by an append. Raises like `confirm`."""
        leader = self._replica.leader
        record = NoOpRecord(leader_epoch=0 if leader is None else leader.leader_epoch)
        await self._pipeline.perform(lambda view, _: Decision((record,), None))

    async def keep(self) -> None:
        """Renew the lease whenever it is about to end; returns when it is lost or has no end."""
        while (expires_at := self._log.lease_expires_at) is not None and expires_at < math.inf:
            left_s = expires_at - self._clock.monotonic()
            if left_s > self._renewal_s:
                await self._sleep(left_s - self._renewal_s)
                continue
            try:
                await self.renew()
            except (CommitFailed, Overloaded) as error:
                number = self._replica.coordinator_id
                _logger.warning("the lease of coordinator %d: %s", number, error)
                await self._sleep(_RETRY_S)
