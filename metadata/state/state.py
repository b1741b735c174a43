"""The SQLite state: its file, its connections and threads, and the doubt it is opened with.

SQLite here is a cache of the metadata log, never the truth (P8). That decides its settings:

- WAL mode, so that readers never wait for the writer. One connection writes, and it alone
  checkpoints: SQLite before 3.51.3 can corrupt a database when two connections do.
- synchronous=NORMAL: a commit does not wait for the disk, since what a power cut takes away is
  replayed from the metadata log; but checkpoints are synced, which keeps the file consistent. OFF
  would save that sync and risk a torn file after every power cut, hence a full rebuild.
- Transactions are ours: the driver's implicit ones do not isolate. The writer begins with BEGIN
  IMMEDIATE, readers with BEGIN, so a reader sees one committed state for its whole transaction.

Before a file is opened it is checked (metadata/state/state_check.py), and then the position against
the metadata log (the CRC of the last applied record must be that of the log's record). Any doubt -
another version, a hash that does not match, a file that SQLite refuses, a position the log has not
- sets the file aside as `state.sqlite.bad-N`, and a snapshot or replay makes a new one.

Blocking calls run in threads of this object: one for the writer, a few for readers, one for copies.
"""

import asyncio
import logging
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeVar
from uuid import UUID

from sqlalchemy import Connection, Engine, select

from metadata import operations as ops
from metadata.records.control import decode_quota_entity
from metadata.records.stored_tables import StoredTable, unpack_commits
from metadata.scram.credentials import ScramCredential
from metadata.state import schema, state_file
from metadata.state.image import (
    CommittedImage,
    PartitionState,
    PlannedSegment,
    RewriteState,
    StoredTopic,
    load_sinks,
)
from metadata.state.state_connections import (
    opened,
    pooled_engine,
    read_only_engine,
    run_in_transaction,
    translated_errors,
)
from metadata.state.state_hash import from_signed
from metadata.state.transactions.transaction_image import load_transactions
from wal.coordinates import ObjectKey, TopicIdPartition
from wal.disk import SYSTEM_DISK, Disk
from wal.errors import CorruptLog, CorruptState, NotCoordinator, StorageFailed
from wal.wire.fields import FieldReader
from wal.worker_threads import Job, WorkerThreads

STATE_FILE: Final = "state.sqlite"

SET_ASIDE_MAX: Final = 3
"""States set aside that are kept; the oldest go first."""

_logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")


class Applied(NamedTuple):
    """How far the metadata log is in the state."""

    next_offset: int
    last_record_crc: int
    timestamp_ms: int
    forgotten_until_ms: int
    began_ms: int
    state_hash: int


