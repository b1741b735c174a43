"""Reads and writes Kafka's zigzag varints, a column at a time.

wal/records/record_columns.py opens RecordBatches with this. A record is a chain of variable-length
fields, so the position of each field depends on the one before it; the trick throughout is to
advance all records together, one field per step, with each step a handful of NumPy operations.

The hard part is finding where records begin, since every record must be read to find the next.
`follow_chains` has two ways and picks the cheaper by estimate:

*Lockstep* advances all chains (batches) at once by one link per step. It costs a fixed ~18 µs per
link of the longest chain, which is nothing for a thousand batches of sixteen records and far too
much for ten batches of ten thousand.

*Windows* looks at all positions of a window of bytes that could be a link, reads the varint at
each, and so knows each one's successor. Squaring the successor function again and again (pointer
doubling) then finds everything reachable from the chains' starts in log2(links) steps. For records,
a link must be followed by the attributes byte, which everybody writes as 0, so that only some
percent of the positions qualify. Should a chain break because somebody did not write 0, the work is
repeated with all positions, or in lockstep, whichever is cheaper.

Everything here is safe against any input: positions are clamped to the end of their chain, reads
past the arena's end hit padding, and memory is linear in the bytes given (windows: in the window).
Malformed input raises `MalformedChain` with the index of the offending chain.
"""

import sys
from collections.abc import Sequence
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from wal.columns import Int64s
from wal.crc import Buffer

UInt64s = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]

assert sys.byteorder == "little", "varints are read as little-endian words"

MALFORMED: Final = -(2**63)
"""What a varint longer than its type allows is read as; no valid length or count is this small."""

WINDOW_BYTES: Final = 1024 * 1024
"""Bytes whose positions are looked at together; bounds the memory of the window strategy."""

VARINT32_BYTES_MAX: Final = 5
PADDING_BYTES: Final = 24
"""What has to lie behind an arena's bytes."""
_WORD_BYTES: Final = 8

# What the strategies cost in nanoseconds, fitted to batches of 16 KiB to 1 MiB with records of
# 100 B and 1 KiB. A candidate is a byte that is 0, or any byte where that says nothing.
_LOCKSTEP_STEP_NS: Final = 18_000
_LOCKSTEP_LINK_NS: Final = 50
_WINDOW_NS: Final = 100_000
_WINDOW_BYTE_NS: Final = 0.3
_WINDOW_CANDIDATE_NS: Final = 110

_U64 = np.uint64
_STOP_BITS: Final = _U64(0x8080808080808080)
_PAYLOAD_BITS: Final = _U64(0x7F7F7F7F7F7F7F7F)
# Squeezing out the stop bits: 8 x 7 bits become 4 x 14, then 2 x 28, then 56.
_SQUEEZE: Final = (
    (_U64(0x007F007F007F007F), _U64(0x7F007F007F007F00), _U64(1)),
    (_U64(0x00003FFF00003FFF), _U64(0x3FFF00003FFF0000), _U64(2)),
    (_U64(0x000000000FFFFFFF), _U64(0x0FFFFFFF00000000), _U64(4)),
)
_ONE: Final = _U64(1)


class MalformedChain(Exception):
    """The chain of this index is not made of the announced links; the caller knows its name."""

    def __init__(self, chain: int) -> None:
        super().__init__(f"chain {chain} is malformed")
        self.chain = chain


class Arena:
    """Bytes readable at any position as a byte and as an unaligned u64."""

    def __init__(self, parts: Sequence[Buffer]) -> None:
        """Buffers joined into one, which copies them."""
        self._look_at(b"".join((*parts, bytes(PADDING_BYTES))))

    @classmethod
    def over(cls, padded: Buffer, length: int) -> Self:
        """The first `length` bytes of `padded`, uncopied; PADDING_BYTES zeros must follow them."""
        if len(padded) < length + PADDING_BYTES:
            raise ValueError(f"{len(padded)} bytes do not pad {length}")
        arena = cls.__new__(cls)
        arena._look_at(memoryview(padded)[: length + PADDING_BYTES])
        return arena

    def _look_at(self, data: Buffer) -> None:
        self.data = data
        self.length = len(data) - PADDING_BYTES
        self.bytes: Bytes = np.frombuffer(data, dtype=np.uint8)
        self.words: UInt64s = np.ndarray(
            (len(data) - _WORD_BYTES + 1,), dtype="<u8", buffer=data, strides=(1,)
        )


