"""A metadata partition's SQLite state and image, fed with records by hand.

No log and no coordinator: what a test says was decided is applied, one batch per call.
"""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from uuid import UUID

from metadata.log.log import MetadataRecordBatch
from metadata.operations import WRITE_AHEAD_MULTI_SEGMENT
from metadata.records.records import (
    CommittedBatch,
    FileCommittedRecord,
    MetadataRecord,
    PartitionCreatedRecord,
    TopicConfigsRecord,
    encode_record,
)
from metadata.replica.state_recovery import apply_batches
from metadata.replica.verify import Violation, check_state
from metadata.state.image import CommittedImage, PartitionState
from metadata.state.schema import STATE_TABLES
from metadata.state.state import STATE_FILE, StateDatabase
from metadata.state.state_check import scan_state_hash
from wal.clock import ManualClock
from wal.coordinates import (
    CREATE_TIME,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    ByteOffset,
    ObjectKey,
    Offset,
    TopicIdPartition,
)
from wal.ulid import mint_ulid, wal_object_key

START_MS = 1_704_067_200_000


class AppliedState:
    """The state, its image, and short ways to write records."""

    def __init__(self, state: StateDatabase, *, as_leader: bool) -> None:
        self.state = state
        self._as_leader = as_leader
        self.image = CommittedImage(producers_max=1_000)
        self.clock = ManualClock(START_MS)
        self.batches: list[MetadataRecordBatch] = []
        self._rng = random.Random(1)
        self._topics = 0

    async def apply(self, *records: MetadataRecord) -> None:
        """One metadata batch, in one transaction."""
        encoded = [*map(encode_record, records)]
        batch = MetadataRecordBatch(
            self.image.next_offset,
            self.clock.now_ms(),
            encoded if self._as_leader else [*map(bytes, encoded)],
        )
        self.image.merge(await self.state.write(partial(apply_batches, self.image, [batch])))
        self.batches.append(batch)

    async def follow(self, leader: "AppliedState", begin: int, *, behind: int) -> None:
        """Apply what `leader` has applied, from its batch `begin` on to `behind` its last."""
        for batch in leader.batches[begin : len(leader.batches) - behind]:
            applied = partial(apply_batches, self.image, [batch])
            self.image.merge(await self.state.write(applied))
            self.batches.append(batch)

    async def topic(self, partitions: int = 1, **configs: str) -> list[TopicIdPartition]:
        """A new topic's partitions; config names have `_` for `.`."""
        self._topics += 1
        topic_id = UUID(int=self._topics)
        name = f"topic-{self._topics}"
        records: list[MetadataRecord] = [
            PartitionCreatedRecord(topic_id=topic_id, name=name, partition=index)
            for index in range(partitions)
        ]
        if configs:
            renamed = {key.replace("_", "."): value for key, value in configs.items()}
            records.append(TopicConfigsRecord(topic_id=topic_id, configs=renamed))
        await self.apply(*records)
        return [TopicIdPartition(topic_id, index) for index in range(partitions)]

    def file(
        self,
        *batches: tuple[TopicIdPartition, int, int, int],
        producer: int = NO_PRODUCER_ID,
        timestamp_type: int = CREATE_TIME,
    ) -> FileCommittedRecord:
        """A file of batches (partition, records, bytes, max timestamp), one row each.

        Apply it before the next one is made: its offsets follow the image.
        """
        ends: dict[TopicIdPartition, int] = {}
        placed = []
        position = 16
        for number, (partition, records, size, timestamp_ms) in enumerate(batches):
            base = ends.get(partition, self.partition(partition).high_watermark)
            ends[partition] = base + records
            placed.append(
                CommittedBatch(
                    partition=partition,
                    position=number,
                    magic=2,
                    byte_offset=ByteOffset(position),
                    byte_size=size,
                    base_offset=Offset(base),
                    last_offset=Offset(base + records - 1),
                    log_append_time_ms=self.clock.now_ms(),
                    max_timestamp_ms=timestamp_ms,
                    timestamp_type=timestamp_type,
                    producer_id=producer,
                    producer_epoch=NO_PRODUCER_EPOCH if producer < 0 else 0,
                    base_sequence=NO_SEQUENCE if producer < 0 else 0,
                    last_sequence=NO_SEQUENCE if producer < 0 else records - 1,
                )
            )
            # A gap, so that no two batches are coalesced into one row.
            position += size + 1
        return FileCommittedRecord(
            object_key=self.key(),
            object_format=WRITE_AHEAD_MULTI_SEGMENT,
            file_size=position + 64,
            uploader_broker_id=0,
            owner_ids=(0,),
            committed_at_ms=self.clock.now_ms(),
            batches=tuple(placed),
        )

    def key(self) -> ObjectKey:
        return wal_object_key(mint_ulid(self.clock, self._rng))

    def partition(self, partition: TopicIdPartition) -> PartitionState:
        return self.image.partitions[partition]

    async def count(self, table: str) -> int:
        """Rows of a table."""
        return await self.state.read(
            lambda connection: connection.exec_driver_sql(
                f"SELECT count(*) FROM {table}"
            ).scalar_one()
        )

    async def violations(self) -> Sequence[Violation]:
        """Broken invariants of the rows, and of their hash."""
        found = list(await self.state.read(check_state))
        scanned = await self.state.read(scan_state_hash)
        if scanned != self.image.state_hash:
            found.append(Violation("state hash", f"{scanned:x}, kept {self.image.state_hash:x}"))
        return found

    async def rows(self) -> dict[str, list[tuple[object, ...]]]:
        """Everything there is, for comparing two states."""
        return await self.state.read(
            lambda connection: {
                table.name: [tuple(row) for row in connection.execute(table.select_all)]
                for table in STATE_TABLES
            }
        )


@asynccontextmanager
async def applied_state(directory: Path, *, as_leader: bool = False) -> AsyncIterator[AppliedState]:
    """An empty state below `directory`; a leader applies records as it has made them."""
    async with StateDatabase(directory / STATE_FILE, readers=2) as state:
        await state.open_or_create()
        yield AppliedState(state, as_leader=as_leader)