class StateDatabase:
    """One coordinator's SQLite file. Async context manager; `path` need not exist before."""

    def __init__(self, path: Path, *, readers: int) -> None:
        self.path = path
        self._readers = readers
        self._writer_engine: Engine | None = None
        self._writer: Connection | None = None
        """The writer engine's one connection, kept from one transaction to the next."""
        self._reader_engine: Engine | None = None
        self._is_closed = False
        self._is_trusted = False
        self._writer_thread = WorkerThreads("state-writer", 1)
        self._reader_threads = WorkerThreads("state-reader", readers)
        self._copy_thread = WorkerThreads("state-copy", 1)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_closed = True
        await self._copy_thread.close()
        self._reader_threads.end()
        self._writer_thread.end()
        await asyncio.to_thread(self._shut_down)

    def _shut_down(self) -> None:
        self._reader_threads.join()
        self._writer_thread.join()
        self._close()

    def trust(self) -> None:
        """The state was checked: when it is closed, the next start need not check it again.

        Whatever finds it damaged from here on takes that back.
        """
        self._is_trusted = True

    def doubt(self) -> None:
        """Something in it is damaged: the next start checks every row."""
        self._is_trusted = False

    async def write(self, work: Callable[[Connection], _Result]) -> _Result:
        """Run `work` in a write transaction in the writer thread; committed on return.

        Raises: what `work` raises (rolled back); StorageFailed (the disk refused; rolled back),
        CorruptState (SQLite found its file damaged), NotCoordinator (it is closed).
        """
        self._refuse_when_closed()
        return await self._writer_thread.run(lambda: self._write(work))

    def begin_write(self, work: Callable[[Connection], _Result]) -> Job[_Result]:
        """`write`, begun: it happens whatever becomes of those who wait for its end.

        Raises: NotCoordinator (it is closed).
        """
        return self._writer_thread.begin(self.writing(work))

    def writing(self, work: Callable[[Connection], _Result]) -> Callable[[], _Result]:
        """`write` for another thread than the writer's, while nothing else is written.

        Raises: NotCoordinator (it is closed). What it returns raises like `write`.
        """
        self._refuse_when_closed()
        return lambda: self._write(work)

    async def read(self, work: Callable[[Connection], _Result]) -> _Result:
        """Run `work` in a reader thread on one committed state. Raises like `write`."""
        self._refuse_when_closed()
        return await self._reader_threads.run(lambda: self._read(work))

    def _refuse_when_closed(self) -> None:
        if self._is_closed:
            raise NotCoordinator("the coordinator's state is closed")

    async def while_closed(self, work: Callable[[Path], _Result]) -> _Result:
        """Run `work` with the path in the writer thread, the file closed; raises what that does."""

        def run() -> _Result:
            self._dispose()
            return work(self.path)

        return await self._writer_thread.run(run)

    async def open_or_create(self) -> bool:
        """Open the file, creating it when there is none; True when it is new (nothing applied)."""
        return await self._writer_thread.run(self._open)

    async def set_aside(self) -> Path | None:
        """Close and rename the file and its companions; returns the new path of the file.

        The SET_ASIDE_MAX newest of them are kept. Raises: StorageFailed.
        """
        return await self._writer_thread.run(self._set_aside)

    async def discard(self) -> None:
        """Close and remove the file: nothing is wrong with it, it is of no use any more."""

        await self.while_closed(state_file.remove_database)

    async def adopt(self, source: Path, disk: Disk = SYSTEM_DISK) -> None:
        """Close the file and put `source` in its place, which is whole, synced and checked.

        Raises: StorageFailed.
        """

        await self.while_closed(lambda path: state_file.adopt_database(source, path, disk))

    async def backup(self, to: Path) -> Applied | None:
        """Copy one committed state to the file `to`; returns how far the log is applied in it.

        Neither writers nor readers wait for it. A cancelled caller waits until it has ended.
        Raises: StorageFailed, CorruptState, NotCoordinator.
        """
        self._refuse_when_closed()

        def copy() -> Applied | None:
            state_file.copy_database(self.path, to)
            return read_copy(to, read_applied)

        try:
            return await self._copy_thread.run_to_end(copy)
        except CorruptState:
            self.doubt()
            raise

    # -- in the threads -------------------------------------------------------------------------

    def _open(self) -> bool:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._dispose()
        is_new = not self.path.exists()
        self._is_trusted = False
        self._writer_engine = pooled_engine(self.path, connections=1, is_writer=True)
        self._reader_engine = pooled_engine(self.path, connections=self._readers, is_writer=False)
        if is_new:
            self._write(schema.create_tables)
        return is_new

    def _dispose(self) -> None:
        self._give_back_writer()
        for engine in (self._reader_engine, self._writer_engine):
            if engine is not None:
                engine.dispose()
        self._reader_engine = self._writer_engine = None

    def _close(self) -> None:
        is_open = self._writer_engine is not None
        self._dispose()
        if is_open and self._is_trusted:
            try:
                state_file.mark_closed(self.path)
            except OSError as error:
                _logger.warning("%s: the next start checks every row: %s", self.path, error)

    def _set_aside(self) -> Path | None:
        try:
            return self._rename_aside()
        except OSError as error:
            raise StorageFailed(f"setting aside {self.path}: {error}") from error

    def _rename_aside(self) -> Path | None:
        self._dispose()
        prefix = f"{self.path.name}.bad-"
        numbers = sorted(
            int(number)
            for path in self.path.parent.glob(f"{prefix}*")
            if (number := path.name.removeprefix(prefix)).isdecimal()
        )
        aside = self.path.with_name(f"{prefix}{numbers[-1] + 1 if numbers else 1}")
        moved = None
        for suffix in state_file.DATABASE_SUFFIXES:
            source = self.path.with_name(self.path.name + suffix)
            if source.exists():
                moved = source.rename(aside.with_name(aside.name + suffix))
        if moved is None:
            return None
        for old in numbers[: max(0, len(numbers) + 1 - SET_ASIDE_MAX)]:
            state_file.remove_database(self.path.with_name(f"{prefix}{old}"))
        return aside

    def _write(self, work: Callable[[Connection], _Result]) -> _Result:
        engine = opened(self._writer_engine)
        try:
            with translated_errors():
                # Taking it from the pool and giving it back costs as much as a small transaction.
                writer = self._writer = self._writer or engine.connect()
                with writer.begin():
                    return work(writer)
        except BaseException as error:
            if isinstance(error, CorruptState):
                self.doubt()
            self._give_back_writer()  # What a failed rollback left, the pool throws away.
            raise

    def _give_back_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _read(self, work: Callable[[Connection], _Result]) -> _Result:
        try:
            return run_in_transaction(self._reader_engine, work)
        except CorruptState:
            self.doubt()
            raise


