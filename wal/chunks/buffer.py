"""Reference-counted fragments, from the socket to the chunk file without a copy.

A connection receives into the fragments of a `ChainBuilder` and takes each request off it as a
`FragmentChain`; the produce path shares one sub-chain per RecordBatch; the write loop hands the
views of many sub-chains to one vectored write and releases them. Nobody joins fragments: what must
be contiguous (a header, a length) is small and copied by `copy_bytes`.

Ownership, all of it:

- A `Fragment` is one buffer of a size class. It counts its owners. It returns to its pool when the
  last owner lets go, and only then; releasing it once more raises, because that reference belongs
  to somebody else by now.
- A `FragmentChain` owns one reference to each of its fragments. `share` makes another chain with
  references of its own. `release` gives the chain's references back; calling it again does
  nothing, so that a `finally` and a cancellation may both call it. Any other use after `release`
  raises ValueError.
- Views are valid until the chain that gave them is released. That is enforced as far as Python
  can: release() also releases the memoryviews, so a late user of one gets ValueError instead of
  the next request's bytes.
- A `ChainBuilder` owns the fragment it fills. When everything received was taken it lets go of
  that one too: an idle connection holds no buffer.

One thread, the event loop's, makes, shares and releases; other threads may read and write the bytes
of a chain for as long as its owner waits for them.

A pool is tiered by size class and capped over all classes: at the cap it first drops free buffers
of other classes, then grows beyond it, counts that, and drops such a buffer on its return. A
request never fails because a pool is small. A caller that wants less memory to be lent asks for
less: the pool counts what it has lent (`in_use_bytes`), how much of that still waits for the rest
of a frame (`receiving_bytes`), and tells its listener whenever a buffer comes back. A caller that
accounts for memory gives each ChainBuilder a `Borrower`, which hears of every buffer lent to it and
of its return, however many chains hold it in between.

Source: Redpanda, "Thread-per-core buffer management" (size classes, reference-counted sharing);
Mofka, "Caches and buffer pools" (tiers, growth on demand).
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

SIZE_MIN: Final = 512
SIZE_MAX: Final = 512 * 1024

# Less room than this at the end of a fragment is not worth a system call; it is left unused.
_ROOM_MIN_BYTES: Final = 4096


def _size_classes() -> tuple[int, ...]:
    sizes = [SIZE_MIN]
    while sizes[-1] < SIZE_MAX:
        sizes.append(min((sizes[-1] * 3 + 1) // 2, SIZE_MAX))
    return tuple(sizes)


SIZE_CLASSES: Final = _size_classes()
"""Steps of one and a half, so at most a third of a buffer is waste."""
assert len(SIZE_CLASSES) == 19
assert SIZE_CLASSES[8] == 13122


class Borrower(Protocol):
    """Somebody for whom buffers are lent. Sizes are capacities in bytes."""

    def lent(self, size_bytes: int) -> None:
        """A ChainBuilder got a buffer and receives into it."""
        ...

    def received(self, size_bytes: int) -> None:
        """The ChainBuilder let go of a buffer; chains may hold it on."""
        ...

    def returned(self, size_bytes: int) -> None:
        """A buffer is back in the pool. Comes before the pool's listener hears of it."""
        ...


class Fragment:
    """One buffer: `view` spans its whole capacity. Made by a pool with one owner, who asked."""

    __slots__ = ("_borrower", "_pool", "_pooled", "_references", "_size_class", "view")

    def __init__(
        self,
        pool: "BufferPool",
        size_class: int,
        view: memoryview,
        pooled: bool,
        borrower: Borrower | None,
    ) -> None:
        self.view = view
        self._borrower = borrower
        self._pool = pool
        self._size_class = size_class
        self._pooled = pooled
        self._references = 1

    @property
    def capacity(self) -> int:
        return SIZE_CLASSES[self._size_class]

    @property
    def references(self) -> int:
        """The number of owners; 0 means that the buffer went back."""
        return self._references

    def retain(self) -> None:
        """Become another owner. Raises ValueError when the buffer went back to its pool."""
        if not self._references:
            raise ValueError("retain of a fragment that nobody owns")
        self._references += 1

    def release(self) -> None:
        """Stop being an owner. Raises ValueError when there was none left."""
        if not self._references:
            raise ValueError("release of a fragment that nobody owns")
        self._references -= 1
        if not self._references:
            self._pool._take_back(self)


