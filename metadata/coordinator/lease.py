"""A leader's lease, which tells others not to stand, and the proof that it leads still.

Every append to the metadata log prolongs the lease, so commits renew it. An idle leader appends a
NoOp every third of a lease as long as a broker counts the time since the last append, which is one
that it does not feed; where all are fed it appends nothing. No promise rests on the lease.

Strict reads call `confirm` after they have read: the log is asked whether anybody else has appended
since the read came (metadata/log/end_proofs.py). If so, leading ends.

A leader that resigns holds nothing any more from when it begins to: who stands next does not wait.

Failure cases: a NoOp that the log refuses is tried again until somebody else leads; a store that
does not answer fails the strict read alone.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Final, NamedTuple

from metadata.coordinator.pipeline import Pipeline
from metadata.log.log import MetadataLog
from metadata.records.control import NoOpRecord
from metadata.replica.replica import Replica
from metadata.rules.commit import Decision
from wal.clock import Clock, Sleep
from wal.errors import CommitFailed, NotCoordinator, Overloaded

CERTAIN_S: Final = 3.0
"""Heartbeats of groups need no newer proof: the next leader gives every member a whole session, so
nobody is expelled within this time."""

_RETRY_S: Final = 0.5
_RENEW_WHEN_LEFT: Final = 2 / 3
_LOOKS_PER_LEASE: Final = 8
"""How often it is looked whether somebody is not fed any more, and counts."""

_logger = logging.getLogger(__name__)


class Keeping(NamedTuple):
    """How long a lease is, and when it is kept."""

    lease_ms: int
    is_waited_for: Callable[[], bool]
    """Whether a broker counts the time since the last append."""


NO_LEASE: Final = Keeping(0, lambda: False)
"""Where nobody else can lead."""


class Lease:
    """The lease of the leader whose appends go through `pipeline`."""

    def __init__(
        self,
        pipeline: Pipeline,
        replica: Replica,
        log: MetadataLog,
        *,
        clock: Clock,
        keeping: Keeping,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._pipeline = pipeline
        self._replica = replica
        self._log = log
        self._clock = clock
        self._lease_s = keeping.lease_ms / 1000
        self._is_waited_for = keeping.is_waited_for
        self._sleep = sleep

    def is_certain(self) -> bool:
        """Whether nobody else led until CERTAIN_S ago, without asking anybody."""
        since = self._log.proven_since
        if since is None or self._pipeline.is_ending:
            return False
        return self._clock.monotonic() < since + CERTAIN_S

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
        """Renew the lease while it is waited for; returns when it is lost or has no end."""
        while (expires_at := self._log.lease_expires_at) is not None and expires_at < math.inf:
            is_waited_for = self._is_waited_for()
            left_s = expires_at - self._clock.monotonic()
            early_s = left_s - self._lease_s * _RENEW_WHEN_LEFT
            if early_s > 0 or not is_waited_for:
                await self._sleep(max(early_s, self._lease_s / _LOOKS_PER_LEASE))
                continue
            try:
                await self.renew()
            except (CommitFailed, Overloaded) as error:
                number = self._replica.coordinator_id
                _logger.warning("the lease of coordinator %d: %s", number, error)
                await self._sleep(_RETRY_S)
