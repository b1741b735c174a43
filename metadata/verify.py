"""Checking a coordinator's stored metadata against itself: its part of `diskless verify`.

The metadata log is replayed from its start into a scratch state, and that state - the truth - is
checked for everything that can be checked without the object store. Then the SQLite state that the
coordinator keeps is compared with it: replaying up to where that state is must give its hash. A
state that is missing or damaged heals at the next start and yet is reported, because nobody expects
it.

The log must not be open elsewhere. What objects must exist is returned for the caller, who has the
store.
"""

import tempfile
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, func, select

from metadata.image import CommittedImage
from metadata.log import MetadataLog
from metadata.queries import NO_UPLOADER
from metadata.schema import (
    BATCHES,
    FILE_ANSWERS,
    FILES,
    PARTITIONS,
    PRODUCER_STATES,
    SEGMENT_PLANS,
    SEGMENTS,
    SWEPT,
)
from metadata.state import STATE_FILE, Applied, StateDatabase, verified_position
from metadata.state_recovery import REPLAY_BYTES, apply_batches
from wal.coordinates import ObjectKey
from wal.crc import crc32c
from wal.errors import CorruptData, CorruptState, StorageFailed

_PRODUCERS_MAX: Final = 10_000


class Violation(NamedTuple):
    """One broken invariant: what it is about, and what is wrong."""

    subject: str
    problem: str


class LiveObject(NamedTuple):
    """An object that must be in the store, at least `object_bytes` long."""

    object_key: ObjectKey
    object_bytes: int
    object_format: int


class MetadataReport(NamedTuple):
    """What verifying found."""

    violations: Sequence[Violation]
    live_objects: Sequence[LiveObject]
    records: int
    partitions: int


async def verify_metadata(
    directory: Path, log: MetadataLog, *, coordinator_id: int = 0
) -> MetadataReport:
    """Check `log` and the SQLite state in `directory`, neither of which is changed.

    `coordinator_id` is the metadata partition whose log it is.

    Raises nothing for what it finds, StorageFailed when the scratch state cannot be written.
    """
    applied, violations = await _stored_position(directory)
    with tempfile.TemporaryDirectory(prefix="diskless-verify-") as scratch:
        async with StateDatabase(Path(scratch) / STATE_FILE, readers=1) as replayed:
            await replayed.open_or_create()
            image = CommittedImage(producers_max=_PRODUCERS_MAX, coordinator_id=coordinator_id)
            try:
                violations += await _replay(replayed, log, image, applied)
            except CorruptData as error:
                violations.append(Violation("metadata log", str(error)))
            violations += await replayed.read(check_state)
            return MetadataReport(
                violations=violations,
                live_objects=await replayed.read(live_objects),
                records=image.next_offset,
                partitions=len(image.partitions),
            )


async def _stored_position(directory: Path) -> tuple[Applied | None, list[Violation]]:
    """Where the coordinator's own state is; None with a violation when it cannot be trusted."""
    path = directory / STATE_FILE
    if not path.exists():
        return None, [Violation(STATE_FILE, "is missing; the next start rebuilds it")]
    async with StateDatabase(path, readers=1) as state:
        try:
            await state.open_or_create()
            return await state.read(verified_position), []
        except (CorruptState, StorageFailed) as error:
            return None, [Violation(STATE_FILE, str(error))]


async def _replay(
    state: StateDatabase, log: MetadataLog, image: CommittedImage, applied: Applied | None
) -> list[Violation]:
    """Replay everything, stopping where the stored state is to compare the hashes."""
    violations = []
    stop = 0 if applied is None else applied.next_offset
    if stop > log.end_offset:
        violations.append(
            Violation(STATE_FILE, f"is at {stop}, behind the log's end at {log.end_offset}")
        )
    while image.next_offset < log.end_offset:
        batches = list(await log.read(image.next_offset, REPLAY_BYTES))
        if image.next_offset < stop:
            batches = [batch for batch in batches if batch.next_offset <= stop] or batches[:1]
        image.merge(await state.write(partial(apply_batches, image, batches)))
        if applied is not None and image.next_offset == stop:
            if image.state_hash != applied.state_hash:
                violations.append(
                    Violation(
                        STATE_FILE,
                        f"state hash {applied.state_hash:016x} at {stop}, replay gives "
                        f"{image.state_hash:016x}",
                    )
                )
            if crc32c(batches[-1].records[-1]) != applied.last_record_crc:
                violations.append(Violation(STATE_FILE, f"another record was applied at {stop}"))
    return violations


