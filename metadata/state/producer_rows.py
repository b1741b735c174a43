"""Writes and reads producer states as rows of SQLite, many at a time.

A file of 1,600 batches may name 1,600 producers; looking each one up alone would cost more than all
the rest of its commit.

Which producers have been silent for longest is found through an index. An index on the time of the
last append would be rewritten with every batch; so a row also has the *period* of that time, some
minutes long, and only that is indexed: an active producer's entry moves once per period. Within the
last period that has expired in part, rows are looked at one by one; those are the producers that
fell silent during these very minutes.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from itertools import chain, compress
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, exists, select

from metadata.state.image import ProducerKey
from metadata.state.producer_state import (
    ProducerState,
    States,
    checksum_of,
    last_append_ms,
    newest_append_ms,
    state_of_row,
    stored_bytes,
    stored_state,
    unpack_window,
    with_checksum,
)
from metadata.state.schema import OPEN_TRANSACTIONS, PRODUCER_STATES, Row
from metadata.state.state_hash import sum_of
from wal.columns import Int64s
from wal.errors import CorruptState

PERIOD_MS: Final = 10 * 60_000

_KEYS_PER_QUERY: Final = 1_000
"""Two parameters each; SQLite takes 32,766."""

# A join from the wanted keys into the clustered table: SQLite answers `(a, b) IN (VALUES ...)` with
# a scan of the whole table. The CROSS JOIN fixes that order.
_SELECT: Final = f"""
    WITH wanted (partition, producer_id) AS (VALUES {{}})
    SELECT {", ".join(f"found.{column}" for column in PRODUCER_STATES.columns)}
    FROM wanted CROSS JOIN {PRODUCER_STATES.name} AS found
    ON found.partition = wanted.partition AND found.producer_id = wanted.producer_id
