"""Group `slopes`: what one more WAL object and one more batch cost a broker, in processor time.

Two sweeps, in each of which a single number grows while everything else stays the same: the bytes,
the requests, and the batches or the objects. The figure is the slope of the broker's processor time
over that number, by least squares. Requests are made before they are sent and go through a raw
client, so that each run sends the same ones.

- *Objects*: the same paced requests with a fixed commit interval from 10 to 250 ms, so that the
  broker seals between a hundred and four objects a second.
- *Batches*: requests of equal size that spread over 1 to 10,000 partitions, one after the other:
  each is one object, whatever is in it. Plain, and of one idempotent producer.
"""

import asyncio
import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from bench.speed.puts import written_at
from bench.tools import load
from bench.tools.broker import BenchBroker, fresh_directory
from bench.tools.fixed_interval import fixed_interval
from bench.tools.raw_client import RawClient, batch, check_produced_all, produce_many_body
from bench.tools.report import Report

INTERVALS_MS: Final = (10, 20, 50, 250)
SWEEP_SECONDS: Final = 8.0
CONNECTIONS: Final = 12
REQUESTS_PER_S: Final = 144
BATCH_BYTES: Final = 16 << 10

PARTITION_COUNTS: Final = (1, 10, 100, 1_000, 10_000)
REQUEST_BYTES: Final = 1_000_000
REQUESTS: Final = 24
ONE_REQUEST_MS: Final = 5
"""The commit interval while one request at a time is under way."""
ROUNDS: Final = 2
_BATCH_OVERHEAD_BYTES: Final = 78
"""Of a batch of one record, its row in the request included."""

_PRODUCE: Final = 0
_VERSION: Final = 7
_INIT_PRODUCER_ID: Final = 22

Progress = Callable[[int, int], None]


class Point(NamedTuple):
    """One run of a sweep."""

    number: float
    """Of what grows."""
    cpu_s: float


def run_slopes(report: Report) -> None:
    """Processor time per object, per batch, and per batch of an idempotent producer."""
    report.step("slopes: broker CPU over objects and over batches, all else equal")
    with report.progress("objects") as progress:
        objects = [measure_objects(progress=progress) for _ in range(ROUNDS)]
    report.add_runs(
        "object_cpu_ms",
        [slope(points) * 1e3 for points in objects],
        "ms",
        bound="≤ 1.2",
        note=_counts(objects[0], "objects"),
    )
    for key, idempotent in (("cpu_us_per_batch", False), ("cpu_us_per_idempotent_batch", True)):
        with report.progress("batches") as progress:
            batches = measure_batches(idempotent=idempotent, progress=progress)
        report.add_runs(
            key,
            [slope(points) * 1e6 for points in batches],
            "µs",
            bound="≤ 50",
            note=_counts(batches[0], "batches"),
        )


def slope(points: Sequence[Point]) -> float:
    """Seconds of processor time for one more, by least squares."""
    counts, cpu_s = np.array(points, dtype=float).T
    gradient, _ = np.polyfit(counts, cpu_s, 1)
    return float(gradient)


def measure_objects(
    *,
    intervals_ms: Sequence[int] = INTERVALS_MS,
    seconds: float = SWEEP_SECONDS,
    progress: Progress = lambda done, total: None,
) -> Sequence[Point]:
    """One point for each interval: how many objects, and the processor time of the whole run."""
    points = []
    for done, interval_ms in enumerate(intervals_ms):
        with fresh_directory() as directory:
            data = directory / "data"
            settings = {"num.partitions": CONNECTIONS, **fixed_interval(interval_ms)}
            with BenchBroker(data, settings) as broker:
                load.create_topic(broker.bootstrap, load.TOPIC, CONNECTIONS)
                asyncio.run(_paced(broker.bootstrap, seconds=1.0))
                before, used_s = len(written_at(data)), broker.cpu_s()
                asyncio.run(_paced(broker.bootstrap, seconds=seconds))
                used_s = broker.cpu_s() - used_s
                points.append(Point(len(written_at(data)) - before, used_s))
        progress(done + 1, len(intervals_ms))
    return points


def measure_batches(
    *,
    idempotent: bool,
    counts: Sequence[int] = PARTITION_COUNTS,
    requests: int = REQUESTS,
    rounds: int = ROUNDS,
    progress: Progress = lambda done, total: None,
) -> Sequence[Sequence[Point]]:
    """For each round one point per number of partitions; counts are batches of all requests."""
    settings = fixed_interval(ONE_REQUEST_MS)
    with fresh_directory() as directory, BenchBroker(directory / "data", settings) as broker:
        for count in counts:
            load.create_topic(broker.bootstrap, f"batches-{count}", count)
        steps = rounds * len(counts)
        measured = []
        for round_ in range(rounds):
            points = []
            for done, count in enumerate(counts):
                points.append(asyncio.run(_in_turn(broker, count, requests, idempotent)))
                progress(round_ * len(counts) + done + 1, steps)
            measured.append(points)
    return measured


async def _paced(bootstrap: str, *, seconds: float) -> None:
    """REQUESTS_PER_S requests of a batch each, on CONNECTIONS connections by turns."""
    clients = [await RawClient.connect(bootstrap) for _ in range(CONNECTIONS)]
    records = batch(load.payload(BATCH_BYTES))
    bodies = [
        produce_many_body(load.TOPIC, {partition: records}) for partition in range(CONNECTIONS)
    ]
    loop = asyncio.get_running_loop()
    started = loop.time()
    answers = []
    for number in range(int(seconds * REQUESTS_PER_S)):
        turn = number % CONNECTIONS
        answers.append(clients[turn].send(_PRODUCE, _VERSION, bodies[turn]))
        await asyncio.sleep(started + (number + 1) / REQUESTS_PER_S - loop.time())
    for answer in answers:
        check_produced_all(await answer)
    for client in clients:
        await client.close()


async def _in_turn(broker: BenchBroker, count: int, requests: int, idempotent: bool) -> Point:
    """Requests of `count` batches, each sent when the one before it is answered."""
    client = await RawClient.connect(broker.bootstrap)
    producer_id = await _new_producer_id(client) if idempotent else -1
    topic = f"batches-{count}"
    value = load.payload(max(1, REQUEST_BYTES // count - _BATCH_OVERHEAD_BYTES))
    bodies = [
        produce_many_body(topic, dict.fromkeys(range(count), batch(value, producer_id, sequence)))
        for sequence in range(requests + 1)
    ]
    check_produced_all(await client.send(_PRODUCE, _VERSION, bodies[0]))
    used_s = broker.cpu_s()
    for body in bodies[1:]:
        check_produced_all(await client.send(_PRODUCE, _VERSION, body))
    used_s = broker.cpu_s() - used_s
    await client.close()
    return Point(count * requests, used_s)


async def _new_producer_id(client: RawClient) -> int:
    """InitProducerId 0, of no transaction."""
    answer = await client.send(_INIT_PRODUCER_ID, 0, struct.pack(">hi", -1, 60_000))
    _, error, producer_id, _ = struct.unpack(">ihqh", answer)
    if error:
        raise RuntimeError(f"InitProducerId was answered with error {error}")
    return int(producer_id)


def _counts(points: Sequence[Point], name: str) -> str:
    return f"{min(points).number:,.0f} … {max(points).number:,.0f} {name}"
