"""Builds the batches that stand for a hole: offsets of which a partition has no records any more.

Compaction removes records, and every other record keeps its offset. Consumers step over a gap when
a later record shows them where to go on. Where an answer ends in a gap there is none, and a
consumer that is answered with nothing asks for the same offset for ever.

So the end of a hole is served as a batch without records. The control bit is set: librdkafka
doubles its fetch size, up to an error, each time a fetch gives it data batches and no message of
them, and takes no offence at control batches. The producer id is -1, so that a consumer that reads
committed records only does not look into the batch for the marker of a transaction. Clients go on
behind the last offset, which the header tells.

A last offset delta has 31 bits; a hole that is longer takes several batches.
"""

from typing import Final

from wal.coordinates import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP
from wal.records.record_batch import CONTROL_BIT, EncodedBatch, packed_batch

HOLE_OFFSETS_MAX: Final = 2**31
"""What one batch spans: its last offset delta is one less."""


def hole_batches(first_offset: int, last_offset: int, *, leader_epoch: int) -> list[EncodedBatch]:
    """Returns batches without records that span `first_offset` .. `last_offset`, in order."""
    batches = []
    while first_offset <= last_offset:
        delta = min(last_offset - first_offset + 1, HOLE_OFFSETS_MAX) - 1
        fields = (
            CONTROL_BIT, delta, NO_TIMESTAMP, NO_TIMESTAMP, NO_PRODUCER_ID, NO_PRODUCER_EPOCH,
            NO_SEQUENCE, 0,
        )  # fmt: skip
        data = packed_batch(first_offset, fields, leader_epoch=leader_epoch)
        batches.append(EncodedBatch(first_offset, first_offset + delta, data))
        first_offset += delta + 1
    return batches
