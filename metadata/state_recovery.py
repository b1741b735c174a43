"""Opening the SQLite state: trust it only when everything fits, else rebuild it from the log.

SQLite is a cache (P8). A state that is damaged, of another version, or ahead of or beside the
metadata log is set aside, never repaired; replay builds a new one, which is equal because applying
records is deterministic. What is wrong with the log itself is not healed here.
"""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Final

from sqlalchemy import Connection

from metadata.apply import StateTransaction
from metadata.image import Changes, CommittedImage
from metadata.log import MetadataLog, MetadataRecordBatch
from metadata.metadata_settings import CoordinatorSettings
from metadata.state import (
    Applied,
    StateDatabase,
    check_integrity,
    load_image,
    read_applied,
    scan_state_hash,
)
from wal.crc import crc32c
from wal.errors import CorruptState, StorageFailed

REPLAY_BYTES: Final = 4 << 20
"""Metadata log read, and applied in one transaction, at a time."""

_logger = logging.getLogger(__name__)


async def open_state(
    state: StateDatabase,
    log: MetadataLog,
    settings: CoordinatorSettings,
    *,
    coordinator_id: int = 0,
) -> CommittedImage:
    """Open `state` and bring it to the end of `log`; returns the image that goes with it.

    Raises: CorruptState (the log contradicts itself, or begins behind what a rebuild needs),
    CorruptLog, StorageFailed.
    """
    try:
        return await _open_and_catch_up(state, log, settings, coordinator_id)
    except (CorruptState, StorageFailed) as error:
        aside = await state.set_aside()
        _logger.warning("coordinator state set aside as %s: %s", aside, error)
    return await _open_and_catch_up(state, log, settings, coordinator_id)


async def _open_and_catch_up(
    state: StateDatabase, log: MetadataLog, settings: CoordinatorSettings, coordinator_id: int
) -> CommittedImage:
    image = CommittedImage(producers_max=settings.producer_cache_max, coordinator_id=coordinator_id)
    if not await state.open_or_create():
        applied = await state.read(verified_position)
        if applied is not None:
            await _check_position(applied, log)
            await state.read(partial(load_image, image=image))
    await replay(state, log, image)
    return image


def verified_position(connection: Connection) -> Applied | None:
    """How far the state is, after everything in it was checked."""
    check_integrity(connection)
    applied = read_applied(connection)
    state_hash = scan_state_hash(connection)
    if state_hash != (0 if applied is None else applied.state_hash):
        raise CorruptState(f"the rows' state hash is {state_hash:016x}, stored is {applied}")
    return applied


async def _check_position(applied: Applied, log: MetadataLog) -> None:
    """The log must hold the very record that was applied last."""
    last = applied.next_offset - 1
    if not log.start_offset <= last < log.end_offset:
        raise CorruptState(
            f"the state is at {applied.next_offset}, the log from {log.start_offset} to "
            f"{log.end_offset}"
        )
    batch = (await log.read(last, 1))[0]
    if crc32c(batch.records[last - batch.base_offset]) != applied.last_record_crc:
        raise CorruptState(f"the log's record {last} is not the one that was applied")


async def replay(state: StateDatabase, log: MetadataLog, image: CommittedImage) -> None:
    """Apply what the log has beyond `image`, in transactions of about REPLAY_BYTES."""
    if image.next_offset < log.start_offset:
        raise CorruptState(
            f"the metadata log was pruned up to {log.start_offset}, the state needs "
            f"{image.next_offset}"
        )
    while image.next_offset < log.end_offset:
        batches = await log.read(image.next_offset, REPLAY_BYTES)
        image.merge(await state.write(partial(apply_batches, image, batches)))


def apply_batches(
    image: CommittedImage, batches: Sequence[MetadataRecordBatch], connection: Connection
) -> Changes:
    """One transaction's work: `batches` in log order, on top of `image`."""
    transaction = StateTransaction(connection, image)
    for batch in batches:
        transaction.apply(batch)
    return transaction.finish()
