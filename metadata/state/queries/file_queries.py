"""Asks the committed state about files: for deciding on a commit, and for deleting objects.

A query that meets a damaged row raises CorruptState: deciding on them could append a batch twice,
and deleting by them could take a live object.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, Integer, Select, bindparam, func, select

from metadata.operations import PARQUET_SEGMENT, TOMBSTONE, DescribedFile
from metadata.records.segment_identity import named_segment
from metadata.state.image import ProducerKey
from metadata.state.producer_rows import load_producers
from metadata.state.producer_state import ProducerState
from metadata.state.queries.transaction_queries import load_closed
from metadata.state.schema import FILE_ANSWERS, FILES, LEFT_SEGMENTS, compiled, unpack_owners
from metadata.state.schema.state_table import stored_rows
from metadata.state.speculative import FileStanding, KnownFile
from metadata.state.state import checked_row
from metadata.transaction_operations import ClosedKey, ClosedTransaction
from wal.coordinates import ObjectKey
from wal.errors import CorruptState, UnknownFile
from wal.ulid import WAL_SHARDS, wal_shard_prefix

NO_UPLOADER: Final = -1
"""`files.uploader_broker_id` of a segment, and of what was handed over or tombstoned."""

_FILE_BY_KEY: Final = compiled(select(FILES.table).where(FILES.table.c.object_key == ""))
_ID_BY_KEY: Final = compiled(select(FILES.table.c.id).where(FILES.table.c.object_key == ""))
_NEWEST_KEY: Final = compiled(
    select(func.max(FILES.table.c.object_key)).where(
        FILES.table.c.object_key >= "", FILES.table.c.object_key < ""
    )
)
_FILE_COLUMNS: Final = len(FILES.columns)
_ANSWER: Final = compiled(select(FILE_ANSWERS.table).where(FILE_ANSWERS.table.c.file == 0))


class LookUp(NamedTuple):
    """Committed files and producers that operations ask for; None = there is no such producer."""

    files: Mapping[ObjectKey, KnownFile]
    producers: Mapping[ProducerKey, ProducerState | None]
    newest_ulid: str | None = None
    """That of all WAL objects, if it was asked for; "" when there are none."""
    closed: Mapping[ClosedKey, ClosedTransaction | None] = {}


def look_up(
    connection: Connection,
    keys: Sequence[ObjectKey],
    producers: Sequence[ProducerKey],
    *,
    closed: Collection[ClosedKey] = (),
    with_newest: bool = False,
) -> LookUp:
    """Raises CorruptState: deciding on damaged rows could append a batch twice."""
    files: dict[ObjectKey, KnownFile] = {}
    for key in keys:
        rows = stored_rows(connection, _FILE_BY_KEY, (key,))
        if not rows:
            continue
        values = checked_row(FILES, rows[0])
        digest = stored = b""
        answers = stored_rows(connection, _ANSWER, (values[0],))
        if answers:
            _, digest, stored, _ = checked_row(FILE_ANSWERS, answers[0])
        standing = _standing(values, is_answered=bool(answers))
        files[key] = KnownFile(digest, stored, standing, is_owner=bool(values[8]))
    states: dict[ProducerKey, ProducerState | None] = dict.fromkeys(producers)
    for producer, known in load_producers(connection, producers).items():
        states[producer] = known
    newest_ulid = _newest_ulid(connection) if with_newest else None
    return LookUp(files, states, newest_ulid, load_closed(connection, closed))


def _newest_ulid(connection: Connection) -> str:
    """One descent into the index of keys for each shard of WAL objects: 3 ms for any number."""
    newest = ""
    for shard in range(WAL_SHARDS):
        prefix = wal_shard_prefix(shard)
        # "0" is the character behind "/".
        ((key,),) = stored_rows(connection, _NEWEST_KEY, (prefix, f"{prefix[:-1]}0"))
        newest = max(newest, "" if key is None else key[len(prefix) :])
    return newest


def _standing(file: Sequence[Any], *, is_answered: bool) -> FileStanding:
    """What a row of `files` says; raises CorruptState when its answer should be there or not."""
    key, uploader, live_rows, owners = file[9], file[3], file[5], file[10]
    if file[1] == TOMBSTONE:
        standing = FileStanding.SEALED if owners else FileStanding.TOMBSTONED
    elif is_answered:
        return FileStanding.COMMITTED
    else:
        standing = FileStanding.HANDED_OVER
    if is_answered or uploader != NO_UPLOADER or live_rows:
        raise CorruptState(f"{key} has {'an' if is_answered else 'no'} answer")
    return standing


def known_files(connection: Connection, keys: Sequence[ObjectKey]) -> Collection[ObjectKey]:
    """Those of `keys` that have a row, whatever it says."""
    return {key for key in keys if stored_rows(connection, _ID_BY_KEY, (key,))}


def describe_files(connection: Connection, keys: Sequence[ObjectKey]) -> Sequence[DescribedFile]:
    """One entry per key; UnknownFile for a tombstone too. Raises CorruptState."""
    described = []
    for key in keys:
        row = connection.execute(FILES.select_all.where(FILES.table.c.object_key == key)).first()
        values = None if row is None else checked_row(FILES, row)
        if values is None or (values[1] == TOMBSTONE and not values[10]):
            described.append(DescribedFile(error=UnknownFile(f"{key} is not known here")))
        else:
            described.append(DescribedFile(has_live_batches=values[5] > 0))
    return described


def replaced_segments(connection: Connection) -> list[ObjectKey]:
    """Segments that nobody is told to read any more; their objects may exist still."""
    files = FILES.table.c
    found = connection.execute(
        select(files.object_key)
        .where(files.live_rows == 0, files.object_format == PARQUET_SEGMENT)
        .order_by(files.object_key)
    )
    return [ObjectKey(key) for (key,) in found]


class LeftSegment(NamedTuple):
    """Whose segment it was, and at which metadata offset it left the live ones."""

    topic_id: UUID
    left_offset: int


class DeletableFile(NamedTuple):
    """A file without live batches, and when the last of them went."""

    object_key: ObjectKey
    object_format: int
    deletable_since_ms: int
    is_owner: bool
    """Whether this coordinator decides its fate now; if not, an earlier owner does."""
    owner_ids: Sequence[int]
    """Coordinators that own it one after the other; empty for a segment."""
    object_bytes: int
    standing: FileStanding
    left: LeftSegment | None = None
    """Of a segment that a table may name; one that went with its topic has none."""

    @property
    def segment_left(self) -> tuple[UUID, int | None] | None:
        """A segment's topic, and the offset at which it left, None with its topic."""
        if self.left is not None:
            return self.left
        named = named_segment(self.object_key)
        return None if named is None else (named.partition.topic_id, None)


