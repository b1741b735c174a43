"""A coordinator's SQLite state with many committed batches, as fast as rows can be written.

Run as a script, it measures what snapshots and starts cost:

    python -m tests.support.coordinators.large_state [rows]      prints one JSON object
"""

import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, insert

from metadata.log.log import MetadataRecordBatch
from metadata.operations import WRITE_AHEAD_MULTI_SEGMENT
from metadata.state import schema
from metadata.state.image import CommittedImage
from metadata.state.state import STATE_FILE, StateDatabase
from metadata.state.state_hash import HASH_MODULUS, to_signed
from tests.support.logs.snapshot_bench import (
    Following,
    PrunableLog,
    keeper_of,
    opened,
    snapshots_in,
)
from wal.clock import ManualClock, SystemClock
from wal.crc import crc32c
from wal.stores.file_store import FileStore
from wal.ulid import mint_ulid, wal_object_key

PARTITION_COUNT: Final = 632
BATCHES_PER_FILE: Final = 1_600
BATCH_BYTES: Final = 1_000
RECORDS_PER_BATCH: Final = 10
START_MS: Final = 1_704_067_200_000
_ANSWER_BYTES: Final = 27
_LAST_RECORD: Final = b"the record that was applied last"
_ROWS_AT_A_TIME: Final = 50_000


class LargeState(NamedTuple):
    """What a log must hold so that the state is taken for its own."""

    next_offset: int
    state_hash: int
    last_batch: MetadataRecordBatch
    """One record, the last one that was applied."""


