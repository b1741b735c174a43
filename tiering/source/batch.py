"""`spark.read.format("diskless")`: all committed records of a topic, once, as of the planning.

Planning asks the leaders where each partition begins and ends and walks over extents by their
sizes; tasks read. Spark's Python planner does not see the session's settings, so what prunes by the
filters of a query is a class of its own, which option `pushdown` chooses: a reader that has
`pushFilters` is refused while spark.sql.python.filterPushdown.enabled is false, its default.
"""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from tiering.source import reading
from tiering.source.filters import ALL, Bounds, narrowed
from tiering.source.options import EARLIEST, LATEST, SourceOptions
from tiering.source.planning import Share, shares
from tiering.source.rows.latest_rows import fewer_shares
from tiering.source.topic_log import store_url
from wal.errors import InvalidSettings


class BatchReader(DataSourceReader):
    """Reads what is committed when it is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._columns = reading.columns_of(options, schema)
        self._bounds: Bounds = ALL

    def partitions(self) -> Sequence[InputPartition]:
        """A list, as Spark wants it."""
        options = self._options
        names = reading.topic_names(options)
        return [task for name in names for task in self._of_topic(options.of_topic(name))]

    def _of_topic(self, options: SourceOptions) -> Sequence[InputPartition]:
        bounds = self._bounds
        log = reading.open_log(options, options.topic)
        topic = log.topic()
        url = store_url(topic, options.object_store_url)
        partitions = [
            partition
            for partition in reading.chosen(options, topic.topic_id, topic.partition_count)
            if bounds.partitions is None or partition.partition in bounds.partitions
        ]
        # In this order: the log goes on, and what is asked for later is not less.
        firsts = log.starts(partitions)
        starts = reading.resolved(log, partitions, options.starting or EARLIEST, "startingOffsets")
        ends = reading.resolved(log, partitions, options.ending or LATEST, "endingOffsets")
        lasts = log.ends(partitions)
        starts = reading.checked_starts(log, starts, firsts, fail=options.fail_on_data_loss)
        tasks: list[InputPartition] = []
        for partition in partitions:
            number = partition.partition
            if ends[number] > lasts[number] or starts[number] > lasts[number]:
                raise InvalidSettings(
                    f"options startingOffsets, endingOffsets: {options.topic}-{number} ends at"
                    f" {lasts[number]}"
                )
            start = max(starts[number], bounds.offset_min or 0)
            end = ends[number]
            if bounds.offset_max is not None:
                end = min(end, bounds.offset_max + 1)
            extents = log.extents(partition, start, end)
            parts: Iterable[Share] = shares(
                number, start, end, extents, timestamp_min_ms=bounds.timestamp_min_ms
            )
            if options.latest:
                parts = fewer_shares([*parts])
            tasks += (
                reading.ShareOfTopic(
                    topic=options.topic,
                    topic_id=topic.topic_id,
                    object_store_url=url,
                    share=share,
                    # What the filters leave out is newer than what they ask for all the same.
                    latest_below=ends[number] if options.latest else None,
                )
                for share in parts
            )
        return tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Where there is nothing to read at all, Spark makes one task of its own.
        if isinstance(partition, reading.ShareOfTopic):
            yield from reading.task_batches(partition, self._options, self._columns, self._bounds)


class PruningBatchReader(BatchReader):
    """The same, for option pushdown=true."""

    def pushFilters(self, filters: Iterable[Filter]) -> Iterable[Filter]:
        """Take bounds of them; Spark goes on to filter rows by all."""
        filters = list(filters)
        self._bounds = narrowed(self._bounds, filters)
        return filters


def batch_reader(options: SourceOptions, schema: StructType) -> DataSourceReader:
    if options.pushdown:
        return PruningBatchReader(options, schema)
    return BatchReader(options, schema)
