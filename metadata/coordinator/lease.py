"""A leader's lease, which tells others not to stand, and the proof that it leads still.

Every append to the metadata log prolongs the lease, so commits renew it. An idle leader appends a
NoOp when little of its lease is left. No promise rests on the lease.

Strict reads call `confirm` after they have read: the log is asked whether anybody else has appended
since the read came (metadata/log/end_proofs.py). If so, leading ends.

A leader that resigns holds nothing any more from when it begins to: who stands next does not wait.

Failure cases: a NoOp that the log refuses is tried again until somebody else leads; a store that
does not answer fails the strict read alone.
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
        """Whether nobody else stands who keeps to the lease, without asking anybody."""
        expires_at = self._log.lease_expires_at
        if expires_at is None or self._pipeline.is_ending:
            return False
        return self._clock.monotonic() < expires_at

    async def confirm(self) -> None:
        """Return when nobody else has led until this call.

        Raises: NotCoordinator, StorageFailed, CorruptLog.
        """
        self._pipeline.refuse_when_stopped()
        if self._pipeline.is_ending:
            await self.renew()  # waits for the end
        try:
            await self._log.prove()
        except NotCoordinator:
            # An append that the log refuses ends the term: it hears of it by nothing else.
            await self.renew()
            raise

    async def renew(self) -> None:
        """Prolong the lease by an append.

        Raises: NotCoordinator, CommitFailed, CommitOutcomeUnknown, Overloaded.
        """
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
