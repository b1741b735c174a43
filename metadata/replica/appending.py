"""Appends to a log that has a thread, and applies in that thread what is durable by then.

The pipeline of a coordinator (metadata/coordinator/pipeline.py) does so with a group that is alone.
From the log's thread to SQLite's writer it would be another hand-over, with turns of the event loop
between: a small commit spends as long on these as on its work. While others wait, the two are
apart, so that one group is appended while another is applied.

Invariants: nothing is applied that is not durable in the log. Memory follows SQLite, also when the
caller is cancelled meanwhile. Nobody else applies to the replica, or appends to the log, until it
has ended.

Failure cases: what `append` raises is raised, and nothing has happened. What went wrong behind the
append is returned: the batches are in the log, and wait to be applied.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from metadata.log.log import MetadataRecordBatch, ThreadLog
from metadata.replica.replica import Replica
from metadata.state.image import Changes
from wal.errors import DisklessError
from wal.failpoint import failpoint


async def append_and_apply(
    log: ThreadLog,
    replica: Replica,
    batches: Sequence[MetadataRecordBatch],
    *,
    on_merged: Callable[[], None],
) -> Changes | Exception:
    """What `batches`, which follow each other, changed; `on_merged` as in `Replica.apply`.

    Raises: what `MetadataLog.append` does. Returns the error of applying them.
    """
    offset, timestamp_ms, _ = batches[0]
    job = log.begin_append(
        [batch.records for batch in batches],
        timestamp_ms,
        at_offset=offset,
        then=partial(_attempt, replica.applying(batches)),
    )
    try:
        changes = await job.ended()
    except asyncio.CancelledError:
        # SQLite may commit all the same; memory must then follow it.
        with suppress(DisklessError):
            if isinstance(changes := await job.to_the_end(), Changes):
                replica.applied(batches, changes, on_merged)
        raise
    if isinstance(changes, Changes):
        replica.applied(batches, changes, on_merged)
    return changes


def _attempt(apply: Callable[[], Changes]) -> Changes | Exception:
    """Apply what is durable as of now; in the log's thread."""
    try:
        failpoint("commit.after_log")
        return apply()
    except Exception as error:
        return error
