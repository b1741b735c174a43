"""One task of a sink: rows become record batches, and these objects under `staged/<sink id>/`.

    rows -> columns of records, summed (content_digest) -> record batches (record_rows)
        -> WAL objects of some tens of megabytes -> the bucket, put-if-absent

An object has batches of partitions that live at one coordinator, so that it belongs to one metadata
log. Nothing of it is seen by anybody until the driver has the objects committed. So a task may be
repeated, doubled or killed: what the driver does not commit is deleted for its age. An abort
deletes nothing, because nobody knows whether the commit that failed did not happen after all.

Memory: GATHERED_BYTES of rows, their batches, and objects that grow to OBJECT_BYTES together.

Failure cases: what `record_rows` refuses; RecordTooLarge; Rejected when the task alone has more
batches than fit into one commit; ObjectStoreUnavailable, after PUT_ATTEMPTS_MAX attempts.
"""

import random
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import pyarrow as pa

from metadata.sink_operations import SinkTopic, StagedFile
from tiering.source.writing.content_digest import ContentSum, content_sum
from tiering.source.writing.record_rows import MadeBatch, make_batches, record_table
from wal.clock import Clock
from wal.coordinates import TopicIdPartition
from wal.errors import Rejected, Retriable, UploadOutcomeUnknown
from wal.records.recompression import Compression
from wal.staging.staged_object import StagedObject, staged_object
from wal.stores.blocking_store import BlockingStore
from wal.stores.object_store import Buffer
from wal.ulid import mint_ulid

GATHERED_BYTES: Final = 16 << 20
"""Rows that become batches together."""
BATCH_BYTES: Final = 512 << 10
"""Of a record batch, before it is compressed."""
OBJECT_BYTES: Final = 32 << 20
"""An object is put when it is as large."""
PUT_ATTEMPTS_MAX: Final = 5
FIRST_PAUSE_S: Final = 0.5


class Staged(NamedTuple):
    """What a task has put, and what is in it."""

    files: tuple[StagedFile, ...]
    batch_count: int
    content: ContentSum


class Stager:
    """Stages the rows of one task."""

    def __init__(
        self,
        sink_id: str,
        topic: SinkTopic,
        store: BlockingStore,
        *,
        compression: Compression,
        batches_max: int,
        clock: Clock,
        rng: random.Random,
        sleep: Callable[[float], None],
    ) -> None:
        """`store` is entered."""
        self._sink_id = sink_id
        self._topic = topic
        self._store = store
        self._compression = compression
        self._batches_max = batches_max
        self._clock = clock
        self._rng = rng
        self._sleep = sleep
        self._gathered: list[pa.Table] = []
        self._gathered_bytes = 0
        self._batches: list[MadeBatch] = []
        self._batch_bytes = 0
        self._batch_count = 0
        self._ulid: str | None = None
        self._begun_ms = 0
        self._files: list[StagedFile] = []
        self._content = ContentSum()
        self._first_partition = rng.randrange(topic.partition_count)

    def stage(self, rows: Iterator[pa.RecordBatch]) -> Staged:
        """All rows of the task."""
        for some in rows:
            table = record_table(some)
            self._gathered.append(table)
            self._gathered_bytes += table.nbytes
            if self._gathered_bytes >= GATHERED_BYTES:
                self._make_batches()
        self._make_batches()
        self._put()
        return Staged(tuple(self._files), self._batch_count, self._content)

    def _make_batches(self) -> None:
        if not self._gathered:
            return
        table = pa.concat_tables(self._gathered)
        self._gathered.clear()
        self._gathered_bytes = 0
        self._content = self._content.plus(content_sum(table))
        made = make_batches(
            table,
            self._topic,
            self._compression,
            batch_bytes=BATCH_BYTES,
            timestamp_ms=self._clock.now_ms(),
            first_partition=self._first_partition,
        )
        self._first_partition = (self._first_partition + 1) % self._topic.partition_count
        self._batch_count += len(made)
        if self._batch_count > self._batches_max:
            raise Rejected(
                f"a task alone has more than the {self._batches_max} record batches that fit into"
                " one commit: let a trigger take less (maxOffsetsPerTrigger), or write in parts"
            )
        if made and not self._batches:
            # Minted before anything is put: an object may be committed for so long from here on.
            self._begun_ms = self._clock.now_ms()
            self._ulid = mint_ulid(self._clock, self._rng, self._ulid)
        for batch in made:
            self._batches.append(batch)
            self._batch_bytes += len(batch.data)
        if self._batch_bytes >= OBJECT_BYTES:
            self._put()

    def _put(self) -> None:
        if not self._batches:
            return
        by_coordinator: dict[int, list[tuple[TopicIdPartition, Buffer]]] = {}
        for batch in self._batches:
            coordinator = self._topic.coordinators[batch.partition.partition]
            by_coordinator.setdefault(coordinator, []).append((batch.partition, batch.data))
        assert self._ulid is not None
        ulid = self._ulid
        for batches in by_coordinator.values():
            staged = staged_object(self._sink_id, ulid, self._begun_ms, batches)
            self._put_object(staged)
            self._files.append(StagedFile(staged.object_key, staged.body.length_bytes))
            self._ulid, ulid = ulid, mint_ulid(self._clock, self._rng, ulid)
        self._batches.clear()
        self._batch_bytes = 0

    def _put_object(self, staged: StagedObject) -> None:
        """The same bytes under the same key may be put again."""
        pause_s = FIRST_PAUSE_S
        for attempt in range(1, PUT_ATTEMPTS_MAX + 1):
            try:
                self._store.put(staged.object_key, staged.body)
                return
            except (Retriable, UploadOutcomeUnknown):
                if attempt == PUT_ATTEMPTS_MAX:
                    raise
            self._sleep(pause_s)
            pause_s *= 2
