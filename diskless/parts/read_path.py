"""The read path: object cache, segments, timestamp search; and the replica manager.

The replica manager is here because it reads; it also hands produced batches to the write path.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

from diskless.fetch.fetch_sessions import FetchSessions
from diskless.fetch.read_ahead import ReadAhead
from diskless.fetch.read_memory import ReadMemory
from diskless.loop.long_work import LongWork
from diskless.parts.process_parts import Ground, State
from diskless.parts.storage import Storage
from diskless.parts.write_path import WritePath
from diskless.ports import LEADER_EPOCH
from diskless.produce.batch_lanes import BatchLanes
from diskless.replica.batch_reader import BatchReader
from diskless.replica.extent_source import ExtentSource, OtherChunks
from diskless.replica.replica_manager import ReplicaManager
from diskless.replica.served_topics import nothing_new
from diskless.replica.timestamp_search import TimestampSearch
from diskless.topics.topic_defaults import topic_defaults
from tiering.segment_reader import SegmentReader
from wal.caches.block_files import BlockFiles
from wal.caches.object_cache import ObjectCache
from wal.coordinates import ObjectKey
from wal.inflation_budget import InflationBudget
from wal.stores.object_store import Buffer


class ReadPath:
    """What reads, and the replica manager."""

    def __init__(
        self,
        base: Ground,
        storage: Storage,
        coordination: State,
        writes: WritePath,
        *,
        lane: int = 0,
        siblings: OtherChunks | None = None,
        refresh: Callable[[], None] = nothing_new,
    ) -> None:
        """`lane`: which of the broker's processes this is; `siblings`: the chunks of the others.

        `refresh` is called before anything is told that may have changed (`Fetcher`).
        """
        config, clock, store = base.config, base.clock, storage.store

        async def read_segment_range(
            key: ObjectKey, start: int, length: int, object_length: int
        ) -> Buffer:
            # The segment reader keeps row groups decoded, so no block has to keep their bytes.
            views = await self.cache.read(key, start, length, object_length, cold=True)
            return views[0] if len(views) == 1 else b"".join(views)

        self.long_work: Final = LongWork(clock.monotonic)
        memory = ReadMemory(config.read.memory_idle_max_bytes)
        disk = None
        if config.cache.disk_bytes:
            disk = BlockFiles(
                str(storage.data.cache_of(lane)),
                limit_bytes=config.cache.disk_bytes,
                threads=config.cache.disk_threads,
                fd_cache=storage.fd_cache,
                lend=memory.lend,
            )
        self.cache: Final = ObjectCache(store, clock=clock, settings=config.cache, disk=disk)
        self.segments: Final = SegmentReader(
            read_segment_range, settings=config.segments, leader_epoch=LEADER_EPOCH
        )
        source = ExtentSource(
            directory=writes.directory,
            cache=self.cache,
            memory=memory,
            segments=self.segments,
            threads=storage.read_threads,
            clock=clock,
            cold_after_ms=config.read.cold_after_ms,
            siblings=siblings,
        )
        self.reader: Final = BatchReader(source=source, long_work=self.long_work)
        self.ahead: Final = ReadAhead(
            coordination.client, self.reader, clock=clock, budget_bytes=config.cache.ahead_bytes
        )
        self.inflation: Final = InflationBudget(config.inflation.max_bytes)
        self.search: Final = TimestampSearch(
            reader=self.reader, segments=self.segments, budget=self.inflation
        )
        self.lanes: Final = BatchLanes(storage.pool, self.inflation)
        self.replicas: Final = ReplicaManager(
            coordinator=coordination.client,
            write_loop=writes.write_loop,
            reader=self.reader,
            search=self.search,
            clock=clock,
            fetch_max_bytes=config.server.fetch_max_bytes,
            metadata_topic=coordination.metadata_topic,
            topic_defaults=topic_defaults(config.values()),
            lanes=self.lanes,
            ahead=self.ahead,
            numbers=coordination.transaction_numbers,
            refresh=refresh,
        )
        self.fetch_sessions: Final = FetchSessions(
            slots=config.read.fetch_session_slots, clock=clock, rng=base.rng
        )

    async def open(self, stack: AsyncExitStack, coordination: State) -> None:
        """Open the caches; the replica manager hears of commits from then on."""
        for part in (self.cache, self.segments, self.search, self.lanes):
            await stack.enter_async_context(part)
        stack.push_async_callback(self.ahead.close)
        stack.callback(self.replicas.close)
        coordination.client.subscribe(self.replicas.committed)
        coordination.metadata_topic.subscribe(self.replicas.committed)
