"""Applies the records of metadata/records/sinks.py to the SQLite state.

Called by metadata/apply/apply.py, inside its transaction and with its rules.
"""

from metadata.apply.transaction import StateTransaction
from metadata.records.sinks import (
    SinkCommittedRecord,
    SinkDecidedRecord,
    SinkRecord,
    SinksExpiredRecord,
)
from metadata.sink_operations import Sink, open_batch
from metadata.state.schema import SINK_SHARES, SINKS, pack_keys, pack_ranges
from wal.errors import CorruptState


def apply_sink(state: StateTransaction, record: SinkRecord) -> None:
    """Raises CorruptState."""
    sink_id = SINKS.table.c.sink_id
    match record:
        case SinkCommittedRecord(sink=sink):
            _put(state, sink)
            if state.delete_where(SINK_SHARES, SINK_SHARES.table.c.sink_id == sink.sink_id):
                state.changes.open_batches[sink.sink_id] = None
        case SinkDecidedRecord(sink=sink, shares=shares):
            if state.delete_where(SINK_SHARES, SINK_SHARES.table.c.sink_id == sink.sink_id):
                raise CorruptState(f"sink {sink.sink_id}: a batch was decided while one was open")
            _put(state, sink)
            for share in shares:
                keys = pack_keys(share.object_keys)
                state.insert(SINK_SHARES, share.coordinator, sink.sink_id, keys, share.files)
            state.changes.open_batches[sink.sink_id] = open_batch(sink, shares)
        case SinksExpiredRecord():
            for expired in record.sink_ids:
                if not state.delete_where(SINKS, sink_id == expired):
                    raise CorruptState(f"sink {expired} expired and was not known")
                state.changes.sinks[expired] = None


def _put(state: StateTransaction, sink: Sink) -> None:
    state.delete_where(SINKS, SINKS.table.c.sink_id == sink.sink_id)
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
