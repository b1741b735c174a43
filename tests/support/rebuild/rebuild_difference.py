"""What a rebuilt log says otherwise than the cluster that it was rebuilt from."""

from collections.abc import Sequence
from typing import NamedTuple

from metadata.rebuild.facts import BucketFacts
from metadata.rebuild.plan import RebuildPlan
from tests.support.rebuild.rebuild_cluster import Cluster
from tests.support.rebuild.rebuild_history import RebuiltLog, replayed


class Difference(NamedTuple):
    """What a rebuild made of a history, in records."""

    live: int
    lost: Sequence[str]
    """Live batches that are nowhere."""
    moved: int
    """Records at another offset than they had."""
    unnamed: Sequence[str]
    """Batches at another offset that the report does not name."""
    doubled: Sequence[str]
    given_again: Sequence[str]
    """Partitions that would give an offset a second time."""


def difference(cluster: Cluster, facts: BucketFacts, plan: RebuildPlan) -> Difference:
    """Compare what really was with what the plan's records make; every batch has its own CRC."""
    state = replayed(plan.records)
    crc_of = {
        (item.object_key, position): extent.crc
        for item in facts.objects
        for position, extent in enumerate(item.extents)
    }
    for new in plan.new_objects:
        for position, (extent, part) in enumerate(zip(new.plan.extents, new.parts, strict=True)):
            if not isinstance(part, bytes):  # what fills a hole is nobody's
                crc_of[new.object_key, position] = extent.crc
    named = {(run.object_key, run.topic, run.partition) for run in plan.report.inferred}
    found = Difference(0, [], 0, [], [], [])
    live = moved = 0
    for partition, truth in cluster.partitions.items():
        name = state.names.get(partition.topic_id, "")
        log = state.partitions.get(partition, RebuiltLog())
        served: dict[int, int] = {}
        for base, (_, batch) in log.batches.items():
            crc = crc_of.get(batch)
            if crc in served:
                found.doubled.append(f"{partition}: {base} and {served[crc]}")
            elif crc is not None:
                served[crc] = base
        for placed in truth.live:
            what = f"{partition}: {placed}"
            count = placed.extent.record_count
            live += count
            if placed.base_offset < truth.rolled_end:
                bounds = [(base, end) for base, (end, _) in log.segments.items()]
                if not any(base <= placed.base_offset < end for base, end in bounds):
                    found.lost.append(f"in a segment, {what}")
            elif placed.extent.crc not in served:
                found.lost.append(what)
            elif served[placed.extent.crc] != placed.base_offset:
                moved += count
                if (placed.batch[0], name, partition.partition) not in named:
                    found.unnamed.append(f"{what} is at {served[placed.extent.crc]}")
        if log.high_watermark < truth.high_watermark:
            found.given_again.append(
                f"{partition}: from {log.high_watermark}, not {truth.high_watermark}"
            )
    return found._replace(live=live, moved=moved)
