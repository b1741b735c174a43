"""Deletes the metadata files of tables whose topic is gone.

A tiering job deletes what it replaces (tiering/tables/table_files.py), but it is told only of
topics that there are. So the leader of metadata partition 0 lists `tables/` once in the interval of
the orphan scan, and deletes what lies below the id of a topic that the catalogue does not know.

- Nothing is deleted that is younger than the grace of the orphan scan and the skew of clocks: a job
  may have begun before the topic was deleted, and readers may still be at it.
- Nothing that is older than the metadata log: a coordinator that begins with an empty log on a full
  bucket knows of no topic, and a rebuild will bring them back.
- What is not named like a table's file is left alone.

A crash or a second sweeper costs a repetition. Retries for ever. No other object names these files.
"""

from collections.abc import Callable
from typing import Final
from uuid import UUID

from metadata.metadata_settings import CoordinatorSettings
from metadata.table_operations import TABLES_PREFIX
from wal.clock import Clock
from wal.coordinates import ObjectKey
from wal.stores.object_store import ObjectStat, ObjectStore

DELETED_AT_ONCE: Final = 1_000


class TablesSweep:
    """Looks through the tables of one bucket."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        has_topic: Callable[[UUID], bool],
        log_began_ms: Callable[[], int | None],
        settings: CoordinatorSettings,
        clock: Clock,
    ) -> None:
        """`log_began_ms`: when the metadata log got its first record; None for an empty log."""
        self._store = store
        self._has_topic = has_topic
        self._log_began_ms = log_began_ms
        self._settings = settings
        self._clock = clock
        self.objects_deleted = 0
        """Since the start of this sweep."""

    async def sweep_once(self) -> None:
        """One pass. Raises: ObjectStoreUnavailable."""
        doomed: list[ObjectKey] = []
        async for stat in self._store.list(TABLES_PREFIX):
            if self._is_left_behind(stat):
                doomed.append(stat.key)
            if len(doomed) >= DELETED_AT_ONCE:
                self.objects_deleted += len(await self._store.delete(doomed))
                doomed = []
        if doomed:
            self.objects_deleted += len(await self._store.delete(doomed))

    def _is_left_behind(self, stat: ObjectStat) -> bool:
        settings, began_ms = self._settings, self._log_began_ms()
        age_ms = self._clock.now_ms() - stat.last_modified_ms
        if (
            began_ms is None
            or stat.last_modified_ms < began_ms
            or age_ms <= settings.orphan_scan_grace_ms + settings.clock_skew_max_ms
        ):
            return False
        topic, _, rest = stat.key.removeprefix(TABLES_PREFIX).partition("/")
        try:
            topic_id = UUID(topic)
        except ValueError:
            return False
        return rest.startswith("metadata/") and not self._has_topic(topic_id)
