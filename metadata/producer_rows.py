"""Producer states as rows of SQLite, written and read many at a time.

A file of 1,600 batches may name 1,600 producers; looking each one up alone would cost more than all
the rest of its commit.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

from sqlalchemy import Connection, select

from metadata.image import ProducerKey, StoredProducer
from metadata.producer_state import ProducerState, pack_batches, unpack_batches
from metadata.schema import PRODUCER_STATES, Row
from wal.errors import CorruptState

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

_DELETE: Final = PRODUCER_STATES.delete_sql()


def producer_row(key: ProducerKey, state: ProducerState) -> Row:
    """The row of one producer on one partition."""
    return PRODUCER_STATES.row(*key, state.epoch, state.last_append_ms, pack_batches(state.batches))


def load_producers(
    connection: Connection, keys: Sequence[ProducerKey]
) -> dict[ProducerKey, StoredProducer]:
    """The producers among `keys` that have a row. Raises CorruptState when one is damaged."""
    found: dict[ProducerKey, StoredProducer] = {}
    for start in range(0, len(keys), _KEYS_PER_QUERY):
        chunk = keys[start : start + _KEYS_PER_QUERY]
        statement = _SELECT.format(", ".join(["(?, ?)"] * len(chunk)))
        for row in connection.exec_driver_sql(statement, tuple(chain.from_iterable(chunk))):
            found[row[0], row[1]] = _stored_producer(tuple(row))
    return found


def _stored_producer(values: Row) -> StoredProducer:
    checksum: Any = values[-1]
    if PRODUCER_STATES.checksum(values[:-1]) != checksum:
        raise CorruptState(f"producer {values[1]} of partition {values[0]} fails its checksum")
    return StoredProducer(ProducerState(values[2], unpack_batches(values[4])), checksum)


def expired_producers(
    connection: Connection, before_ms: int, limit: int
) -> Sequence[tuple[ProducerKey, int]]:
    """(key, checksum) of up to `limit` producers that wrote nothing since `before_ms`.

    The longest silent come first. Those after them wait for the next call.
    """
    columns = PRODUCER_STATES.table.c
    rows = connection.execute(
        select(columns.partition, columns.producer_id, columns.checksum)
        .where(columns.last_append_ms < before_ms)
        .order_by(columns.last_append_ms, columns.partition, columns.producer_id)
        .limit(limit)
    )
    return [((partition, producer_id), checksum) for partition, producer_id, checksum in rows]


def expire_producers(
    connection: Connection, before_ms: int, limit: int
) -> Sequence[tuple[ProducerKey, int]]:
    """Delete what `expired_producers` returns, and return it: it is up to the caller to take the
    checksums out of the state hash and the keys out of the image."""
    expired = expired_producers(connection, before_ms, limit)
    if expired:
        connection.exec_driver_sql(_DELETE, [key for key, _ in expired])
    return expired
