"""Group `followers`: how far brokers are behind that follow, and what an idle cluster asks for.

The store is MinIO, or moto where that is missing, as slow as S3 (`bench.tools.slow_s3`).

- `follower_staleness_ms`: two brokers. A file is committed at the one that leads; timed is from its
  acknowledgement until the other one's replica has it, which is asked without a pause.
- `idle_cluster_requests_per_s`: five brokers, four metadata partitions, and one consumer whose
  group gets heartbeats. Counted is what goes through the proxy, of all kinds, when leadership has
  settled, which takes up to two minutes: for ten minutes, since some things are done once in so
  long, or for IDLE_SECONDS of them (an environment variable).
"""

import asyncio
import os
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer

from bench.tools import load
from bench.tools.broker import BenchBroker, fresh_directory
from bench.tools.report import Report
from bench.tools.s3_bed import S3Bed, s3_bed
from metadata.clients.wire_client import WireClient
from metadata.operations import CommitFile, CreateTopic, FindBatches, TopicDescription
from wal.clock import SystemClock
from wal.coordinates import CREATE_TIME, BatchExtent, ByteOffset, TopicIdPartition
from wal.ulid import mint_ulid, wal_object_key

COMMITS: Final = 300
PAUSE_S: Final = 0.02
IDLE_BROKERS: Final = 5
METADATA_PARTITIONS: Final = 4
SETTLING_S: Final = 150.0
IDLE_S: Final = float(os.environ.get("IDLE_SECONDS", "600"))
_OBJECT_BYTES: Final = 200
_RECORDS: Final = 3


def run_followers(report: Report) -> None:
    """Both figures, on one store."""
    with s3_bed() as bed:
        report.step(f"followers: {COMMITS} commits seen by a broker that follows")
        waits = measure_staleness(bed, commits=COMMITS)
        ordered = sorted(waits)
        report.add(
            "follower_staleness_ms",
            ordered[int(len(ordered) * 0.99)],
            "ms",
            bound="≤ 50",
            note=f"p99 from the acknowledgement on; p50 {ordered[len(ordered) // 2]:.1f}",
        )
        report.step(f"followers: {IDLE_BROKERS} idle brokers for {IDLE_S:.0f} s")
        requests = measure_idle(bed, settling_s=SETTLING_S, seconds=IDLE_S)
    kinds = ", ".join(f"{name} {count}" for name, count in sorted(requests.items()))
    report.add(
        "idle_cluster_requests_per_s",
        sum(requests.values()) / IDLE_S,
        bound="≤ 1",
        note=f"{METADATA_PARTITIONS} metadata partitions, one group; in {IDLE_S:.0f} s: {kinds}",
    )


def measure_staleness(bed: S3Bed, *, commits: int) -> Sequence[float]:
    """Milliseconds from each acknowledgement until the follower has it."""
    with fresh_directory() as directory, ExitStack() as stack:
        leader, follower = _cluster(bed, "staleness", directory, stack, brokers=2, partitions=1)
        return asyncio.run(_staleness(leader, follower, commits))


async def _staleness(leader: BenchBroker, follower: BenchBroker, commits: int) -> list[float]:
    clock, rng = SystemClock(), random.Random(1)
    waits = []
    async with _client(leader) as at_leader, _client(follower) as at_follower:
        (topic,) = await at_leader.create_topics([CreateTopic(name="t", partition_count=1)])
        assert isinstance(topic, TopicDescription)
        partition = TopicIdPartition(topic.topic_id, 0)
        for number in range(1, commits + 1):
            (committed,) = await at_leader.commit_file(
                CommitFile(
                    object_key=wal_object_key(mint_ulid(clock, rng)),
                    file_size_bytes=_OBJECT_BYTES,
                    uploader_broker_id=1,
                    batches=[_batch(partition)],
                )
            )
            assert committed.error is None
            acknowledged = time.perf_counter()
            asked = FindBatches(partition, number * _RECORDS, 1)
            while True:
                (found,) = await at_follower.find_batches([asked], max_bytes=1)
                if found.high_watermark >= number * _RECORDS:
                    break
            waits.append((time.perf_counter() - acknowledged) * 1000)
            await asyncio.sleep(PAUSE_S)
    return waits


def _client(broker: BenchBroker) -> WireClient:
    host, _, port = broker.bootstrap.partition(":")
    return WireClient(host, int(port), clock=SystemClock(), rng=random.Random(2))


def _batch(partition: TopicIdPartition) -> BatchExtent:
    return BatchExtent(
        partition=partition,
        byte_offset=ByteOffset(64),
        length_bytes=100,
        record_count=_RECORDS,
        crc=0,
        max_timestamp_ms=1_000,
        timestamp_type=CREATE_TIME,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        request_id=0,
    )


def measure_idle(bed: S3Bed, *, settling_s: float, seconds: float) -> Mapping[str, int]:
    """Requests to the store by method."""
    with fresh_directory() as directory, ExitStack() as stack:
        brokers = _cluster(
            bed,
            "idle",
            directory,
            stack,
            brokers=IDLE_BROKERS,
            partitions=METADATA_PARTITIONS,
        )
        load.create_topic(brokers[0].bootstrap, load.TOPIC, METADATA_PARTITIONS)
        consumer = Consumer({"bootstrap.servers": brokers[0].bootstrap, "group.id": "bench"})
        stack.callback(consumer.close)
        consumer.subscribe([load.TOPIC])
        _poll(consumer, settling_s)
        before = bed.proxy.passed().requests
        _poll(consumer, seconds)
        after = bed.proxy.passed().requests
    return {name: count - before.get(name, 0) for name, count in after.items()}


def _poll(consumer: Consumer, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        consumer.poll(min(1.0, max(until - time.monotonic(), 0)))


def _cluster(
    bed: S3Bed,
    prefix: str,
    directory: Path,
    stack: ExitStack,
    *,
    brokers: int,
    partitions: int,
) -> Sequence[BenchBroker]:
    """Brokers that run, of one bucket prefix; the first one has begun alone."""
    return [
        stack.enter_context(
            bed.broker(
                directory / f"{node_id}" / "data",
                f"{prefix}-{os.getpid()}",
                {
                    "node.id": node_id,
                    "diskless.metadata.log": "object",
                    "diskless.metadata.topic.num.partitions": partitions,
                },
            )
        )
        for node_id in range(1, brokers + 1)
    ]
