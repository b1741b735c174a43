"""Random histories of topics: rolled, merged, compacted, shown as tables, killed, rebuilt.

Three topics live together, one merged, one compacted, one compacted and cut off at its start as
well, with configs that the seed draws. After each step every consumer reads exactly what the model
says (tests/tiering/compaction_model.py). When the metadata are lost, no removed record comes back
afterwards, none is there twice, and none is missing. Jobs of compaction look at keys in sixteen
parts, so keys that have nothing in common share one.
"""

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from compaction_model import TopicModel
from tiered_topics import Seen, TieredTopics
from tiering_samples import SampleBatch, SampleRecord

from diskless.cli import rebuild
from metadata.operations import CommitFile
from metadata.rebuild.facts import SegmentFacts
from metadata.rebuild.placing.fixed import FixedLog
from metadata.rebuild.staged import StagedFacts
from metadata.rewrites import RewritePlan
from metadata.sink_operations import SinkCommit
from metadata.workers.sweeps import segments_sweep
from tests.support.exhaustive import IS_EXHAUSTIVE
from tests.support.profiles import seeds
from tests.support.tiers.compacted import Meddle
from tiering.compaction import losses
from wal.columns import Int64s
from wal.errors import CorruptSegment, ObjectNotFound

Flags = npt.NDArray[np.bool_]

STEPS: Final = 30
KEYS: Final = [b"", *(b"key %d" % number for number in range(9))]
SILENT_MS: Final = 12 * 3_600_000
"""A producer that sent nothing for so long begins anew: a coordinator may have forgotten it."""