class Links(NamedTuple):
    """All links of all chains, in order: where each blob begins and how long it is (-1 = null)."""

    starts: Int64s
    lengths: Int64s


def read_varints(arena: Arena, positions: Int64s) -> tuple[Int64s, Int64s]:
    """The zigzag varint of up to 64 bits at each position, and its size in bytes.

    A varint of more than ten bytes, or more than 64 bits, gives (MALFORMED, 0). Positions may be up
    to the arena's length (inclusive).
    """
    first = arena.bytes[positions]
    values = first.astype(np.int64)
    values = (values >> 1) ^ -(values & 1)
    sizes = np.ones(len(positions), dtype=np.int64)
    long = np.flatnonzero(first & 0x80)
    if len(long) == len(positions):
        return _read_words(arena, positions)
    if len(long):
        values[long], sizes[long] = _read_words(arena, positions[long])
    return values, sizes


def _read_words(arena: Arena, positions: Int64s) -> tuple[Int64s, Int64s]:
    words = arena.words[positions]
    stops = ~words & _STOP_BITS
    # All bits up to and including the lowest stop bit; all 64 when there is none in eight bytes.
    used = stops ^ (stops - _ONE)
    sizes = (np.bitwise_count(used) >> 3).astype(np.int64)
    raw = words & used & _PAYLOAD_BITS
    for low, high, shift in _SQUEEZE:
        raw = (raw & low) | ((raw & high) >> shift)
    values = ((raw >> _ONE) ^ (_U64(0) - (raw & _ONE))).view(np.int64)
    unstopped = np.flatnonzero(stops == 0)
    if len(unstopped):
        tail = arena.words[positions[unstopped] + _WORD_BYTES]
        ninth = tail & _U64(0xFF)
        tenth = (tail >> _U64(8)) & _U64(0xFF)
        is_nine = ninth < _U64(0x80)
        full = raw[unstopped] | ((ninth & _U64(0x7F)) << _U64(56))
        full |= np.where(is_nine, _U64(0), tenth << _U64(63))
        signed = ((full >> _ONE) ^ (_U64(0) - (full & _ONE))).view(np.int64)
        too_long = ~is_nine & (tenth > _ONE)
        values[unstopped] = np.where(too_long, MALFORMED, signed)
        sizes[unstopped] = np.where(too_long, 0, np.where(is_nine, 9, 10))
    return values, sizes


def follow_chains(
    arena: Arena,
    starts: Int64s,
    ends: Int64s,
    counts: Int64s,
    *,
    zero_follows: bool,
    window_bytes: int = WINDOW_BYTES,
) -> Links:
    """Find the links of chains of length-prefixed blobs.

    Chain i lies at [starts[i], ends[i]) and must consist of exactly counts[i] links, each a varint
    length (-1 for a null blob) and that many bytes. Chains are disjoint and in ascending order;
    counts are positive and no larger than the chain has bytes. `zero_follows` says that the first
    byte of each blob is usually 0, which lets most positions be skipped.

    `window_bytes` are looked at together where windows are the way: less takes less memory and
    more time. Returns the links of all chains one after the other. Raises: MalformedChain.
    """
    if not len(starts):
        empty = np.empty(0, dtype=np.int64)
        return Links(empty, empty)
    spanned_bytes = int((ends - starts).sum())
    links = int(counts.sum())
    steps = int(counts.max())
    lockstep_ns = steps * _LOCKSTEP_STEP_NS + links * _LOCKSTEP_LINK_NS
    windows_ns = spanned_bytes // window_bytes * _WINDOW_NS + spanned_bytes * _WINDOW_BYTE_NS
    if zero_follows and lockstep_ns > windows_ns:
        zeros = arena.length - int(np.count_nonzero(arena.bytes[: arena.length]))
        if lockstep_ns > windows_ns + zeros * _WINDOW_CANDIDATE_NS:
            try:
                return _follow_windows(
                    arena, starts, ends, counts, zero_follows=True, window_bytes=window_bytes
                )
            except MalformedChain:
                pass  # perhaps only unusual; the ways below tell
    if lockstep_ns > windows_ns + spanned_bytes * _WINDOW_CANDIDATE_NS:
        return _follow_windows(
            arena, starts, ends, counts, zero_follows=False, window_bytes=window_bytes
        )
    return _follow_lockstep(arena, starts, ends, counts)


