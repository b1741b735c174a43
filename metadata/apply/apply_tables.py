"""Applies the record about tables, and forgets the table of a deleted topic.

Called by metadata/apply/apply.py, inside its transaction and with its rules.
"""

from uuid import UUID

from metadata.apply.transaction import StateTransaction
from metadata.records.stored_tables import AppliedCommit, StoredTable, pack_commits, with_commit
from metadata.records.tables import TableCommittedRecord
from metadata.state.schema import TABLES
from metadata.table_operations import NO_TABLE
from wal.errors import CorruptState


def commit_table(transaction: StateTransaction, record: TableCommittedRecord) -> None:
    """The pointer moves. Raises CorruptState: it was elsewhere, or the topic is unknown."""
    topic = transaction.topic(record.topic_id)
    if topic is None:
        raise CorruptState(f"the table of the unknown topic {record.topic_id} was committed")
    before = _table(transaction, record.topic_id)
    location = NO_TABLE if before is None else before.location
    if location != record.old_location:
        raise CorruptState(
            f"the table of {record.topic_id} is at {location!r}, not at {record.old_location!r}"
        )
    table = StoredTable(
        record.new_location,
        with_commit(
            () if before is None else before.commits,
            AppliedCommit(record.committed_at_ms, dict(record.applied)),
            record.retention_ms,
        ),
    )
    transaction.delete_where(TABLES, TABLES.table.c.topic == topic.id)
    transaction.insert(TABLES, topic.id, pack_commits(table.commits), table.location)
    transaction.changes.tables[record.topic_id] = table


def forget_table(transaction: StateTransaction, topic_row_id: int, topic_id: UUID) -> None:
    """The topic is gone, and its table with it."""
    if _table(transaction, topic_id) is not None:
        transaction.delete_where(TABLES, TABLES.table.c.topic == topic_row_id)
        transaction.changes.tables[topic_id] = None


def _table(transaction: StateTransaction, topic_id: UUID) -> StoredTable | None:
    changed = transaction.changes.tables
    return changed[topic_id] if topic_id in changed else transaction.image.tables.get(topic_id)
