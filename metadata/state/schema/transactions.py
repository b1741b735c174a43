"""The tables about transactions.

| table                | one row per |
|----------------------|-------------|
| transactions         | transactional id: its producer and its last transaction |
| transaction_parts    | (transactional id, partition or group) of a transaction not completed |
| open_transactions    | (partition, first offset): a transaction with data that has not ended |
| closed_transactions  | (partition or group, producer id): the last transaction ended there |
| markers              | (partition, offset): a control batch, which has no bytes anywhere else |
| aborted_transactions | (partition, marker offset): an aborted transaction that had data there |
| pending_offsets      | (group, producer id, partition): an offset that waits for the end |
| constants            | number that is fixed once: a `Constant` |

The first two are the business of the transactional id's coordinator, the others that of the
coordinators of partitions and groups. A group stands in `closed_transactions` under its name, with
the partition `GROUP_PARTITION`; a partition with an empty name.

An entry of `closed_transactions` is indexed by the period in which it was closed, as producers are
(metadata/state/producer_rows.py).
"""

from typing import Final

from sqlalchemy import Index, LargeBinary, String, UniqueConstraint

from metadata.state.schema.state_table import StateTable

TRANSACTIONS: Final = StateTable(
    36,
    "transactions",
    [
        "id",
        "producer_id",
        "producer_epoch",
        "last_producer_id",
        "last_epoch",
        "timeout_ms",
        "number",
        "state",
        "began_ms",
        "changed_ms",
        "next_producer_id",
        "bumps_epoch",
    ],
    [("transactional_id", String)],
    key=["id"],
    constraints=[UniqueConstraint("transactional_id")],
)
TRANSACTION_PARTS: Final = StateTable(
    37,
    "transaction_parts",
    ["transaction_key", "partition", "coordinator"],
    [("topic_id", LargeBinary), ("group_id", String)],
    key=["transaction_key", "partition", "topic_id", "group_id"],
)
OPEN_TRANSACTIONS: Final = StateTable(
    38,
    "open_transactions",
    ["partition", "first_offset", "producer_id", "producer_epoch", "number", "opened_ms"],
    key=["partition", "first_offset"],
)
CLOSED_TRANSACTIONS: Final = StateTable(
    39,
    "closed_transactions",
    ["partition", "producer_id", "number", "producer_epoch", "closed_period", "closed_ms"],
    [("group_id", String)],
    key=["partition", "producer_id", "group_id"],
)
Index("closed_by_period", CLOSED_TRANSACTIONS.table.c.closed_period)
MARKERS: Final = StateTable(
    40,
    "markers",
    [
        "partition",
        "offset",
        "producer_id",
        "producer_epoch",
        "is_commit",
        "coordinator_epoch",
        "timestamp_ms",
        "number",
    ],
    key=["partition", "offset"],
)
ABORTED_TRANSACTIONS: Final = StateTable(
    41,
    "aborted_transactions",
    ["partition", "marker_offset", "first_offset", "producer_id", "last_stable_offset"],
    key=["partition", "marker_offset"],
)
PENDING_OFFSETS: Final = StateTable(
    42,
    "pending_offsets",
    ["producer_id", "partition", "number", "committed_offset", "leader_epoch", "commit_ms"],
    [("group_id", String), ("topic_id", LargeBinary), ("metadata", String)],
    key=["producer_id", "partition", "group_id", "topic_id"],
)
Index("pending_by_group", PENDING_OFFSETS.table.c.group_id)
CONSTANTS: Final = StateTable(43, "constants", ["name", "value"], key=["name"])

TRANSACTION_TABLES: Final = (
    TRANSACTIONS,
    TRANSACTION_PARTS,
    OPEN_TRANSACTIONS,
    CLOSED_TRANSACTIONS,
    MARKERS,
    ABORTED_TRANSACTIONS,
    PENDING_OFFSETS,
    CONSTANTS,
)
OF_PARTITIONS: Final = (
    OPEN_TRANSACTIONS,
    CLOSED_TRANSACTIONS,
    MARKERS,
    ABORTED_TRANSACTIONS,
)
"""Those that have a partition's surrogate key."""