def _follow_lockstep(arena: Arena, starts: Int64s, ends: Int64s, counts: Int64s) -> Links:
    # Chains sorted by falling length, so that those still running are always a prefix.
    order = np.argsort(-counts, kind="stable")
    falling = counts[order]
    steps = int(falling[0])
    running = np.searchsorted(-falling, -np.arange(steps), side="left").tolist()
    positions = starts[order]
    limits = ends[order]
    slots = (np.cumsum(counts) - counts)[order]
    found = Links(np.empty(int(counts.sum()), np.int64), np.empty(int(counts.sum()), np.int64))
    for active in running:
        slot = slots[:active]
        position = positions[:active]
        lengths, sizes = _read_words(arena, position)
        position += sizes
        found.starts[slot] = position
        found.lengths[slot] = lengths
        position += np.minimum(np.maximum(lengths, 0), arena.length)
        # A lie leads at most to the chain's end, where padding or the next chain is read in vain;
        # it shows below, when all links are checked at once.
        np.minimum(position, limits[:active], out=position)
        slot += 1
    chain_of_link = np.repeat(np.arange(len(counts)), counts)
    link_ends = found.starts + np.maximum(found.lengths, 0)
    bad = (found.lengths < -1) | (link_ends > ends[chain_of_link])
    bad |= found.lengths > arena.length  # the sum above may have wrapped
    last = np.cumsum(counts) - 1
    bad[last] |= link_ends[last] != ends
    if bad.any():
        raise MalformedChain(int(chain_of_link[np.argmax(bad)]))
    return found


def _follow_windows(
    arena: Arena,
    starts: Int64s,
    ends: Int64s,
    counts: Int64s,
    *,
    zero_follows: bool,
    window_bytes: int,
) -> Links:
    """As follow_chains; with `zero_follows` a chain whose blobs do not all begin with 0 fails."""
    link_starts: list[Int64s] = []
    link_lengths: list[Int64s] = []
    link_chains: list[Int64s] = []
    links_left = int(counts.sum())
    entry = int(starts[0])
    window_chain = 0  # first chain that begins at or after the window
    arena_end = int(ends[-1])
    while entry < arena_end:
        window_end = min(entry + window_bytes, arena_end)
        next_window_chain = int(np.searchsorted(starts, window_end, side="left"))
        heads = starts[window_chain:next_window_chain]
        if not len(heads) or heads[0] != entry:
            heads = np.concatenate((np.array([entry], dtype=np.int64), heads))
        nodes = (
            _positions_before_zero(arena, entry, window_end)
            if zero_follows
            else np.arange(entry, window_end, dtype=np.int64)
        )
        chains = np.searchsorted(starts, nodes, side="right") - 1
        lengths, sizes = read_varints(arena, nodes)
        bodies = nodes + sizes
        fits = (lengths >= -1) & (lengths <= ends[chains] - bodies) & (sizes > 0)
        successors = bodies + np.maximum(lengths, 0)
        # A link leads to a position that could be one too, out of the window, or to its chain's
        # end. Most candidates do none of it, which leaves little more than the links.
        is_node = np.zeros(window_end - entry, dtype=np.bool_)
        is_node[nodes[fits] - entry] = True
        leaves = fits & ((successors >= window_end) | (successors == ends[chains]))
        likely = leaves.copy()
        inside = np.flatnonzero(fits & ~leaves)
        likely[inside] = is_node[successors[inside] - entry]
        nodes, chains, lengths, bodies, successors, leaves = (
            column[likely] for column in (nodes, chains, lengths, bodies, successors, leaves)
        )
        head_nodes = np.searchsorted(nodes, heads)
        missing = np.append(nodes, -1)[head_nodes] != heads
        if missing.any():
            head = heads[np.argmax(missing)]
            raise MalformedChain(int(np.searchsorted(starts, head, side="right")) - 1)
        reached = _reachable(nodes, successors, ~leaves, head_nodes)
        link_starts.append(bodies[reached])
        link_lengths.append(lengths[reached])
        link_chains.append(chains[reached])
        links_left -= len(reached)
        if links_left < 0:
            # Zeros are links of no bytes, a million to the MiB: what is kept of them is bounded.
            counted = np.bincount(np.concatenate(link_chains), minlength=len(counts))
            raise MalformedChain(int(np.argmax(counted > counts)))
        # The last link of the window leads into a later one, or ends its chain.
        last = int(reached[-1])
        entry = int(successors[last])
        window_chain = next_window_chain
        if entry == int(ends[chains[last]]):
            if window_chain == len(starts):
                break
            entry = int(starts[window_chain])
        elif entry < window_end:
            raise MalformedChain(int(chains[last]))
    found = Links(np.concatenate(link_starts), np.concatenate(link_lengths))
    counted = np.bincount(np.concatenate(link_chains), minlength=len(counts))
    if (counted != counts).any():
        raise MalformedChain(int(np.argmax(counted != counts)))
    last_links = np.cumsum(counts) - 1
    stops = found.starts[last_links] + np.maximum(found.lengths[last_links], 0)
    if (stops != ends).any():
        raise MalformedChain(int(np.argmax(stops != ends)))
    return found


