"""Group `holds`: for how long the largest requests that clients may send hold the event loop.

A broker runs in a thread of this process, on asyncio's own loop, where every callback is measured:
`hold_ms_<request>` is the processor time of the longest one from the request to its answer. The
requests have ROWS rows, just below the limit of what is read of one.
"""

import asyncio
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self
from uuid import UUID

from bench.tools.broker import fresh_directory
from bench.tools.coordinator_bed import settle
from bench.tools.raw_client import text
from bench.tools.report import Report
from diskless.broker import running_broker
from diskless.config import load_config
from metadata.messages.brokers import ALTER_TOPIC_CONFIGS, CREATE_TOPICS
from metadata.messages.codec import Operation
from metadata.messages.coordinator import (
    CREATE_PARTITIONS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    LIST_OFFSETS,
)
from metadata.messages.find_batches import FIND_BATCHES, FindBatchesMessage
from metadata.operations import (
    AlterTopicConfigs,
    CreatePartitions,
    CreateTopic,
    DeleteRecords,
    FindBatches,
    ListOffsets,
)
from wal.clock import SystemClock
from wal.coordinates import TopicIdPartition
from wal.wire.fields import NO_TAGS

ROWS: Final = 99_000
TOPICS: Final = 3_000
PARTITIONS: Final = 1_000
"""Of each of the topics that all rows are about."""

_SETTINGS: Final = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "log.level": "error",
    "http.listen": "",
    "wal.commit.interval.ms": "5",
}
_READY_S: Final = 30.0
_ANSWER_S: Final = 300.0
_INT32: Final = struct.Struct(">i")
_WIDE: Final = "wide"


def run_holds(report: Report) -> None:
    """One figure for each request of the table."""
    report.step(f"requests of {ROWS:,} rows, {TOPICS:,} topics")
    for name, hold_ms in measure_holds(rows=ROWS, topics=TOPICS).items():
        report.add(f"hold_ms_{name}", hold_ms, "ms")


def measure_holds(*, rows: int, topics: int) -> Mapping[str, float]:
    """Milliseconds by request."""
    with fresh_directory() as directory, _MeasuredBroker(directory / "data") as broker:
        broker.ask(19, 4, _create([(_WIDE, PARTITIONS)]))
        return {
            name: broker.longest_hold_ms(key, version, body)
            for name, key, version, body in (*_requests(rows, topics), *_between_brokers(rows))
        }