class History:
    """What happens to three topics."""

    def __init__(self, world: TieredTopics, seed: int) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.topics: list[TopicModel] = []
        self.last_sent: dict[int, tuple[TopicModel, SampleBatch, int]] = {}
        """By producer: its last batch, and when."""
        self.sent_at: dict[int, int] = {}
        """By producer: the offset of its last batch."""
        self.sink_batch = -1
        self.sink_answer: SinkCommit | None = None
        """To its last batch."""
        self._producers = 0
        self.done = dict.fromkeys(["merged", "compacted", "abandoned", "rebuilt"], 0)

    async def begin(self) -> None:
        rng = self.rng
        cut = {"cleanup_policy": "compact,delete", "retention_ms": "-1"}
        for name, configs in (
            ("kept", {"segment_merge_bytes": "60000"}),
            ("table", {"cleanup_policy": "compact", "table_enabled": "true"}),
            ("cut", cut),
        ):
            if "cleanup_policy" in configs:
                configs |= {
                    "min_cleanable_dirty_ratio": rng.choice(["0", "0.3", "0.8"]),
                    "min_compaction_lag_ms": rng.choice(["0", "0", "30000"]),
                    "max_compaction_lag_ms": rng.choice(["600000", str(2**62)]),
                    "delete_retention_ms": rng.choice(["0", "60000", "3600000"]),
                    "segment_bytes": rng.choice(["1", "20000"]),
                }
            else:
                configs["segment_bytes"] = "1"
            if name == "table":
                configs["table_commit_interval_ms"] = "0"
            partition = await self.world.create(name, **configs)
            self.topics.append(TopicModel(name, partition, configs))

    async def play(self, steps: int) -> None:
        chosen: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self.produce, 6),
            (self.write_as_sink, 3),
            (self.world.sweep_notes, 1),
            (self.roll, 6),
            (self.rewrite, 8),
            (self.delete_records, 1),
            (self.pass_time, 2),
            (self.world.clean, 2),
            (self.world.sweep_segments, 1),
            (self.world.run_table_pass, 1),
            (self.restart, 1),
            (self.rebuild, 1),
        ]
        actions, weights = zip(*chosen, strict=True)
        for action in self.rng.choices(actions, weights, k=steps):
            self.world.clock.advance(self.rng.choice([0.001, 1, 20]))
            await action()
        await self.check()

    async def check(self) -> None:
        for topic in self.topics:
            assert await self.world.read(topic.partition) == topic.expected()

    # -- steps ----------------------------------------------------------------------------------

    async def produce(self) -> None:
        for _ in range(self.rng.randint(1, 3)):
            batches = [(self.rng.choice(self.topics), self._batch())]
            batches += [(topic, self._batch()) for topic in self.topics if self.rng.random() < 0.5]
            batches = [self._sequenced(topic, batch) for topic, batch in batches]
            answers = await self.world.produce(
                [(topic.partition, batch) for topic, batch in batches]
            )
            for (topic, batch), answer in zip(batches, answers, strict=True):
                assert answer.error is None
                assert not answer.is_duplicate
                assert answer.base_offset == len(topic.written), "no offset is given twice"
                self.sent_at[batch.producer_id] = answer.base_offset
                topic.write(
                    [
                        Seen(answer.base_offset + at, one.timestamp_ms, *one[:2], tuple(one[3]))
                        for at, one in enumerate(batch.records)
                    ]
                )
        await self._send_again()

    def _batch(self) -> SampleBatch:
        rng, now_ms = self.rng, self.world.clock.now_ms()
        return SampleBatch(
            [
                SampleRecord(
                    rng.choice(KEYS),
                    rng.choice([None, b"", rng.randbytes(20)]),
                    now_ms - rng.randrange(1_000),
                    rng.choice([(), (("h", None),)]),
                )
                for _ in range(rng.randint(1, 5))
            ]
        )

    def _nobodys(self, topic: TopicModel, batch: SampleBatch) -> tuple[TopicModel, SampleBatch]:
        if topic.name == "kept":
            # Records without key are removed by nothing; compacted topics take none.
            batch = batch._replace(records=[one._replace(key=None) for one in batch.records])
        return topic, batch

    def _sequenced(self, topic: TopicModel, batch: SampleBatch) -> tuple[TopicModel, SampleBatch]:
        """Of a producer of the topic, an old or a new one, or of nobody."""
        topic, batch = self._nobodys(topic, batch)
        if self.rng.random() < 0.5:
            return topic, batch
        now_ms = self.world.clock.now_ms()
        known = [
            producer
            for producer, (owner, _, at_ms) in self.last_sent.items()
            if owner is topic and now_ms - at_ms < SILENT_MS
        ]
        if known and self.rng.random() < 0.8:
            producer = self.rng.choice(known)
            last = self.last_sent[producer][1]
            sequence = last.base_sequence + len(last.records)
        else:
            self._producers += 1
            producer, sequence = self._producers, 0
        batch = batch._replace(producer_id=producer, producer_epoch=0, base_sequence=sequence)
        self.last_sent[producer] = (topic, batch, now_ms)
        return topic, batch

    async def write_as_sink(self) -> None:
        """A batch of a sink: staged and committed, once or twice; its driver may have died before.

        Attempts that died leave staged objects, which nobody ever sees.
        """
        staged = [await self._staged() for _ in range(self.rng.randint(1, 3))]
        sent = [item for _, batches in staged for item in batches]
        if self.rng.random() < 0.2:
            return
        files = [file for file, _ in staged]
        self.sink_batch += 1
        answer = await self.world.commit_sink("sink", self.sink_batch, files)
        assert not answer.is_repeated
        self.sink_answer = answer
        for topic, batch in sent:
            base = len(topic.written)
            topic.write(
                [
                    Seen(base + at, one.timestamp_ms, *one[:2], tuple(one[3]))
                    for at, one in enumerate(batch.records)
                ]
            )
        ends = {one.partition: one.last_offset + 1 for one in answer.ranges}
        assert ends == {topic.partition: len(topic.written) for topic, _ in sent}
        if self.rng.random() < 0.3:
            await self._commit_again()

    async def _staged(self) -> tuple[CommitFile, list[tuple[TopicModel, SampleBatch]]]:
        chosen = [self.rng.choice(self.topics) for _ in range(self.rng.randint(1, 3))]
        batches = [self._nobodys(topic, self._batch()) for topic in chosen]
        file = await self.world.stage(
            "sink", [(topic.partition, batch) for topic, batch in batches]
        )
        return file, batches

    async def _commit_again(self) -> None:
        """The last batch is known, whatever objects are named."""
        if self.sink_answer is not None:
            file, _ = await self._staged()
            again = await self.world.commit_sink("sink", self.sink_batch, [file])
            assert again == self.sink_answer._replace(is_repeated=True)

    async def _send_again(self) -> None:
        """The last batch of a producer is known, also when none of its records is left."""
        now_ms = self.world.clock.now_ms()
        known = [
            sent
            for producer, sent in self.last_sent.items()
            if now_ms - sent[2] < SILENT_MS and self.sent_at[producer] >= sent[0].start
        ]
        if known:
            topic, batch, _ = self.rng.choice(known)
            (answer,) = await self.world.produce([(topic.partition, batch)])
            assert answer.is_duplicate

    async def roll(self) -> None:
        await self.world.roll(is_killed=self.rng.random() < 0.15)

    async def rewrite(self) -> None:
        """A job: plans, outputs, commits, with others in between; it may end after any of them."""
        plans = await self._plans()
        if self.rng.random() < 0.3:
            await self.produce()
        if self.rng.random() < 0.1:
            await self.delete_records()
        if self.rng.random() < 0.2:
            await self.roll()
        for plan in plans:
            topic = next(one for one in self.topics if one.partition == plan.partition)
            rewrite = self.world.written(plan)
            if self.rng.random() < 0.25:
                if rewrite.segments and self.rng.random() < 0.5:
                    # It was killed before this output was there.
                    self.world.blocking.delete([self.rng.choice(rewrite.segments).object_key])
                topic.abandon(plan, rewrite)
                self.done["abandoned"] += 1
                continue
            if self.rng.random() < 0.2:
                await self.world.sweep_segments()
            assert await self.world.commit(rewrite)
            topic.commit(plan, rewrite)
            self.done["compacted" if topic.is_compacted else "merged"] += len(rewrite.segments)
            if self.rng.random() < 0.3:
                assert not await self.world.commit(rewrite), "its answer was lost"
        await self.check()

    async def _plans(self) -> list[RewritePlan]:
        under_way = dict(self.world.coordinator.replica.image.rewrites)
        plans = [*await self.world.plan_rewrites()]
        now_ms = self.world.clock.now_ms()
        for topic in self.topics:
            live = await self.world.live_segments(topic.partition)
            live = [one for one in live if one.last_offset >= topic.start]
            planned = [plan for plan in plans if plan.partition == topic.partition]
            for plan in planned:
                topic.check_plan(plan, live, now_ms)
            state = under_way.get(topic.partition)
            if topic.is_compacted and not planned and not (state and state.kind):
                assert not topic.is_due(live, now_ms)
        return plans

    async def delete_records(self) -> None:
        topic = self.rng.choice([one for one in self.topics if one.name != "table"])
        before = self.rng.randint(topic.start, len(topic.written))
        await self.world.delete_records(topic.partition, before)
        topic.start = before

    async def pass_time(self) -> None:
        self.world.clock.advance(self.rng.choice([40, 90, 700, 3_700]))

    async def restart(self) -> None:
        await self.world.restart(keeps_state=self.rng.random() < 0.5)
        if self.rng.random() < 0.5:
            await self._commit_again()
        await self.check()

    async def rebuild(self) -> None:
        if self.rng.random() < 0.7:
            await self.write_as_sink()  # else all of sinks is in segments, nearly always
        unrolled = {topic.name: await self._unrolled(topic) for topic in self.topics}
        report = await self.world.rebuild(dies=self.rng.random() < 0.2)
        assert not report.doubt_count, report
        self.done["rebuilt"] += 1
        await self._commit_again()
        for topic in self.topics:
            if topic.partition not in self.world.coordinator.replica.image.partitions:
                # Nothing of it was ever stored.
                assert not topic.written
                topic.partition = await self.world.create(topic.name, **topic.configs)
                continue
            found = await self.world.read(topic.partition)
            missing = unrolled[topic.name] - set(found)
            assert not missing, "only segments may lack what was removed"
            state = self.world.coordinator.replica.image.partitions[topic.partition]
            assert state.high_watermark == len(topic.written)
            stored, in_segments = await self._stored_rows(topic)
            stored |= {one.offset for one in found} - in_segments
            if found:
                # The first extent of the WAL may begin below the log start.
                first = range(await self.world.first_extent(topic.partition), topic.start)
                stored |= {at for at in topic.there if at in first} - in_segments
            horizons = await self.world.horizons(topic.partition)
            topic.check_rebuilt(found, stored, horizons, state.log_start_offset)
            rewrite = self.world.coordinator.replica.image.rewrites.get(topic.partition)
            topic.cleaned_end = rewrite.cleaned_end_offset if rewrite else 0
        await self.check()

    async def _unrolled(self, topic: TopicModel) -> set[Seen]:
        """The records that consumers read from objects other than segments."""
        found = await self.world.read(topic.partition)
        _, in_segments = await self._stored_rows(topic)
        return {one for one in found if one.offset not in in_segments}

    async def _stored_rows(self, topic: TopicModel) -> tuple[set[int], set[int]]:
        """The offsets in live segments, and those that they cover."""
        found: set[int] = set()
        covered: set[int] = set()
        for one in await self.world.live_segments(topic.partition):
            data = self.world.blocking.get(one.object_key)
            table = pq.read_table(pa.BufferReader(data), columns=["offset"])
            found |= set(table.column("offset").to_pylist())
            covered.update(range(one.base_offset, one.last_offset + 1))
        return found, covered


