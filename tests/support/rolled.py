"""Tiering without Spark: plan, roll in this process, commit, through a live broker's socket."""

from collections.abc import Sequence

from metadata.operations import PlanSegments, RolledSegment
from tests.support.live_broker import LiveBroker
from tiering.coordinator_client import CoordinatorClient
from tiering.roll import roll
from wal.stores.blocking_store import open_blocking_store


def roll_everything(broker: LiveBroker) -> Sequence[RolledSegment]:
    """Put all that is committed by now into segments; what was rolled."""
    coordinator = CoordinatorClient(broker.bootstrap)
    planned = coordinator.plan_segments(PlanSegments(include_partial=True, max_plans=1_000))
    with open_blocking_store(planned.object_store_url, sync=False) as store:
        rolled = [roll(plan, store).segment for plan in planned.plans]
    errors = [commit.error for commit in coordinator.commit_segments(rolled)]
    assert not any(errors), errors
    return rolled
