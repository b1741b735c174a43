"""Part `tables`: what a commit of a table costs when the table is young, and when it is old.

One topic gets two segments a minute and loses the oldest ones now and then, so that it always has
about LIVE of them. The registrar writes its table as in a tiering job, a commit for each minute, in
a store that is in memory and tells the time of a clock that is put forward. So what is measured is
the registrar's own work: reading the current metadata and manifests, the difference, statistics of
two footers, the new manifests and metadata file.

What may grow with the age of a table are its snapshots, its manifests, and files that nothing names
any more. Beside the times stands how many objects and bytes there are below `tables/`.
"""

import io
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from tempfile import TemporaryFile
from typing import Final, NamedTuple, Self
from uuid import UUID

import pyarrow as pa

from bench.tools.report import Report
from metadata.records.segment_identity import segment_key
from metadata.table_operations import (
    NO_TABLE,
    TABLES_PREFIX,
    CommitTable,
    ListedSegments,
    ListedTables,
    ListSegments,
    ListTables,
    LiveSegment,
    TableCommit,
    TableDescription,
)
from tiering.segment_columns import segment_table
from tiering.segment_format import SegmentIdentity
from tiering.segment_writer import SegmentWriter
from tiering.tables.registrar import Registrar
from wal.clock import ManualClock
from wal.coordinates import ObjectKey, Offset, TopicIdPartition
from wal.errors import CorruptObject, ObjectExists, ObjectNotFound
from wal.records.record_columns import RECORD_SCHEMA
from wal.stores.object_store import BytesBody, ObjectBody, ObjectStat

COMMITS: Final = 2_000
YOUNG: Final = range(5, 16)
"""The tenth commit and those around it; their median counts, and that of as many at the end."""
LIVE: Final = 100
ADDED: Final = 2
LEAVE_EVERY: Final = 8
ROWS: Final = 100
MINUTE_S: Final = 60

_TOPIC: Final = TopicIdPartition(UUID(int=7, version=4), 0)
_URL: Final = "file:///bench"


class BucketInMemory:
    """A blocking store whose objects are as old as `clock` says."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._objects: dict[ObjectKey, tuple[bytes, int]] = {}

    @property
    def url(self) -> str:
        return _URL

    def put(self, key: ObjectKey, body: ObjectBody) -> None:
        data = b"".join(body.fragments())
        if self._objects.setdefault(key, (data, self._clock.now_ms()))[0] != data:
            raise ObjectExists(key)

    def get(self, key: ObjectKey) -> bytes:
        try:
            return self._objects[key][0]
        except KeyError:
            raise ObjectNotFound(key) from None

    def get_range(self, key: ObjectKey, start: int, length: int) -> bytes:
        data = self.get(key)[start : start + length]
        if len(data) != length:
            raise CorruptObject(f"{key} is shorter")
        return data

    def head(self, key: ObjectKey) -> ObjectStat:
        return ObjectStat(key, len(self.get(key)), self._objects[key][1])

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectStat]:
        for key in sorted(self._objects):
            if key.startswith(prefix) and key > start_after:
                yield self.head(key)

    def delete(self, keys: Sequence[ObjectKey]) -> Sequence[ObjectKey]:
        for key in keys:
            self._objects.pop(key, None)
        return keys

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class TableBed:
    """A topic with a table, and the coordinators' side of it; all segments have equal bytes."""

    def __init__(self, *, retention_ms: int = 3_600_000, hides_deleted: bool = False) -> None:
        self.clock = ManualClock()
        self.store = BucketInMemory(self.clock)
        self._retention_ms = retention_ms
        self.hides_deleted = hides_deleted
        self.log_start = 0
        self._bytes = segment_bytes()
        self._segments: list[LiveSegment] = []
        self._next_offset = 0
        self._applied = 0
        self._location = NO_TABLE
        self._registrar = Registrar(self, self.store, _URL, clock=self.clock, rng=random.Random(1))
        self.commits = 0

    def add(self, count: int, data: bytes | None = None, *, rows: int = ROWS) -> None:
        """Make `count` segments live: copies of `data` with its `rows`, or of the usual bytes."""
        data = self._bytes if data is None else data
        for _ in range(count):
            base, last = self._next_offset, self._next_offset + ROWS - 1
            key = segment_key("flights", _TOPIC, base, last)
            self.store.put(key, BytesBody(data))
            self._segments.append(LiveSegment(key, len(data), Offset(base), Offset(last), rows))
            self._next_offset = last + 1
            self._applied += 1

    def leave(self, count: int) -> None:
        """The oldest ones are not live any more."""
        del self._segments[:count]
        self._applied += count

    def commit(self) -> float:
        """One pass of the registrar, a minute later; how many seconds it took."""
        self.commits += 1
        self.clock.advance(MINUTE_S)
        tables = self.list_tables(ListTables()).tables
        started = time.perf_counter()
        report = self._registrar.run_pass(tables)
        took_s = time.perf_counter() - started
        assert not report.failures, report.failures
        return took_s

    def a_minute(self) -> float:
        """What a topic lives through between two commits, and the commit."""
        self.add(ADDED)
        if self.commits % LEAVE_EVERY == 0:
            self.leave(max(len(self._segments) - LIVE, 0))
        return self.commit()

    def size(self) -> tuple[int, int]:
        """Objects and bytes below `tables/`."""
        lengths = [stat.length_bytes for stat in self.store.list(TABLES_PREFIX)]
        return len(lengths), sum(lengths)

    # -- the operations of the coordinators

    def list_tables(self, asked: ListTables) -> ListedTables:
        table = TableDescription(
            topic_id=_TOPIC.topic_id,
            topic_name="flights",
            namespace="topics",
            partition_count=1,
            snapshot_retention_ms=self._retention_ms,
            commit_interval_ms=0,
            hides_deleted=self.hides_deleted,
            location=self._location,
        )
        return ListedTables([table], _URL)

    def list_segments(self, asked: Sequence[ListSegments]) -> Sequence[ListedSegments]:
        ((_, from_offset),) = asked
        live = [one for one in self._segments if one.last_offset >= from_offset]
        return [ListedSegments(live[:1_000], 0, self._applied, log_start_offset=self.log_start)]

    def commit_table(self, commit: CommitTable) -> TableCommit:
        if commit.old_location != self._location:
            return TableCommit(False, self._location)
        self._location = commit.new_location
        return TableCommit(True, self._location)


