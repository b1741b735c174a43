"""`spark.readStream.format("diskless")`: micro-batches that follow a topic.

Spark keeps the offsets: it writes down where a micro-batch ends before it reads it, and after a
restart asks for the same ranges again. A range of offsets always gives the same records, so with an
idempotent sink each record counts once. What Spark writes down is

    {"id": "<topic id>", "offsets": {"0": 23, "1": 0}}

with the first offset of each partition that is not read yet. A partition that is not in it was
added to the topic since, and is read from its beginning. By the id a topic that was deleted and
made again is told from its predecessor.

Where a micro-batch ends is decided by the leaders' high watermarks and by limits. A limit of
offsets is divided as the partitions lag, one of bytes by the sizes of extents; each trigger takes
one record at least. `Trigger.AvailableNow` reads what was committed when it began, within the
limits, and ends.

Failure cases: RecordsGone naming option failOnDataLoss when records were deleted before they were
read, or the topic was made anew, or ends before the checkpoint does.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from metadata.operations import ReadableTopic
from tiering.source.filters import ALL
from tiering.source.options import LATEST, SourceOptions
from tiering.source.planning import bytes_up_to, shares
from tiering.source.reading import (
    ShareOfTopic,
    checked_starts,
    chosen,
    columns_of,
    open_log,
    resolved,
    task_batches,
)
from tiering.source.rows.share_rows import RecordsGone
from tiering.source.topic_log import TopicLog, store_url
from wal.coordinates import TopicIdPartition

Json = Mapping[str, Any]


class _Position(NamedTuple):
    """The first offset of each partition that is not read yet."""

    topic_id: UUID
    offsets: Mapping[int, int]

    def as_json(self) -> dict[str, Any]:
        # Spark compares positions as text: equal ones must be written alike.
        offsets = {str(partition): self.offsets[partition] for partition in sorted(self.offsets)}
        return {"id": str(self.topic_id), "offsets": offsets}

    @classmethod
    def of(cls, position: Json) -> "_Position":
        offsets = {int(partition): offset for partition, offset in position["offsets"].items()}
        return cls(UUID(position["id"]), offsets)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in a process of the driver while the query runs; a copy of it goes to each task."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._columns = columns_of(options, schema)
        self._opened: TopicLog | None = None
        self._last_known: _Position | None = None
        self._goal: _Position | None = None
        """With Trigger.AvailableNow: where the query ends."""

    @property
    def _log(self) -> TopicLog:
        # Not in the copies that go to tasks: each reads its own keys.
        if self._opened is None:
            self._opened = open_log(self._options)
        return self._opened

    def initialOffset(self) -> dict[str, Any]:
        """Of a query without a checkpoint."""
        topic, partitions = self._now()
        edge = self._options.starting or LATEST
        firsts = self._log.starts(partitions)
        starts = resolved(self._log, partitions, edge, "startingOffsets")
        starts = checked_starts(self._log, starts, firsts, fail=self._options.fail_on_data_loss)
        return _Position(topic.topic_id, starts).as_json()

    def prepareForTriggerAvailableNow(self) -> None:
        self._goal = self._end()

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        if options.offsets_per_trigger is not None:
            return ReadMaxRows(options.offsets_per_trigger)
        if options.bytes_per_trigger is not None:
            return ReadMaxBytes(options.bytes_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: Json, limit: ReadLimit) -> dict[str, Any]:
        """Where the micro-batch ends that begins at `start`; `start` when there is nothing new."""
        end = self._goal or self._end()
        begin = self._begin(_Position.of(start), end)
        if isinstance(limit, ReadAllAvailable):
            return end.as_json()
        # Spark passes one limit on. Both options hold where both are given.
        lags = {
            partition: (first, last)
            for partition, last in end.offsets.items()
            if last > (first := begin.get(partition, 0))
        }
        if (offsets_max := self._options.offsets_per_trigger) is not None:
            lags = limited_by_offsets(lags, offsets_max)
        if (bytes_max := self._options.bytes_per_trigger) is not None:
            lags = self._limited_by_bytes(end.topic_id, lags, bytes_max)
        cut = {partition: last for partition, (_, last) in lags.items()}
        return _Position(end.topic_id, {**end.offsets, **cut}).as_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._last_known is None else self._last_known.as_json()

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        topic = self._log.topic()
        last = _Position.of(end)
        if topic.topic_id != last.topic_id:
            self._lost(f"{self._log.name} was deleted and made again since the query was planned")
            return []
        begin = self._begin(_Position.of(start), last)
        url = store_url(topic, self._options.object_store_url)
        starts = {
            number: first
            for number, offset in last.offsets.items()
            if offset > (first := begin.get(number, 0))
        }
        tasks: list[InputPartition] = []
        for number, first in self._checked(topic.topic_id, starts).items():
            offset = last.offsets[number]
            extents = self._log.extents(TopicIdPartition(topic.topic_id, number), first, offset)
            tasks += (
                ShareOfTopic(topic_id=topic.topic_id, object_store_url=url, share=share)
                for share in shares(number, first, offset, extents)
            )
        return tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ShareOfTopic)
        yield from task_batches(partition, self._options, self._columns, ALL)

    # --- in the driver's process

    def _now(self) -> tuple[ReadableTopic, Sequence[TopicIdPartition]]:
        topic = self._log.topic()
        return topic, chosen(self._options, topic.topic_id, topic.partition_count)

    def _end(self) -> _Position:
        topic, partitions = self._now()
        self._last_known = _Position(topic.topic_id, self._log.ends(partitions))
        return self._last_known

    def _begin(self, start: _Position, end: _Position) -> Mapping[int, int]:
        """Where reading goes on in each partition that is known; the others are new."""
        if start.topic_id != end.topic_id:
            self._lost(
                f"{self._log.name} was deleted and made again: its id is {end.topic_id}, the"
                f" checkpoint has read {start.topic_id}"
            )
            return {}
        for partition, last in end.offsets.items():
            if (first := start.offsets.get(partition, 0)) > last:
                self._lost(
                    f"{self._log.name}-{partition} ends at {last}, the checkpoint has read up to"
                    f" {first}"
                )
        return start.offsets

    def _checked(self, topic_id: UUID, starts: Mapping[int, int]) -> Mapping[int, int]:
        """`starts`, none of them before the log's. Raises: RecordsGone."""
        firsts = self._log.starts([TopicIdPartition(topic_id, number) for number in starts])
        fail = self._options.fail_on_data_loss
        return checked_starts(self._log, starts, firsts, fail=fail)

    def _lost(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise RecordsGone(
                f"{what}. Set option failOnDataLoss=false to go on with what there is, or begin"
                " anew with another checkpointLocation"
            )

    def _limited_by_bytes(
        self, topic_id: UUID, lags: Mapping[int, tuple[int, int]], limit_bytes: int
    ) -> dict[int, tuple[int, int]]:
        """Shorter ranges, of about `limit_bytes` as stored together."""
        limited = {}
        starts = self._checked(topic_id, {number: first for number, (first, _) in lags.items()})
        # What those that lag least leave of their parts goes to the others.
        ranges = sorted(lags.items(), key=lambda item: item[1][1] - item[1][0])
        for number, (partition, (first, last)) in enumerate(ranges):
            part = limit_bytes // (len(ranges) - number)
            first = starts[partition]
            extents = self._log.extents(TopicIdPartition(topic_id, partition), first, last)
            cut, taken = bytes_up_to(first, last, extents, part)
            limited[partition] = (first, cut)
            limit_bytes = max(limit_bytes - taken, 0)
        return limited


def limited_by_offsets(
    lags: Mapping[int, tuple[int, int]], limit: int
) -> dict[int, tuple[int, int]]:
    """Shorter ranges, `limit` offsets together, divided as the partitions lag."""
    total = sum(last - first for first, last in lags.values())
    if total <= limit:
        return dict(lags)
    parts = {
        partition: (last - first) * limit // total for partition, (first, last) in lags.items()
    }
    left = limit - sum(parts.values())
    for partition in sorted(lags, key=lambda number: parts[number])[:left]:
        parts[partition] += 1
    return {partition: (first, first + parts[partition]) for partition, (first, _) in lags.items()}
