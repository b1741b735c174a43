"""Kafka's rules for idempotent producers, for one producer's state and for many at a time.

The coordinator keeps one state per (partition, producer id): the producer's epoch and its last five
batches. `check_sequence` decides what a new batch is (new, a duplicate, or refused). What a batch
that was appended makes of a state depends on the two alone, never on a clock, so that replay
repeats it exactly.

The rules are those of Kafka's ProducerAppendInfo and ProducerStateEntry:

- A batch whose epoch, base and last sequence equal one of the last five is a duplicate; it is
  answered with the offset it got the first time. In transactions that is not all:
  `metadata.rules.commit_rows.within`.
- An older epoch is refused.
- A newer epoch must start at sequence 0 and forgets the batches of the old one.
- Within an epoch, the base sequence follows the last one; 0 follows 2**31 - 1. A batch may itself
  span the wrap: its last sequence is then smaller than its base.
- A producer nobody knows (or knows no more, after `producer.id.expiration.ms`) may start anywhere:
  its earlier batches may have been forgotten with good reason.

A sixth-oldest duplicate is not recognisable any more and is out of order, as in Kafka; a client
never has more than five batches in flight per partition.

A file may name thousands of producers. So states are kept packed (`ProducerState`), and what nearly
every batch does, namely follow, is told and applied for all of them at once (`all_follow`,
`appended`). Only the batches of a producer with one that does not follow go through
`check_sequence`, one by one.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, NamedTuple, NewType

import numpy as np
import numpy.typing as npt

from wal.columns import Int64s
from wal.coordinates import SEQUENCE_MASK
from wal.errors import CorruptState, OutOfOrderSequence, Rejected, StaleProducerEpoch

WINDOW: Final = 5
"""Batches remembered per producer and partition; Kafka's max.in.flight for idempotence."""

_BATCH: Final = np.dtype(
    [
        ("base_sequence", "<i4"),
        ("last_sequence", "<i4"),
        ("base_offset", "<i8"),
        ("append_time_ms", "<i8"),
    ]
)
assert _BATCH.itemsize == 24
_STATE: Final = np.dtype(
    [("epoch", "<i2"), ("count", "<u2"), ("batches", _BATCH, WINDOW), ("checksum", "<i8")]
)
assert _STATE.itemsize == 132
_ONE_STATE: Final = struct.Struct("<hH" + "iiqq" * WINDOW + "q")
assert _ONE_STATE.size == _STATE.itemsize
_BATCH_FIELDS: Final = 4
_BATCH_BYTES: Final = _BATCH.itemsize
_FRONT_BYTES: Final = 4
_COUNT_AT: Final = 2
"""Where the count of batches is: at most five, it is in the first of its two bytes."""
_TIME_BYTES: Final = 8
_CHECKSUM_AT: Final = 124

# By the count of batches of a state, what one look at it needs and no more: half of the time. A
# state has at least one.
_EPOCH_AND_LAST: Final = [
    struct.Struct(f"<hxx{_BATCH_BYTES * (count - 1) if count else 0}x4xi")
    for count in range(WINDOW + 1)
]
"""The epoch, and the last sequence of the newest batch."""
_SEQUENCES: Final = [
    struct.Struct("<hxx" + "i20x" * (count - 1) + "ii") for count in range(WINDOW + 1)
]
"""The epoch, the base sequences of all batches, and the last sequence of the newest."""
_GROWN: Final = [
    struct.Struct(f"<hH{_BATCH_BYTES * kept}siiqq{_BATCH_BYTES * (WINDOW - 1 - kept) + 8}x")
    for kept in range(WINDOW)
]
"""A state of batches that are kept, as bytes, and one more."""
assert {grown.size for grown in _GROWN} == {_STATE.itemsize}
_TIME: Final = struct.Struct("<q")
assert _TIME.size == _TIME_BYTES

RECORDS_UNCHECKED_MAX: Final = 1 << 28
"""Eight batches of fewer records do not reach around all sequences: none of the window can be equal
to one that follows it."""

States = npt.NDArray[Any]
"""An array of states, field by field; one without batches stands for none."""

