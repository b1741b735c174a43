"""The write path in virtual time: the real seal policy between modelled producers and a store.

A load that takes a minute is over in a second, and gives the same figures on every machine: what a
policy makes of latencies, without the processors that a bench also measures. Only the policy is the
product's. The write loop, the uploader and the commits are written down again here in as far as
they decide when something happens:

- A request reaches the broker at WIRE_BYTES_PER_S, one after the other.
- A chunk is put in PUT_S, up to a fifth more, and its bytes at BYTES_PER_S; at most
  `wal.upload.concurrency` at a time.
- A commit takes COMMIT_S, or as long as a test says, one at a time, in seal order, for all chunks
  that are stored by then.

A model that left out what counts would be worth nothing; what it gave for the paced producers of
docs/clients.md (94 / 126 ms and 59 / 81 ms) is what a real broker had shown on MinIO.
"""

import asyncio
import itertools
import math
import random
import statistics
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from tests.support.loops.virtual_loop import run_in_virtual_time
from wal.chunks.wal_settings import WalSettings
from wal.write_path.seal_policy import Arrivals, OpenChunk, SealPolicy

PUT_S = 0.03
BYTES_PER_S = 80e6
COMMIT_S = 0.004
WIRE_BYTES_PER_S = 700e6
DIRECTORY_PUT_S, DIRECTORY_COMMIT_S = 1.2e-3, 1.4e-3
"""The same on a directory, with the metadata log beside it."""
CLIENT_S = 0.5e-3
"""Until a producer that is answered sends again."""
CLIENT_SPREAD = 2.4
"""By which the last of four requests that were answered together comes later than the first."""
_STORED_AHEAD = 2
_ROUNDING_S = 1e-9


class Sealed(NamedTuple):
    """One object."""

    at: float
    bytes: int
    batches: int


class _Chunk:
    def __init__(self, opened_at: float) -> None:
        self.opened_at = opened_at
        self.bytes = 0
        self.answers: list[asyncio.Future[None]] = []
        self.stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class ModelBroker:
    """Takes requests of one batch each, and answers when the model has committed them."""

    def __init__(self, settings: WalSettings, commit_s: float, put_s: float) -> None:
        self._settings = settings
        self._commit_s = commit_s
        self._put_s = put_s
        self._arrivals = Arrivals()
        self._policy = SealPolicy(settings, self._arrivals)
        self._rng = random.Random(1)
        self._wire = asyncio.Lock()
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._called_at = 0.0
        self._wake = asyncio.Event()
        self._chunk: _Chunk | None = None
        self._lane: deque[_Chunk] = deque()
        self._submitted = asyncio.Event()
        self._uploads = asyncio.Semaphore(settings.upload_concurrency)
        self.sealed: list[Sealed] = []

    async def produce(self, size: int) -> None:
        """Send one request, return when it is answered."""
        async with self._wire:
            self._arrivals.unfinished += 1
            await asyncio.sleep(size / WIRE_BYTES_PER_S)
            self._arrivals.last_at = _now()
            self._arrivals.unfinished -= 1
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((size, answered))
        self._called_at = _now()
        self._policy.arrived(1)
        self._wake.set()
        await answered

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._commit_chunks())
            while True:
                self._wake.clear()
                # What is sealed at this moment holds all that came at this moment.
                await asyncio.sleep(0)
                while self._take_and_seal():
                    tasks.create_task(self._put(self._lane[-1]))
                delay_s = None if self._chunk is None else self._seal_at() - _now()
                try:
                    async with asyncio.timeout(None if delay_s == math.inf else delay_s):
                        await self._wake.wait()
                except TimeoutError:
                    pass

    def _take_and_seal(self) -> bool:
        """Fill the open chunk with what is queued; whether it was sealed then."""
        bytes_max = self._policy.bytes_max(_now())
        is_full = False
        while self._queue and not is_full:
            if self._chunk is None:
                self._chunk = _Chunk(_now())
            is_full = bool(self._chunk.bytes) and self._chunk.bytes + self._queue[0][0] > bytes_max
            if not is_full:
                size, answered = self._queue.popleft()
                self._chunk.bytes += size
                self._chunk.answers.append(answered)
        chunk = self._chunk
        if chunk is None or self._seal_at(is_full=is_full) > _now() + _ROUNDING_S:
            return False
        self._chunk = None
        self._policy.sealed(_now(), chunk.bytes)
        self.sealed.append(Sealed(_now(), chunk.bytes, len(chunk.answers)))
        self._lane.append(chunk)
        self._submitted.set()
        return True

    def _seal_at(self, *, is_full: bool = False) -> float:
        chunk = self._chunk
        assert chunk is not None
        is_full |= bool(self._queue) or chunk.bytes >= self._settings.chunk_max_bytes
        state = OpenChunk(chunk.opened_at, self._called_at, chunk.bytes, is_full)
        behind = itertools.islice(self._lane, 1, 1 + _STORED_AHEAD)
        is_behind = len(self._lane) > self._settings.upload_concurrency or (
            sum(chunk.stored.done() for chunk in behind) == _STORED_AHEAD
        )
        return self._policy.seal_at(state, under_way=len(self._lane), is_behind=is_behind)

    async def _put(self, chunk: _Chunk) -> None:
        async with self._uploads:
            await asyncio.sleep(self._put_s * self._rng.uniform(1, 1.2) + chunk.bytes / BYTES_PER_S)
        chunk.stored.set_result(None)

    async def _commit_chunks(self) -> None:
        while True:
            while not self._lane:
                self._submitted.clear()
                await self._submitted.wait()
            await self._lane[0].stored
            stored = list(itertools.takewhile(lambda chunk: chunk.stored.done(), self._lane))
            await asyncio.sleep(self._commit_s)
            answers = [answer for chunk in stored for answer in chunk.answers]
            for _ in stored:
                self._lane.popleft()
            for answer in answers:
                answer.set_result(None)
            self._policy.answered(len(answers), _now(), len(stored))
            self._wake.set()