def check_state(connection: Connection) -> list[Violation]:
    """Everything that rows must fulfil together."""
    return [
        *_partitions(connection),
        *_file_accounts(connection),
        *_disjoint_extents(connection),
        *_answers(connection),
        *_stray_rows(connection),
    ]


def _partitions(connection: Connection) -> Iterable[Violation]:
    """I6: from the log start to the high watermark every offset is in exactly one extent."""
    for row in connection.execute(select(PARTITIONS.table)).all():
        subject = f"partition {row.partition} of topic {row.topic} (id {row.id})"
        if not 0 <= row.log_start_offset <= row.high_watermark:
            yield Violation(subject, f"log start {row.log_start_offset} > {row.high_watermark}")
        extents = sorted(
            [
                *_spans(connection, BATCHES, row.id),
                *_spans(connection, SEGMENTS, row.id),
            ]
        )
        position: int | None = None
        for base, last in extents:
            # Rows that wait below the log start for their planned segment may have lost neighbours.
            is_visible = last >= row.log_start_offset
            if last < base or (position is not None and base < position):
                yield Violation(subject, f"extent {base}..{last} overlaps or is empty")
            elif is_visible and base > (position or 0) and base > row.log_start_offset:
                yield Violation(subject, f"nothing holds the offsets before {base}")
            position = last + 1
        end = row.log_start_offset if position is None else max(position, row.log_start_offset)
        if end != row.high_watermark:
            yield Violation(subject, f"extents end at {end}, the high watermark is not there")
        unplanned = connection.execute(
            select(func.coalesce(func.sum(BATCHES.table.c.byte_size), 0)).where(
                BATCHES.table.c.partition == row.id,
                BATCHES.table.c.base_offset >= row.planned_end_offset,
            )
        ).scalar_one()
        if unplanned != row.unplanned_bytes:
            yield Violation(subject, f"{unplanned} bytes unplanned, {row.unplanned_bytes} counted")
        live = _live_bytes(connection, row.id, row.log_start_offset)
        if live != row.live_bytes:
            yield Violation(subject, f"{live} bytes live, {row.live_bytes} counted")
        for base, last in _spans(connection, SEGMENT_PLANS, row.id):
            if last >= row.planned_end_offset or not _is_covered(extents, base, last):
                yield Violation(subject, f"the plan {base}..{last} has not all its batches")


def _live_bytes(connection: Connection, partition: int, log_start_offset: int) -> int:
    """Bytes of the rows and segments that reach to the log start or above it."""
    batches, segments, files = BATCHES.table.c, SEGMENTS.table.c, FILES.table.c
    rows = connection.execute(
        select(func.coalesce(func.sum(batches.byte_size), 0)).where(
            batches.partition == partition, batches.last_offset >= log_start_offset
        )
    ).scalar_one()
    objects = connection.execute(
        select(func.coalesce(func.sum(files.object_bytes), 0))
        .join_from(SEGMENTS.table, FILES.table, segments.file == files.id)
        .where(segments.partition == partition, segments.last_offset >= log_start_offset)
    ).scalar_one()
    return int(rows + objects)


def _spans(connection: Connection, table: Any, partition: int) -> list[tuple[int, int]]:
    columns = table.table.c
    return [
        (base, last)
        for base, last in connection.execute(
            select(columns.base_offset, columns.last_offset).where(columns.partition == partition)
        )
    ]


