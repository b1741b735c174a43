"""Records as a test wrote them, to look for a timestamp inside of an extent."""

from collections import defaultdict

from metadata.operations import SegmentExtent, WalExtent
from wal.coordinates import ObjectKey, TopicIdPartition
from wal.stores.object_store import ObjectStore
from wal.worker_threads import WorkerThreads


class WrittenRecords:
    """Stands for a `BatchReader` and a segment reader.

    Of WAL objects it has the bytes. Of segments, whose Parquet files nobody wrote here, it
    remembers what is in them.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.timestamps: defaultdict[TopicIdPartition, list[int]] = defaultdict(list)
        """By offset."""
        self.partition_of: dict[ObjectKey, TopicIdPartition] = {}
        """Of segments."""

    async def read_extent(self, extent: WalExtent, threads: WorkerThreads) -> bytearray:
        data = await self._store.get_range(
            extent.object_key, extent.byte_offset, extent.length_bytes
        )
        return bytearray(data)

    async def find_timestamp(
        self, extent: SegmentExtent, timestamp_ms: int
    ) -> tuple[int, int] | None:
        return next((each for each in self._inside(extent) if each[1] >= timestamp_ms), None)

    async def max_timestamp(self, extent: SegmentExtent) -> tuple[int, int] | None:
        return max(self._inside(extent), key=lambda each: each[1], default=None)

    def _inside(self, extent: SegmentExtent) -> list[tuple[int, int]]:
        timestamps = self.timestamps[self.partition_of[extent.object_key]]
        return [
            (offset, timestamps[offset])
            for offset in range(extent.base_offset, extent.last_offset + 1)
        ]