def read_copy(
    path: Path, work: Callable[[Connection], _Result], *, is_in_use: bool = False
) -> _Result:
    """Run `work` on a database file that nobody writes, unless it `is_in_use`.

    Raises like `StateDatabase.read`.
    """
    engine = read_only_engine(path, is_in_use=is_in_use)
    try:
        return run_in_transaction(engine, work)
    finally:
        engine.dispose()


def read_applied(connection: Connection) -> Applied | None:
    """Reads how far the log was applied; None when nothing was. Raises CorruptState."""
    row = connection.execute(select(schema.APPLIED)).one_or_none()
    if row is None:
        return None
    *values, checksum = row
    try:
        is_sound = schema.APPLIED_CHECKSUM(values) == checksum
    except (struct.error, TypeError) as error:
        raise CorruptState("the applied position is not readable") from error
    if not is_sound:
        raise CorruptState("the applied position fails its checksum")
    if row.state_version != schema.STATE_VERSION:
        raise CorruptState(
            f"state version {row.state_version}, this release has {schema.STATE_VERSION}"
        )
    return Applied(
        row.next_offset,
        row.last_record_crc,
        row.timestamp_ms,
        row.forgotten_until_ms,
        row.began_ms,
        from_signed(row.state_hash),
    )


def checked_row(table: schema.StateTable, row: Any) -> tuple[Any, ...]:
    """`row` as a tuple, its checksum verified. Raises CorruptState."""
    values = tuple(row)
    try:
        if table.checksum(values[:-1]) == values[-1]:
            return values
    except (struct.error, TypeError, AttributeError) as error:
        raise CorruptState(f"a row of {table.name} has wrong types") from error
    raise CorruptState(f"a row of {table.name} fails its checksum: {values[:4]}")


