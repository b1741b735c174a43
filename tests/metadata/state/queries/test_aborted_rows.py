"""Every cut of three interleaved transactions, every offset, both isolation levels: who sees what.

The oracle knows each offset's transaction and outcome. A reader is what a client is: it leaves out
a producer's batches from the first offset it was told until it meets the producer's marker.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from uuid import UUID

from sqlalchemy import Connection, create_engine

from metadata import operations as ops
from metadata.state import schema
from metadata.state.queries.batch_queries import FileNames, find_batches
from metadata.state.schema.state_table import SCHEMA
from wal.coordinates import TopicIdPartition
from wal.records.marker_batches import Marker

P = TopicIdPartition(UUID(int=1), 0)
# Who writes at each offset; an upper case letter is the marker.
LOG = "axbaBcAbcCxB"
NOBODY = "x"


def _closed(log: str) -> Iterator[tuple[str, int, int]]:
    """(producer, first offset or -1, marker offset) of what is ended in `log`, in order."""
    first: dict[str, int] = {}
    for offset, who in enumerate(log):
        if who.isupper():
            yield who.lower(), first.pop(who.lower(), -1), offset
        elif who != NOBODY:
            first.setdefault(who, offset)


def _first_open(log: str) -> int:
    first: dict[str, int] = {}
    for offset, who in enumerate(log):
        if who.isupper():
            first.pop(who.lower(), None)
        elif who != NOBODY:
            first.setdefault(who, offset)
    return min(first.values(), default=-1)


def _store(connection: Connection, log: str, is_commit: dict[int, bool]) -> None:
    for table in (
        schema.PARTITIONS, schema.FILES, schema.BATCHES, schema.MARKERS,
        schema.ABORTED_TRANSACTIONS,
    ):  # fmt: skip
        connection.execute(table.table.delete())

    def add(table: schema.StateTable, *values: object) -> None:
        connection.exec_driver_sql(table.insert_sql, table.row(*values))

    markers = [offset for offset, who in enumerate(log) if who.isupper()]
    add(
        schema.PARTITIONS, 1, 0, 0, 0, len(log), 0, 0, 0, _first_open(log),
        max(markers, default=-1),
    )  # fmt: skip
    add(schema.FILES, 5, 1, 10_000, 0, 0, 1, 1, -1, 1, "wal/x", b"")
    for offset, who in enumerate(log):
        if not who.isupper():
            add(schema.BATCHES, 1, offset, offset, 5, 100 * offset, 100, 1, 0, 0, 0)
    for who, first, marker in _closed(log):
        add(schema.MARKERS, 1, marker, ord(who), 0, int(is_commit[marker]), 3, 9, 1)
        if first >= 0 and not is_commit[marker]:
            stable = _first_open(log[: marker + 1])
            add(
                schema.ABORTED_TRANSACTIONS, 1, marker, first, ord(who),
                marker + 1 if stable < 0 else stable,
            )  # fmt: skip


def _seen(log: str, found: ops.FoundBatches, end: int) -> list[int]:
    """The offsets of records that a client of this answer gives its application."""
    dropped: set[str] = set()
    seen = []
    for extent in found.extents:
        offset = extent.base_offset
        if offset >= end:
            break
        dropped |= {
            chr(one.producer_id)
            for one in found.aborted
            if one.first_offset <= offset
            and one.first_offset < found.extents[-1].last_offset + 1
            and one.marker_offset > offset
        }
        if isinstance(extent, Marker):
            if not extent.is_commit:
                dropped.discard(chr(extent.producer_id))
        elif log[offset] not in dropped:
            seen.append(int(offset))
    return seen


def _visible(log: str, is_commit: dict[int, bool], first: int, end: int) -> list[int]:
    outcome = {}
    for who, began, marker in _closed(log):
        for offset in range(max(began, 0), marker):
            if log[offset] == who:
                outcome[offset] = is_commit[marker]
    return [
        offset
        for offset in range(first, end)
        if not log[offset].isupper() and (log[offset] == NOBODY or outcome.get(offset, False))
    ]


def _find(connection: Connection, offset: int, isolation: int, rows: int) -> ops.FoundBatches:
    found: Sequence[ops.FoundBatches] = find_batches(
        connection, FileNames(), [(ops.FindBatches(P, offset, 1 << 30), 1)], max_bytes=1 << 30,
        at_least_one=True, rows_per_partition_max=rows, isolation=isolation,
    )  # fmt: skip
    (answer,) = found
    assert answer.error is None
    return answer


def test_committed_readers_see_what_is_committed_and_nothing_else() -> None:
    engine = create_engine("sqlite://")
    SCHEMA.create_all(engine)
    with engine.connect() as connection:
        for cut in range(1, len(LOG) + 1):
            log = LOG[:cut]
            markers = [marker for _, _, marker in _closed(log)]
            stable = _first_open(log) if _first_open(log) >= 0 else cut
            for outcomes in product((True, False), repeat=len(markers)):
                is_commit = dict(zip(markers, outcomes, strict=True))
                _store(connection, log, is_commit)
                for offset in range(cut + 1):
                    everything = _find(connection, offset, ops.READ_UNCOMMITTED, 99)
                    assert [e.base_offset for e in everything.extents] == [*range(offset, cut)]
                    assert not everything.aborted
                    for rows in (1, 3, 99):
                        found = _find(connection, offset, ops.READ_COMMITTED, rows)
                        assert found.last_stable_offset == stable
                        end = min(offset + rows, max(stable, offset))
                        assert [e.base_offset for e in found.extents] == [*range(offset, end)]
                        assert _seen(log, found, end) == _visible(log, is_commit, offset, end)
                        assert [(one.first_offset, one.marker_offset) for one in found.aborted] == [
                            (first, marker)
                            for _, first, marker in _closed(log)
                            if 0 <= first < end and marker >= offset and not is_commit[marker]
                            if found.extents
                        ]
