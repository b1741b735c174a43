"""Who a process is when it leads a metadata partition, and what the log says of who leads."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from metadata.operations import Leader
from metadata.records.control import NO_BROKER
from metadata.replica.replica import Replica


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Who this process is when it leads."""

    broker_id: int
    host: str
    port: int
    incarnation: UUID
    """This life of the broker."""
    past_incarnations: Sequence[UUID] = ()
    """Earlier lives of this broker that are certainly over."""
    may_lead: bool = True


def current_leader(replica: Replica) -> Leader | None:
    """The leader as far as `replica` has read; None: there was none, or it resigned."""
    leader = replica.leader
    return None if leader is None or leader.broker_id == NO_BROKER else leader