def _is_covered(extents: Sequence[tuple[int, int]], base: int, last: int) -> bool:
    position = base
    for extent_base, extent_last in extents:
        if extent_base == position:
            position = extent_last + 1
            if position > last:
                return position == last + 1
    return False


def _file_accounts(connection: Connection) -> Iterable[Violation]:
    """A file's live rows and bytes are those that reference it; at zero it is deletable."""
    batches, segments, files = BATCHES.table.c, SEGMENTS.table.c, FILES.table.c
    counted: dict[int, tuple[int, int]] = {
        file: (rows, size)
        for file, rows, size in connection.execute(
            select(batches.file, func.count(), func.sum(batches.byte_size)).group_by(batches.file)
        )
    }
    for file, size in connection.execute(
        select(segments.file, files.object_bytes).join_from(
            SEGMENTS.table, FILES.table, segments.file == files.id, isouter=True
        )
    ):
        rows, total = counted.get(file, (0, 0))
        counted[file] = (rows + 1, total + (size or 0))
    for row in connection.execute(select(FILES.table)).all():
        rows, size = counted.pop(row.id, (0, 0))
        if (rows, size) != (row.live_rows, row.live_bytes):
            yield Violation(
                row.object_key,
                f"{row.live_rows} live rows of {row.live_bytes} bytes, found {rows} of {size}",
            )
        if (rows == 0) != (row.deletable_since_ms >= 0):
            yield Violation(
                row.object_key, f"deletable since {row.deletable_since_ms}, {rows} rows"
            )
    for file in counted:
        yield Violation(f"file {file}", "is referenced but unknown")


def _disjoint_extents(connection: Connection) -> Iterable[Violation]:
    """I8, as far as metadata can tell: the extents of one object lie in it and do not overlap."""
    batches, files = BATCHES.table.c, FILES.table.c
    file = end = -1
    for row in connection.execute(
        select(batches.file, batches.byte_offset, batches.byte_size, files.object_bytes)
        .join_from(BATCHES.table, FILES.table, batches.file == files.id)
        .order_by(batches.file, batches.byte_offset)
    ):
        if row.file != file:
            file, end = row.file, 0
        if row.byte_offset < end:
            yield Violation(f"file {file}", f"extents overlap at byte {row.byte_offset}")
        end = row.byte_offset + row.byte_size
        if end > row.object_bytes:
            yield Violation(f"file {file}", f"an extent ends at {end} of {row.object_bytes}")


def _answers(connection: Connection) -> Iterable[Violation]:
    """Every file that was committed here has the answer that a re-sent commit gets.

    Nobody uploaded, as far as this coordinator knows, what it tombstoned or was handed over.
    """
    columns, answers = FILES.table.c, FILE_ANSWERS.table.c.file
    files = columns.id
    for file in connection.execute(
        select(files).where(
            columns.uploader_broker_id != NO_UPLOADER, files.not_in(select(answers))
        )
    ).scalars():
        yield Violation(f"file {file}", "has no stored answer")
    for file in connection.execute(select(answers).where(answers.not_in(select(files)))).scalars():
        yield Violation(f"file {file}", "has an answer but does not exist")


def _stray_rows(connection: Connection) -> Iterable[Violation]:
    """Rows belong to a partition that exists, or to one that is being swept away."""
    known = select(PARTITIONS.table.c.id).union_all(select(SWEPT.table.c.partition))
    for table in (BATCHES, SEGMENTS, SEGMENT_PLANS, PRODUCER_STATES):
        column = table.table.c.partition
        for partition in connection.execute(
            select(column).distinct().where(column.not_in(known))
        ).scalars():
            yield Violation(f"partition id {partition}", f"has {table.name} but does not exist")


def live_objects(connection: Connection) -> list[LiveObject]:
    """The objects that somebody may be told to read."""
    files = FILES.table.c
    return [
        LiveObject(ObjectKey(key), size, object_format)
        for key, size, object_format in connection.execute(
            select(files.object_key, files.object_bytes, files.object_format)
            .where(files.live_rows > 0)
            .order_by(files.object_key)
        )
    ]
