"""`df.write.format("diskless")` and `df.writeStream`: each row becomes a record, at least once.

Each task has an idempotent producer of its own with `acks=all`, and ends when all of its records
are acknowledged. A task that fails is repeated by Spark, with another producer, so its records may
be there twice; a micro-batch that is repeated after a restart likewise. None is lost, and within a
task rows of a partition keep their order.

The producer is kafka-python's, which every installation has. It takes records one by one: that
bounds what a task writes, which a producer that takes columns would not.

Failure cases: InvalidSettings for a schema without values; LoginRefused; what the producer raises
of records that brokers do not take. The latter two fail the task.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from tiering.coordinator_client import CoordinatorClient
from tiering.source.client_properties import security_of
from tiering.source.options import SinkOptions
from tiering.source.writing.sink_columns import SINK_COLUMNS, check_columns

LINGER_MS: Final = 20
BATCH_BYTES: Final = 512 << 10
ACKNOWLEDGED_S_MAX: Final = 120.0
"""As long as the producer itself tries (delivery.timeout.ms)."""
UNACKNOWLEDGED_MAX: Final = 20_000
"""Records that wait for their acknowledgement before the task goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written(WriterCommitMessage):
    """What a task tells the driver: its records are acknowledged."""

    record_count: int


class _RecordWriter:
    """What batch and streaming writes have in common."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        check_columns(schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Runs in a task."""
        # Here alone: it takes a quarter of a second, which planning a read need not wait for.
        from kafka import KafkaProducer

        security = security_of(self._options.command_config)
        if security.login is not None:
            # The producer tries again and again what is refused, and does not tell why.
            CoordinatorClient(self._options.bootstrap, security).connect()
        producer = KafkaProducer(
            bootstrap_servers=self._options.bootstrap.split(","),
            client_id="diskless-spark",
            acks="all",
            enable_idempotence=True,
            linger_ms=LINGER_MS,
            batch_size=BATCH_BYTES,
            **security.kafka_python(),
        )
        try:
            count = sum(self._send(producer, batch) for batch in iterator)
        finally:
            producer.close()
        return Written(record_count=count)

    def _send(self, producer: Any, batch: pa.RecordBatch) -> int:
        for start in range(0, batch.num_rows, UNACKNOWLEDGED_MAX):
            some = batch.slice(start, UNACKNOWLEDGED_MAX)
            sent = [
                producer.send(
                    self._options.topic,
                    value=value,
                    key=key,
                    headers=[(header["key"], header["value"]) for header in headers or ()],
                    partition=partition,
                )
                for key, value, headers, partition in zip(
                    *(_values(some, name) for name in SINK_COLUMNS), strict=True
                )
            ]
            producer.flush()
            for future in sent:
                # Raises what became of one that was not stored. Most are known by now; `flush` does
                # not wait for what was too large together and is sent again in parts.
                future.get(timeout=ACKNOWLEDGED_S_MAX)
        return int(batch.num_rows)


class Sink(_RecordWriter, DataSourceArrowWriter):
    """`df.write`."""


class StreamSink(_RecordWriter, DataSourceStreamArrowWriter):
    """`df.writeStream`."""


def _values(batch: pa.RecordBatch, name: str) -> Sequence[Any]:
    if name not in batch.schema.names:
        return [None] * batch.num_rows
    column = batch.column(name)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = column.cast(pa.binary())
    values: Sequence[Any] = column.to_pylist()
    return values
