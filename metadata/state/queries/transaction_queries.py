"""Reads transactions from SQLite; every row that is read is checked."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Connection, select

from metadata.records.groups import CommittedOffset
from metadata.state import schema
from metadata.state.schema.state_table import stored_rows
from metadata.state.state import checked_row
from metadata.transaction_operations import ClosedKey, ClosedTransaction
from wal.coordinates import TopicIdPartition

CLOSED_PERIOD_MS: Final = 10 * 60_000
"""How coarsely the time of an end is indexed; part of STATE_VERSION."""

_CLOSED: Final = schema.CLOSED_TRANSACTIONS.table.c
_CLOSED_BY_KEY: Final = schema.compiled(
    select(schema.CLOSED_TRANSACTIONS.table).where(
        _CLOSED.partition == 0, _CLOSED.producer_id == 0, _CLOSED.group_id == ""
    )
)
_PENDING: Final = schema.PENDING_OFFSETS.table.c


def load_closed(
    connection: Connection, keys: Collection[ClosedKey]
) -> Mapping[ClosedKey, ClosedTransaction | None]:
    """What was closed last under each of `keys`. Raises CorruptState."""
    found: dict[ClosedKey, ClosedTransaction | None] = dict.fromkeys(keys)
    for key in found:
        for row in stored_rows(connection, _CLOSED_BY_KEY, key):
            _, _, number, epoch, *_ = checked_row(schema.CLOSED_TRANSACTIONS, row)
            found[key] = ClosedTransaction(number, epoch)
    return found


def expired_closed(
    connection: Connection, before_ms: int, limit: int
) -> Sequence[tuple[ClosedKey, int]]:
    """(key, checksum) of up to `limit` numbers that were closed before `before_ms`.

    By period: the oldest come first, to within a period.
    """
    rows = connection.execute(
        select(_CLOSED.partition, _CLOSED.producer_id, _CLOSED.group_id, _CLOSED.checksum)
        .where(
            _CLOSED.closed_period <= before_ms // CLOSED_PERIOD_MS, _CLOSED.closed_ms < before_ms
        )
        .order_by(_CLOSED.closed_period, _CLOSED.partition, _CLOSED.producer_id, _CLOSED.group_id)
        .limit(limit)
    )
    return [(ClosedKey(*key), checksum) for *key, checksum in rows]


def has_expired_closed(connection: Connection, before_ms: int) -> bool:
    """Whether `expired_closed` would return anything."""
    return bool(expired_closed(connection, before_ms, 1))


def pending_partitions(connection: Connection, group_id: str) -> Collection[TopicIdPartition]:
    """The partitions of which a group has offsets that wait for the end of a transaction."""
    rows = connection.execute(
        select(schema.PENDING_OFFSETS.table).where(_PENDING.group_id == group_id)
    ).all()
    return {pending_offset(checked_row(schema.PENDING_OFFSETS, row)).partition for row in rows}


def pending_offset(row: Sequence[Any]) -> CommittedOffset:
    """The offset of a row of `pending_offsets`."""
    _, partition, _, offset, leader_epoch, commit_ms, _, topic_id, metadata, _ = row
    return CommittedOffset(
        TopicIdPartition(UUID(bytes=topic_id), partition),
        offset,
        commit_ms,
        leader_epoch,
        metadata,
    )
