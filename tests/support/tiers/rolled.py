"""Tiering without Spark: roll and merge in this process, through a live broker's socket."""

from collections.abc import Sequence

from metadata.operations import PlanSegments, RolledSegment
from metadata.rewrites import MERGE, Rewrite, RewritePlan, outcome_of
from tests.support.brokers.live_broker import LiveBroker
from tiering.coordinator_client import CoordinatorClient
from tiering.jobs.rewrites import RewriteReport, rewrite_once
from tiering.merging.merge import merge
from tiering.roll import roll
from tiering.rounds import Done, Written
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


def merge_all(
    plans: Sequence[RewritePlan], object_store_url: str, done: Done
) -> Sequence[Written[RewritePlan, Rewrite]]:
    """Merge in this process, one after the other."""
    with open_blocking_store(object_store_url, sync=False) as store:
        return [Written(plan, outcome_of(plan, [merge(plan, store)])) for plan in plans]


def merge_everything(broker: LiveBroker) -> RewriteReport:
    """Merge all small neighbours that are due; none fails."""
    report = rewrite_once(CoordinatorClient(broker.bootstrap), MERGE, merge_all)
    assert report.failures == []
    return report
