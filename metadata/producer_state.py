"""Kafka's rules for idempotent producers, as pure functions over one producer's state.

The coordinator keeps one `ProducerState` per (partition, producer id): the producer's epoch and its
last five batches. `check_sequence` decides what a new batch is (new, a duplicate, or refused);
`with_batch` gives the state after it. Deciding and applying both use `with_batch`, so what was
decided is what replay rebuilds.

The rules are those of Kafka's ProducerAppendInfo and ProducerStateEntry:

- A batch whose epoch, base and last sequence equal one of the last five is a duplicate; it is
  answered with the offset it got the first time.
- An older epoch is refused.
- A newer epoch must start at sequence 0 and forgets the batches of the old one.
- Within an epoch, the base sequence follows the last one; 0 follows 2**31 - 1. A batch may itself
  span the wrap: its last sequence is then smaller than its base.
- A producer nobody knows (or knows no more, after `producer.id.expiration.ms`) may start anywhere:
  its earlier batches may have been forgotten with good reason.

A sixth-oldest duplicate is not recognisable any more and is out of order, as in Kafka; a client
never has more than five batches in flight per partition.
"""

import struct
from itertools import chain
from typing import Final, NamedTuple

from wal.errors import CorruptState, OutOfOrderSequence, Rejected, StaleProducerEpoch

WINDOW: Final = 5
"""Batches remembered per producer and partition; Kafka's max.in.flight for idempotence."""

SEQUENCE_MASK: Final = 0x7FFFFFFF

_ENTRY: Final = struct.Struct("<iiqq")
assert _ENTRY.size == 24
_WINDOW: Final = tuple(struct.Struct("<" + "iiqq" * count) for count in range(WINDOW + 1))


class ProducerBatch(NamedTuple):
    """One remembered batch."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    append_time_ms: int


class ProducerState(NamedTuple):
    """What is remembered of one producer on one partition; `batches` oldest first, 1 to 5."""

    epoch: int
    batches: tuple[ProducerBatch, ...]

    @property
    def last_append_ms(self) -> int:
        """When the producer last wrote here; its expiry counts from this."""
        return self.batches[-1].append_time_ms


def check_sequence(
    state: ProducerState | None,
    *,
    epoch: int,
    base_sequence: int,
    last_sequence: int,
    now_ms: int,
    expiration_ms: int,
) -> ProducerBatch | type[Rejected] | None:
    """None: append it. A ProducerBatch: it is a duplicate of that one. A class: refuse it so."""
    if state is None:
        return None
    if epoch == state.epoch:
        for batch in reversed(state.batches):
            if batch.base_sequence == base_sequence and batch.last_sequence == last_sequence:
                return batch
    if now_ms - state.last_append_ms > expiration_ms:
        return None
    if epoch < state.epoch:
        return StaleProducerEpoch
    expected = 0 if epoch > state.epoch else next_sequence(state.batches[-1].last_sequence)
    return None if base_sequence == expected else OutOfOrderSequence


def next_sequence(last_sequence: int) -> int:
    """The sequence after `last_sequence`: 0 follows 2**31 - 1."""
    return (last_sequence + 1) & SEQUENCE_MASK


def with_batch(state: ProducerState | None, epoch: int, batch: ProducerBatch) -> ProducerState:
    """The state after `batch` was appended.

    A batch that does not follow (new epoch, or a producer that had expired) starts a new window.
    That depends on the record and the state alone, never on a clock: replay repeats it exactly.
    """
    if (
        state is None
        or state.epoch != epoch
        or batch.base_sequence != next_sequence(state.batches[-1].last_sequence)
    ):
        return ProducerState(epoch, (batch,))
    return ProducerState(epoch, (*state.batches[1 - WINDOW :], batch))


def pack_batches(batches: tuple[ProducerBatch, ...]) -> bytes:
    """The window as 24 bytes per batch, oldest first, little-endian."""
    if len(batches) == 1:
        return _ENTRY.pack(*batches[0])
    return _WINDOW[len(batches)].pack(*chain.from_iterable(batches))


def unpack_batches(data: bytes) -> tuple[ProducerBatch, ...]:
    """The inverse of `pack_batches`. Raises CorruptState when it is none."""
    if not data or len(data) % _ENTRY.size or len(data) > WINDOW * _ENTRY.size:
        raise CorruptState(f"a producer window of {len(data)} bytes")
    return tuple(ProducerBatch(*entry) for entry in _ENTRY.iter_unpack(data))