ProducerState = NewType("ProducerState", bytes)
"""One producer's state: epoch, count of batches, five times 24 bytes, oldest first, the unused ones
0, and the checksum of its row, 0 without one; little-endian.

Bytes, and not a tuple of numbers: a hundred thousand of them are kept in memory, and the garbage
collector would go through the tuples again and again."""

NO_STATE: Final = ProducerState(bytes(_STATE.itemsize))


class ProducerBatch(NamedTuple):
    """One remembered batch."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    append_time_ms: int


class ProducerWindow(NamedTuple):
    """What is remembered of one producer on one partition; `batches` oldest first, 1 to 5."""

    epoch: int
    batches: tuple[ProducerBatch, ...]

    @property
    def last_append_ms(self) -> int:
        """When the producer last wrote here; its expiry counts from this."""
        return self.batches[-1].append_time_ms


def check_sequence(
    window: ProducerWindow | None,
    *,
    epoch: int,
    base_sequence: int,
    last_sequence: int,
    now_ms: int,
    expiration_ms: int,
) -> ProducerBatch | type[Rejected] | None:
    """None: append it. A ProducerBatch: it is a duplicate of that one. A class: refuse it so."""
    if window is None:
        return None
    if epoch == window.epoch:
        for batch in reversed(window.batches):
            if batch.base_sequence == base_sequence and batch.last_sequence == last_sequence:
                return batch
    if now_ms - window.last_append_ms > expiration_ms:
        return None
    if epoch < window.epoch:
        return StaleProducerEpoch
    expected = 0 if epoch > window.epoch else next_sequence(window.batches[-1].last_sequence)
    return None if base_sequence == expected else OutOfOrderSequence


def next_sequence(last_sequence: int) -> int:
    """The sequence after `last_sequence`: 0 follows 2**31 - 1."""
    return (last_sequence + 1) & SEQUENCE_MASK


def with_batch(window: ProducerWindow | None, epoch: int, batch: ProducerBatch) -> ProducerWindow:
    """Returns what is remembered after `batch` was appended.

    A batch that does not follow (new epoch, or a producer that had expired) starts a new window.
    `state_after` does the same to a packed state, `appended` to many.
    """
    if (
        window is None
        or window.epoch != epoch
        or batch.base_sequence != next_sequence(window.batches[-1].last_sequence)
    ):
        return ProducerWindow(epoch, (batch,))
    return ProducerWindow(epoch, (*window.batches[1 - WINDOW :], batch))


# -- states packed ------------------------------------------------------------------------------


def unpack_window(state: ProducerState) -> ProducerWindow:
    """The state, for a look at each of its batches."""
    epoch, count, *numbers = _ONE_STATE.unpack(state)
    batches = [
        ProducerBatch._make(numbers[start : start + _BATCH_FIELDS])
        for start in range(0, count * _BATCH_FIELDS, _BATCH_FIELDS)
    ]
    return ProducerWindow(epoch, tuple(batches))


def pack_window(window: ProducerWindow, checksum: int = 0) -> ProducerState:
    """The inverse of `unpack_window`; `checksum` is that of its row."""
    epoch, batches = window
    unused = (0,) * _BATCH_FIELDS * (WINDOW - len(batches))
    return ProducerState(
        _ONE_STATE.pack(epoch, len(batches), *chain.from_iterable(batches), *unused, checksum)
    )


def plainly_follows(state: ProducerState | None, epoch: int, base_sequence: int) -> bool:
    """Whether `check_sequence` lets a batch be appended, whatever the time; False: ask it."""
    if state is None:
        return True
    known_epoch, *bases, last_sequence = _SEQUENCES[state[_COUNT_AT]].unpack_from(state)
    return (
        epoch == known_epoch
        and base_sequence == (last_sequence + 1) & SEQUENCE_MASK
        and base_sequence not in bases
    )


def state_after(
    state: ProducerState | None,
    epoch: int,
    base_sequence: int,
    last_sequence: int,
    base_offset: int,
    append_time_ms: int,
) -> ProducerState:
    """`with_batch` of a packed state, the batch field by field; the checksum is 0."""
    kept = b""
    if state is not None:
        count = state[_COUNT_AT]
        known_epoch, known_last = _EPOCH_AND_LAST[count].unpack_from(state)
        if epoch == known_epoch and base_sequence == (known_last + 1) & SEQUENCE_MASK:
            end = _FRONT_BYTES + count * _BATCH_BYTES
            kept = state[end - min(count, WINDOW - 1) * _BATCH_BYTES : end]
    kept_count = len(kept) // _BATCH_BYTES
    return ProducerState(
        _GROWN[kept_count].pack(
            epoch, kept_count + 1, kept, base_sequence, last_sequence, base_offset, append_time_ms
        )
    )


def newest_append_ms(state: ProducerState) -> int:
    """When the producer last wrote."""
    end = _FRONT_BYTES + state[_COUNT_AT] * _BATCH_BYTES
    (time_ms,) = _TIME.unpack_from(state, end - _TIME_BYTES)
    return int(time_ms)


def stored_state(state: ProducerState) -> bytes:
    """The bytes of the state in its row."""
    return state[: _FRONT_BYTES + state[_COUNT_AT] * _BATCH_BYTES]


def with_checksum(state: ProducerState, checksum: int) -> ProducerState:
    """The state with the checksum of its row."""
    return ProducerState(state[:_CHECKSUM_AT] + checksum.to_bytes(8, "little", signed=True))


def checksum_of(state: ProducerState) -> int:
    """Returns the checksum of the state's row; 0 without one."""
    return int.from_bytes(state[_CHECKSUM_AT:], "little", signed=True)


