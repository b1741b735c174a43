"""Random operations against a plain model, with restarts, failing appends and lost SQLite files.

After every step that may have changed something, what the coordinator says of each partition equals
the model, and at the end the state replayed from the log's start has the same hash and no invariant
is broken.
"""

import asyncio
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from metadata.metadata_settings import CoordinatorSettings
from metadata.operations import CommitFile, DeleteRecords, SegmentExtent, WalExtent
from metadata.verify import verify_metadata
from tests.support.coordinator_bench import (
    CoordinatorBench,
    MemoryMetadataLog,
    batch,
    rolled,
    running_coordinator,
)
from wal.clock import ManualClock
from wal.coordinates import TopicIdPartition
from wal.errors import CommitFailed, DisklessError, OffsetOutOfRange, UnknownPartition

PARTITIONS = 3
PRODUCERS = 2


@dataclass
class ModelPartition:
    """What one partition must hold: the batch of every offset, as (object key, byte offset)."""

    log_start: int = 0
    offsets: list[tuple[str, int]] = field(default_factory=list)
    sequences: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    """Per producer its last five (base, last, base offset)."""

    def append(self, key: str, byte_offset: int, count: int) -> int:
        base = len(self.offsets)
        self.offsets += [(key, byte_offset)] * count
        return base


class CoordinatorMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.scratch = tempfile.TemporaryDirectory(prefix="coordinator-model-")
        self.directory = Path(self.scratch.name)
        self.log = MemoryMetadataLog()
        self.clock = ManualClock()
        self.seed = 0
        self.model: dict[TopicIdPartition, ModelPartition] = {}
        self.commits: list[tuple[CommitFile, str]] = []
        self.generation = 0
        self.start()

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def start(self) -> None:
        self.seed += 1
        self.context = running_coordinator(
            self.directory,
            self.log,
            clock=self.clock,
            seed=self.seed,
            settings=CoordinatorSettings(
                state_readers=1, segment_bytes=500, producer_cache_max=1, plans_per_call_max=4
            ),
        )
        self.bench: CoordinatorBench = self.run(self.context.__aenter__())

    def stop(self) -> None:
        self.run(self.context.__aexit__(None, None, None))

    @initialize()
    def create_topic(self) -> None:
        self.generation += 1
        topic = self.run(self.bench.topic(f"topic-{self.generation}", PARTITIONS))
        for index in range(PARTITIONS):
            self.model[TopicIdPartition(topic.topic_id, index)] = ModelPartition()

    def partition(self, number: int) -> TopicIdPartition:
        return list(self.model)[number]

    @rule(
        wanted=st.lists(
            st.tuples(
                st.integers(0, PARTITIONS - 1),
                st.integers(-1, PRODUCERS - 1),
                st.integers(1, 4),
                st.integers(-2, 1),
            ),
            max_size=8,
        )
    )
    def commit(self, wanted: list[tuple[int, int, int, int]]) -> None:
        """(partition, producer or -1, records, how far from the next sequence)."""
        batches = []
        for number, producer, count, shift in wanted:
            partition = self.partition(number)
            known = self.model[partition].sequences.get(producer, [])
            sequence = max((known[-1][1] + 1 if known else 0) + shift, 0) if producer >= 0 else -1
            batches.append(batch(partition, count, producer=producer, sequence=sequence))
        request = self.bench.file(*batches)
        answers = self.run(self.bench.coordinator.commit_file(request))
        self.commits.append((request, repr(answers)))
        for answer, sent in zip(answers, request.batches, strict=True):
            model = self.model[sent.partition]
            if sent.producer_id < 0:
                assert answer.base_offset == model.append(
                    request.object_key, sent.byte_offset, sent.record_count
                )
                continue
            window = model.sequences.setdefault(sent.producer_id, [])
            span = (sent.base_sequence, sent.last_sequence)
            duplicates = [offset for base, last, offset in window if (base, last) == span]
            if duplicates:
                assert (answer.base_offset, answer.is_duplicate) == (duplicates[-1], True)
            elif not window or window[-1][1] + 1 == sent.base_sequence:
                base = model.append(request.object_key, sent.byte_offset, sent.record_count)
                assert (answer.base_offset, answer.is_duplicate) == (base, False)
                window.append((*span, base))
                del window[:-5]
            else:
                assert answer.error is not None

    @precondition(lambda self: self.commits)
    @rule(data=st.data())
    def commit_again(self, data: st.DataObject) -> None:
        request, answer = data.draw(st.sampled_from(self.commits))
        assert repr(self.run(self.bench.coordinator.commit_file(request))) == answer

    @rule(number=st.integers(0, PARTITIONS - 1), count=st.integers(1, 3))
    def failing_append(self, number: int, count: int) -> None:
        """Operations that come together, the append of the first of them fails."""
        partition = self.partition(number)
        model = self.model[partition]
        self.log.failures.append(CommitFailed("disk full"))
        requests = [self.bench.file(batch(partition, 2)) for _ in range(count)]

        async def together() -> list[Any]:
            return await asyncio.gather(
                *[self.bench.coordinator.commit_file(request) for request in requests],
                return_exceptions=True,
            )

        answers = self.run(together())
        assert isinstance(answers[0], CommitFailed)
        for request, answer in zip(requests, answers, strict=True):
            if isinstance(answer, DisklessError):
                continue
            assert answer[0].base_offset == model.append(
                request.object_key, request.batches[0].byte_offset, 2
            )

    @rule(number=st.integers(0, PARTITIONS - 1), fraction=st.floats(0, 1))
    def delete_records(self, number: int, fraction: float) -> None:
        partition = self.partition(number)
        model = self.model[partition]
        before = int(len(model.offsets) * fraction)
        (answer,) = self.run(
            self.bench.coordinator.delete_records([DeleteRecords(partition, before)])
        )
        model.log_start = max(model.log_start, before)
        assert answer.log_start_offset == model.log_start

    @rule(include_partial=st.booleans(), data=st.data())
    def roll(self, include_partial: bool, data: st.DataObject) -> None:
        plans = self.run(self.bench.coordinator.plan_segments(include_partial=include_partial))
        chosen = data.draw(st.permutations(plans))[: data.draw(st.integers(0, len(plans)))]
        answers = self.run(
            self.bench.coordinator.commit_segments([rolled(plan) for plan in chosen])
        )
        assert all(answer.error is None for answer in answers)

    @rule()
    def replace_the_topic(self) -> None:
        topic_id = self.partition(0).topic_id
        self.model.clear()
        assert self.run(self.bench.coordinator.delete_topics([topic_id])) == [None]
        gone = TopicIdPartition(topic_id, 0)
        assert isinstance(self.run(self.bench.find(gone, 0)).error, UnknownPartition)
        self.create_topic()

    @rule(lose_sqlite=st.booleans())
    def restart(self, lose_sqlite: bool) -> None:
        state_hash = self.bench.coordinator.replica.state_hash
        self.stop()
        if lose_sqlite:
            (self.directory / "state.sqlite").unlink()
        self.start()
        assert self.bench.coordinator.replica.state_hash == state_hash

    @invariant()
    def partitions_hold_what_the_model_holds(self) -> None:
        for partition, model in self.model.items():
            end = len(model.offsets)
            assert self.bench.coordinator.replica.high_watermark(partition) == end
            offset = model.log_start
            found = self.run(self.bench.find(partition, offset, max_bytes=1 << 30))
            assert (found.log_start_offset, found.high_watermark) == (model.log_start, end)
            while offset < end:
                assert found.error is None
                assert found.extents
                for extent in found.extents:
                    assert extent.base_offset <= offset <= extent.last_offset
                    if isinstance(extent, WalExtent):
                        # Every record of it is where its batch was committed.
                        for position in range(offset, extent.last_offset + 1):
                            key, byte_offset = model.offsets[position]
                            assert key == extent.object_key
                            assert 0 <= byte_offset - extent.byte_offset < extent.length_bytes
                    else:
                        assert isinstance(extent, SegmentExtent)
                    offset = extent.last_offset + 1
                found = self.run(self.bench.find(partition, offset, max_bytes=1 << 30))
            beyond = self.run(self.bench.find(partition, end + 1))
            assert isinstance(beyond.error, OffsetOutOfRange)

    def teardown(self) -> None:
        try:
            self.stop()
            report = self.run(verify_metadata(self.directory, self.log))
            assert report.violations == []
        finally:
            self.loop.close()
            self.scratch.cleanup()


CoordinatorMachine.TestCase.settings = settings(
    max_examples=15,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

test_the_coordinator_equals_its_model = CoordinatorMachine.TestCase
