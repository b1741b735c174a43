"""What the steps of an object take when one thread makes them all, one behind the other.

From the requests as they were received to the bytes of their answers, with the broker's own code
and on files of its own: decoding, checks, chunk, object, decision, metadata log, SQLite, answers.
Left out is what lies between: sockets, the turns of connections, and every hand-over from one
thread to another. So a broker that did all of an object in one thread could not take less.
"""

import random
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from bench.tools import load
from bench.tools.coordinator_bed import CLOCK, Bed, coordinating, run, settle
from bench.tools.raw_client import batch, produce_many_body
from diskless.api.records.produce import encoded_rows
from diskless.fetch.read_ahead import ReadAhead
from diskless.loop.long_work import done_at_once
from diskless.ports import ClientInfo
from diskless.produce.batch_lanes import BatchLanes
from diskless.produce.commit_lane import CommitLane
from diskless.protocol.produce import ProduceRequest, decode_request, encode_response
from diskless.protocol.wire import Reader
from diskless.replica.batch_reader import BatchReader
from diskless.replica.replica_manager import ReplicaManager
from diskless.replica.timestamp_search import TimestampSearch
from diskless.topics.noted_facts import NotedFacts
from diskless.transactions.numbered_batches import Numbers
from metadata.log.local_log import LocalMetadataLog
from metadata.log.log import MetadataRecordBatch
from metadata.metadata_settings import CoordinatorSettings
from metadata.operations import CommitFile
from metadata.records.records import encode_record
from metadata.rules.commit import check_commit, decide_commits
from metadata.state.speculative import SpeculativeView
from wal.chunks.buffer import BufferPool, ChainBuilder, FragmentChain
from wal.chunks.chunk import PendingBatches, Waiting
from wal.chunks.chunk_directory import ChunkDirectory
from wal.chunks.object_notes import CommitJournal
from wal.chunks.sealed_chunk import SealedChunk
from wal.chunks.wal_object import FreshObjectBody, WalObjectBody
from wal.chunks.wal_settings import WalSettings
from wal.coordinates import TopicIdPartition
from wal.fd_cache import FdCache
from wal.inflation_budget import InflationBudget
from wal.stores.file_store import BlockingFileStore
from wal.stores.object_store import ObjectBody
from wal.write_path.early_puts import PUT_AT_ONCE_BYTES_MAX
from wal.write_path.write_loop import WriteLoop

WARM_UP: Final = 100
_VERSION: Final = 7
_CLIENT: Final = ClientInfo(1, "steps", "127.0.0.1")
_PRODUCER_ID: Final = 1 << 40
"""Of nobody: the coordinator gives out small ones first."""


class _Collecting:
    """In the place of the write loop: keeps what it is given."""

    def __init__(self) -> None:
        self.given: list[PendingBatches] = []

    def append_nowait(self, batches: PendingBatches) -> None:
        self.given.append(batches)


def steps_ms(
    directory: Path,
    *,
    objects: int,
    partitions: int,
    batch_bytes: int,
    warm_up: int = WARM_UP,
) -> Mapping[str, float]:
    """Milliseconds of processor time for an object, by step; a batch for each partition in it.

    It is that of `objects` behind `warm_up` others.
    """
    return run(_measured(directory, objects, partitions, batch_bytes, warm_up))


async def _measured(
    directory: Path, objects: int, partitions: int, batch_bytes: int, warm_up: int
) -> Mapping[str, float]:
    async with coordinating(directory / "metadata") as bed:
        steps = _Steps(directory, bed, await bed.topic(load.TOPIC, partitions))
        value = load.payload(batch_bytes)
        used_s: dict[str, float] = defaultdict(float)
        settle()
        for sequence in range(warm_up + objects):
            if sequence == warm_up:
                used_s.clear()
            records = batch(value, _PRODUCER_ID, sequence)
            bodies = [
                produce_many_body(load.TOPIC, {partition: records})
                for partition in range(partitions)
            ]
            steps.make(bodies, used_s)
        steps.directory.close()
        return {name: 1e3 * seconds / objects for name, seconds in used_s.items()}


