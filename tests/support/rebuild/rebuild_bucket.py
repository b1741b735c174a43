"""A bucket of small objects, as the rebuild sees it, and the plan that is made of it."""

import random
from collections.abc import Mapping
from uuid import UUID

from metadata.rebuild.facts import BucketFacts, ObjectFacts, RebuildOptions, SegmentFacts
from metadata.rebuild.plan import RebuildPlan, plan_rebuild
from metadata.records.segment_identity import segment_key
from tests.support.rebuild.rebuild_history import RebuiltState, replayed
from wal.chunks.kept_notes import KeptNotes
from wal.chunks.object_notes import CommitNote, Floor, NotedRun, ObjectNotes, TopicFacts
from wal.clock import ManualClock
from wal.coordinates import BatchExtent, ByteOffset, TopicIdPartition
from wal.ulid import ulid_at, wal_object_key

TOPIC = UUID(int=0xA)
PLACE = TopicIdPartition(TOPIC, 0)
FACTS = TopicFacts("flights", 1)
STARTED_MS = 1_700_000_000_000


class Bucket:
    """Objects of one batch each, with what is noted of them."""

    def __init__(self) -> None:
        self.rng = random.Random(1)
        self.objects: list[ObjectFacts] = []
        self.commits: list[CommitNote] = []
        self.segments: list[SegmentFacts] = []
        self.kept = KeptNotes()

    def put(
        self,
        records: int,
        *,
        at_s: float,
        noted: int | None = None,
        broker: int = 0,
        lane: int = 0,
        producer: int = -1,
        sequence: int = -1,
        floor: int = 0,
        topic_id: UUID = TOPIC,
        name: str = "flights",
        stored_s: float | None = None,
    ) -> ObjectFacts:
        """An object stored at second `at_s`; committed at that time at offset `noted`, or unknown.

        `stored_s`: it came to the store later than its ULID says.
        """
        time_ms = STARTED_MS + int(at_s * 1000)
        ulid = ulid_at(time_ms, self.rng)
        extent = BatchExtent(
            partition=TopicIdPartition(topic_id, 0),
            byte_offset=ByteOffset(64),
            length_bytes=100,
            record_count=records,
            crc=len(self.objects),
            max_timestamp_ms=time_ms,
            timestamp_type=0,
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequence,
            request_id=0,
        )
        item = ObjectFacts(
            object_key=wal_object_key(ulid),
            ulid=ulid,
            broker_id=broker,
            lane=lane,
            object_bytes=1_000,
            stored_ms=STARTED_MS + int((at_s if stored_s is None else stored_s) * 1000),
            extents=[extent],
            notes=ObjectNotes({topic_id: TopicFacts(name, 1)}, (), [Floor(floor)]),
        )
        self.objects.append(item)
        if noted is not None:
            self.commits.append(CommitNote(ulid, (NotedRun(noted, time_ms),)))
        return item

    def roll(self, item: ObjectFacts, base_offset: int) -> None:
        """An object's batch is in a segment now, and the object is gone."""
        (extent,) = item.extents
        last_offset = base_offset + extent.record_count - 1
        self.objects.remove(item)
        self.segments.append(
            SegmentFacts(
                object_key=segment_key("flights", PLACE, base_offset, last_offset),
                object_bytes=1_000,
                crc32c=7,
                topic_name="flights",
                partition=PLACE,
                base_offset=base_offset,
                last_offset=last_offset,
                record_count=extent.record_count,
                max_timestamp_ms=extent.max_timestamp_ms,
                stored_ms=item.stored_ms + 60_000,
                sources=[],
                last_source=item.ulid,
            )
        )

    def rebuilt(self) -> tuple[RebuildPlan, RebuiltState]:
        kept = self.kept._replace(commits=self.commits)
        facts = BucketFacts(objects=self.objects, segments=self.segments, kept=kept)
        plan = plan_rebuild(facts, RebuildOptions(), clock=ManualClock(), rng=random.Random(7))
        return plan, replayed(plan.records)

    def places(self, plan: RebuildPlan, state: RebuiltState) -> Mapping[int, int]:
        """By number of the object its base offset."""
        numbers = {item.object_key: number for number, item in enumerate(self.objects)}
        batches = state.partitions[PLACE].batches
        return {numbers[key]: base for base, (_, (key, _)) in batches.items() if key in numbers}
