"""Group `small_objects`: what one WAL object of a few batches costs a broker, whatever is in it.

One idempotent producer sends four requests at once, a batch of 15 KB in each and a partition for
each, and the next four when these are answered. Together they fit a packet of the loopback device,
so an object has these four batches, now and then fewer. Counted over the objects that came of it,
and of several short runs the one that took least: beside other work, processor time only grows.

The second figure is how often a thread of the broker stopped to wait: for another thread, the disk
or the socket. The third is what a thread pays that does nothing but the durable work of such an
object (`object_floor.py`); the fourth, what it pays for all of the broker's steps, without sockets
and without other threads (`object_steps.py`). The last is that of objects of five batches of 1 MB,
which is a round of an idempotent producer that sends all it can.
"""

import asyncio
import struct
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import psutil

from bench.speed.object_floor import ObjectFloor
from bench.speed.object_steps import steps_ms
from bench.speed.puts import written_at
from bench.tools import load
from bench.tools.broker import BenchBroker, fresh_directory
from bench.tools.raw_client import RawClient, batch, check_produced_all, produce_many_body
from bench.tools.report import Report

RUNS: Final = 5
ROUNDS: Final = 300
WARM_UP_ROUNDS: Final = 100
PARTITIONS: Final = 4
BATCH_BYTES: Final = 15 << 10
LARGE_BATCHES: Final = 5
LARGE_BATCH_BYTES: Final = 1_000_000
LARGE_OBJECTS: Final = 215
"""A GiB. As many go before, and fill the chunk directory, so its files are written over."""
GIB: Final = 1 << 30

_PRODUCE: Final = 0
_VERSION: Final = 7
_INIT_PRODUCER_ID: Final = 22


class SmallObjects(NamedTuple):
    """One run."""

    objects: int
    cpu_s: float
    waits: int
    """Voluntary context switches of all threads."""

    @property
    def cpu_ms_per_object(self) -> float:
        return self.cpu_s * 1e3 / self.objects

    @property
    def waits_per_object(self) -> float:
        return self.waits / self.objects


def run_small_objects(report: Report) -> None:
    """Processor time and waits of an object of four batches."""
    report.step("small objects: rounds of four idempotent requests, a batch of 15 KB in each")
    with report.progress("runs") as progress:
        runs = measure(progress=progress)
    least = min(runs, key=lambda run: run.cpu_ms_per_object)
    note = f"least of {len(runs)} runs, {least.objects / ROUNDS:.2f} objects a round"
    report.add("small_object_cpu_ms", least.cpu_ms_per_object, "ms", note=note)
    report.add("small_object_waits", min(run.waits_per_object for run in runs))
    with fresh_directory() as directory, ObjectFloor(directory) as floor:
        floor.run(WARM_UP_ROUNDS)
        least_s = min(floor.run(ROUNDS) / ROUNDS for _ in range(RUNS))
    report.add("small_object_floor_ms", least_s * 1e3, "ms", note="its durable work alone")
    steps = min(_steps_of_runs(), key=lambda one: sum(one.values()))
    note = "; ".join(f"{name} {ms:.2f}" for name, ms in steps.items())
    report.add("small_object_steps_ms", sum(steps.values()), "ms", note=f"by one thread: {note}")
    large = large_steps_s_per_gib(LARGE_OBJECTS)
    note = "; ".join(f"{name} {seconds:.2f}" for name, seconds in large.items())
    report.add(
        "large_object_steps_core_s_per_gib",
        sum(large.values()),
        "core-s/GiB",
        note=f"the same with {LARGE_BATCHES} batches of 1 MB: {note}",
    )


def large_steps_s_per_gib(objects: int) -> Mapping[str, float]:
    """Processor time of a GiB's steps by one thread, by step, in objects of large batches."""
    with fresh_directory() as directory:
        steps = steps_ms(
            directory,
            objects=objects,
            partitions=LARGE_BATCHES,
            batch_bytes=LARGE_BATCH_BYTES,
            warm_up=objects,
        )
    objects_per_gib = GIB / (LARGE_BATCHES * LARGE_BATCH_BYTES)
    return {name: ms / 1e3 * objects_per_gib for name, ms in steps.items()}


def _steps_of_runs() -> list[Mapping[str, float]]:
    """Processor time of an object's steps by one thread, in several short runs."""
    found = []
    for _ in range(RUNS):
        with fresh_directory() as directory:
            found.append(
                steps_ms(directory, objects=ROUNDS, partitions=PARTITIONS, batch_bytes=BATCH_BYTES)
            )
    return found


def measure(
    *,
    runs: int = RUNS,
    rounds: int = ROUNDS,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[SmallObjects]:
    """Runs on one broker, one after the other."""
    measured = []
    with fresh_directory() as directory:
        data = directory / "data"
        with BenchBroker(data, {"num.partitions": PARTITIONS}) as broker:
            load.create_topic(broker.bootstrap, load.TOPIC, PARTITIONS)
            asyncio.run(_rounds(broker.bootstrap, WARM_UP_ROUNDS))
            for done in range(runs):
                objects, cpu_s, waits = len(written_at(data)), broker.cpu_s(), _waits(broker.pid)
                asyncio.run(_rounds(broker.bootstrap, rounds))
                measured.append(
                    SmallObjects(
                        len(written_at(data)) - objects,
                        broker.cpu_s() - cpu_s,
                        _waits(broker.pid) - waits,
                    )
                )
                progress(done + 1, runs)
    return measured


async def _rounds(bootstrap: str, rounds: int) -> None:
    client = await RawClient.connect(bootstrap)
    # InitProducerId 0, of no transaction.
    granted = await client.send(_INIT_PRODUCER_ID, 0, struct.pack(">hi", -1, 60_000))
    _, error, producer_id, _ = struct.unpack(">ihqh", granted)
    if error:
        raise RuntimeError(f"InitProducerId was answered with error {error}")
    value = load.payload(BATCH_BYTES)
    for sequence in range(rounds):
        records = batch(value, producer_id, sequence)
        bodies = [
            produce_many_body(load.TOPIC, {partition: records}) for partition in range(PARTITIONS)
        ]
        for answer in client.send_together(_PRODUCE, _VERSION, bodies):
            check_produced_all(await answer)
    await client.close()


def _waits(pid: int) -> int:
    process = psutil.Process(pid)
    return sum(
        psutil.Process(thread.id).num_ctx_switches().voluntary for thread in process.threads()
    )
