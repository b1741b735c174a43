"""What the rows about transactions must fulfil together; part of metadata/replica/verify.py.

A transaction is open where its number is above the one that was closed, offsets wait for such a
number alone, and only a transaction that is not completed has partitions and groups. What is
aborted points at its marker, unless a segment has that.

What is open must have its transaction at the coordinator of the transactional id, which may be
another metadata partition: `held_transactions` tells of one log, `unheld` compares those of all.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from sqlalchemy import Connection

from metadata.transaction_operations import GROUP_PARTITION, TransactionState

_OPEN_STATES: Final = (
    TransactionState.ONGOING.value,
    TransactionState.PREPARE_COMMIT.value,
    TransactionState.PREPARE_ABORT.value,
)


class _Check(NamedTuple):
    """A query whose rows are violations: what is wrong, and with what."""

    sql: str
    wrong: str


_CHECKS: Final = (
    _Check(
        "SELECT 'partition ' || opened.partition, opened.producer_id, opened.number, closed.number"
        " FROM open_transactions AS opened JOIN closed_transactions AS closed"
        " ON closed.partition = opened.partition AND closed.producer_id = opened.producer_id"
        " WHERE closed.number >= opened.number",
        "producer {} has transaction {} open, and {} was closed",
    ),
    _Check(
        "SELECT 'group ' || pending.group_id, pending.producer_id, pending.number, closed.number"
        " FROM pending_offsets AS pending JOIN closed_transactions AS closed"
        f" ON closed.partition = {GROUP_PARTITION} AND closed.producer_id = pending.producer_id"
        " AND closed.group_id = pending.group_id WHERE closed.number >= pending.number",
        "offsets of producer {} wait for transaction {}, and {} was closed",
    ),
    _Check(
        "SELECT 'transactional id ' || coalesce(known.transactional_id, part.transaction_key),"
        " count(*), known.state FROM transaction_parts AS part"
        " LEFT JOIN transactions AS known ON known.id = part.transaction_key"
        f" WHERE coalesce(known.state, 0) NOT IN {_OPEN_STATES} GROUP BY part.transaction_key",
        "{} partitions and groups belong to no open transaction: its state is {}",
    ),
    _Check(
        "SELECT 'partition ' || aborted.partition, aborted.producer_id, aborted.first_offset,"
        " aborted.marker_offset FROM aborted_transactions AS aborted"
        " JOIN partitions AS place ON place.id = aborted.partition"
        " LEFT JOIN markers AS marker ON marker.partition = aborted.partition"
        " AND marker.offset = aborted.marker_offset AND marker.is_commit = 0"
        " AND marker.producer_id = aborted.producer_id"
        " WHERE marker.offset IS NULL AND aborted.marker_offset >= place.log_start_offset"
        " AND NOT EXISTS (SELECT 1 FROM segments AS segment WHERE segment.partition = place.id"
        " AND segment.last_offset >= aborted.marker_offset"
        " AND segment.base_offset <= aborted.marker_offset)",
        "producer {} is aborted from {} on, and no marker is at {}",
    ),
    _Check(
        "SELECT 'partition ' || place.id, max(marker.offset), place.last_marker_offset"
        " FROM markers AS marker JOIN partitions AS place ON place.id = marker.partition"
        " GROUP BY place.id HAVING max(marker.offset) > place.last_marker_offset",
        "the last marker is at {}, and {} is noted",
    ),
)

_OPEN: Final = (
    "SELECT 'partition ' || opened.partition, opened.producer_id, opened.number"
    " FROM open_transactions AS opened JOIN partitions AS place ON place.id = opened.partition"
    " UNION SELECT 'group ' || group_id, producer_id, number FROM pending_offsets"
    " ORDER BY 1, 2"
)
_IDS: Final = "SELECT producer_id, transactional_id, number, state FROM transactions"


class Holder(NamedTuple):
    """A transactional id: its last transaction."""

    transactional_id: str
    number: int
    state: int


class HeldTransactions(NamedTuple):
    """What one metadata log says of transactions that are under way."""

    open: Sequence[tuple[str, int, int]]
    """(where, producer id, number): those that have data, or offsets that wait."""
    holders: Mapping[int, Holder]
    """By producer id the transactional ids of this coordinator."""


def held_transactions(connection: Connection) -> HeldTransactions:
    """Returns what a state has open, and the transactional ids that it coordinates."""
    return HeldTransactions(
        [(place, *numbers) for place, *numbers in connection.exec_driver_sql(_OPEN)],
        {producer: Holder(*rest) for producer, *rest in connection.exec_driver_sql(_IDS)},
    )


def unheld(held: Sequence[HeldTransactions]) -> Iterator[tuple[str, str]]:
    """What is open and has nobody who ends it: (subject, what is wrong); `held` is of all logs.

    All must be as of one moment: ends go from log to log.
    """
    holders = {producer: holder for one in held for producer, holder in one.holders.items()}
    for one in held:
        for place, producer_id, number in one.open:
            holder = holders.get(producer_id)
            if holder is None:
                yield place, f"transaction {number} of producer {producer_id} belongs to nobody"
            elif (holder.number, holder.state in _OPEN_STATES) != (number, True):
                yield (
                    place,
                    f"transaction {number} of producer {producer_id} is open, and"
                    f" {holder.transactional_id} is at {holder.number} in state {holder.state}",
                )


def transaction_violations(connection: Connection) -> Iterator[tuple[str, str]]:
    """(subject, what is wrong with it) of each."""
    for check in _CHECKS:
        for subject, *values in connection.exec_driver_sql(check.sql):
            yield str(subject), check.wrong.format(*values)
