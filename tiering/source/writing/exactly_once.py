"""`df.write` and `df.writeStream` with option `sink.id`: each batch is in the topic once, or not.

Tasks stage their rows as objects in the bucket (`staging`); when all of them have ended, the driver
has a broker commit the objects of all tasks in one step, under the batch's id. A batch that Spark
writes again, because the driver was killed before it noted the batch in its checkpoint, is staged
anew and committed again, and the sink's home answers as the first time. Of a streaming write the
batch id is the micro-batch's, which Spark gives to `commit`; it does not tell the query's id, so
the user names the sink. A batch write has no id of its own: option `sink.batch.id` gives it, such
as the second argument of `foreachBatch`.

The driver asks before any task starts whether the sink may write to the topic, and for what tasks
must know of it.

Failure cases: those of `sink_commits`, which fail the query; of `staging`, which fail the task.
"""

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from metadata.sink_operations import OpenedSink
from tiering.coordinator_client import CoordinatorClient
from tiering.source.client_properties import security_of
from tiering.source.options import SinkOptions
from tiering.source.writing.sink_columns import check_columns
from tiering.source.writing.sink_commits import SinkCommits
from tiering.source.writing.staging import Staged, Stager
from wal.clock import SystemClock
from wal.failpoint import arm_from_environment, failpoint
from wal.records.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD
from wal.records.recompression import Compression
from wal.stores.blocking_store import open_blocking_store

_CODECS = {
    "none": NONE,
    "uncompressed": NONE,
    "gzip": GZIP,
    "snappy": SNAPPY,
    "lz4": LZ4,
    "zstd": ZSTD,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedMessage(WriterCommitMessage):
    """What a task tells the driver: where its rows are."""

    staged: Staged


class _StagingWriter:
    """What batch and streaming writes have in common."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(schema)
        self._options = options
        self._opened: OpenedSink = self._commits().open()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Runs in a task."""
        (topic,) = self._opened.topics
        codec = self._options.compression if topic.codec == "producer" else topic.codec
        with open_blocking_store(self._store_url()) as store:
            stager = Stager(
                self._options.sink_id or "",
                topic,
                store,
                compression=Compression(_CODECS[codec]),
                batches_max=self._opened.batches_max,
                clock=SystemClock(),
                rng=random.SystemRandom(),
                sleep=time.sleep,
            )
            return StagedMessage(staged=stager.stage(iterator))

    def _commit(self, batch_id: int, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Runs in a process of the driver."""
        arm_from_environment()
        failpoint("sink.before_commit")
        staged = [message.staged for message in messages if isinstance(message, StagedMessage)]
        assert len(staged) == len(messages)
        self._commits().commit(self._opened, batch_id, staged)
        failpoint("sink.after_commit")

    def _store_url(self) -> str:
        return self._options.object_store_url or self._opened.object_store_url

    def _commits(self) -> SinkCommits:
        options = self._options
        client = CoordinatorClient(options.bootstrap, security_of(options.command_config))
        return SinkCommits(client, options.sink_id or "", options.topic)


class ExactlyOnceSink(_StagingWriter, DataSourceArrowWriter):
    """`df.write`."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        assert self._options.batch_id is not None
        self._commit(self._options.batch_id, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Deletes nothing; see the staging module."""


class ExactlyOnceStreamSink(_StagingWriter, DataSourceStreamArrowWriter):
    """`df.writeStream`."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._commit(batchId, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Deletes nothing; see the staging module."""
