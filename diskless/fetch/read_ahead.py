"""Reads ahead for consumers that come through a partition in order.

While an answer is on its way to its socket, what the same consumer will ask for next is fetched
into the memory that reads look into first. So a consumer waits for the object store once, and then
takes what is there, over the borders of extents, objects and segments.

A consumer is known by where its last answer ended: who asks for that offset of that partition is
the one that goes on. It needs no session for it, and readers that follow each other closely count
as one, which is right, since they read the same bytes. One that jumps is not known where it comes
to, and begins anew; what was read ahead of where it was is dropped when nobody touches it
(`wal/caches/cold_reads.py`).

    an answer ends -> its window grows -> its extents up to there, looked up where they are not
    known -> those not asked for yet are read ahead, as long as there is room

The window is what is read ahead of a consumer, in bytes: twice as much as its first answer had, and
twice as much as before after each answer, up to WINDOW_MAX_BYTES and to its share of `budget_bytes`
among the
partitions that are read now. So who reads one answer and leaves has little read in vain.

A consumer at the end of its log, or whose last answer came from this broker's own chunks, has
nothing read ahead: there is no store to wait for.

Bounds: READERS_MAX consumers, of each EXTENTS_MAX extents; one look-up at a time of each. The bytes
are bounded where they are kept. Nobody waits for what happens here, and nothing that goes wrong
here is an error to anybody: who comes for the bytes has them read, and hears of it then.
"""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import structlog

from metadata.operations import Extent, FindBatches, FoundBatches, WalExtent
from wal.caches.cold_reads import RUN_BYTES
from wal.clock import Clock
from wal.coordinates import ObjectKey, TopicIdPartition
from wal.errors import DisklessError
from wal.records.marker_batches import Marker

log = structlog.get_logger(__name__)

WINDOW_MAX_BYTES: Final = 32 << 20
"""More than a connection of an object store brings while another one waits for its first byte."""

READERS_MAX: Final = 4096
EXTENTS_MAX: Final = 64
READING_S: Final = 10.0
"""A consumer that has not come for so long has no share of the budget."""


class ExtentLookup(Protocol):
    """The part of the coordinator that says where batches lie."""

    async def find_batches(
        self,
        requests: Sequence[FindBatches],
        *,
        max_bytes: int,
        at_least_one: bool = True,
        batches_per_partition_max: int = EXTENTS_MAX,
    ) -> Sequence[FoundBatches]: ...


class AheadSource(Protocol):
    """What fetches extents."""

    def is_near(self, extent: Extent) -> bool:
        """Whether its bytes are on this machine."""
        ...

    def ahead(self, extent: Extent, offset: int, max_bytes: int) -> int | None:
        """Fetch about `max_bytes` of it, from `offset` on.

        Returns how many of these bytes the extent has, or None when the read of some of
        them could not begin yet.
        """
        ...


class Answered(NamedTuple):
    """What a partition of a Fetch gave."""

    partition: TopicIdPartition
    offset: int
    next_offset: int
    size_bytes: int
    high_watermark: int
    extents: Sequence[Extent]


class _Place(NamedTuple):
    partition: TopicIdPartition
    offset: int


class _Reader:
    """A consumer of a partition."""

    __slots__ = ("extents", "is_looking", "log_end", "read_at", "started_to", "window_bytes")

    def __init__(self) -> None:
        self.window_bytes = 0
        self.extents: deque[Extent] = deque()
        """From where it is on, as far as they are known."""
        self.started_to = 0
        """The offset up to which reading has begun."""
        self.is_looking = False
        self.log_end = 0
        """As it was known when it came last."""
        self.read_at = 0.0