class _AdoptedFragment(Fragment):
    """Bytes of no size class that the pool counts and never lends again."""

    __slots__ = ()

    @property
    def capacity(self) -> int:
        return len(self.view)


class BufferPoolStatistics(NamedTuple):
    """What a pool holds now, and counters since it was made."""

    in_use_bytes: int
    free_bytes: int
    reused: int
    """Fragments served from a free list."""
    allocated: int
    """Fragments for which memory was allocated within the cap."""
    grown: int
    """Fragments allocated beyond the cap."""


class BufferPool:
    """Free buffers per size class, `max_bytes` over all classes (`wal.buffer.pool.max.bytes`)."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._free: list[list[memoryview]] = [[] for _ in SIZE_CLASSES]
        self._free_bytes = 0
        self._in_use_bytes = 0
        self._on_returned: Callable[[], None] | None = None
        self.receiving_bytes = 0
        """Of those in use, the buffers that a ChainBuilder owns: releasing chains frees none."""
        self._reused = 0
        self._allocated = 0
        self._grown = 0

    def get(self, wanted_bytes: int, borrower: Borrower | None = None) -> Fragment:
        """A fragment of the smallest class that holds `wanted_bytes`, or of the largest class.

        `borrower` hears of its return.
        """
        size_class = bisect_left(SIZE_CLASSES, min(wanted_bytes, SIZE_MAX))
        size = SIZE_CLASSES[size_class]
        self._in_use_bytes += size
        free = self._free[size_class]
        if free:
            self._reused += 1
            self._free_bytes -= size
            return Fragment(self, size_class, free.pop(), True, borrower)
        if self._in_use_bytes + self._free_bytes > self._max_bytes:
            self._drop_free(self._in_use_bytes + self._free_bytes - self._max_bytes)
        pooled = self._in_use_bytes + self._free_bytes <= self._max_bytes
        if pooled:
            self._allocated += 1
        else:
            self._grown += 1
        return Fragment(self, size_class, memoryview(bytearray(size)), pooled, borrower)

    @property
    def in_use_bytes(self) -> int:
        """Capacity of all buffers that are lent out."""
        return self._in_use_bytes

    def adopt(self, data: bytes) -> "FragmentChain":
        """A chain over `data` itself, counted as lent out until it is released."""
        self._in_use_bytes += len(data)
        fragment = _AdoptedFragment(self, 0, memoryview(data), False, None)
        return FragmentChain([fragment], [memoryview(data)], len(data))

    def listen(self, on_returned: Callable[[], None] | None) -> None:
        """Call this whenever a buffer came back, in place of what was called before."""
        self._on_returned = on_returned

    def statistics(self) -> BufferPoolStatistics:
        return BufferPoolStatistics(
            in_use_bytes=self._in_use_bytes,
            free_bytes=self._free_bytes,
            reused=self._reused,
            allocated=self._allocated,
            grown=self._grown,
        )

    def _take_back(self, fragment: Fragment) -> None:
        size = fragment.capacity
        self._in_use_bytes -= size
        if fragment._pooled:
            self._free[fragment._size_class].append(fragment.view)
            self._free_bytes += size
        if fragment._borrower is not None:
            fragment._borrower.returned(size)
        if self._on_returned is not None:
            self._on_returned()

    def _drop_free(self, excess_bytes: int) -> None:
        """Give up free buffers of the largest classes first, as fewest are lost that way."""
        for size_class in range(len(SIZE_CLASSES) - 1, -1, -1):
            free = self._free[size_class]
            while free and excess_bytes > 0:
                free.pop()
                self._free_bytes -= SIZE_CLASSES[size_class]
                excess_bytes -= SIZE_CLASSES[size_class]


class FragmentChain:
    """A run of bytes that lies in one or more fragments; see the module's text for ownership."""

    __slots__ = ("_fragments", "_views", "length_bytes")

    def __init__(
        self, fragments: Sequence[Fragment], views: Sequence[memoryview], length_bytes: int
    ) -> None:
        """Take over one reference to each of `fragments`; `views` lie in them, in order."""
        self._fragments: Sequence[Fragment] | None = fragments
        self._views = views
        self.length_bytes = length_bytes

    def __len__(self) -> int:
        return self.length_bytes

    def views(self) -> Sequence[memoryview]:
        """The bytes in order, one view per fragment, valid until this chain is released."""
        self._check_owned()
        return self._views

    def share(self, start: int, length: int) -> "FragmentChain":
        """Bytes [start, start + length) as a chain of its own, without a copy.

        Raises: IndexError when they are not all in this chain.
        """
        return ChainCutter(self).share(start, length)

    def copy_bytes(self, start: int, length: int) -> bytes:
        """A copy of bytes [start, start + length), for what must be contiguous and is small.

        Raises: IndexError when they are not all in this chain.
        """
        self._check_owned()
        self._check_range(start, length)
        pieces: list[memoryview] = []
        for view in self._views:
            size = len(view)
            if start >= size:
                start -= size
                continue
            part = view[start : start + length]
            start = 0
            pieces.append(part)
            length -= len(part)
            if length == 0:
                break
        return b"".join(pieces)

    def release(self) -> None:
        """Give this chain's references back, once; calling it again does nothing."""
        fragments, self._fragments = self._fragments, None
        if fragments is None:
            return
        # Views first: while somebody still exports one (a bug), this raises and keeps the memory
        # out of the pool, which is the lesser evil.
        for view in self._views:
            view.release()
        self._views = ()
        for fragment in fragments:
            fragment.release()

    def _check_owned(self) -> Sequence[Fragment]:
        if self._fragments is None:
            raise ValueError("use of a fragment chain after its release")
        return self._fragments

    def _check_range(self, start: int, length: int) -> None:
        if start < 0 or length < 0 or start + length > self.length_bytes:
            raise IndexError(f"bytes [{start}, {start + length}) of {self.length_bytes}")


