"""Files to commit, as brokers under load make them: all that differs between batches does.

The batches lie back to back, sorted by partition, and together they are about one full chunk.
Sizes, record counts, timestamps and checksums are random, because the metadata log stores columns
of equal numbers in next to no bytes.
"""

import random
from collections.abc import Sequence
from enum import Enum
from typing import Final

from bench.tools.coordinator_bed import CLOCK
from metadata.operations import CommitFile
from wal.coordinates import (
    CREATE_TIME,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchExtent,
    ByteOffset,
    TopicIdPartition,
)
from wal.ulid import mint_ulid, wal_object_key

CHUNK_BYTES: Final = 8 << 20
RECORD_BYTES: Final = 200
INTERVAL_MS: Final = 250
SHARED_PRODUCERS: Final = 8

_HEADER_BYTES: Final = 16
_BATCH_BYTES_MIN: Final = 100


class Producers(Enum):
    """Who wrote the batches of a file."""

    NONE = "without producers"
    SHARED = f"{SHARED_PRODUCERS} idempotent producers write to all partitions"
    OWN = "an idempotent producer per batch"


class Files:
    """Makes one file after another; each continues the sequences of the ones before it."""

    def __init__(
        self,
        partitions: Sequence[TopicIdPartition],
        batches: int,
        *,
        producers: Producers = Producers.NONE,
        seed: int = 1,
    ) -> None:
        """Every file has `batches` batches, spread evenly over `partitions`."""
        self._partitions = [
            partitions[number * len(partitions) // batches] for number in range(batches)
        ]
        self._producers = producers
        self._rng = random.Random(seed)
        self._batch_bytes = CHUNK_BYTES / batches
        self._next_sequence: dict[tuple[TopicIdPartition, int], int] = {}
        self._request_id = 0

    def next(self) -> CommitFile:
        """A file that was sealed just now."""
        rng = self._rng
        now_ms = CLOCK.now_ms()
        position = _HEADER_BYTES
        batches = []
        for number, partition in enumerate(self._partitions):
            length_bytes = _BATCH_BYTES_MIN + int(rng.expovariate(1 / self._batch_bytes))
            records = 1 + length_bytes // RECORD_BYTES
            producer_id, epoch, sequence = self._written_by(number, partition, records)
            self._request_id += 1
            batches.append(
                BatchExtent(
                    partition=partition,
                    byte_offset=ByteOffset(position),
                    length_bytes=length_bytes,
                    record_count=records,
                    crc=rng.getrandbits(32),
                    max_timestamp_ms=now_ms - rng.randrange(INTERVAL_MS),
                    timestamp_type=CREATE_TIME,
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    base_sequence=sequence,
                    request_id=self._request_id,
                )
            )
            position += length_bytes
        return CommitFile(
            object_key=wal_object_key(mint_ulid(CLOCK, rng)),
            file_size_bytes=position + 64,
            uploader_broker_id=0,
            batches=batches,
        )

    def _written_by(
        self, number: int, partition: TopicIdPartition, records: int
    ) -> tuple[int, int, int]:
        """(producer id, epoch, base sequence) of a batch."""
        if self._producers is Producers.NONE:
            return NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE
        is_shared = self._producers is Producers.SHARED
        producer_id = (
            self._rng.randrange(SHARED_PRODUCERS) if is_shared else SHARED_PRODUCERS + number
        )
        key = (partition, producer_id)
        sequence = self._next_sequence.get(key, 0)
        self._next_sequence[key] = sequence + records
        return producer_id, 0, sequence