async def fill_state(
    state: StateDatabase, rows: int, *, batches_per_file: int = BATCHES_PER_FILE
) -> LargeState:
    """Fill the new, open `state` with one row per batch; all invariants of `check_state` hold.

    One topic of PARTITION_COUNT partitions, `batches_per_file` batches in a file, each partition's
    in turn, nothing coalesced.
    """
    total = await state.write(_inserting(schema.TOPICS, _topics()))
    file_count = -(-rows // batches_per_file)
    for first in range(0, rows, _ROWS_AT_A_TIME):
        numbers = range(first, min(rows, first + _ROWS_AT_A_TIME))
        total += await state.write(_inserting(schema.BATCHES, _batches(numbers, batches_per_file)))
    for table, made in (
        (schema.PARTITIONS, _partitions(rows)),
        (schema.FILES, _files(rows, file_count, batches_per_file)),
        (schema.FILE_ANSWERS, _answers(file_count, batches_per_file)),
    ):
        total += await state.write(_inserting(table, made))
    next_offset = PARTITION_COUNT + file_count
    state_hash = total % HASH_MODULUS
    await state.write(lambda connection: _applied(connection, next_offset, state_hash))
    return LargeState(
        next_offset,
        state_hash,
        MetadataRecordBatch(next_offset - 1, START_MS, (_LAST_RECORD,)),
    )


def _inserting(
    table: schema.StateTable, rows: Iterable[Sequence[Any]]
) -> Callable[[Connection], int]:
    def insert_rows(connection: Connection) -> int:
        made = [table.row(*row) for row in rows]
        driver = connection.connection.driver_connection
        assert driver is not None
        driver.executemany(table.insert_sql, made)
        return sum([row[-1] for row in made])

    return insert_rows


def _topics() -> Iterable[Sequence[Any]]:
    assert schema.TOPICS.columns[:-1] == ("id", "partition_count", "topic_id", "name")
    yield 0, PARTITION_COUNT, UUID(int=1).bytes, "large"


def _batches(numbers: range, batches_per_file: int) -> Iterable[Sequence[Any]]:
    assert schema.BATCHES.columns[:-1] == (
        "partition", "last_offset", "base_offset", "file", "byte_offset", "byte_size",
        "batch_count", "timestamp_type", "append_time_ms", "max_timestamp_ms",
    )  # fmt: skip
    for number in numbers:
        turn, partition = divmod(number, PARTITION_COUNT)
        file, place = divmod(number, batches_per_file)
        base = turn * RECORDS_PER_BATCH
        # One byte apart, as batches between which another partition's lie.
        position = 16 + place * (BATCH_BYTES + 1)
        now_ms = START_MS + file * 250
        yield (
            partition, base + RECORDS_PER_BATCH - 1, base, PARTITION_COUNT + file, position,
            BATCH_BYTES, 1, 0, now_ms, now_ms,
        )  # fmt: skip


def _partitions(rows: int) -> Iterable[Sequence[Any]]:
    for partition in range(PARTITION_COUNT):
        batches = len(range(partition, rows, PARTITION_COUNT))
        yield _ordered(
            schema.PARTITIONS,
            id=partition,
            partition=partition,
            high_watermark=batches * RECORDS_PER_BATCH,
            unplanned_bytes=batches * BATCH_BYTES,
            live_bytes=batches * BATCH_BYTES,
        )


def _files(rows: int, file_count: int, batches_per_file: int) -> Iterable[Sequence[Any]]:
    clock, rng = ManualClock(START_MS), random.Random(1)
    for file in range(file_count):
        batches = min(rows - file * batches_per_file, batches_per_file)
        clock.advance(0.25)
        yield _ordered(
            schema.FILES,
            id=PARTITION_COUNT + file,
            object_format=WRITE_AHEAD_MULTI_SEGMENT,
            object_bytes=batches_per_file * (BATCH_BYTES + 1) + 64,
            committed_at_ms=START_MS + file * 250,
            live_rows=batches,
            live_bytes=batches * BATCH_BYTES,
            deletable_since_ms=schema.NOT_DELETABLE,
            is_owner=1,
            object_key=wal_object_key(mint_ulid(clock, rng)),
            owner_ids=b"",
        )


def _answers(file_count: int, batches_per_file: int) -> Iterable[Sequence[Any]]:
    rng = random.Random(2)
    for file in range(file_count):
        answer = bytes(_ANSWER_BYTES * batches_per_file)
        yield _ordered(
            schema.FILE_ANSWERS,
            file=PARTITION_COUNT + file,
            request_digest=rng.randbytes(16),
            answer=answer,
        )


def _ordered(table: schema.StateTable, **values: Any) -> Sequence[Any]:
    """`values` in the order of the columns; what is not named is 0."""
    assert set(values) <= set(table.columns)
    return [values.get(column, 0) for column in table.columns[:-1]]


def _applied(connection: Connection, next_offset: int, state_hash: int) -> None:
    values: list[Any] = [
        1, schema.STATE_VERSION, next_offset, crc32c(_LAST_RECORD), START_MS, -1, START_MS,
        to_signed(state_hash),
    ]  # fmt: skip
    row = [*values, schema.APPLIED_CHECKSUM(values)]
    connection.execute(
        insert(schema.APPLIED).values(dict(zip(schema.APPLIED.columns.keys(), row, strict=True)))
    )


async def measure(rows: int, directory: Path) -> dict[str, float]:
    """Seconds and bytes of a snapshot, and of starts, with `rows` committed batches.

    `snapshot_s` is all of taking one: copy, upload to a directory, load again, check, publish.
    """
    clock = SystemClock()
    figures: dict[str, float] = {"rows": rows}
    local = directory / "state"

    async def timed_start(name: str, *, with_snapshots: bool) -> None:
        started = time.perf_counter()
        async with opened(local, log, snapshots if with_snapshots else None):
            figures[name] = round(time.perf_counter() - started, 3)

    async with FileStore(directory / "objects", clock=clock, rng=random.Random(1)) as store:
        snapshots = snapshots_in(store)
        async with StateDatabase(local / STATE_FILE, readers=1) as state:
            await state.open_or_create()
            large = await fill_state(state, rows)
            log = PrunableLog([large.last_batch])
            followed = Following(state, log, CommittedImage(producers_max=1))
            keeper = keeper_of(followed, snapshots, clock=clock)
            started = time.perf_counter()
            await state.backup(directory / "copy")
            figures["copy_s"] = round(time.perf_counter() - started, 3)
            started = time.perf_counter()
            manifest = await keeper.take_once()
            figures["snapshot_s"] = round(time.perf_counter() - started, 3)
            assert manifest is not None
            assert manifest.applied.state_hash == large.state_hash
            figures["sqlite_bytes_per_row"] = round(manifest.file_bytes / rows, 1)
            figures["snapshot_bytes"] = manifest.stored_bytes
        await timed_start("start_checked_s", with_snapshots=False)
        await timed_start("start_after_stop_s", with_snapshots=True)
        (local / STATE_FILE).unlink()
        await timed_start("start_from_snapshot_s", with_snapshots=True)
    return figures


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
        print(json.dumps(asyncio.run(measure(wanted, Path(scratch)))))
