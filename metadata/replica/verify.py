"""Checks a coordinator's stored metadata against itself: its part of `diskless verify`.

The metadata log is replayed from its start into a scratch state, and that state - the truth - is
checked for everything that can be checked without the object store. A log that was pruned is
replayed onto the oldest snapshot that it reaches back to.

Everything else that claims to be the state at some offset is compared with it: the SQLite state
that the coordinator keeps, and every snapshot, which is loaded and checked row by row. Replaying up
to where it is must give its hash and end in its last record. A damaged state or snapshot heals at
the next start, is passed over, and yet is reported, because nobody expects it. A missing state
claims nothing: the next start makes it from the log, as after a rebuild.

The log must not be open elsewhere. What objects must exist is returned for the caller, who has the
store.
"""

import tempfile
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, func, select

from metadata.log.log import MetadataLog
from metadata.records.groups import GroupKind
from metadata.replica.snapshot_format import SnapshotManifest
from metadata.replica.snapshots import SnapshotStatus, SnapshotStore
from metadata.replica.state_recovery import REPLAY_BYTES, apply_batches
from metadata.replica.verify_transactions import (
    HeldTransactions,
    held_transactions,
    transaction_violations,
)
from metadata.state import schema
from metadata.state.image import CommittedImage
from metadata.state.queries.file_queries import NO_UPLOADER, replaced_segments
from metadata.state.state import STATE_FILE, Applied, StateDatabase, load_image
from metadata.state.state_check import verified_position
from metadata.state.state_file import remove_database
from metadata.transaction_operations import GROUP_PARTITION, NO_OFFSET
from wal.coordinates import ObjectKey
from wal.crc import crc32c
from wal.errors import CorruptData, CorruptObject, CorruptState, StorageFailed

_PRODUCERS_MAX: Final = 10_000


class Violation(NamedTuple):
    """One broken invariant: what it is about, and what is wrong."""

    subject: str
    problem: str


class SegmentRange(NamedTuple):
    """What a segment was committed as."""

    base_offset: int
    last_offset: int
    record_count: int


class LiveObject(NamedTuple):
    """An object that must be in the store, at least `object_bytes` long."""

    object_key: ObjectKey
    object_bytes: int
    object_format: int
    segment: SegmentRange | None = None
    """Of a segment."""


class MetadataReport(NamedTuple):
    """What verifying found."""

    violations: Sequence[Violation]
    live_objects: Sequence[LiveObject]
    replaced_segments: Sequence[ObjectKey]
    """Those that are not live any more, and may not be deleted yet."""
    records: int
    partitions: int
    transactions: HeldTransactions
    """What is open here, and which transactional ids are coordinated here."""


class _Claim(NamedTuple):
    """Something that claims to be the state at an offset."""

    subject: str
    applied: Applied


async def verify_metadata(
    directory: Path,
    log: MetadataLog,
    *,
    coordinator_id: int = 0,
    snapshots: SnapshotStore | None = None,
) -> MetadataReport:
    """Check `log`, the SQLite state in `directory` and the snapshots; nothing is changed.

    `coordinator_id` is the metadata partition whose log it is. Without `snapshots`, a log that was
    pruned cannot be checked, which is a violation.

    Raises: StorageFailed (the scratch state cannot be written), ObjectStoreUnavailable; nothing for
    what it finds.
    """
    violations: list[Violation] = []
    claims = await _claim_of_state(directory, violations)
    with tempfile.TemporaryDirectory(prefix="diskless-verify-") as name:
        scratch = Path(name)
        manifests: list[SnapshotManifest] = []
        if snapshots is not None:
            manifests = await _sound_snapshots(snapshots, scratch / "check", violations)
            claims += [_claim_of(manifest) for manifest in manifests]
        async with StateDatabase(scratch / STATE_FILE, readers=1) as replayed:
            image = CommittedImage(producers_max=_PRODUCERS_MAX, coordinator_id=coordinator_id)
            try:
                await _begin(replayed, log, image, snapshots, manifests)
                await _replay(replayed, log, image, claims, violations)
            except CorruptData as error:
                violations.append(Violation("metadata log", str(error)))
            violations += await replayed.read(check_state)
            return MetadataReport(
                violations=violations,
                live_objects=await replayed.read(live_objects),
                replaced_segments=await replayed.read(replaced_segments),
                records=image.next_offset,
                partitions=len(image.partitions),
                transactions=await replayed.read(held_transactions),
            )


