"""Produce requests as handlers give them on: made of bytes on the wire, and read by the decoder."""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple
from uuid import UUID

from diskless.loop.long_work import done_at_once
from diskless.ports import ProducedBatches
from diskless.protocol.produce import TOPIC_IDS_FROM, decode_request
from diskless.protocol.wire import Reader, array_count, string
from tests.support.chunks.chains import chain_of
from wal.chunks.buffer import BufferPool
from wal.wire.fields import INT16, INT32, NO_TAGS, uvarint


class AskedBatch(NamedTuple):
    """What a request has for one partition."""

    named: str | UUID
    partition: int
    data: bytes | None


def produced(pool: BufferPool, batches: Sequence[AskedBatch]) -> ProducedBatches:
    """Batches that follow each other under one topic are its; whoever asks releases the frame."""
    by_id = any(isinstance(batch.named, UUID) for batch in batches)
    version = TOPIC_IDS_FROM if by_id else 9
    topics = [(named, [*some]) for named, some in groupby(batches, lambda batch: batch.named)]
    parts = [uvarint(0), INT16.pack(-1), INT32.pack(1000), array_count(len(topics), flexible=True)]
    for named, some in topics:
        parts.append(named.bytes if isinstance(named, UUID) else string(named, flexible=True))
        parts.append(array_count(len(some), flexible=True))
        for _, partition, data in some:
            size = 0 if data is None else len(data) + 1
            parts += (INT32.pack(partition), uvarint(size), data or b"", NO_TAGS)
        parts.append(NO_TAGS)
    parts.append(NO_TAGS)
    frame = chain_of(pool, b"".join(parts))
    return done_at_once(decode_request(version, frame, Reader(frame.views()))).batches
