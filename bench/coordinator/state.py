"""A coordinator's directory with millions of committed batches, made without committing them.

`generate` writes the rows with SQL, as commits of one file after another would have left them, and
a metadata log that was pruned up to its last record. A coordinator opens the directory as one that
was stopped cleanly, since every invariant of a state holds
(tests/bench/coordinator/test_coordinator_state.py).

The rows are inserted in the order of the files, so the pages of the tables are as full, and as
scattered over the file, as those that a history of commits leaves behind.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

import numpy as np
from sqlalchemy import Connection

from metadata.apply.transaction import StateTransaction, write_applied
from metadata.log.local_log import LOG_DIRECTORY
from metadata.log.log_batch import encode_batch
from metadata.operations import WRITE_AHEAD_MULTI_SEGMENT
from metadata.records.control import NoOpRecord
from metadata.records.records import encode_record
from metadata.state.commit_answer import Answer, pack_answer
from metadata.state.image import CommittedImage
from metadata.state.schema import (
    BATCHES,
    FILE_ANSWERS,
    FILES,
    NOT_DELETABLE,
    PARTITIONS,
    TOPICS,
    Row,
    StateTable,
)
from metadata.state.state import STATE_FILE, StateDatabase
from metadata.state.state_hash import HASH_MODULUS, sum_of
from wal.clock import ManualClock
from wal.coordinates import TopicIdPartition
from wal.crc import crc32c
from wal.segmented_log.log_directory import LogDirectory
from wal.segmented_log.segmented_log import SegmentedLog
from wal.ulid import mint_ulid, wal_object_key

BATCH_BYTES: Final = 1_000
RECORDS_PER_BATCH: Final = 10
FILE_INTERVAL_MS: Final = 250

_ROWS_AT_A_TIME: Final = 100_000
_FILES_AT_A_TIME: Final = 5_000


class GeneratedTopic(NamedTuple):
    """A topic, and files that have one batch, and so one row, of each of its partitions."""

    name: str
    partitions: int
    rows: int
    """Rounded up to whole files."""
    from_ms: int
    """When its first file was committed; the others follow every FILE_INTERVAL_MS."""

    @property
    def files(self) -> int:
        return -(-self.rows // self.partitions)

    @property
    def topic_id(self) -> UUID:
        return UUID(bytes=self.name.encode().ljust(16, b"-")[:16])

    def partition(self, index: int) -> TopicIdPartition:
        return TopicIdPartition(self.topic_id, index)


async def generate(
    directory: Path,
    topics: Sequence[GeneratedTopic],
    *,
    now_ms: int,
    on_progress: Callable[[int], None] = lambda _: None,
) -> None:
    """Make the state and the log in `directory`, the metadata partition's; it is empty yet.

    `on_progress` gets the number of rows whenever some more were written.
    """
    async with StateDatabase(directory / STATE_FILE, readers=1) as state:
        await state.open_or_create()
        state_hash = next_offset = 0
        for topic in topics:
            for write in _writes(topic, first_id=next_offset):
                added, rows = await state.write(write)
                state_hash += added
                on_progress(rows)
            next_offset += topic.partitions + topic.files
        # One record that changed nothing: the last one, the only one that is left of the log.
        last = encode_record(NoOpRecord(leader_epoch=0))
        next_offset += 1
        await state.write(
            lambda connection: _note_applied(
                connection,
                next_offset=next_offset,
                last_record_crc=crc32c(last),
                timestamp_ms=now_ms,
                state_hash=state_hash % HASH_MODULUS,
            )
        )
        state.trust()
    log = SegmentedLog.open(LogDirectory(directory / LOG_DIRECTORY), rng=random.Random(1))
    try:
        log.append_many([[encode_batch(next_offset - 1, now_ms, [last])]])
        log.sync()
    finally:
        log.close()


_Write = Callable[[Connection], tuple[int, int]]
"""A transaction; returns the checksums of its rows, summed up, and how many batches it wrote."""


def _writes(topic: GeneratedTopic, *, first_id: int) -> Iterable[_Write]:
    first_file = first_id + topic.partitions
    yield _inserting(TOPICS, [_topic_row(topic, first_id)])
    yield _inserting(PARTITIONS, [*_partition_rows(topic, first_id)])
    rng = random.Random(first_id)
    for first in range(0, topic.files, _FILES_AT_A_TIME):
        files = range(first, min(first + _FILES_AT_A_TIME, topic.files))
        yield _inserting(FILES, [*_file_rows(topic, files, first_file, rng)])
        yield _inserting(FILE_ANSWERS, [*_answer_rows(topic, files, first_file, rng)])
    step = max(_ROWS_AT_A_TIME // topic.partitions, 1)
    for first in range(0, topic.files, step):
        files = range(first, min(first + step, topic.files))
        yield _inserting_batches(topic, files, first_id)


def _inserting(table: StateTable, rows: Sequence[Row]) -> _Write:
    def write(connection: Connection) -> tuple[int, int]:
        _insert(connection, table, rows)
        return sum(row[-1] for row in rows), 0

    return write


def _insert(connection: Connection, table: StateTable, rows: Iterable[Row]) -> None:
    driver = connection.connection.driver_connection
    assert driver is not None
    driver.executemany(table.insert_sql, rows)


def _topic_row(topic: GeneratedTopic, first_id: int) -> Row:
    return _row(
        TOPICS,
        id=first_id,
        partition_count=topic.partitions,
        topic_id=topic.topic_id.bytes,
        name=topic.name,
    )


def _partition_rows(topic: GeneratedTopic, first_id: int) -> Iterable[Row]:
    for index in range(topic.partitions):
        yield _row(
            PARTITIONS,
            id=first_id + index,
            topic=first_id,
            partition=index,
            high_watermark=topic.files * RECORDS_PER_BATCH,
            unplanned_bytes=topic.files * BATCH_BYTES,
            live_bytes=topic.files * BATCH_BYTES,
            first_open_offset=-1,
            last_marker_offset=-1,
        )


def _file_rows(
    topic: GeneratedTopic, files: range, first_file: int, rng: random.Random
) -> Iterable[Row]:
    for file in files:
        clock = ManualClock(topic.from_ms + file * FILE_INTERVAL_MS)
        yield _row(
            FILES,
            id=first_file + file,
            object_format=WRITE_AHEAD_MULTI_SEGMENT,
            object_bytes=16 + topic.partitions * BATCH_BYTES + 64,
            committed_at_ms=clock.now_ms(),
            live_rows=topic.partitions,
            live_bytes=topic.partitions * BATCH_BYTES,
            deletable_since_ms=NOT_DELETABLE,
            is_owner=1,
            object_key=wal_object_key(mint_ulid(clock, rng)),
            owner_ids=b"",
        )


def _answer_rows(
    topic: GeneratedTopic, files: range, first_file: int, rng: random.Random
) -> Iterable[Row]:
    for file in files:
        answer = Answer.empty(topic.partitions)
        answer.base_offset[:] = file * RECORDS_PER_BATCH
        answer.log_append_time_ms[:] = topic.from_ms + file * FILE_INTERVAL_MS
        answer.log_start_offset[:] = 0
        yield _row(
            FILE_ANSWERS,
            file=first_file + file,
            request_digest=rng.randbytes(16),
            answer=pack_answer(answer),
        )


def _inserting_batches(topic: GeneratedTopic, files: range, first_id: int) -> _Write:
    """Column by column: five million rows one by one would take minutes."""
    file = np.repeat(np.arange(files.start, files.stop), topic.partitions)
    partition = np.tile(np.arange(topic.partitions), len(files))
    committed_at_ms = topic.from_ms + file * FILE_INTERVAL_MS
    values = {
        "partition": first_id + partition,
        "last_offset": file * RECORDS_PER_BATCH + RECORDS_PER_BATCH - 1,
        "base_offset": file * RECORDS_PER_BATCH,
        "file": first_id + topic.partitions + file,
        "byte_offset": 16 + partition * BATCH_BYTES,
        "byte_size": np.full_like(file, BATCH_BYTES),
        "batch_count": np.ones_like(file),
        "timestamp_type": np.zeros_like(file),
        "append_time_ms": committed_at_ms,
        "max_timestamp_ms": committed_at_ms - partition % FILE_INTERVAL_MS,
    }
    columns = [values[column] for column in BATCHES.columns[:-1]]
    checksums = BATCHES.checksums(columns)

    def write(connection: Connection) -> tuple[int, int]:
        rows = zip(*(numbers.tolist() for numbers in (*columns, checksums)), strict=True)
        _insert(connection, BATCHES, rows)
        return sum_of(checksums), len(file)

    return write


def _row(table: StateTable, **values: Any) -> Row:
    """A row of `values`; what is not named is 0."""
    assert set(values) <= set(table.columns), values
    return table.row(*[values.get(column, 0) for column in table.columns[:-1]])


def _note_applied(
    connection: Connection,
    *,
    next_offset: int,
    last_record_crc: int,
    timestamp_ms: int,
    state_hash: int,
) -> None:
    transaction = StateTransaction(connection, CommittedImage(producers_max=1))
    changes = transaction.changes
    changes.next_offset = next_offset
    changes.timestamp_ms = timestamp_ms
    changes.state_hash = state_hash
    write_applied(transaction.driver, changes, last_record_crc=last_record_crc)