def states_array(states: Iterable[ProducerState | None]) -> States:
    return np.frombuffer(b"".join([state or NO_STATE for state in states]), _STATE)


def states_list(states: States) -> list[ProducerState]:
    data, size = states.tobytes(), _STATE.itemsize
    return [ProducerState(data[start : start + size]) for start in range(0, len(data), size)]


def last_append_ms(states: States) -> Int64s:
    """When each producer last wrote; every state has at least one batch."""
    newest = states["count"].astype(np.int64) - 1
    times: Int64s = states["batches"]["append_time_ms"][np.arange(len(states)), newest]
    return times.astype(np.int64)


def stored_bytes(states: States) -> Int64s:
    """Returns the bytes of each state in its row: the state without its unused batches."""
    counts: Int64s = states["count"].astype(np.int64)
    return _FRONT_BYTES + counts * _BATCH.itemsize


def state_of_row(stored: bytes, checksum: int) -> ProducerState:
    """The state of whose first `stored_bytes` this is. Raises CorruptState when it is none."""
    count, rest = divmod(len(stored) - _FRONT_BYTES, _BATCH.itemsize)
    if rest or not 0 < count <= WINDOW or int.from_bytes(stored[2:_FRONT_BYTES], "little") != count:
        raise CorruptState(f"a producer window of {len(stored)} bytes")
    return with_checksum(ProducerState(stored.ljust(_CHECKSUM_AT, b"\0")), checksum)


# -- many batches of many producers -------------------------------------------------------------


def grouped_by_producer(partition_ids: Int64s, producer_ids: Int64s) -> tuple[Int64s, Int64s]:
    """(order, starts): batches by (partition, producer), in their order within, and the groups."""
    order = np.lexsort((producer_ids, partition_ids))
    partition_ids, producer_ids = partition_ids[order], producer_ids[order]
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = (partition_ids[1:] != partition_ids[:-1]) | (
        producer_ids[1:] != producer_ids[:-1]
    )
    return order.astype(np.int64, copy=False), np.flatnonzero(is_first)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerBatches:
    """Batches of one file, grouped by (partition, producer) and in request order within a group."""

    starts: Int64s
    """Where each group starts."""
    epoch: Int64s
    base_sequence: Int64s
    last_sequence: Int64s

    @property
    def ends(self) -> Int64s:
        return np.append(self.starts[1:], len(self.epoch))


