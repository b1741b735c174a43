"""What administrators are shown of a partition's producers: what they wrote, what they have open.

Read from the rows in one transaction, by whoever has a replica.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from sqlalchemy import Connection

from metadata.state.producer_rows import producers_of
from metadata.state.schema import MARKERS, OPEN_TRANSACTIONS
from metadata.state.state import checked_row

MARKERS_LOOKED_AT: Final = 10_000

_NONE: Final = -1


class DescribedProducer(NamedTuple):
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_append_ms: int
    coordinator_epoch: int = _NONE
    """In the last marker of the producer, if that is among the last MARKERS_LOOKED_AT."""
    first_open_offset: int = _NONE
    """Where its open transaction began here."""


def described_producers(
    connection: Connection, partition_id: int, *, limit: int
) -> Sequence[DescribedProducer]:
    """The `limit` producers that wrote to a partition last, by producer id. Raises CorruptState."""
    stored = producers_of(connection, partition_id, limit=limit)
    if not stored:
        return ()
    epochs = _coordinator_epochs(connection, partition_id)
    open_offsets = _open_offsets(connection, partition_id)
    return [
        DescribedProducer(
            *producer,
            epochs.get(producer.producer_id, _NONE),
            open_offsets.get(producer.producer_id, _NONE),
        )
        for producer in stored
    ]


def _coordinator_epochs(connection: Connection, partition_id: int) -> Mapping[int, int]:
    columns = MARKERS.table.c
    rows = connection.execute(
        MARKERS.select_all.where(columns.partition == partition_id)
        .order_by(columns.offset.desc())
        .limit(MARKERS_LOOKED_AT)
    )
    epochs: dict[int, int] = {}
    for row in rows:
        checked_row(MARKERS, tuple(row))
        epochs.setdefault(row.producer_id, row.coordinator_epoch)
    return epochs


def _open_offsets(connection: Connection, partition_id: int) -> Mapping[int, int]:
    columns = OPEN_TRANSACTIONS.table.c
    rows = connection.execute(OPEN_TRANSACTIONS.select_all.where(columns.partition == partition_id))
    offsets = {}
    for row in rows:
        checked_row(OPEN_TRANSACTIONS, tuple(row))
        offsets[row.producer_id] = row.first_offset
    return offsets