def _deletable() -> Select[Any]:
    columns = FILES.table.c
    answered = select(FILE_ANSWERS.table.c.file).where(FILE_ANSWERS.table.c.file == columns.id)
    since = columns.deletable_since_ms
    after_ms = bindparam("after_ms", type_=Integer)
    return (
        FILES.select_all.add_columns(answered.exists())
        .add_columns(*LEFT_SEGMENTS.table.c)
        .outerjoin(LEFT_SEGMENTS.table, LEFT_SEGMENTS.table.c.file == columns.id)
        .where(
            columns.is_owner == bindparam("is_owner"),
            since >= bindparam("from_ms"),
            since < bindparam("before_ms"),
            (since > after_ms) | ((since == after_ms) & (columns.id > bindparam("after_id"))),
        )
        .order_by(since, columns.id)
        .limit(bindparam("rows"))
    )


_DELETABLE: Final = _deletable()
"""Built once: that takes longer than to find that there are none, which is what idle brokers do."""


def deletable_files(
    connection: Connection,
    *,
    before_ms: int,
    after: tuple[int, int],
    limit: int,
    is_owner: bool,
) -> Sequence[tuple[tuple[int, int], DeletableFile]]:
    """Files deletable since before `before_ms`, oldest first, with the cursor to go on after.

    Either those that this coordinator owns, or those that wait for an earlier owner.
    Raises CorruptState.
    """
    since, file_id = after
    rows = connection.execute(
        _DELETABLE,
        {
            "is_owner": int(is_owner),
            "from_ms": max(since, 0),
            "before_ms": before_ms,
            "after_ms": since,
            "after_id": file_id,
            "rows": limit,
        },
    ).all()
    found = []
    for row in rows:
        # Objects are deleted by what stands here: a damaged row must not name a live one.
        values = checked_row(FILES, row[:_FILE_COLUMNS])
        is_answered, *left = row[_FILE_COLUMNS:]
        file = DeletableFile(
            ObjectKey(values[9]),
            values[1],
            values[7],
            bool(values[8]),
            unpack_owners(values[10]),
            values[2],
            _standing(values, is_answered=bool(is_answered)),
            None if left[0] is None else _left_segment(left),
        )
        found.append(((file.deletable_since_ms, values[0]), file))
    return found


def _left_segment(row: Sequence[Any]) -> LeftSegment:
    _, left_offset, topic_id, _ = checked_row(LEFT_SEGMENTS, row)
    return LeftSegment(UUID(bytes=topic_id), left_offset)
