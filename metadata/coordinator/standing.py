"""Says when a process may try to lead a metadata partition whose leader is silent. No I/O.

Standing too early does no harm but a change of leader: the log takes one (metadata/log/log.py, L7),
and no read rests on how long anybody waits.

Silence counts from when the leader was last heard of: from the last entry that was *seen*, which is
later than its lease began, and from the last time that it fed this process or stopped to. A
process stands

- at once when there never was a leader, when the last one resigned to this broker or to nobody, and
  when the last one was an earlier life of this broker: its data directory is locked, so that life
  is over
- SUCCESSOR_COMES_S after the last one resigned to another broker
- after 1.1 leases, a small random share, and a tenth of a lease for each broker that ranks before
  it, so that candidates rarely collide. Within that time a leader that lives has appended
  something for a broker that it does not feed any more (metadata/coordinator/lease.py)
- after STRANGER_LEASES when it is not registered, or has the node id of the leader: a leader
  appends nothing for brokers that it does not know, and who has just come needs that long to become
  known
"""

import math
import random
from typing import Final

from metadata.leadership.candidate import Candidate
from metadata.log.log import LEASE_MARGIN
from metadata.operations import Leader
from metadata.records.control import NO_BROKER

SUCCESSOR_COMES_S: Final = 2.0
"""How long all others wait for the successor that a leader named when it resigned."""
STRANGER_LEASES: Final = 6.6

_JITTER_OF_LEASE: Final = 0.1
_RANK_OF_LEASE: Final = 0.1


class Standing:
    """One process and one metadata partition, as long as it follows."""

    def __init__(self, *, rng: random.Random, lease_ms: int) -> None:
        self._rng = rng
        self._lease_s = lease_ms / 1000
        self._jitter_s = 0.0
        self._heard_at = 0.0

    def begin(self, now: float) -> None:
        """It begins to follow."""
        self._jitter_s = self._rng.random() * _JITTER_OF_LEASE * self._lease_s
        self._heard_at = now

    def heard(self, now: float) -> None:
        """The leader was heard of, or has just stopped to feed this process."""
        self._heard_at = now

    def is_successor_due(self, now: float, last: Leader | None) -> bool:
        """Whether the leader resigned a moment ago, to a broker that stands now."""
        return (
            last is not None
            and last.broker_id == NO_BROKER
            and last.successor_id != NO_BROKER
            and now - self._heard_at < SUCCESSOR_COMES_S
        )

    def wait_s(
        self,
        now: float,
        *,
        candidate: Candidate,
        last: Leader | None,
        rank: int,
        is_registered: bool,
    ) -> float:
        """How long it has to wait still, if the leader stays silent; 0: it may stand.

        `last` is what the log says of its leader, `rank` how many stand before `candidate`.
        """
        if not candidate.may_lead:
            return math.inf
        if last is None:
            return 0.0
        silent_s = now - self._heard_at
        if last.broker_id == NO_BROKER:
            is_named = last.successor_id in (NO_BROKER, candidate.broker_id)
            return 0.0 if is_named else max(SUCCESSOR_COMES_S - silent_s, 0.0)
        if last.incarnation in (candidate.incarnation, *candidate.past_incarnations):
            return 0.0
        is_known = is_registered and candidate.broker_id != last.broker_id
        leases = LEASE_MARGIN + rank * _RANK_OF_LEASE if is_known else STRANGER_LEASES
        return max(leases * self._lease_s + self._jitter_s - silent_s, 0.0)