def load_image(connection: Connection, image: CommittedImage) -> None:
    """Fill an empty `image` from the tables. Raises CorruptState."""
    applied = read_applied(connection)
    if applied is not None:
        image.next_offset = applied.next_offset
        image.timestamp_ms = applied.timestamp_ms
        image.forgotten_until_ms = applied.forgotten_until_ms
        image.began_ms = applied.began_ms
        image.state_hash = applied.state_hash

    def rows(table: schema.StateTable) -> list[tuple[Any, ...]]:
        return [checked_row(table, row) for row in connection.execute(table.select_all)]

    assignments: dict[int, dict[int, int]] = {}
    for topic, partition_index, coordinator, _ in rows(schema.ASSIGNMENTS):
        assignments.setdefault(topic, {})[partition_index] = coordinator
    configs: dict[int, dict[str, str]] = {}
    for topic, name, value, _ in rows(schema.TOPIC_CONFIGS):
        configs.setdefault(topic, {})[name] = value
    columns = {
        topic: ops.TopicColumns(version, basis, of_topic)
        for topic, version, basis, of_topic, _ in rows(schema.TOPIC_COLUMNS)
    }
    topic_ids: dict[int, UUID] = {}
    for row_id, partition_count, topic_id_bytes, name, _ in rows(schema.TOPICS):
        topic_id = UUID(bytes=topic_id_bytes)
        topic_ids[row_id] = topic_id
        description = ops.TopicDescription(
            topic_id=topic_id,
            name=name,
            partition_count=partition_count,
            configs=configs.get(row_id, {}),
            assignments=assignments.get(row_id, {}),
        )
        image.topics[topic_id] = StoredTopic(
            row_id, description, columns.get(row_id, ops.TopicColumns())
        )
        image.topics_by_name[name] = description
    partitions: dict[int, TopicIdPartition] = {}
    for row_id, topic, index, *offsets, _ in rows(schema.PARTITIONS):
        partition = TopicIdPartition(topic_ids[topic], index)
        partitions[row_id] = partition
        image.partitions[partition] = PartitionState(row_id, topic, index, *offsets)
    for partition_id, last_offset, base_offset, planned_at_ms, key, of_plan, _ in rows(
        schema.SEGMENT_PLANS
    ):
        image.plans[ObjectKey(key)] = PlannedSegment(
            partitions[partition_id],
            base_offset,
            last_offset,
            ObjectKey(key),
            planned_at_ms,
            of_plan,
        )
    for partition_id, *rewrite, _ in rows(schema.REWRITES):
        image.rewrites[partitions[partition_id]] = RewriteState(*rewrite)
    for _, next_producer_id, _ in rows(schema.PRODUCER_IDS):
        image.next_producer_id = next_producer_id
    for _, epoch, leader_id, port, successor_id, host, incarnation, _ in rows(schema.LEADERSHIP):
        image.leader = ops.Leader(
            epoch, leader_id, host, port, UUID(bytes=incarnation), successor_id
        )
    for broker_id, port, leads, version, host, rack, endpoints, life, _ in rows(schema.BROKERS):
        image.brokers[broker_id] = ops.RegisteredBroker(
            broker_id, host, port, rack, UUID(bytes=life), endpoints, bool(leads), version
        )
    image.quotas = _quotas(rows(schema.CLIENT_QUOTAS))
    image.acls = frozenset(map(schema.acl_of, rows(schema.ACLS)))
    tokens = map(schema.access_token_of, rows(schema.ACCESS_TOKENS))
    image.tokens = {token.token_id: token for token in tokens}
    image.scram = {
        (user, mechanism): ScramCredential(
            iterations=iterations, salt=salt, stored_key=stored_key, server_key=server_key
        )
        for mechanism, iterations, user, salt, stored_key, server_key, _ in rows(
            schema.SCRAM_CREDENTIALS
        )
    }
    image.tables = {
        topic_ids[topic]: StoredTable(ObjectKey(location), unpack_commits(commits))
        for topic, commits, location, _ in rows(schema.TABLES)
    }
    load_sinks(rows, image)
    load_transactions(rows, image.transactions)


def _quotas(rows: Sequence[tuple[Any, ...]]) -> Mapping[ops.QuotaEntity, Mapping[str, float]]:
    quotas: dict[ops.QuotaEntity, dict[str, float]] = {}
    for bits, entity, key, _ in rows:
        reader = FieldReader(entity, "the entity of a quota")
        try:
            decoded = decode_quota_entity(reader)
        except CorruptLog as error:
            raise CorruptState(str(error)) from error
        quotas.setdefault(decoded, {})[key] = schema.float_of_bits(bits)
    return quotas
