"""Group `fetch`: what consumers cost that read many partitions in which nothing happens.

A raw client polls as librdkafka does: every partition in every request, by topic id, beginning with
another one each time, one request after the other, each waiting a little. The broker's processor
time over many polls is compared with that of a consumer of one partition; both take turns. The same
with fetch sessions (KIP-227), as the Java client polls: then an idle poll names no partition.

And what a wake-up costs: one record for one of 1,000 partitions with somebody waiting for them all,
compared with one record for somebody who waits for one partition. Both contain the produce.
"""

import socket
import statistics
import struct
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final, NamedTuple, Self
from uuid import UUID

import psutil
from confluent_kafka import Producer, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.tools.broker import BenchBroker, fresh_directory
from bench.tools.load import producer
from bench.tools.report import Report
from wal.wire.fields import uvarint

MANY: Final = 1_000
POLLS: Final = 400
"""Of each kind, each round."""
ROUNDS: Final = 5
WAKES: Final = 100
WAIT_MS: Final = 1
VERSION: Final = 16

_LIMITS: Final = struct.Struct(">iiib")
_SESSION: Final = struct.Struct(">ii")
_ROW: Final = struct.Struct(">iiqiqiB")
SETTINGS: Final[Mapping[str, object]] = {"num.partitions": 1}