def _requests(rows: int, topics: int) -> Iterator[tuple[str, int, int, bytes]]:
    """Name, API key, version, body; those of Kafka without tagged fields."""
    names = [f"topic-{number:06d}" for number in range(topics)]
    unknown = _array([text(f"unknown-{number}") for number in range(rows)])
    yield "create_topics", 19, 4, _create([(name, 1) for name in names])
    yield "metadata_of_all", 3, 8, struct.pack(">i???", -1, False, False, False)
    yield "metadata_of_unknown", 3, 8, unknown + bytes(3)
    yield (
        "describe_configs",
        32,
        3,
        _array([b"\x02" + text(n) + b"\xff" * 4 for n in names]) + b"\0\0",
    )
    yield "fetch", 1, 11, _fetch([(_WIDE, rows)])
    yield "fetch_of_unknown", 1, 11, _fetch([(f"no-{number}", 1) for number in range(rows // 2)])
    yield "list_offsets", 2, 5, b"\xff" * 4 + b"\0" + _rows(rows, struct.pack(">iq", -1, -1))
    committed = text("group") + b"\xff" * 4 + text("") + b"\xff\xff"
    yield "offset_commit", 8, 7, committed + _rows(rows, struct.pack(">qih", 1, -1, -1))
    yield "offset_fetch", 9, 5, text("group") + _rows(rows, b"")
    yield "offset_delete", 47, 0, text("group") + _rows(rows, b"")
    yield "delete_records", 21, 1, _rows(rows, struct.pack(">q", 0)) + _INT32.pack(60_000)
    yield "describe_groups", 15, 4, unknown + b"\0"
    yield "delete_topics", 20, 3, unknown + _INT32.pack(60_000)


def _between_brokers(rows: int) -> Iterator[tuple[str, int, int, bytes]]:
    """As much as the coordinator's operations take, of topics that are not there."""
    topic_id = UUID(int=1)
    places = [TopicIdPartition(topic_id, number % PARTITIONS) for number in range(rows)]
    topic_ids = [UUID(int=number + 1) for number in range(rows)]
    asked: list[tuple[Operation[Any, Any], Any]] = [
        (
            FIND_BATCHES,
            FindBatchesMessage([FindBatches(place, 0, 1 << 20) for place in places], 1 << 20, 8),
        ),
        (LIST_OFFSETS, [ListOffsets(place, -1) for place in places]),
        (DELETE_RECORDS, [DeleteRecords(place, 0) for place in places]),
        (DELETE_TOPICS, topic_ids),
        (
            CREATE_PARTITIONS,
            [
                CreatePartitions(topic_id=topic_id, name=_WIDE, partition_count=1)
                for topic_id in topic_ids
            ],
        ),
        (
            ALTER_TOPIC_CONFIGS,
            [AlterTopicConfigs(topic_id=topic_id, before={}, configs={}) for topic_id in topic_ids],
        ),
        (CREATE_TOPICS, [CreateTopic(name=_WIDE, partition_count=1)] * rows),
    ]
    for operation, request in asked:
        yield operation.name, operation.key, 0, operation.encode_request(request, 60_000)


def _array(items: list[bytes]) -> bytes:
    return _INT32.pack(len(items)) + b"".join(items)


def _create(topics: list[tuple[str, int]]) -> bytes:
    rows = [text(name) + struct.pack(">ihii", count, 1, 0, 0) for name, count in topics]
    return _array(rows) + struct.pack(">i?", 60_000, False)


def _fetch(topics: list[tuple[str, int]]) -> bytes:
    """Of the first partitions of each topic, without waiting and without a session."""
    wanted = struct.pack(">iqqi", -1, 0, -1, 1 << 20)
    asked = [text(name) + _array(_numbered(count, wanted)) for name, count in topics]
    start = struct.pack(">iiiibii", -1, 0, 1, 1 << 20, 0, 0, -1)
    return start + _array(asked) + _INT32.pack(0) + text("")


def _rows(count: int, rest: bytes) -> bytes:
    """One topic with `count` partitions, each with `rest` behind its number."""
    return _INT32.pack(1) + text(_WIDE) + _array(_numbered(count, rest))


def _numbered(count: int, rest: bytes) -> list[bytes]:
    return [_INT32.pack(number % PARTITIONS) + rest for number in range(count)]


class _MeasuredBroker:
    """A broker in a thread of its own; asks it, and says what held its loop meanwhile."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="measured-broker")
        self._failure: BaseException | None = None
        self._longest_s = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait(_READY_S)
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def longest_hold_ms(self, key: int, version: int, body: bytes) -> float:
        self._longest_s = 0.0
        self.ask(key, version, body)
        return self._longest_s * 1000

    def ask(self, key: int, version: int, body: bytes) -> None:
        """Wait for the whole answer. Raises ConnectionError when there is none."""
        header = struct.pack(">hhih", key, version, 1, -1)
        if key >= CREATE_PARTITIONS.key:
            header += NO_TAGS
        with socket.create_connection(("127.0.0.1", self._broker.base.port), _ANSWER_S) as client:
            client.sendall(_INT32.pack(len(header) + len(body)) + header + body)
            with client.makefile("rb") as answers:
                start = answers.read(_INT32.size)
                if len(start) < _INT32.size:
                    raise ConnectionError(f"request {key} v{version} was not answered")
                answers.read(_INT32.unpack(start)[0])

    def _run(self) -> None:
        try:
            with self._measured(), asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as failure:
            self._failure = failure
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        running = running_broker(
            load_config(overrides=_SETTINGS),
            data=self._data,
            clock=SystemClock(),
            rng=random.Random(1),
        )
        async with running as self._broker:
            settle()
            self._ready.set()
            await self._stopping.wait()

    @contextmanager
    def _measured(self) -> Iterator[None]:
        """Measure every callback that asyncio runs in this thread."""
        handles: Any = asyncio.Handle
        run_callback, thread = handles._run, threading.get_ident()

        def run(handle: Any) -> None:
            if threading.get_ident() != thread:
                run_callback(handle)
                return
            started = time.thread_time()
            run_callback(handle)
            self._longest_s = max(self._longest_s, time.thread_time() - started)

        handles._run = run
        try:
            yield
        finally:
            handles._run = run_callback
