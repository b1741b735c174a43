"""The rows of a state, as two states with other surrogate keys can be compared."""

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import Connection

from metadata.state.schema import STATE_TABLES
from metadata.transaction_operations import GROUP_PARTITION

_PARTITIONS_BY_INDEX: Final = (
    "partitions",
    "assignments",
    "group_offsets",
    "transaction_parts",
    "pending_offsets",
)
_UNCOMPARED: Final = ("leadership", "producer_ids", "applied")


def named_rows(connection: Connection) -> Mapping[str, list[list[Any]]]:
    """All rows; surrogate keys, which depend on leaders' records, are replaced by names."""

    def names(statement: str) -> dict[int, str]:
        return {row[0]: str(row[1]) for row in connection.exec_driver_sql(statement)}

    topics = names("SELECT id, name FROM topics")
    files = names("SELECT id, object_key FROM files")
    groups = names("SELECT id, group_id FROM consumer_groups")
    partitions = {
        row_id: f"{topics[topic]}/{index}"
        for row_id, topic, index in connection.exec_driver_sql(
            "SELECT id, topic, partition FROM partitions"
        )
    }
    partitions[GROUP_PARTITION] = ""
    transactions = names("SELECT id, transactional_id FROM transactions")
    by_table = {
        "transactions": ("id", transactions),
        "topics": ("id", topics),
        "partitions": ("id", partitions),
        "files": ("id", files),
        "consumer_groups": ("id", groups),
    }
    by_column = {
        "topic": topics,
        "partition": partitions,
        "file": files,
        "group_key": groups,
        "transaction_key": transactions,
    }
    found: dict[str, list[list[Any]]] = {}
    for table in STATE_TABLES:
        if table.name in _UNCOMPARED:
            continue
        rows = []
        for row in connection.execute(table.select_all):
            named: list[Any] = []
            for column, value in zip(table.columns[:-1], row, strict=False):
                key_column, key_names = by_table.get(table.name, ("", {}))
                if column == key_column:
                    value = key_names[value]
                elif column in by_column and not (
                    column == "partition" and table.name in _PARTITIONS_BY_INDEX
                ):
                    value = by_column[column][value]
                elif column in ("deletable_since_ms", "left_offset"):
                    # A share that was deleted in a later step died later; offsets count lives too.
                    value = value >= 0
                named.append(value.hex() if isinstance(value, bytes) else value)
            rows.append(named)
        found[table.name] = sorted(rows, key=repr)
    return found