def _follow(states: States, batches: ProducerBatches) -> npt.NDArray[np.bool_]:
    """Which batches have the epoch of, and the sequence after, the one before them."""
    epoch, last = np.empty_like(batches.epoch), np.empty_like(batches.epoch)
    epoch[1:] = batches.epoch[:-1]
    last[1:] = batches.last_sequence[:-1]
    newest = np.maximum(states["count"].astype(np.int64) - 1, 0)
    epoch[batches.starts] = states["epoch"]
    last[batches.starts] = states["batches"]["last_sequence"][np.arange(len(states)), newest]
    follow: npt.NDArray[np.bool_] = (batches.epoch == epoch) & (
        batches.base_sequence == (last + 1) & SEQUENCE_MASK
    )
    follow[batches.starts[states["count"] == 0]] = False
    return follow


def all_follow(states: States, batches: ProducerBatches) -> npt.NDArray[np.bool_]:
    """The groups whose batches may all be appended without a look at each.

    Each follows the one before it, or is the first of a producer that nobody knows; and none has so
    many records that sequences could have come around to a duplicate.
    """
    fine = _follow(states, batches)
    fine[batches.starts[states["count"] == 0]] = True
    fine &= (batches.last_sequence - batches.base_sequence & SEQUENCE_MASK) < RECORDS_UNCHECKED_MAX
    remembered = states["batches"]
    spans = remembered["last_sequence"].astype(np.int64) - remembered["base_sequence"]
    calm: npt.NDArray[np.bool_] = (spans & SEQUENCE_MASK).max(axis=1) < RECORDS_UNCHECKED_MAX
    return calm & np.logical_and.reduceat(fine, batches.starts)


def appended(
    states: States, batches: ProducerBatches, base_offset: Int64s, append_time_ms: Int64s
) -> States:
    """The states after all `batches` were appended; every group has at least one.

    As `with_batch`, batch by batch: one that does not follow starts a new window.
    """
    count = len(batches.epoch)
    new = np.empty(count, _BATCH)
    new["base_sequence"] = batches.base_sequence
    new["last_sequence"] = batches.last_sequence
    new["base_offset"] = base_offset
    new["append_time_ms"] = append_time_ms

    breaks = np.where(_follow(states, batches), -1, np.arange(count))
    last_break = np.maximum.reduceat(breaks, batches.starts)
    is_broken = last_break >= 0
    first_new = np.where(is_broken, last_break, batches.starts)
    old_count = np.where(is_broken, 0, states["count"])
    remembered = old_count + batches.ends - first_new
    kept = np.minimum(remembered, WINDOW)

    # Which of the remembered batches, old ones first, each slot of the window gets.
    slot = np.arange(WINDOW)
    which = (remembered - kept)[:, None] + slot
    old_place = np.arange(len(states))[:, None] * WINDOW + which
    new_place = len(states) * WINDOW + first_new[:, None] + which - old_count[:, None]
    # All batches in one pool, old ones first, and behind them the one that an unused slot gets. As
    # 64-bit words: NumPy copies structures field by field, which takes five times as long.
    old = _bytes_of(states)[:, _FRONT_BYTES:_CHECKSUM_AT].reshape(-1, _BATCH.itemsize)
    pool = np.concatenate([*map(_words_of, (old, _bytes_of(new))), _NO_BATCH])
    place = np.where(which < old_count[:, None], old_place, new_place)
    place[slot >= kept[:, None]] = len(pool) - 1
    after = np.empty((len(states), _STATE.itemsize), np.uint8)
    windows = pool.take(place, axis=0).reshape(len(states), -1).view(np.uint8)
    after[:, _FRONT_BYTES:_CHECKSUM_AT] = windows
    after_states = after.view(_STATE).ravel()
    after_states["epoch"] = batches.epoch[batches.ends - 1]
    after_states["count"] = kept
    after_states["checksum"] = 0
    return after_states


_NO_BATCH: Final = np.zeros((1, _BATCH.itemsize // 8), "<i8")


def _bytes_of(structures: States) -> npt.NDArray[np.uint8]:
    """One row per structure."""
    return structures.view(np.uint8).reshape(len(structures), structures.itemsize)


def _words_of(rows: npt.NDArray[np.uint8]) -> Int64s:
    return np.ascontiguousarray(rows).view("<i8")