def _positions_before_zero(arena: Arena, start: int, end: int) -> Int64s:
    """Positions in [start, end) whose bytes could be a varint of 1-5 bytes followed by a 0 byte."""
    data = arena.bytes
    zeros = np.flatnonzero(data[start + 1 : end + VARINT32_BYTES_MAX] == 0) + (start + 1)
    zeros = zeros[data[zeros - 1] < 0x80]
    found = [zeros - 1]
    for size in range(2, VARINT32_BYTES_MAX + 1):
        zeros = zeros[zeros - size >= start]
        zeros = zeros[data[zeros - size] >= 0x80]
        if not len(zeros):
            break
        found.append(zeros - size)
    positions = np.concatenate(found)
    positions = positions[positions < end]
    positions.sort()
    return positions


def _reachable(nodes: Int64s, successors: Int64s, goes_on: Bools, heads: Int64s) -> Int64s:
    """Indexes, ascending, of the nodes on the chains that begin at the nodes `heads`."""
    sink = len(nodes)
    target = np.searchsorted(nodes, successors)
    target[~goes_on | (nodes[np.minimum(target, sink - 1)] != successors)] = sink
    jump = np.append(target, sink)
    reached = heads
    while True:
        # `reached` holds the first 2**k nodes of each chain, `jump` leads 2**k nodes on.
        further = jump[reached]
        further = further[further < sink]
        if not len(further):
            break
        reached = np.concatenate((reached, further))
        jump = jump[jump]
    reached.sort()
    return reached


def zigzag(values: Int64s) -> UInt64s:
    """Map signed to unsigned so that small magnitudes stay small."""
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def varint_sizes(raw: UInt64s) -> Int64s:
    """Bytes that each unsigned value takes as a varint, 1-10."""
    sizes = np.ones(len(raw), dtype=np.int64)
    largest = int(raw.max(initial=0))
    for size in range(1, 10):
        threshold = 1 << (7 * size)
        if largest < threshold:
            break
        sizes += raw >= _U64(threshold)
    return sizes


def pack_varints(columns: Sequence[UInt64s | bytes]) -> tuple[Int64s, Bytes]:
    """Write rows of varints; a `bytes` column is a constant in every row.

    Returns (offsets of the rows and of their end, packed bytes).
    """
    rows = next(len(column) for column in columns if not isinstance(column, bytes))
    cells: list[Bytes] = []
    cells_used: list[Bools] = []
    totals = np.zeros(rows, dtype=np.int64)
    everywhere = np.ones(rows, dtype=np.bool_)
    for column in columns:
        if isinstance(column, bytes):
            for byte in column:
                cells.append(np.full(rows, byte, dtype=np.uint8))
                cells_used.append(everywhere)
            totals += len(column)
            continue
        sizes = varint_sizes(column)
        totals += sizes
        for index in range(int(sizes.max(initial=0))):
            bits = (column >> _U64(7 * index)).astype(np.uint8) & np.uint8(0x7F)
            goes_on = sizes > index + 1
            cells.append(bits | (goes_on.view(np.uint8) << np.uint8(7)))
            cells_used.append(sizes > index if index else everywhere)
    offsets = np.zeros(rows + 1, dtype=np.int64)
    np.cumsum(totals, out=offsets[1:])
    return offsets, np.stack(cells, axis=1)[np.stack(cells_used, axis=1)]