class ChainCutter:
    """Cuts chains off `chain` from its start to its end, without searching for each from the start.

    A frame of 100 MiB may lie in ten thousand fragments and hold as many batches.
    """

    __slots__ = ("_chain", "_index", "_passed")

    def __init__(self, chain: FragmentChain) -> None:
        self._chain = chain
        self._index = 0
        self._passed = 0
        """Bytes in front of fragment `_index`."""

    def share(self, start: int, length: int) -> FragmentChain:
        """As `FragmentChain.share`; `start` is not smaller than at the last call."""
        owned = self._chain._check_owned()
        parts = self.parts(start, length)
        fragments = owned[self._index : self._index + len(parts)]
        for fragment in fragments:
            fragment.retain()
        return FragmentChain(fragments, parts, length)

    def share_all(self, starts: Sequence[int], lengths: Sequence[int]) -> FragmentChain:
        """Several parts, back to back, as one chain. No view of it has bytes of two of them.

        Each start is not smaller than the one before, nor than at the last call.
        """
        owned, views = self._chain._check_owned(), self._chain._views
        used: dict[int, Fragment] = {}
        parts: list[memoryview] = []
        view, index, passed, end = memoryview(b""), 0, 0, 0
        for start, length in zip(starts, lengths, strict=True):
            if passed <= start and 0 < length <= end - start:
                # Nearly all lie in the fragment where the one before ended.
                parts.append(view[start - passed : start - passed + length])
            elif some := self.parts(start, length):
                parts += some
                view, index, passed = views[self._index], self._index, self._passed
                end = passed + len(view)
                used.update(enumerate(owned[index : index + len(some)], index))
        for fragment in used.values():
            fragment.retain()
        return FragmentChain([*used.values()], parts, sum(lengths))

    def parts(self, start: int, length: int) -> Sequence[memoryview]:
        """Views of the part, valid until the chain is released; `start` as for `share`."""
        chain = self._chain
        chain._check_range(start, length)
        if not length:
            return ()
        views = chain._views
        while start - self._passed >= len(views[self._index]):
            self._passed += len(views[self._index])
            self._index += 1
        index, start = self._index, start - self._passed
        parts = [views[index][start : start + length]]
        left = length - len(parts[0])
        while left:
            index += 1
            parts.append(views[index][:left])
            left -= len(parts[-1])
        return parts


