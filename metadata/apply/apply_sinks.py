"""Applies the records of metadata/records/sinks.py to the SQLite state.

Called by metadata/apply/apply.py, inside its transaction and with its rules.
"""

from metadata.apply.transaction import StateTransaction
from metadata.records.sinks import SinkCommittedRecord, SinkRecord, SinksExpiredRecord
from metadata.state.schema import SINKS, pack_ranges
from wal.errors import CorruptState


def apply_sink(state: StateTransaction, record: SinkRecord) -> None:
    """Raises CorruptState."""
    sink_id = SINKS.table.c.sink_id
    match record:
        case SinkCommittedRecord(sink=sink):
            state.delete_where(SINKS, sink_id == sink.sink_id)
            state.insert(
                SINKS,
                sink.batch_id,
                sink.committed_at_ms,
                sink.sink_id,
                sink.principal,
                sink.digest,
                pack_ranges(sink.ranges),
            )
            state.changes.sinks[sink.sink_id] = sink
        case SinksExpiredRecord():
            for expired in record.sink_ids:
                if not state.delete_where(SINKS, sink_id == expired):
                    raise CorruptState(f"sink {expired} expired and was not known")
                state.changes.sinks[expired] = None