class _Steps:
    """The parts of a broker that an object goes through."""

    def __init__(self, directory: Path, bed: Bed, partitions: Sequence[TopicIdPartition]) -> None:
        rng = random.Random(1)
        facts, journal = NotedFacts(bed.client), CommitJournal()
        chunks = directory / "chunks"
        chunks.mkdir()
        self.directory: Final = ChunkDirectory(
            chunks,
            settings=WalSettings(),
            clock=CLOCK,
            rng=rng,
            fd_cache=FdCache(64),
            broker_id=0,
            topics=facts.topic,
            floors=facts.floors,
            commits=journal,
        )
        self.directory.recover()
        self._store = BlockingFileStore(directory / "objects", clock=CLOCK, rng=rng)
        self._store.open()
        self._pool = BufferPool(64 << 20)
        self._write_loop = _Collecting()
        # What it does not call is not there.
        self._manager = ReplicaManager(
            coordinator=bed.client,
            write_loop=cast(WriteLoop, self._write_loop),
            reader=cast(BatchReader, None),
            search=cast(TimestampSearch, None),
            clock=CLOCK,
            fetch_max_bytes=1 << 20,
            lanes=BatchLanes(self._pool, InflationBudget(1 << 20)),
            numbers=cast(Numbers, None),
            ahead=cast(ReadAhead, None),
        )
        self._lane = CommitLane(bed.client, broker_id=0, clock=CLOCK, journal=journal)
        self._replica = bed.partition.replica
        assert isinstance(bed.partition.log, LocalMetadataLog)
        self._log = bed.partition.log
        self._settings = CoordinatorSettings()
        self._view = SpeculativeView(self._replica.image)
        ids = [*map(self._replica.partition_id, partitions)]
        unknown = {(id, _PRODUCER_ID): None for id in ids if id is not None}
        self._view.finish_look_up({}, unknown)

    def make(self, bodies: Sequence[bytes], used_s: dict[str, float]) -> None:
        """One object of these requests."""
        frames = [self._received(body) for body in bodies]
        at = time.thread_time()

        def done(step: str) -> None:
            nonlocal at
            now = time.thread_time()
            used_s[step] += now - at
            at = now

        asked = [self._appended(frame) for frame in frames]
        pending, self._write_loop.given = self._write_loop.given, []
        done("decode, check")
        writer = self.directory.open_chunk()
        writer.append(pending)
        chunk = self.directory.seal(
            writer, [Waiting(some.token, some.batch_count) for some in pending]
        )
        assert chunk is not None
        done("append, seal, lay out")
        # As the uploader does.
        body: ObjectBody = WalObjectBody(chunk, chunk.plan)
        if chunk.data_bytes <= PUT_AT_ONCE_BYTES_MAX:
            payloads = [some.payload for some in pending]
            body = FreshObjectBody(chunk.plan, payloads, chunk.data_path)
        self._store.put(chunk.object_key, body, lambda: False)
        for some in pending:
            some.payload.release()
        done("put")
        self._commit(chunk, done)
        for request, future in asked:
            batches = request.batches
            rows = encoded_rows(_VERSION, batches.rows, future.result())
            done_at_once(encode_response(_VERSION, batches.topics, rows))
        done("memory, answers")
        self.directory.mark_committed(chunk)
        done("mark")

    def _received(self, body: bytes) -> FragmentChain:
        """What a connection would have made of it."""
        builder = ChainBuilder(self._pool)
        left = memoryview(body)
        while left:
            buffer = builder.writable(len(left))
            count = min(len(buffer), len(left))
            buffer[:count] = left[:count]
            builder.commit(count)
            left = left[count:]
        return builder.take(len(body))

    def _appended(self, frame: FragmentChain) -> tuple[ProduceRequest, Any]:
        asked = done_at_once(decode_request(_VERSION, frame, Reader(frame.views())))
        answer = done_at_once(
            self._manager.append(
                asked.batches, timeout_ms=60_000, produce_version=_VERSION, client=_CLIENT
            )
        )
        frame.release()
        return asked, answer

    def _commit(self, chunk: SealedChunk, done: Callable[[str], None]) -> None:
        view, now_ms = self._view, CLOCK.now_ms()
        plan = chunk.plan
        request = CommitFile(
            object_key=chunk.object_key,
            file_size_bytes=plan.object_bytes,
            uploader_broker_id=0,
            batches=plan.extents,
        )
        view.group += 1
        decision = decide_commits(
            view,
            [check_commit(request, self._settings)],
            now_ms=now_ms,
            wall_ms=now_ms,
            steady_ms=now_ms,
            settings=self._settings,
        )
        (file,) = decision.answer
        assert all(result.error is None for result in file.batches), file
        offset, records = view.next_offset, [encode_record(each) for each in decision.records]
        view.next_offset += len(records)
        done("decide, encode")
        self._log._append_in_worker([records], now_ms, offset)
        done("metadata log")
        applied = [MetadataRecordBatch(offset, now_ms, records)]
        changes = self._replica.applying(applied)()
        done("SQLite")
        self._replica.applied(applied, changes, lambda: view.retire(view.group))
        self._lane.answer(chunk, file.batches)
