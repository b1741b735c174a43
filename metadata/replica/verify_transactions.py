"""What the rows about transactions must fulfil together; part of metadata/replica/verify.py.

A transaction is open where its number is above the one that was closed, offsets wait for such a
number alone, and only a transaction that is not completed has partitions and groups.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from sqlalchemy import Connection

from metadata.transaction_operations import GROUP_PARTITION, TransactionState

_OPEN_STATES: Final = (
    f"({TransactionState.ONGOING:d}, {TransactionState.PREPARE_COMMIT:d},"
    f" {TransactionState.PREPARE_ABORT:d})"
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
)


def transaction_violations(connection: Connection) -> Iterator[tuple[str, str]]:
    """(subject, what is wrong with it) of each."""
    for check in _CHECKS:
        for subject, *values in connection.exec_driver_sql(check.sql):
            yield str(subject), check.wrong.format(*values)