def segment_bytes(
    typed: Sequence[tuple[pa.Field, pa.Array]] = (), *, offsets: Sequence[int] = range(ROWS)
) -> bytes:
    """A segment of ROWS offsets with the records at `offsets`, and with these typed columns."""
    count = len(offsets)
    rows = {
        "offset": offsets,
        "timestamp": range(1_700_000_000_000, 1_700_000_000_000 + count),
        "timestamp_type": [0] * count,
        "key": [b"key"] * count,
        "value": [b"value" * 10] * count,
        "headers": [[]] * count,
        "batch_base_offset": [0] * count,
        "batch_last_offset": [ROWS - 1] * count,
        "producer_id": [-1] * count,
        "producer_epoch": [-1] * count,
        "base_sequence": [-1] * count,
        "leader_epoch": [0] * count,
        "attributes": [0] * count,
    }
    identity = SegmentIdentity("flights", _TOPIC, 0, ROWS - 1, 0 if count == ROWS else 1)
    with TemporaryFile() as file:
        fields = [field for field, _ in typed]
        with SegmentWriter(file, identity, (), typed=fields) as writer:
            records = pa.table(rows, schema=RECORD_SCHEMA)
            writer.write_row_group(segment_table(records), [values for _, values in typed])
            writer.finish(removed=ROWS - count)
        file.seek(0, io.SEEK_SET)
        return file.read()


class TableFigures(NamedTuple):
    young_s: float
    old_s: float
    objects: int
    size_bytes: int


def measure_tables(commits: int = COMMITS) -> TableFigures:
    bed = TableBed()
    bed.add(LIVE)
    took_s = [bed.a_minute() for _ in range(commits)]
    young = took_s[YOUNG.start : YOUNG.stop]
    return TableFigures(
        statistics.median(young), statistics.median(took_s[-len(YOUNG) :]), *bed.size()
    )


def run_tables(report: Report) -> None:
    report.step(f"tables: {COMMITS:,} commits, {ADDED} segments more in each, {LIVE} live")
    figures = measure_tables()
    report.add(
        "table_commit_s",
        figures.old_s,
        "s",
        note=f"commit {COMMITS:,}, CPU alone; the tenth took {figures.young_s:.3f}; below tables/ "
        f"{figures.objects} objects, {figures.size_bytes:,} bytes",
    )
    report.add("table_commit_old_vs_young", figures.old_s / figures.young_s, "", bound="≤ 1.5")