class ChainBuilder:
    """Receives a stream and hands it on in chains: `writable`, `commit`, then `take`."""

    __slots__ = ("_borrower", "_filled", "_filling", "_pieces", "_pool", "_start", "received_bytes")

    def __init__(self, pool: BufferPool, borrower: Borrower | None = None) -> None:
        self._pool = pool
        self._borrower = borrower
        self.received_bytes = 0
        """Bytes committed and not taken yet."""
        # Full fragments, each with the range that is not taken yet, oldest first; behind them the
        # fragment being filled, of which [_start, _filled) is received and not taken.
        self._pieces: deque[tuple[Fragment, int, int]] = deque()
        self._filling: Fragment | None = None
        self._start = 0
        self._filled = 0

    def writable(self, wanted_bytes: int) -> memoryview:
        """Room to receive into: at least one byte, at best `wanted_bytes`, up to SIZE_MAX.

        Valid until the next call of any method.
        """
        filling = self._filling
        if filling is not None:
            room = len(filling.view) - self._filled
            if room >= min(wanted_bytes, _ROOM_MIN_BYTES) and room > 0:
                return filling.view[self._filled :]
            self._put_aside(filling)
        self._filling = filling = self._pool.get(wanted_bytes, self._borrower)
        self._pool.receiving_bytes += filling.capacity
        if self._borrower is not None:
            self._borrower.lent(filling.capacity)
        return filling.view

    def commit(self, received_bytes: int) -> None:
        """Count the first `received_bytes` of the last `writable` as received."""
        filling = self._filling
        if filling is None or not 0 <= received_bytes <= len(filling.view) - self._filled:
            raise ValueError(f"commit of {received_bytes} bytes that were not writable")
        self._filled += received_bytes
        self.received_bytes += received_bytes

    def copy_bytes(self, start: int, length: int) -> bytes:
        """A copy of received bytes [start, start + length), for a frame's length or header.

        Raises: IndexError when they have not all been received.
        """
        if start < 0 or length < 0 or start + length > self.received_bytes:
            raise IndexError(f"bytes [{start}, {start + length}) of {self.received_bytes}")
        if not self._pieces and self._filling is not None:
            first = self._start + start
            return bytes(self._filling.view[first : first + length])
        copied = bytearray()
        for fragment, piece_start, piece_end in self._all_pieces():
            size = piece_end - piece_start
            if start >= size:
                start -= size
                continue
            missing = length - len(copied)
            first = piece_start + start
            copied += fragment.view[first : min(first + missing, piece_end)]
            start = 0
            if len(copied) == length:
                break
        return bytes(copied)

    def take(self, length: int) -> FragmentChain:
        """Detach the first `length` received bytes; the rest stays, sharing its fragment.

        Raises: IndexError when fewer were received.
        """
        if not 0 <= length <= self.received_bytes:
            raise IndexError(f"take of {length} bytes of {self.received_bytes}")
        self.received_bytes -= length
        taken_bytes = length
        fragments: list[Fragment] = []
        views: list[memoryview] = []
        while length and self._pieces:
            fragment, start, end = self._pieces[0]
            if end - start <= length:
                # The builder's reference goes over to the chain.
                self._pieces.popleft()
                self._hand_over(fragment)
            else:
                end = start + length
                self._pieces[0] = (fragment, end, self._pieces[0][2])
                fragment.retain()
            fragments.append(fragment)
            views.append(fragment.view[start:end])
            length -= end - start
        filling = self._filling
        if length and filling is not None:
            fragments.append(filling)
            views.append(filling.view[self._start : self._start + length])
            filling.retain()
            self._start += length
        if not self.received_bytes:
            self.release()
        return FragmentChain(fragments, views, taken_bytes)

    def release(self) -> None:
        """Forget what was received and not taken; calling it again does nothing."""
        for fragment, _, _ in self._pieces:
            self._let_go(fragment)
        self._pieces.clear()
        if self._filling is not None:
            self._let_go(self._filling)
            self._filling = None
        self._start = self._filled = 0
        self.received_bytes = 0

    def _put_aside(self, filling: Fragment) -> None:
        if self._filled > self._start:
            self._pieces.append((filling, self._start, self._filled))
        else:
            self._let_go(filling)
        self._filling = None
        self._start = self._filled = 0

    def _let_go(self, fragment: Fragment) -> None:
        self._hand_over(fragment)
        fragment.release()

    def _hand_over(self, fragment: Fragment) -> None:
        self._pool.receiving_bytes -= fragment.capacity
        if self._borrower is not None:
            self._borrower.received(fragment.capacity)

    def _all_pieces(self) -> list[tuple[Fragment, int, int]]:
        pieces = list(self._pieces)
        if self._filling is not None:
            pieces.append((self._filling, self._start, self._filled))
        return pieces
