"""What a batch and a streaming read have in common: resolving edges, and running a task.

A reader goes as a pickle from the driver's planner to the tasks; it holds options, no connection.
"""

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import pyarrow as pa
import re2
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from metadata.operations import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from tiering.coordinator_client import CLIENT_ID, CoordinatorClient
from tiering.source.client_properties import security_of
from tiering.source.columns import Columns
from tiering.source.filters import Bounds
from tiering.source.options import Edge, SourceOptions
from tiering.source.planning import Share
from tiering.source.rows.latest_rows import latest_tables
from tiering.source.rows.share_rows import Wanted, records_gone, share_tables
from tiering.source.topic_log import TopicLog
from tiering.source.topic_types import TYPED_NAMES, newest_columns, typed_fields, typed_read
from tiering.types.registry import HttpRegistry, registry_settings
from wal.clock import SystemClock
from wal.coordinates import TopicIdPartition
from wal.errors import CommitFailed, InvalidSettings
from wal.stores.blocking_store import open_blocking_store


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareOfTopic(InputPartition):
    """What one Spark task reads."""

    topic: str
    topic_id: UUID
    object_store_url: str
    share: Share
    latest_below: int | None = None
    """Of each key the newest record alone, of those below this offset; None: all records."""


def open_log(options: SourceOptions, topic: str) -> TopicLog:
    """One topic of the options, not looked up yet.

    Raises: InvalidSettings.
    """
    security = security_of(options.command_config)
    return TopicLog(options.bootstrap, topic, sleep=time.sleep, security=security)


def topic_names(options: SourceOptions) -> Sequence[str]:
    """The topics of the options as they are now, in order. Raises: CommitFailed, LoginRefused."""
    if options.pattern is None:
        return sorted(options.topics)
    # Here alone: it takes a quarter of a second.
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError

    security = security_of(options.command_config)
    if security.login is not None:
        # The client tries again and again what is refused, and does not tell why.
        CoordinatorClient(options.bootstrap, security).connect()
    try:
        admin = KafkaAdminClient(
            bootstrap_servers=options.bootstrap.split(","),
            client_id=CLIENT_ID,
            **security.kafka_python(),
        )
        try:
            names = admin.list_topics()
        finally:
            admin.close()
    except KafkaError as error:
        raise CommitFailed(f"{options.bootstrap}: topics cannot be listed: {error}") from error
    pattern = re2.compile(options.pattern)
    # As Kafka's consumers, which leave out what is internal.
    return sorted(name for name in names if not name.startswith("__") and pattern.fullmatch(name))


def encoded_types(options: SourceOptions, names: Iterable[str]) -> bytes:
    """The typed columns of the topic, when some of them are among `names`."""
    if not set(names) & set(TYPED_NAMES):
        return b""
    if len(options.topics) != 1:
        raise InvalidSettings("typed columns are of one topic; read several without them")
    settings = registry_settings(options.registry_url, options.registry_auth, os.environ)
    registry = None if settings is None else HttpRegistry(settings, SystemClock())
    return newest_columns(open_log(options, options.topic).topic(), options.topic, registry)


def columns_of(options: SourceOptions, schema: StructType) -> Columns:
    """The columns of a read. Raises: InvalidSettings."""
    encoded = encoded_types(options, schema.names)
    columns = Columns.of(schema, typed_fields(encoded))
    types = typed_read(options, encoded, [*columns.typed.values()], os.environ)
    return replace(columns, types=types)


def chosen(options: SourceOptions, topic_id: UUID, count: int) -> Sequence[TopicIdPartition]:
    """The partitions to read, of `count` that there are. Raises: InvalidSettings."""
    wanted = options.partitions
    if wanted is not None and wanted and max(wanted) >= count:
        raise InvalidSettings(
            f"option partitions: {options.topic} has no partition {max(wanted)}, it has {count}"
        )
    return [
        TopicIdPartition(topic_id, number)
        for number in range(count)
        if wanted is None or number in wanted
    ]


def resolved(
    log: TopicLog, partitions: Sequence[TopicIdPartition], edge: Edge, name: str
) -> Mapping[int, int]:
    """The offset that an edge stands for in each partition. Raises: InvalidSettings."""
    asked = {
        timestamp: list[TopicIdPartition]()
        for timestamp in (edge.timestamp, EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)
    }
    found: dict[int, int] = {}
    for partition in partitions:
        try:
            at = edge.of(partition.partition)
        except KeyError:
            raise InvalidSettings(
                f"option {name} has no offset for partition {partition.partition}; name all"
                " partitions that are read, or choose them by option partitions"
            ) from None
        if edge.offsets is None or at < 0:
            asked[at].append(partition)
        else:
            found[partition.partition] = at
    for timestamp, some in asked.items():
        found.update(log.offsets(some, timestamp))
    # Nothing is as young as the time that was asked for: the log's end is where that would come.
    younger = [partition for partition in partitions if found[partition.partition] == -1]
    return {**found, **log.ends(younger)}


def checked_starts(
    log: TopicLog, starts: Mapping[int, int], firsts: Mapping[int, int], *, fail: bool
) -> Mapping[int, int]:
    """`starts`, none of them before the log's. Raises: RecordsGone when that is to fail."""
    checked = dict(starts)
    for partition, start in starts.items():
        first = firsts[partition]
        if start < first:
            if fail:
                raise records_gone(log.name, partition, start, first)
            checked[partition] = first
    return checked


def task_batches(
    task: ShareOfTopic, options: SourceOptions, columns: Columns, bounds: Bounds
) -> Iterator[pa.RecordBatch]:
    """Runs in a task: the rows of its share as Spark wants them."""
    log = open_log(options, task.topic)
    partition = TopicIdPartition(task.topic_id, task.share.partition)
    wanted = Wanted(
        columns=columns.stored,
        typed=columns.types,
        timestamp_min_ms=bounds.timestamp_min_ms,
        timestamp_max_ms=bounds.timestamp_max_ms,
        fail_on_data_loss=options.fail_on_data_loss,
    )
    share, below = task.share, task.latest_below
    with open_blocking_store(task.object_store_url) as store:
        tables = (
            share_tables(log, partition, share, store, wanted)
            if below is None
            else latest_tables(log, partition, share, below, store, wanted)
        )
        for rows in tables:
            yield from columns.batches(rows, task.topic, task.share.partition)
