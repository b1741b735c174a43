"""What is committed of staged objects, from the rows of their batches: for the notes of sinks."""

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection

from metadata.sink_operations import SinkRange
from metadata.state.queries.batch_queries import FileNames, batch_rows, stored_partition
from wal.chunks.kept_notes import StagedNote, StagedRun
from wal.staging.staged_keys import sink_of


class StoredRange(NamedTuple):
    """Offsets of a sink's batch, and the surrogate key of their partition."""

    partition_id: int
    range: SinkRange


def staged_notes(connection: Connection, ranges: Sequence[StoredRange]) -> Sequence[StagedNote]:
    """What these offsets have in staged objects, by object; not what is in segments, or deleted.

    Raises CorruptState.
    """
    names = FileNames()
    found: dict[tuple[str, str], list[StagedRun]] = {}
    for partition_id, (partition, base_offset, last_offset) in ranges:
        state = stored_partition(connection, partition_id)
        if state is None:
            continue  # its topic was deleted
        for row in batch_rows(connection, partition_id, base_offset):
            if row.base_offset > last_offset:
                break
            key = names.get(connection, row.file).object_key
            sink_id = sink_of(key)
            if sink_id is None:
                continue  # a rebuild had to copy it
            found.setdefault((sink_id, key.rpartition("/")[2]), []).append(
                StagedRun(
                    partition,
                    row.byte_offset,
                    row.byte_size,
                    row.base_offset,
                    row.last_offset - row.base_offset + 1,
                    row.timestamp_type,
                    row.append_time_ms,
                    row.max_timestamp_ms,
                    state.log_start_offset,
                )
            )
    return [StagedNote(*named, runs) for named, runs in found.items()]