async def _claim_of_state(directory: Path, violations: list[Violation]) -> list[_Claim]:
    """What the coordinator's own state claims; nothing when it cannot be trusted."""
    path = directory / STATE_FILE
    if not path.exists():
        return []
    async with StateDatabase(path, readers=1) as state:
        try:
            await state.open_or_create()
            applied = await state.read(verified_position)
            state.trust()
        except (CorruptState, StorageFailed) as error:
            violations.append(Violation(STATE_FILE, str(error)))
            return []
    return [] if applied is None else [_Claim(STATE_FILE, applied)]


async def _sound_snapshots(
    snapshots: SnapshotStore, scratch: Path, violations: list[Violation]
) -> list[SnapshotManifest]:
    """The snapshots that can be loaded and are sound, oldest first."""
    sound: list[SnapshotManifest] = []
    for stored in reversed(await snapshots.stored()):
        found = await snapshots.survey(stored)
        if found.status is SnapshotStatus.DAMAGED:
            violations.append(Violation(f"snapshot {stored.name}", "is damaged"))
        if found.status is not SnapshotStatus.USABLE or found.manifest is None:
            continue
        try:
            await snapshots.download(found.manifest, scratch)
            await snapshots.verify(found.manifest, scratch)
            sound.append(found.manifest)
        except (CorruptObject, CorruptState) as error:
            violations.append(Violation(f"snapshot {stored.name}", str(error)))
        finally:
            remove_database(scratch)
    return sound


def _claim_of(manifest: SnapshotManifest) -> _Claim:
    return _Claim(f"snapshot {manifest.name}", manifest.applied)


async def _begin(
    state: StateDatabase,
    log: MetadataLog,
    image: CommittedImage,
    snapshots: SnapshotStore | None,
    manifests: Sequence[SnapshotManifest],
) -> None:
    """Bring the new `state` to where the log begins. Raises: CorruptState, CorruptObject."""
    reached = [manifest for manifest in manifests if log.start_offset <= manifest.next_offset]
    if log.start_offset > 0 and snapshots is not None and reached:
        await snapshots.download(reached[0], state.path)
    await state.open_or_create()
    await state.read(partial(load_image, image=image))
    if image.next_offset < log.start_offset:
        raise CorruptState(
            f"begins at {log.start_offset} and no sound snapshot reaches it: it cannot be replayed"
        )


async def _replay(
    state: StateDatabase,
    log: MetadataLog,
    image: CommittedImage,
    claims: Sequence[_Claim],
    violations: list[Violation],
) -> None:
    """Replay everything, stopping where something claims to be, to compare."""
    for claim in claims:
        if claim.applied.next_offset > log.end_offset:
            violations.append(
                Violation(
                    claim.subject,
                    f"is at {claim.applied.next_offset}, behind the log's end at {log.end_offset}",
                )
            )
        elif claim.applied.next_offset < log.start_offset:
            violations.append(
                Violation(
                    claim.subject,
                    f"is at {claim.applied.next_offset}, the log begins at {log.start_offset}",
                )
            )
    while image.next_offset < log.end_offset:
        batches = list(await log.read(image.next_offset, REPLAY_BYTES))
        claimed = [claim.applied.next_offset for claim in claims]
        stop = min((offset for offset in claimed if offset > image.next_offset), default=None)
        if stop is not None:
            batches = [batch for batch in batches if batch.next_offset <= stop] or batches[:1]
        image.merge(await state.write(partial(apply_batches, image, batches)))
        last_record_crc = crc32c(batches[-1].records[-1])
        for claim in claims:
            if claim.applied.next_offset == image.next_offset:
                violations += _compared(claim, image, last_record_crc)


