"""Deletes objects that jobs wrote as segments, and that nobody will commit.

A roll, a merge or a compaction writes objects first and commits them afterwards. When it never
does, because its plan ended or its topic was deleted, no metadata speak of them. So the leader of
metadata partition 0 lists `segments/` once in the interval of the orphan scan. An object goes when
all of this holds:

1. its key is exactly that of a segment, under the name that its topic has;
2. the store says that it is older than the grace of the orphan scan and the skew of clocks. No
   promise rests on that;
3. it is younger than the metadata logs that speak for it. What is older may be of metadata that are
   lost, and a rebuild may need it;
4. no replica on this broker has a file row with its key. With one, it is live, or the file workers
   see to it;
5. its partition is known, and no commit can take its key any more
   (metadata/rules/rewriting/leftovers.py). Or its topic is not known: then the leader of the
   catalogue first makes sure that it leads, so that the topic was deleted and is not just new.

Replicas are asked, not coordinators: 4 and 5 can only err towards keeping an object. What lies in a
partition that no replica here has is left alone.

A crash or a second sweeper costs a repetition. A task that is very late may put an object again
after it was deleted; the next pass finds it. Retries for ever.
"""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final
from uuid import UUID

from metadata.metadata_settings import CoordinatorSettings
from metadata.operations import TopicDescription
from metadata.records.segment_identity import SEGMENTS_PREFIX, NamedSegment, named_segment
from metadata.replica.replica import Replica
from metadata.rules.rewriting.leftovers import may_be_committed
from metadata.state.queries.file_queries import known_files
from wal.clock import Clock
from wal.coordinates import ObjectKey
from wal.stores.object_store import ObjectStat, ObjectStore

DECIDED_AT_ONCE: Final = 1_000

_logger = logging.getLogger(__name__)


class SegmentsSweep:
    """Looks through the segments of one bucket."""

    def __init__(
        self,
        store: ObjectStore,
        catalogue: Replica,
        replicas: Sequence[Replica],
        *,
        confirm_leadership: Callable[[], Awaitable[None]],
        settings: CoordinatorSettings,
        clock: Clock,
    ) -> None:
        """`replicas` are all that this broker has, that of the `catalogue` among them.

        `confirm_leadership` raises unless this broker leads the catalogue now.
        """
        self._store = store
        self._catalogue = catalogue
        self._replicas = replicas
        self._confirm_leadership = confirm_leadership
        self._settings = settings
        self._clock = clock
        self.objects_deleted = 0
        """Since the start of this sweep."""

    async def sweep_once(self) -> None:
        """One pass. Raises: ObjectStoreUnavailable, NotCoordinator."""
        page: dict[ObjectKey, NamedSegment] = {}
        async with aclosing(self._old_segments()) as found:
            async for key, named in found:
                page[key] = named
                if len(page) == DECIDED_AT_ONCE:
                    await self._delete_leftovers(page)
                    page = {}
        await self._delete_leftovers(page)

    async def _old_segments(self) -> AsyncGenerator[tuple[ObjectKey, NamedSegment], None]:
        async for stat in self._store.list(SEGMENTS_PREFIX):
            named = named_segment(stat.key)
            if named is not None and self._is_old(stat):
                yield stat.key, named

    def _is_old(self, stat: ObjectStat) -> bool:
        settings = self._settings
        age_ms = self._clock.now_ms() - stat.last_modified_ms
        began_ms = self._catalogue.log_began_ms
        return (
            age_ms > settings.orphan_scan_grace_ms + settings.clock_skew_max_ms
            and began_ms is not None
            and stat.last_modified_ms > began_ms + settings.clock_skew_max_ms
        )

    async def _delete_leftovers(self, page: Mapping[ObjectKey, NamedSegment]) -> None:
        """Delete those of `page` that nobody will commit."""
        left = [key for key, named in page.items() if not self._may_be_committed(named)]
        # Rows come after the image: what was committed in between has a row by now.
        for replica in self._replicas:
            if left:
                known = await replica.state.read(partial(known_files, keys=left))
                left = [key for key in left if key not in known]
        if not left:
            return
        if any(self._topic(page[key].partition.topic_id) is None for key in left):
            await self._confirm_leadership()
            left = [key for key in left if not self._may_be_committed(page[key])]
        confirmed = await self._store.delete(left)
        self.objects_deleted += len(confirmed)
        _logger.info("%d of %d uncommitted segments deleted", len(confirmed), len(left))

    def _may_be_committed(self, named: NamedSegment) -> bool:
        """Also where that cannot be told."""
        topic = self._topic(named.partition.topic_id)
        if topic is None:
            return False
        for replica in self._replicas:
            if named.partition in replica.image.partitions:
                return topic.name != named.topic_name or may_be_committed(replica.image, named)
        return True

    def _topic(self, topic_id: UUID) -> TopicDescription | None:
        return self._catalogue.topic_by_id(topic_id)