class ReadAhead:
    """Follows the consumers of a broker; used on its event loop alone."""

    def __init__(
        self, lookup: ExtentLookup, source: AheadSource, *, clock: Clock, budget_bytes: int
    ) -> None:
        self._lookup = lookup
        self._source = source
        self._clock = clock
        self._budget_bytes = budget_bytes
        self._readers: OrderedDict[_Place, _Reader] = OrderedDict()
        """The one that has not come for longest is first."""
        self._partitions: Counter[TopicIdPartition] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    def follow(self, answers: Sequence[Answered]) -> None:
        """These answers are about to be sent: read on behind them."""
        if not self._budget_bytes:
            return
        due: list[tuple[_Place, _Reader]] = []
        for answer in answers:
            reader = self._taken(_Place(answer.partition, answer.offset))
            place = _Place(answer.partition, answer.next_offset)
            is_at_end = answer.next_offset >= answer.high_watermark
            if is_at_end or place in self._readers or self._is_near(answer.extents):
                continue
            reader = reader or _Reader()
            reader.window_bytes = max(2 * reader.window_bytes, 2 * answer.size_bytes)
            reader.log_end = answer.high_watermark
            reader.read_at = self._clock.monotonic()
            self._readers[place] = reader
            self._partitions[place.partition] += 1
            due.append((place, reader))
        if not due:
            return
        self._forget_the_gone()
        share = self._budget_bytes // len(self._partitions)
        for place, reader in due:
            reader.window_bytes = min(reader.window_bytes, WINDOW_MAX_BYTES, share)
            while reader.extents and reader.extents[0].last_offset < place.offset:
                reader.extents.popleft()
        short = [one for one in due if self._is_short(*one)]
        if short:
            task = asyncio.create_task(self._look_up(short), name="read-ahead")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        for place, reader in due:
            self._start(place, reader)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def __len__(self) -> int:
        return len(self._readers)

    def _is_near(self, extents: Sequence[Extent]) -> bool:
        """Whether the last bytes are on this machine. Markers have none."""
        stored = (extent for extent in reversed(extents) if not isinstance(extent, Marker))
        last = next(stored, None)
        return last is not None and self._source.is_near(last)

    def _forget_the_gone(self) -> None:
        since = self._clock.monotonic() - READING_S
        while self._readers:
            place, reader = next(iter(self._readers.items()))
            if reader.read_at > since and len(self._readers) <= READERS_MAX:
                return
            self._taken(place)

    def _taken(self, place: _Place) -> _Reader | None:
        reader = self._readers.pop(place, None)
        if reader is not None:
            self._partitions[place.partition] -= 1
            if not self._partitions[place.partition]:
                del self._partitions[place.partition]
        return reader

    def _is_short(self, place: _Place, reader: _Reader) -> bool:
        """Whether less than the window is known, and there is more."""
        extents = reader.extents
        if reader.is_looking or len(extents) > EXTENTS_MAX // 2:
            return False
        if extents and extents[-1].last_offset + 1 >= reader.log_end:
            return False
        return sum(extent.bytes_from(place.offset) for extent in extents) < reader.window_bytes

    async def _look_up(self, short: Sequence[tuple[_Place, _Reader]]) -> None:
        """Learn where they will go on, and begin to read there."""
        requests = []
        for place, reader in short:
            reader.is_looking = True
            start = reader.extents[-1].last_offset + 1 if reader.extents else place.offset
            wanted_bytes = 2 * reader.window_bytes + RUN_BYTES
            requests.append(FindBatches(place.partition, start, wanted_bytes))
        try:
            answers = await self._lookup.find_batches(
                requests,
                max_bytes=sum(request.max_bytes for request in requests),
                at_least_one=False,
                batches_per_partition_max=EXTENTS_MAX,
            )
        except DisklessError as error:
            log.debug("nothing to read ahead", error=str(error))
            return
        finally:
            for _, reader in short:
                reader.is_looking = False
        for (place, reader), request, answer in zip(short, requests, answers, strict=True):
            known_to = reader.extents[-1].last_offset + 1 if reader.extents else request.offset
            if known_to == request.offset:
                reader.extents.extend(answer.extents)
                self._start(place, reader)

    def _start(self, place: _Place, reader: _Reader) -> None:
        """Read what is within the window and was not begun; of its last object all that is near.

        Extents of one object lie side by side: begun together, they come by one GET.
        """
        left_bytes = reader.window_bytes
        begun: ObjectKey | None = None
        for extent in reader.extents:
            if isinstance(extent, Marker):
                continue
            if left_bytes <= 0 and (extent.object_key != begun or left_bytes < -RUN_BYTES):
                return
            length_bytes = extent.bytes_from(place.offset)
            if extent.last_offset < reader.started_to:
                left_bytes -= length_bytes
                continue
            wanted_bytes = left_bytes
            if isinstance(extent, WalExtent):
                wanted_bytes = max(left_bytes, min(length_bytes, RUN_BYTES))
            begun_bytes = self._source.ahead(extent, place.offset, wanted_bytes)
            if begun_bytes is None:
                return
            left_bytes -= begun_bytes
            if isinstance(extent, WalExtent):
                begun = extent.object_key
                if begun_bytes == length_bytes:
                    reader.started_to = extent.last_offset + 1