class Flow(NamedTuple):
    """What producers without a pause got through."""

    mb_per_s: float
    puts_per_gib: float
    sealed: list[Sealed]


def bulk(settings: WalSettings, *, producers: int, in_flight: int = 5, mib: int = 256) -> Flow:
    """Idempotent producers with batches of 1 MB, every fourth of them the small rest of a call."""

    async def load(broker: ModelBroker) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(producers):
                total = (mib << 20) // producers
                tasks.create_task(_produce_all(broker, total, in_flight, random.Random(number)))

    broker, seconds = _run(settings, load)
    total = sum(chunk.bytes for chunk in broker.sealed)
    return Flow(total / seconds / 1e6, len(broker.sealed) / total * (1 << 30), broker.sealed)


async def _produce_all(broker: ModelBroker, total: int, in_flight: int, rng: random.Random) -> None:
    free = asyncio.Semaphore(in_flight)

    async def request(size: int) -> None:
        await broker.produce(size)
        await asyncio.sleep(CLIENT_S * rng.uniform(0.5, 4))
        free.release()

    async with asyncio.TaskGroup() as tasks:
        while total > 0:
            await free.acquire()
            size = rng.choice((1_000_000, 1_000_000, 1_000_000, 140_000))
            total -= size
            tasks.create_task(request(size))


class Waits(NamedTuple):
    """Milliseconds from a record to its acknowledgement, and the objects."""

    p50_ms: float
    p99_ms: float
    sealed: list[Sealed]


def paced(
    settings: WalSettings,
    *,
    partitions: int,
    in_flight: int = 5,
    seconds: float = 12.0,
    commit_s: float = COMMIT_S,
    put_s: float = PUT_S,
    client_s: float = CLIENT_S,
) -> Waits:
    """1 MB/s of records of 1 KiB without linger, by librdkafka's rules.

    A request holds what waits for one partition, and each partition has one on its way. Which one
    is next is drawn: librdkafka begins its round anew, one further, whenever anything happens.
    """
    waits: list[float] = []

    async def load(broker: ModelBroker) -> None:
        rng = random.Random(1)
        queues: list[list[float]] = [[] for _ in range(partitions)]
        busy: set[int] = set()

        async def request(partition: int) -> None:
            records, queues[partition] = queues[partition], []
            await broker.produce(len(records) * 1030 + 70)
            waits.extend(_now() - sent_at for sent_at in records)
            await asyncio.sleep(client_s * rng.uniform(1, CLIENT_SPREAD))
            busy.discard(partition)
            serve()

        def serve() -> None:
            first = rng.randrange(partitions)
            for number in range(partitions):
                partition = (first + number) % partitions
                if len(busy) < in_flight and queues[partition] and partition not in busy:
                    busy.add(partition)
                    tasks.create_task(request(partition))

        async with asyncio.TaskGroup() as tasks:
            for number in range(int(1024 * seconds)):
                queues[number % partitions].append(_now())
                serve()
                await asyncio.sleep(1 / 1024)

    broker, _ = _run(settings, load, commit_s, put_s)
    # Without those of a new connection's first quarter.
    quantiles = statistics.quantiles(waits[len(waits) // 4 :], n=100)
    return Waits(quantiles[49] * 1_000, quantiles[98] * 1_000, broker.sealed)


class Round(NamedTuple):
    """Requests that are sent at once, when all of the round before are answered."""

    objects: int
    seconds: float


def in_step(
    settings: WalSettings,
    *,
    requests: Callable[[int], int],
    rounds: int,
    jitter_s: float,
    late: Callable[[int], float] = lambda _: 0.0,
) -> list[Round]:
    """Rounds of small requests to a directory, each request up to `jitter_s` after the first.

    `requests` says how many a round has, `late` how much later yet its last one is sent.
    """
    done: list[Round] = []

    async def load(broker: ModelBroker) -> None:
        rng = random.Random(1)

        async def request(after_s: float) -> None:
            await asyncio.sleep(after_s)
            await broker.produce(15_000)

        for number in range(rounds):
            objects, began = len(broker.sealed), _now()
            after_s = sorted(rng.uniform(0, jitter_s) for _ in range(requests(number)))
            after_s[-1] += late(number)
            await asyncio.gather(*(request(each) for each in after_s))
            done.append(Round(len(broker.sealed) - objects, _now() - began))
            await asyncio.sleep(CLIENT_S)

    _run(settings, load, DIRECTORY_COMMIT_S, DIRECTORY_PUT_S)
    return done


def most_in_a_second(sealed: list[Sealed]) -> int:
    """The most objects within one second, whenever it begins."""
    times = [chunk.at for chunk in sealed]
    most = first = 0
    for number, at in enumerate(times):
        while at - times[first] >= 1.0 - _ROUNDING_S:
            first += 1
        most = max(most, number - first + 1)
    return most


def _run(
    settings: WalSettings,
    load: Callable[[ModelBroker], Awaitable[None]],
    commit_s: float = COMMIT_S,
    put_s: float = PUT_S,
) -> tuple[ModelBroker, float]:
    """The broker after the load, and the seconds that it took."""
    brokers: list[ModelBroker] = []

    async def main() -> None:
        broker = ModelBroker(settings, commit_s, put_s)
        brokers.append(broker)
        running = asyncio.create_task(broker.run())
        await load(broker)
        running.cancel()
        await asyncio.wait((running,))

    seconds = run_in_virtual_time(main())
    return brokers[0], seconds


def _now() -> float:
    return asyncio.get_running_loop().time()