class Poller:
    """One connection that sends Fetch requests for the partitions of one topic, all at their end.

    With a `session`, the first names them all, and the others none.
    """

    def __init__(self, bootstrap: str, topic_id: UUID, partitions: int, *, session: bool) -> None:
        host, _, port = bootstrap.partition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._topic_id = topic_id.bytes
        self._offsets = [0] * partitions
        self._rows = [fetch_row(partition, 0) for partition in range(partitions)]
        self._first = 0
        self._wants_session = session
        self._session = (0, 0) if session else (0, -1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._socket.close()

    def poll(self, wait_ms: int = WAIT_MS) -> int:
        """Ask, and wait for the answer; gives its size."""
        self.send(wait_ms)
        return self.receive()

    def read(self, partition: int) -> None:
        """From now on a record more was read of a partition; of no use with a session."""
        self._offsets[partition] += 1
        self._rows[partition] = fetch_row(partition, self._offsets[partition])

    def send(self, wait_ms: int) -> None:
        is_full = self._session[1] in (0, -1)
        parts = [
            struct.pack(">hhih", 1, VERSION, 7, 5) + b"bench\0",
            _LIMITS.pack(wait_ms, 1, 50 << 20, 0),
            _SESSION.pack(*self._session),
        ]
        if is_full:
            topics = self.topics()
            parts += [uvarint(len(topics) + 1), *topics]
        else:
            parts.append(b"\x01")
        parts.append(b"\x01\x01\0")  # nothing forgotten, no rack, no tags
        body = b"".join(parts)
        self._socket.sendall(struct.pack(">i", len(body)) + body)

    def topics(self) -> Sequence[bytes]:
        """What the request says of each topic; this one says it of one topic."""
        first, self._first = self._first, (self._first + 1) % len(self._rows)
        count = uvarint(len(self._rows) + 1)
        rows = b"".join([*self._rows[first:], *self._rows[:first]])
        return [self._topic_id + count + rows + b"\0"]

    def receive(self) -> int:
        size = int.from_bytes(self._exactly(4), "big")
        answer = self._exactly(size)
        error, session_id = struct.unpack_from(">hi", answer, 9)
        if error:
            raise RuntimeError(f"Fetch was answered with error {error}")
        if self._wants_session:
            self._session = (session_id, self._session[1] + 1)
        return size

    def _exactly(self, count: int) -> bytes:
        parts = []
        while count:
            part = self._socket.recv(min(count, 1 << 20))
            if not part:
                raise ConnectionError("the broker closed the connection")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


class IdleFigures(NamedTuple):
    """Broker's processor time per poll (or wake-up) in microseconds, one per round."""

    one: Sequence[float]
    many: Sequence[float]

    @property
    def ratio(self) -> float:
        return statistics.median(self.many) / statistics.median(self.one)


def run_fetch(report: Report) -> None:
    """Idle consumers of one and of MANY partitions, with and without sessions; a wake-up."""
    report.step(f"fetch: consumers of 1 and of {MANY:,} idle partitions")
    with fresh_directory() as directory, BenchBroker(directory / "broker", SETTINGS) as broker:
        ids = create_topics(broker.bootstrap, {"one": 1, "many": MANY})
        full = measure_idle(broker, ids, session=False)
        report.add(
            "idle_1000_partitions_ratio",
            full.ratio,
            bound="≤ 20",
            note=f"broker CPU per poll {statistics.median(full.many):,.0f} µs ÷ "
            f"{statistics.median(full.one):,.0f} µs, full fetches",
        )
        incremental = measure_idle(broker, ids, session=True)
        report.add(
            "idle_1000_partitions_session_ratio",
            incremental.ratio,
            bound="≤ 20",
            note=f"{statistics.median(incremental.many):,.0f} µs ÷ "
            f"{statistics.median(incremental.one):,.0f} µs, fetch sessions",
        )
        woken = measure_wakes(broker, ids)
        report.add(
            "wake_1000_partitions_ratio",
            woken.ratio,
            note=f"broker CPU per record produced and read, {statistics.median(woken.many):,.0f} "
            f"µs ÷ {statistics.median(woken.one):,.0f} µs",
        )


def measure_idle(
    broker: BenchBroker,
    ids: Mapping[str, UUID],
    *,
    session: bool,
    polls: int = POLLS,
    rounds: int = ROUNDS,
) -> IdleFigures:
    with (
        Poller(broker.bootstrap, ids["one"], 1, session=session) as one,
        Poller(broker.bootstrap, ids["many"], MANY, session=session) as many,
    ):
        processor_us(broker.pid, one, 20)
        processor_us(broker.pid, many, 20)
        rows = [
            (processor_us(broker.pid, one, 4 * polls), processor_us(broker.pid, many, polls))
            for _ in range(rounds)
        ]
    return IdleFigures([row[0] for row in rows], [row[1] for row in rows])


def processor_us(pid: int, poller: Poller, polls: int) -> float:
    """Processor time of a process per poll."""
    process = psutil.Process(pid)
    before = process.cpu_times()
    for _ in range(polls):
        poller.poll()
    after = process.cpu_times()
    seconds: float = after.user + after.system - before.user - before.system
    return seconds / polls * 1e6


def measure_wakes(
    broker: BenchBroker, ids: Mapping[str, UUID], *, wakes: int = WAKES, rounds: int = ROUNDS
) -> IdleFigures:
    client = producer(broker.bootstrap, {"linger.ms": 0})
    with (
        Poller(broker.bootstrap, ids["one"], 1, session=False) as one,
        Poller(broker.bootstrap, ids["many"], MANY, session=False) as many,
    ):
        _wake_us(broker.pid, one, client, "one", 1, 5)
        _wake_us(broker.pid, many, client, "many", MANY, 5)
        rows = [
            (
                _wake_us(broker.pid, one, client, "one", 1, wakes),
                _wake_us(broker.pid, many, client, "many", MANY, wakes),
            )
            for _ in range(rounds)
        ]
    return IdleFigures([row[0] for row in rows], [row[1] for row in rows])


def _wake_us(
    pid: int, poller: Poller, client: Producer, topic: str, partitions: int, wakes: int
) -> float:
    """Processor time of a process for a record produced and read by a fetch that waited for it."""
    process = psutil.Process(pid)
    before = process.cpu_times()
    for wake in range(wakes):
        partition = wake * 7 % partitions
        poller.send(60_000)
        client.produce(topic, b"a record", partition=partition)
        client.flush(30)
        poller.receive()
        poller.read(partition)
    after = process.cpu_times()
    seconds: float = after.user + after.system - before.user - before.system
    return seconds / wakes * 1e6


def fetch_row(partition: int, offset: int) -> bytes:
    return _ROW.pack(partition, 0, offset, -1, -1, 1 << 20, 0)


def create_topics(bootstrap: str, topics: Mapping[str, int]) -> Mapping[str, UUID]:
    """Create topics with so many partitions; their ids."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    made = admin.create_topics([NewTopic(name, count, 1) for name, count in topics.items()])
    for future in made.values():
        future.result(30)
    described = admin.describe_topics(TopicCollection([*topics]))
    ids = {}
    for name, future in described.items():
        topic_id = future.result(30).topic_id
        high = topic_id.get_most_significant_bits() % (1 << 64)
        low = topic_id.get_least_significant_bits() % (1 << 64)
        ids[name] = UUID(int=high << 64 | low)
    return ids
