"""`spark.readStream.format("diskless")`: micro-batches that follow one or several topics.

Spark keeps the offsets: it writes down where a micro-batch ends before it reads it, and after a
restart asks for the same ranges again. A range of offsets always gives the same records, so with an
idempotent sink each record counts once. What Spark writes down is

    {"flights": {"id": "<topic id>", "offsets": {"0": 23, "1": 0}}}

with the first offset of each partition that is not read yet. A partition, or a topic, that is not
in it was added since, and is read from its beginning. By the id a topic that was deleted and made
again is told from its predecessor.

Where a micro-batch ends is decided by the last stable offsets, asked of the leaders, and by limits.
A limit of offsets is divided as the partitions lag, one of bytes by the sizes of extents; each
trigger takes one record at least. `Trigger.AvailableNow` reads what was committed when it began,
within the limits, and ends.

Failure cases: those of `topic_stream`, and RecordsGone when a topic that was read is not among
those of the options any more.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

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

from tiering.source.filters import ALL
from tiering.source.options import SourceOptions
from tiering.source.reading import ShareOfTopic, columns_of, task_batches, topic_names
from tiering.source.topic_stream import Position, TopicStream, lost

Json = Mapping[str, Any]
Positions = Mapping[str, Position]
Lags = Mapping[tuple[str, int], tuple[int, int]]
"""What is to be read, by topic and partition: from where to where."""

_Place = TypeVar("_Place", bound=Hashable)


def _as_json(positions: Positions) -> dict[str, Any]:
    return {name: positions[name].as_json() for name in sorted(positions)}


def _of_json(positions: Json) -> Positions:
    return {name: Position.of(position) for name, position in positions.items()}


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in a process of the driver while the query runs; a copy of it goes to each task."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._columns = columns_of(options, schema)
        # Not in the copies that go to tasks: each reads its own keys.
        self._opened: dict[str, TopicStream] = {}
        self._last_known: Positions | None = None
        self._goal: Positions | None = None
        """With Trigger.AvailableNow: where the query ends."""

    def initialOffset(self) -> dict[str, Any]:
        """Of a query without a checkpoint."""
        names = topic_names(self._options)
        return _as_json({name: self._topic(name).initial() for name in names})

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
        begin = self._begin(_of_json(start), end)
        if isinstance(limit, ReadAllAvailable):
            return _as_json(end)
        # Spark passes one limit on. Both options hold where both are given.
        lags: Lags = {
            (name, partition): (first, last)
            for name, position in end.items()
            for partition, last in position.offsets.items()
            if last > (first := begin[name].get(partition, 0))
        }
        if (offsets_max := self._options.offsets_per_trigger) is not None:
            lags = limited_by_offsets(lags, offsets_max)
        if (bytes_max := self._options.bytes_per_trigger) is not None:
            lags = self._limited_by_bytes(end, lags, bytes_max)
        cut: dict[str, dict[int, int]] = {}
        for (name, partition), (_, last) in lags.items():
            cut.setdefault(name, {})[partition] = last
        return _as_json(
            {
                name: Position(position.topic_id, {**position.offsets, **cut.get(name, {})})
                for name, position in end.items()
            }
        )

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._last_known is None else _as_json(self._last_known)

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        starts = _of_json(start)
        return [
            task
            for name, last in _of_json(end).items()
            for task in self._topic(name).tasks(starts.get(name), last)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ShareOfTopic)
        yield from task_batches(partition, self._options, self._columns, ALL)

    # --- in the driver's process

    def _topic(self, name: str) -> TopicStream:
        if name not in self._opened:
            self._opened[name] = TopicStream(self._options.of_topic(name))
        return self._opened[name]

    def _end(self) -> Positions:
        names = topic_names(self._options)
        self._last_known = {name: self._topic(name).end() for name in names}
        return self._last_known

    def _begin(self, starts: Positions, ends: Positions) -> Mapping[str, Mapping[int, int]]:
        for name in starts:
            if name not in ends:
                lost(self._options, f"{name} has been read, and is not a topic of the query now")
        return {name: self._topic(name).begin(starts.get(name), end) for name, end in ends.items()}

    def _limited_by_bytes(self, ends: Positions, lags: Lags, limit_bytes: int) -> Lags:
        """Shorter ranges, of about `limit_bytes` as stored together."""
        limited = {}
        starts: dict[tuple[str, int], int] = {}
        for name, end in ends.items():
            firsts = {number: first for (of, number), (first, _) in lags.items() if of == name}
            checked = self._topic(name).checked(end.topic_id, firsts)
            starts |= {(name, number): first for number, first in checked.items()}
        # What those that lag least leave of their parts goes to the others.
        ranges = sorted(lags.items(), key=lambda item: item[1][1] - item[1][0])
        for index, (place, (_, last)) in enumerate(ranges):
            part = limit_bytes // (len(ranges) - index)
            name, number = place
            first = starts[place]
            cut, taken = self._topic(name).bytes_up_to(
                ends[name].topic_id, number, first, last, part
            )
            limited[place] = (first, cut)
            limit_bytes = max(limit_bytes - taken, 0)
        return limited


def limited_by_offsets(
    lags: Mapping[_Place, tuple[int, int]], limit: int
) -> dict[_Place, tuple[int, int]]:
    """Shorter ranges, `limit` offsets together, divided as the partitions lag."""
    total = sum(last - first for first, last in lags.values())
    if total <= limit:
        return dict(lags)
    parts = {place: (last - first) * limit // total for place, (first, last) in lags.items()}
    left = limit - sum(parts.values())
    for place in sorted(lags, key=lambda one: parts[one])[:left]:
        parts[place] += 1
    return {place: (first, first + parts[place]) for place, (first, _) in lags.items()}