async def played(world: TieredTopics, seed: int) -> History:
    async with world:
        history = History(world, seed)
        await history.begin()
        await history.play(STEPS)
        await history.rebuild()
        await history.play(STEPS // 3)
        return history


@pytest.mark.parametrize("seed", range(100) if IS_EXHAUSTIVE else seeds(3))
async def test_consumers_read_what_the_model_keeps_whatever_happens(
    tmp_path: Path, seed: int
) -> None:
    await played(TieredTopics(tmp_path, seed), seed)


# --- planted bugs: the model finds them -----------------------------------------------------------


def drops_a_record(offsets: Int64s) -> Int64s:
    """It goes with the others and is counted as they are."""
    return np.append(offsets, offsets[-1] + 1) if len(offsets) else offsets


def forgets_to_remove(offsets: Int64s) -> Int64s:
    return offsets[1:]


@pytest.mark.parametrize("meddle", [drops_a_record, forgets_to_remove])
async def test_a_record_too_few_or_too_many_is_found(tmp_path: Path, meddle: Meddle) -> None:
    with pytest.raises((AssertionError, CorruptSegment)):
        await played(TieredTopics(tmp_path, 2, meddle=meddle), 2)


async def test_a_tombstone_that_goes_too_early_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = losses._outcome

    def impatient(keys: Int64s, offsets: Int64s, new: Flags, expired: Flags) -> tuple[Flags, Flags]:
        removed, marked = outcome(keys, offsets, new, expired)
        return removed | marked, marked & False

    monkeypatch.setattr(losses, "_outcome", impatient)
    with pytest.raises(AssertionError):
        await played(TieredTopics(tmp_path, 2), 2)


async def test_a_sweep_that_takes_what_is_about_to_be_committed_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments_sweep, "may_be_committed", lambda image, named: False)
    with pytest.raises((AssertionError, FileNotFoundError, ObjectNotFound)):
        await played(TieredTopics(tmp_path, 2), 2)


async def test_a_rebuild_that_forgets_what_sinks_committed_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forgetful(*_: object, **__: object) -> StagedFacts:
        return StagedFacts([], [], [], {})

    monkeypatch.setattr(rebuild, "read_staged_objects", forgetful)
    with pytest.raises(AssertionError):
        await played(TieredTopics(tmp_path, 2), 2)


async def test_a_rebuild_that_takes_the_older_of_two_segments_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = FixedLog._newest

    def oldest(log: FixedLog, segments: Sequence[SegmentFacts]) -> list[SegmentFacts]:
        turned = [replace(one, generation=-one.generation) for one in segments]
        return [replace(one, generation=-one.generation) for one in newest(log, turned)]

    monkeypatch.setattr(FixedLog, "_newest", oldest)
    with pytest.raises(AssertionError):
        await played(TieredTopics(tmp_path, 2), 2)