def _compared(claim: _Claim, image: CommittedImage, last_record_crc: int) -> Iterable[Violation]:
    """What is wrong with `claim`, given the truth at its offset."""
    offset = image.next_offset
    if image.state_hash != claim.applied.state_hash:
        yield Violation(
            claim.subject,
            f"state hash {claim.applied.state_hash:016x} at {offset}, replay gives "
            f"{image.state_hash:016x}",
        )
    if last_record_crc != claim.applied.last_record_crc:
        yield Violation(claim.subject, f"another record was applied at {offset}")


def check_state(connection: Connection) -> list[Violation]:
    """Everything that rows must fulfil together."""
    return [
        *_partitions(connection),
        *_file_accounts(connection),
        *_disjoint_extents(connection),
        *_answers(connection),
        *_stray_rows(connection),
        *_groups(connection),
        *(Violation(*found) for found in transaction_violations(connection)),
    ]


def _partitions(connection: Connection) -> Iterable[Violation]:
    """I6: from the log start to the high watermark every offset is in exactly one extent."""
    for row in connection.execute(select(schema.PARTITIONS.table)).all():
        subject = f"partition {row.partition} of topic {row.topic} (id {row.id})"
        if not 0 <= row.log_start_offset <= row.high_watermark:
            yield Violation(subject, f"log start {row.log_start_offset} > {row.high_watermark}")
        segments = sorted(_spans(connection, schema.SEGMENTS, row.id))
        extents = sorted(
            [
                *_spans(connection, schema.BATCHES, row.id),
                *segments,
                *_markers(connection, row.id, segments),
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
        opened = schema.OPEN_TRANSACTIONS.table.c
        first_open = connection.execute(
            select(func.coalesce(func.min(opened.first_offset), NO_OFFSET)).where(
                opened.partition == row.id
            )
        ).scalar_one()
        if first_open != row.first_open_offset:
            yield Violation(subject, f"{first_open} is open, noted {row.first_open_offset}")
        unplanned = connection.execute(
            select(func.coalesce(func.sum(schema.BATCHES.table.c.byte_size), 0)).where(
                schema.BATCHES.table.c.partition == row.id,
                schema.BATCHES.table.c.base_offset >= row.planned_end_offset,
            )
        ).scalar_one()
        if unplanned != row.unplanned_bytes:
            yield Violation(subject, f"{unplanned} bytes unplanned, {row.unplanned_bytes} counted")
        live = _live_bytes(connection, row.id, row.log_start_offset)
        if live != row.live_bytes:
            yield Violation(subject, f"{live} bytes live, {row.live_bytes} counted")
        for base, last in _spans(connection, schema.SEGMENT_PLANS, row.id):
            if last >= row.planned_end_offset or not _is_covered(extents, base, last):
                yield Violation(subject, f"the plan {base}..{last} has not all its batches")


def _live_bytes(connection: Connection, partition: int, log_start_offset: int) -> int:
    """Bytes of the rows and segments that reach to the log start or above it."""
    batches, segments, files = schema.BATCHES.table.c, schema.SEGMENTS.table.c, schema.FILES.table.c
    rows = connection.execute(
        select(func.coalesce(func.sum(batches.byte_size), 0)).where(
            batches.partition == partition, batches.last_offset >= log_start_offset
        )
    ).scalar_one()
    objects = connection.execute(
        select(func.coalesce(func.sum(files.object_bytes), 0))
        .join_from(schema.SEGMENTS.table, schema.FILES.table, segments.file == files.id)
        .where(segments.partition == partition, segments.last_offset >= log_start_offset)
    ).scalar_one()
    return int(rows + objects)


def _markers(
    connection: Connection, partition: int, segments: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Those that are in none of the segments; each is the extent of its own offset."""
    columns = schema.MARKERS.table.c
    found = select(columns.offset).where(columns.partition == partition)
    ends = [last for _, last in segments]
    return [
        (offset, offset)
        for offset in connection.execute(found).scalars()
        if (at := bisect_left(ends, offset)) == len(ends) or segments[at][0] > offset
    ]


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
    batches, segments, files = schema.BATCHES.table.c, schema.SEGMENTS.table.c, schema.FILES.table.c
    counted: dict[int, tuple[int, int]] = {
        file: (rows, size)
        for file, rows, size in connection.execute(
            select(batches.file, func.count(), func.sum(batches.byte_size)).group_by(batches.file)
        )
    }
    for file, size in connection.execute(
        select(segments.file, files.object_bytes).join_from(
            schema.SEGMENTS.table, schema.FILES.table, segments.file == files.id, isouter=True
        )
    ):
        rows, total = counted.get(file, (0, 0))
        counted[file] = (rows + 1, total + (size or 0))
    for row in connection.execute(select(schema.FILES.table)).all():
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
    batches, files = schema.BATCHES.table.c, schema.FILES.table.c
    file = end = -1
    for row in connection.execute(
        select(batches.file, batches.byte_offset, batches.byte_size, files.object_bytes)
        .join_from(schema.BATCHES.table, schema.FILES.table, batches.file == files.id)
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
    columns, answers = schema.FILES.table.c, schema.FILE_ANSWERS.table.c.file
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
    known = select(schema.PARTITIONS.table.c.id).union_all(select(schema.SWEPT.table.c.partition))
    for table in (
        schema.BATCHES,
        schema.SEGMENTS,
        schema.SEGMENT_PLANS,
        schema.PRODUCER_STATES,
        schema.REWRITES,
        *schema.OF_PARTITIONS,
    ):
        column = table.table.c.partition
        for partition in connection.execute(
            select(column).distinct().where(column.not_in(known), column != GROUP_PARTITION)
        ).scalars():
            yield Violation(f"partition id {partition}", f"has {table.name} but does not exist")


def _groups(connection: Connection) -> Iterable[Violation]:
    """Offsets belong to a group and are indexed by their time; a group is there for something."""
    groups, offsets = schema.CONSUMER_GROUPS.table.c, schema.GROUP_OFFSETS.table.c
    for group in connection.execute(
        select(offsets.group_key).distinct().where(offsets.group_key.not_in(select(groups.id)))
    ).scalars():
        yield Violation(f"group key {group}", "has offsets but does not exist")
    for name in connection.execute(
        select(groups.group_id).where(
            groups.kind == GroupKind.OFFSETS_ONLY, groups.id.not_in(select(offsets.group_key))
        )
    ).scalars():
        yield Violation(f"group {name!r}", "has neither state nor offsets")
    for row in connection.execute(
        select(offsets.group_key, offsets.partition, offsets.commit_ms, offsets.commit_period)
    ):
        if row.commit_period != row.commit_ms // schema.COMMIT_PERIOD_MS:
            yield Violation(
                f"group key {row.group_key}",
                f"partition {row.partition}: committed at {row.commit_ms} and in period "
                f"{row.commit_period}",
            )


def live_objects(connection: Connection) -> list[LiveObject]:
    """The objects that somebody may be told to read."""
    files, segments = schema.FILES.table.c, schema.SEGMENTS.table.c
    found = connection.execute(
        select(
            files.object_key,
            files.object_bytes,
            files.object_format,
            segments.base_offset,
            segments.last_offset,
            segments.record_count,
        )
        .join_from(
            schema.FILES.table,
            schema.SEGMENTS.table,
            segments.file == files.id,
            isouter=True,
        )
        .where(files.live_rows > 0)
        .order_by(files.object_key)
    )
    return [
        LiveObject(
            ObjectKey(key),
            size,
            object_format,
            None if base is None else SegmentRange(base, last, count),
        )
        for key, size, object_format, base, last, count in found
    ]