"""

_UPSERT: Final = PRODUCER_STATES.upsert_sql
# Leaves the indexed period alone, and with it the index.
_UPDATE: Final = PRODUCER_STATES.update_sql("last_append_ms", "window")
_DELETE: Final = PRODUCER_STATES.delete_sql()


def write_producers(
    driver: sqlite3.Connection,
    partitions: Int64s,
    producers: Int64s,
    before: States,
    after: States,
) -> int:
    """Replace or insert the rows of (partition, producer id)s, and fill in `after`'s checksums.

    `before` is what the rows are now; an empty state stands for none. Returns the change of the
    state hash.
    """
    last_append = last_append_ms(after)
    period = last_append // PERIOD_MS
    lengths = stored_bytes(after)
    columns = [partitions, producers, period, last_append]
    checksums = PRODUCER_STATES.checksums(columns, after, lengths)
    after["checksum"] = checksums
    data, size = after.tobytes(), after.itemsize
    windows = [
        data[start : start + length]
        for start, length in zip(range(0, len(data), size), lengths.tolist(), strict=True)
    ]
    stays = (before["count"] > 0) & (last_append_ms(before) // PERIOD_MS == period)
    rows = [
        *zip(
            last_append.tolist(),
            windows,
            checksums.tolist(),
            partitions.tolist(),
            producers.tolist(),
            strict=True,
        )
    ]
    if stays.all():
        driver.executemany(_UPDATE, rows)
    else:
        driver.executemany(_UPDATE, [*compress(rows, stays)])
        moved = zip(compress(rows, ~stays), period[~stays].tolist(), strict=True)
        driver.executemany(
            _UPSERT,
            [
                (partition, producer, append_period, last, window, checksum)
                for (last, window, checksum, partition, producer), append_period in moved
            ],
        )
    return sum_of(checksums) - sum_of(before["checksum"])


def write_few_producers(
    driver: sqlite3.Connection,
    before: Mapping[ProducerKey, ProducerState | None],
    states: Mapping[ProducerKey, ProducerState],
) -> tuple[Mapping[ProducerKey, ProducerState], int]:
    """Replace or insert the rows of a few producers, as `write_producers` does for many.

    `states` are what is to be remembered. Returns them with their checksums, and the change of the
    state hash.
    """
    after: dict[ProducerKey, ProducerState] = {}
    updates: list[Row] = []
    upserts: list[Row] = []
    difference = 0
    for key, state in states.items():
        last_append = newest_append_ms(state)
        period = last_append // PERIOD_MS
        stored = stored_state(state)
        checksum = PRODUCER_STATES.row_checksum((*key, period, last_append), (stored,))
        after[key] = with_checksum(state, checksum)
        difference += checksum
        old = before[key]
        if old is not None:
            difference -= checksum_of(old)
        if old is not None and newest_append_ms(old) // PERIOD_MS == period:
            updates.append((last_append, stored, checksum, *key))
        else:
            upserts.append((*key, period, last_append, stored, checksum))
    if updates:
        driver.executemany(_UPDATE, updates)
    if upserts:
        driver.executemany(_UPSERT, upserts)
    return after, difference


def load_producers(
    connection: Connection, keys: Sequence[ProducerKey]
) -> dict[ProducerKey, ProducerState]:
    """The producers among `keys` that have a row. Raises CorruptState when one is damaged."""
    found: dict[ProducerKey, ProducerState] = {}
    for start in range(0, len(keys), _KEYS_PER_QUERY):
        chunk = keys[start : start + _KEYS_PER_QUERY]
        statement = _SELECT.format(", ".join(["(?, ?)"] * len(chunk)))
        for row in connection.exec_driver_sql(statement, tuple(chain.from_iterable(chunk))):
            found[row[0], row[1]] = _state(tuple(row))
    return found


def expired_producers(
    connection: Connection, before_ms: int, limit: int
) -> Sequence[tuple[ProducerKey, int]]:
    """(key, checksum) of up to `limit` producers that wrote nothing since `before_ms`.

    By period, partition and producer id: the longest silent come first, to within a period. One
    whose transaction has data in the partition is not among them.
    """
    columns, opened = PRODUCER_STATES.table.c, OPEN_TRANSACTIONS.table.c
    has_open = exists().where(
        opened.partition == columns.partition, opened.producer_id == columns.producer_id
    )
    rows = connection.execute(
        select(columns.partition, columns.producer_id, columns.checksum)
        .where(
            columns.append_period <= before_ms // PERIOD_MS,
            columns.last_append_ms < before_ms,
            ~has_open,
        )
        .order_by(columns.append_period, columns.partition, columns.producer_id)
        .limit(limit)
    )
    return [((partition, producer_id), checksum) for partition, producer_id, checksum in rows]


def expire_producers(
    connection: Connection, before_ms: int, limit: int
) -> Sequence[tuple[ProducerKey, int]]:
    """Delete what `expired_producers` returns, and return it.

    The caller takes the checksums out of the state hash and the keys out of the image.
    """
    expired = expired_producers(connection, before_ms, limit)
    if expired:
        connection.exec_driver_sql(_DELETE, [key for key, _ in expired])
    return expired


class StoredProducer(NamedTuple):
    """What a row says of its producer."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_append_ms: int


def producers_of(
    connection: Connection, partition_id: int, *, limit: int
) -> Sequence[StoredProducer]:
    """The `limit` producers that wrote to a partition last, by producer id. Raises CorruptState."""
    columns = PRODUCER_STATES.table.c
    rows = connection.execute(
        PRODUCER_STATES.select_all.where(columns.partition == partition_id)
        .order_by(columns.last_append_ms.desc())
        .limit(limit)
    )
    producers = []
    for row in rows:
        window = unpack_window(_state(tuple(row)))
        producers.append(
            StoredProducer(
                row.producer_id,
                window.epoch,
                window.batches[-1].last_sequence,
                window.last_append_ms,
            )
        )
    return sorted(producers)


def _state(values: Row) -> ProducerState:
    checksum: Any = values[-1]
    if PRODUCER_STATES.checksum(values[:-1]) != checksum:
        raise CorruptState(f"producer {values[1]} of partition {values[0]} fails its checksum")
    return state_of_row(values[-2], checksum)
