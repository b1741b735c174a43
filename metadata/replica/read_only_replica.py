"""Finds batches in the replica that another process of this broker has.

It knows nothing but the file (`read_only_state`), and answers as a follower does: what that file
has not got may be there all the same, so an unknown partition is NotCoordinator, and an offset
beyond the high watermark is no error. Whoever has the replica is asked then.

An answer has everything that was committed before the call.
"""

import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Self
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, select

from metadata import operations as ops
from metadata.replica.follower_answers import as_a_follower
from metadata.replica.read_only_state import ReadOnlyState
from metadata.replica.replica import ROWS_PER_PARTITION_MAX
from metadata.state import schema
from metadata.state.queries.batch_queries import FileNames, find_batches
from metadata.state.schema.state_table import stored_rows
from metadata.state.state import STATE_FILE
from wal.coordinates import TopicIdPartition

_IDS_MAX: Final = 100_000

_ID: Final = schema.compiled(
    select(schema.PARTITIONS.table.c.id)
    .select_from(schema.PARTITIONS.table)
    .join(schema.TOPICS.table, schema.TOPICS.table.c.id == schema.PARTITIONS.table.c.topic)
    .where(
        schema.TOPICS.table.c.topic_id == b"",
        schema.PARTITIONS.table.c.partition == 0,
    )
)


class _Known(NamedTuple):
    """What never changes in a file. Threads share it."""

    ids: dict[TopicIdPartition, int]
    """Of partitions that were looked up."""
    names: FileNames


class ReadOnlyReplica:
    """The state of one metadata partition below `directory`. Async context manager."""

    def __init__(self, directory: Path, *, readers: int) -> None:
        self._state: Final = ReadOnlyState(directory / STATE_FILE, readers=readers)
        self._lock = threading.Lock()
        self._known: WeakKeyDictionary[Engine, _Known] = WeakKeyDictionary()
        """By the file that it was read in."""

    async def __aenter__(self) -> Self:
        await self._state.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._state.__aexit__()

    async def find_batches(
        self,
        requests: Sequence[ops.FindBatches],
        *,
        max_bytes: int,
        at_least_one: bool = True,
        rows_per_partition_max: int = ROWS_PER_PARTITION_MAX,
        isolation: int = ops.READ_UNCOMMITTED,
    ) -> Sequence[ops.FoundBatches]:
        """As `metadata.clients.coordinator_client`. Raises like `ReadOnlyState.read`."""
        found = await self._state.read(
            partial(
                self._find,
                requests=requests,
                max_bytes=max_bytes,
                at_least_one=at_least_one,
                rows_per_partition_max=rows_per_partition_max,
                isolation=isolation,
            )
        )
        return [
            as_a_follower(request, answer) for request, answer in zip(requests, found, strict=True)
        ]

    def _find(
        self,
        connection: Connection,
        *,
        requests: Sequence[ops.FindBatches],
        max_bytes: int,
        at_least_one: bool,
        rows_per_partition_max: int,
        isolation: int,
    ) -> Sequence[ops.FoundBatches]:
        with self._lock:
            ids, names = self._known.setdefault(connection.engine, _Known({}, FileNames()))
        located = []
        for request in requests:
            found = ids.get(request.partition)
            if found is None:
                found = _id_of(connection, request.partition)
                if found is not None:
                    if len(ids) >= _IDS_MAX:
                        ids.clear()
                    ids[request.partition] = found
            located.append((request, found))
        return find_batches(
            connection,
            names,
            located,
            max_bytes=max_bytes,
            at_least_one=at_least_one,
            rows_per_partition_max=rows_per_partition_max,
            isolation=isolation,
        )


def _id_of(connection: Connection, partition: TopicIdPartition) -> int | None:
    rows = stored_rows(connection, _ID, (partition.topic_id.bytes, partition.partition))
    return rows[0][0] if rows else None
