"""`format("diskless")` itself: what Spark is given to register.

Each Python worker of Spark imports this module, mostly to read: writing is imported where a query
writes.
"""

from typing import Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from tiering.source.batch import batch_reader
from tiering.source.columns import schema_of
from tiering.source.options import (
    SinkOptions,
    SourceOptions,
    parse_options,
    parse_sink_options,
    refuse,
)
from tiering.source.reading import encoded_types
from tiering.source.topic_types import typed_fields
from wal.errors import InvalidSettings

_STREAMING_ONLY: Final = ("maxOffsetsPerTrigger", "maxBytesPerTrigger")
_BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "pushdown")


class DisklessDataSource(DataSource):
    """`spark.dataSource.register(DisklessDataSource)`; docs/tables.md has the options."""

    @classmethod
    def name(cls) -> str:
        return "diskless"

    def schema(self) -> StructType:
        """Option `columns`, or all columns of Spark's Kafka source.

        Asks brokers for the topic's types, if columns of these are named, and else nobody.
        """
        options = self._parsed()
        return schema_of(
            options.columns, typed_fields(encoded_types(options, options.columns or ()))
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._parsed()
        refuse(options, _STREAMING_ONLY, "for spark.readStream; give spark.read a range instead")
        return batch_reader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = self._parsed()
        refuse(options, _BATCH_ONLY, "for spark.read; spark.readStream has no end")
        if options.latest:
            raise InvalidSettings(
                "option latest is for spark.read: a stream gives each record as it comes, and does"
                " not take back what it gave"
            )
        try:
            from tiering.source.stream import StreamReader
        except ModuleNotFoundError as error:
            if error.name != "pyspark.sql.streaming.datasource":
                raise
            raise InvalidSettings("spark.readStream needs PySpark 4.2 or newer") from error
        return StreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        options = self._parsed_sink(overwrite)
        if options.sink_id is None:
            from tiering.source.writing.at_least_once import Sink

            return Sink(options, schema)
        if options.batch_id is None:
            raise InvalidSettings("option sink.id of df.write needs sink.batch.id beside it")
        from tiering.source.writing.exactly_once import ExactlyOnceSink

        return ExactlyOnceSink(options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        options = self._parsed_sink(overwrite)
        if options.batch_id is not None:
            raise InvalidSettings("option sink.batch.id is for df.write; a stream has its own")
        if options.sink_id is None:
            from tiering.source.writing.at_least_once import StreamSink

            return StreamSink(options, schema)
        from tiering.source.writing.exactly_once import ExactlyOnceStreamSink

        return ExactlyOnceStreamSink(options, schema)

    def _parsed_sink(self, overwrite: bool) -> SinkOptions:
        if overwrite:
            raise InvalidSettings("records are added to a topic: mode append, output mode append")
        return parse_sink_options(self.options)

    def _parsed(self) -> SourceOptions:
        return parse_options(self.options)
