"""Tells how far segments, and tables, are behind what was committed, by topic, for the metrics.

The lag of a topic is what lies in WAL objects alone: its bytes, planned or not, and the time of the
oldest commit among them. A job that does not run shows as a lag that grows, a segment that cannot
be made as a time that does.

All of it is one statement, run in a reader thread: a look at the first row of each partition and at
the rows of outstanding plans, so that a pass grows with partitions and not with records. It takes
the sizes as the state has them and checks no row: nothing but the metrics depends on it.

The lag of a table is the time of the oldest change of its topic's segments that its pointer does
not know of: one that came, or one that left and is still stored. A registrar that does not run
shows as one that grows. This reads the rows of the segments of topics that are tables.

Topics with `tiering.enable=false` are left out. One worker per coordinator, running where it is
led, for the partitions of that coordinator: brokers add up their bytes, and the greatest time is
the topic's. Ends by cancellation; what fails is tried again after the next pause.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, Select, func, select

from metadata.replica.replica import Replica
from metadata.rules.segments import is_tiered
from metadata.rules.tables import has_table
from metadata.state.queries.segment_queries import changes_since
from metadata.state.schema import BATCHES, PARTITIONS, SEGMENT_PLANS, TOPICS
from metadata.workers.periodic import repeat
from wal.clock import Clock, Sleep

LOOK_INTERVAL_S: Final = 10.0

TOPICS_MAX: Final = 200
"""Topics that are told of, those with the oldest commits first: each is two lines of a page."""

_logger = logging.getLogger(__name__)


class TopicLag(NamedTuple):
    """What one topic has in WAL objects alone, in the partitions of one coordinator."""

    topic_id: UUID
    topic_name: str
    lag_bytes: int
    oldest_ms: int | None
    """When the oldest of it was committed; None when there is nothing."""


class TierLag:
    """One background worker per coordinator."""

    def __init__(
        self,
        replica: Replica,
        *,
        coordinator_id: int,
        clock: Clock,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._replica = replica
        self._coordinator_id = coordinator_id
        self._clock = clock
        self._sleep = sleep
        self._lags: Sequence[TopicLag] = ()
        self._tables: Mapping[str, int | None] = {}
        """When what a table does not show changed, by topic; None: it shows all."""

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        await repeat(
            self.pass_once,
            interval_s=LOOK_INTERVAL_S,
            backoff_max_s=0,
            sleep=self._sleep,
            failed=partial(_logger.warning, "the lag of segments is not known: %s"),
        )

    async def pass_once(self) -> None:
        """Raises: StorageFailed."""
        tiered = []
        tables = []
        for lag in await self._replica.state.read(topic_lags):
            configs = self._replica.topic_configs(lag.topic_id)
            if configs is None:
                continue
            if is_tiered(configs):
                tiered.append(lag)
            if has_table(configs):
                tables.append(lag)
        now_ms = self._clock.now_ms()
        tiered.sort(key=lambda lag: now_ms if lag.oldest_ms is None else lag.oldest_ms)
        self._lags = tiered[:TOPICS_MAX]
        self._tables = await self._table_changes(tables, now_ms)

    async def _table_changes(
        self, topics: Sequence[TopicLag], now_ms: int
    ) -> Mapping[str, int | None]:
        """Of those topics whose tables are furthest behind."""
        if not topics:
            return {}
        applied = {}
        for topic in topics:
            table = self._replica.table(topic.topic_id)
            known = {} if table is None else table.applied
            applied[topic.topic_id] = known.get(self._coordinator_id, 0)
        changes = await self._replica.state.read(partial(changes_since, applied=applied))
        found = [(topic.topic_name, changes[topic.topic_id]) for topic in topics]
        found.sort(key=lambda one: now_ms if one[1] is None else one[1])
        return dict(found[:TOPICS_MAX])

    def bytes_by_topic(self) -> Mapping[str, float]:
        """Returns bytes that are in no segment."""
        return {lag.topic_name: lag.lag_bytes for lag in self._lags}

    def seconds_by_topic(self) -> Mapping[str, float]:
        """Returns how long ago the oldest of them were committed; 0 when there are none."""
        now_ms = self._clock.now_ms()
        return {
            lag.topic_name: 0 if lag.oldest_ms is None else max(now_ms - lag.oldest_ms, 0) / 1000
            for lag in self._lags
        }

    def table_seconds_by_topic(self) -> Mapping[str, float]:
        """Returns how long ago what a topic's table does not show changed; 0: it shows all."""
        now_ms = self._clock.now_ms()
        return {
            name: 0 if changed_ms is None else max(now_ms - changed_ms, 0) / 1000
            for name, changed_ms in self._tables.items()
        }


def topic_lags(connection: Connection) -> Sequence[TopicLag]:
    """All topics that have partitions here."""
    return [
        TopicLag(UUID(bytes=topic_id), name, lag_bytes, oldest_ms)
        for topic_id, name, lag_bytes, oldest_ms in connection.execute(_TOPIC_LAGS)
    ]


def _topic_lags() -> Select[Any]:
    topics, partitions = TOPICS.table.c, PARTITIONS.table.c
    batches, plans = BATCHES.table.c, SEGMENT_PLANS.table.c
    oldest_ms = (
        select(batches.append_time_ms)
        .where(batches.partition == partitions.id)
        .order_by(batches.last_offset)
        .limit(1)
        .scalar_subquery()
    )
    planned_bytes = (
        select(func.coalesce(func.sum(batches.byte_size), 0))
        .select_from(SEGMENT_PLANS.table)
        .join(
            BATCHES.table,
            (batches.partition == plans.partition)
            & batches.last_offset.between(plans.base_offset, plans.last_offset),
        )
        .where(plans.partition == partitions.id)
        .scalar_subquery()
    )
    return (
        select(
            topics.topic_id,
            topics.name,
            func.sum(partitions.unplanned_bytes + planned_bytes),
            func.min(oldest_ms),
        )
        .select_from(PARTITIONS.table)
        .join(TOPICS.table, topics.id == partitions.topic)
        .group_by(topics.id)
    )


_TOPIC_LAGS: Final = _topic_lags()
