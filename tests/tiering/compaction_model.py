"""What should be in a topic, from the plans of its compactions alone: a dictionary of keys.

A `TopicModel` is told what was written and what was planned, and says which records are there, each
under its offset, and which tombstones wait until when. The rules are Kafka's, written down once
more and for one record after the other.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tiered_topics import SETTINGS, Seen

from metadata.rewrites import COMPACTION, MERGE, Rewrite, RewritePlan
from metadata.table_operations import LiveSegment
from wal.coordinates import TopicIdPartition

_NEVER_MS: Final = 2**63 - 1


class Outcome(NamedTuple):
    """What a compaction changes."""

    removed: set[int]
    marked: set[int]
    """Tombstones that get their horizon."""

    def within(self, base: int, last: int) -> "Outcome":
        inside = range(base, last + 1)
        return Outcome(*({at for at in offsets if at in inside} for offsets in self))


@dataclass
class TopicModel:
    """A topic of one partition."""

    name: str
    partition: TopicIdPartition
    configs: Mapping[str, str]
    written: list[Seen] = field(default_factory=list)
    """All records there ever were."""
    there: set[int] = field(default_factory=set)
    """Offsets of those that no compaction has removed."""
    horizons: dict[int, int] = field(default_factory=dict)
    start: int = 0
    cleaned_end: int = 0
    abandoned: set[int] = field(default_factory=set)
    """Records that are missing in outputs which were written and not committed: a rebuild may take
    these outputs, or not."""
    abandoned_marks: set[tuple[int, int]] = field(default_factory=set)

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.configs.get("cleanup_policy", "")

    def write(self, records: Sequence[Seen]) -> None:
        self.written += records
        self.there |= {record.offset for record in records}

    def expected(self) -> list[Seen]:
        """What a consumer reads."""
        return [self.written[offset] for offset in sorted(self.there) if offset >= self.start]

    # -- compaction -----------------------------------------------------------------------------

    def outcome_of(self, plan: RewritePlan) -> Outcome:
        found = Outcome(set(), set())
        if plan.kind != COMPACTION or not plan.inputs:
            return found
        by_key: dict[bytes, list[int]] = defaultdict(list)
        for offset in range(plan.inputs[0].base_offset, plan.inputs[-1].last_offset + 1):
            key = self.written[offset].key
            if offset in self.there and key is not None:
                by_key[key].append(offset)
        for *older, newest in by_key.values():
            found.removed.update(older)
            horizon_ms = self.horizons.get(newest)
            if self.written[newest].value is not None:
                continue
            if horizon_ms is None:
                found.marked.add(newest)
            elif horizon_ms <= plan.planned_at_ms and not older:
                found.removed.add(newest)
        return found

    def abandon(self, plan: RewritePlan, rewrite: Rewrite) -> None:
        """The job ends with its outputs written and before it commits."""
        outcome = self.outcome_of(plan)
        for one in rewrite.segments:
            removed, marked = outcome.within(one.base_offset, one.last_offset)
            self.abandoned |= removed
            self.abandoned_marks |= {(at, plan.delete_horizon_ms) for at in marked}

    def commit(self, plan: RewritePlan, rewrite: Rewrite) -> None:
        outcome = self.outcome_of(plan)
        for offset in outcome.removed | outcome.marked:
            assert any(one.base_offset <= offset <= one.last_offset for one in rewrite.segments)
        is_complete = True
        for one in rewrite.segments:
            removed, marked = outcome.within(one.base_offset, one.last_offset)
            first = next(read for read in plan.inputs if read.base_offset == one.base_offset)
            if self.start > first.last_offset:
                # Records were deleted meanwhile, and this input with them.
                is_complete = False
                self.abandoned |= removed
                self.abandoned_marks |= {(at, plan.delete_horizon_ms) for at in marked}
                continue
            assert one.removed_count == len(removed)
            self.there -= removed
            self.horizons |= dict.fromkeys(marked, plan.delete_horizon_ms)
        if plan.kind == COMPACTION and is_complete and plan.inputs:
            self.cleaned_end = plan.inputs[-1].last_offset + 1

    # -- plans ----------------------------------------------------------------------------------

    def check_plan(self, plan: RewritePlan, live: Sequence[LiveSegment], now_ms: int) -> None:
        """It is of the right kind; one that was made just now covers what it has to, and is due."""
        assert plan.kind == (COMPACTION if self.is_compacted else MERGE)
        if plan.kind != COMPACTION or plan.planned_at_ms != now_ms:
            return
        wanted = self._cleanable(live, now_ms)
        assert [one.object_key for one in plan.inputs] == [one.object_key for one in wanted]
        assert self.is_due(live, now_ms)
        retention_ms = int(self.configs.get("delete_retention_ms", 24 * 3_600_000))
        assert plan.delete_horizon_ms == now_ms + retention_ms

    def is_due(self, live: Sequence[LiveSegment], now_ms: int) -> bool:
        """By `min.cleanable.dirty.ratio` and `max.compaction.lag.ms`."""
        covered = self._cleanable(live, now_ms)
        dirty = [one for one in covered if one.last_offset >= self.cleaned_end]
        if not dirty:
            return False
        ratio = float(self.configs.get("min_cleanable_dirty_ratio", "0.5"))
        size, dirty_size = (sum(one.object_bytes for one in part) for part in (covered, dirty))
        if dirty_size > ratio * size:
            return True
        lag_ms = int(self.configs.get("max_compaction_lag_ms", _NEVER_MS))
        return self._newest_ms(dirty[0]) - SETTINGS.segment_ms < now_ms - lag_ms

    def _cleanable(self, live: Sequence[LiveSegment], now_ms: int) -> list[LiveSegment]:
        lag_ms = int(self.configs.get("min_compaction_lag_ms", "0"))
        found: list[LiveSegment] = []
        for one in live:
            if found and one.base_offset != found[-1].last_offset + 1:
                break
            if lag_ms and self._newest_ms(one) > now_ms - lag_ms:
                break
            found.append(one)
        return found

    def _newest_ms(self, segment: LiveSegment) -> int:
        inside = range(segment.base_offset, segment.last_offset + 1)
        return max((self.written[at].timestamp_ms for at in inside if at in self.there), default=-1)

    # -- rebuilds -------------------------------------------------------------------------------

    def check_rebuilt(
        self, found: Sequence[Seen], stored: set[int], horizons: Mapping[int, int], start: int
    ) -> None:
        """Nothing that was removed is back, nothing is missing, and go on with what is there.

        `found` is what a consumer reads now, from `start` on; `stored` are all offsets in the live
        files. Outputs that nobody committed may be in use.
        """
        assert start <= self.start
        assert [record.offset for record in found] == sorted({record.offset for record in found})
        assert all(self.written[record.offset] == record for record in found)
        assert stored <= self.there, "a record that was removed is back"
        missing = {at for at in self.there if at >= self.start} - {one.offset for one in found}
        assert missing <= self.abandoned, "a record is gone"
        for offset, horizon_ms in horizons.items():
            assert horizon_ms == self.horizons.get(offset, horizon_ms)
            assert offset in self.horizons or (offset, horizon_ms) in self.abandoned_marks
        assert {at for at in self.horizons if at in stored} <= horizons.keys()
        self.there, self.horizons, self.start = stored, dict(horizons), start
