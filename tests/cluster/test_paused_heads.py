"""Two brokers of two workers each; the head of the one that leads is paused, its workers are not.

These have connections and chunks as before, but nobody who commits for them or tells them what
others have committed meanwhile, until they end for its silence. The metadata log is in a directory
that both brokers use.
"""

import asyncio
import os
import signal
import time
from collections import Counter
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Message, TopicPartition

from demo.broker_process import BrokerProcess
from tests.support.brokers.broker_cluster import Cluster
from tests.support.brokers.killed_workers import is_alive, workers_of
from tests.support.brokers.live_broker import DEADLINE_S, until
from tests.support.chunks.batch_builder import Row, build_batch
from tests.support.clients import stock_clients as clients
from tests.support.clients.numbered_records import (
    PARTITIONS,
    NumberedProducer,
    assert_each_once,
)
from tests.support.questions.kafka_raw_client import RawClient
from wal.coordinates import TopicIdPartition

PAUSE_S: Final = 30.0
CONNECTIONS: Final = 4
"""Of each kind, at the broker whose head is paused: each worker has some."""
UNDER_WAY_MAX: Final = 200
PRODUCE, LIST_OFFSETS, METADATA = 0, 2, 3
LATEST: Final = -1
SETTINGS: Final = {
    "broker.workers": "2",
    "broker.workers.active.min": "2",
    "diskless.metadata.topic.num.partitions": "1",
}
# The sockets of a paused broker stay open: only a time-out tells a client to look elsewhere.
IMPATIENT: Final = {"socket_timeout_ms": 2_000}


class Load:
    """An idempotent producer and a reader, at all brokers."""

    def __init__(self, bootstrap: str) -> None:
        self.producer = NumberedProducer(bootstrap, **IMPATIENT)
        self._reader: Consumer = clients.confluent_consumer(bootstrap, **IMPATIENT)
        self._reader.assign([TopicPartition("t", index, 0) for index in range(PARTITIONS)])
        self.read: list[tuple[tuple[int, int], int]] = []
        """Place and number of each record, as they came."""

    def go_on(self) -> None:
        """Send a few more, read what is there."""
        if self.producer.sent - len(self.producer.acknowledged) < UNDER_WAY_MAX:
            self.producer.send(PARTITIONS)
        self.producer.poll()
        self._read()

    async def until_newer_ones_are_read(self) -> None:
        """Go on until the reader has something that is sent from now on, acknowledged."""
        first = self.producer.sent
        async with asyncio.timeout(DEADLINE_S):
            while not any(number >= first for _, number in self.read[-UNDER_WAY_MAX:]):
                self.go_on()
                await asyncio.sleep(0)

    def end_of(self, partition: int) -> int:
        """Where a partition ends at least: behind what was acknowledged."""
        offsets = [at for there, at in self.producer.acknowledged.values() if there == partition]
        return max(offsets, default=-1) + 1

    def finish(self) -> None:
        """Everything is acknowledged, and was read once, in order."""
        self.producer.flush()
        until(self._has_read_all, "the reader to have everything that was acknowledged")
        self._reader.close()
        assert {number: place for place, number in self.read} == self.producer.acknowledged
        assert len(self.read) == self.producer.sent
        for partition in range(PARTITIONS):
            there = [(place[1], number) for place, number in self.read if place[0] == partition]
            assert [offset for offset, _ in there] == list(range(len(there)))
            assert [number for _, number in there] == sorted(number for _, number in there)

    def _has_read_all(self) -> bool:
        self._read()
        return len(self.read) >= self.producer.sent

    def _read(self) -> None:
        messages: list[Message] = self._reader.consume(1_000, timeout=0.005)
        for message in messages:
            if message.error() is None:
                self.read.append((clients.place_of(message), int(clients.value_of(message))))


async def connections(broker: BrokerProcess) -> list[RawClient]:
    """Connections that workers have taken."""
    host, _, port = broker.bootstrap.rpartition(":")
    found = [await RawClient.connect((host, int(port))) for _ in range(CONNECTIONS)]
    for client in found:
        await client.ask(METADATA, 12, topics=[])
    return found


async def produced(client: RawClient, value: bytes) -> int | None:
    """Offset of one record for the topic `raw`; None: it was not acknowledged."""
    batch = {"index": 0, "records": build_batch([Row(value=value)])}
    try:
        answer = await client.ask(
            PRODUCE,
            9,
            transactional_id=None,
            acks=-1,
            timeout=timedelta(seconds=2 * PAUSE_S),
            topic_data=[{"name": "raw", "partition_data": [batch]}],
        )
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    ((row,),) = (one.partition_responses for one in answer.responses)
    return None if int(row.error_code) else int(row.base_offset)


async def latest(client: RawClient) -> int | None:
    """Where partition 0 of the topic `t` ends; None: it was not said."""
    place = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": LATEST}
    topic: dict[str, Any] = {"name": "t", "partitions": [place]}
    try:
        answer = await client.ask(LIST_OFFSETS, 5, replica_id=-1, isolation_level=0, topics=[topic])
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    ((row,),) = (one.partitions for one in answer.topics)
    return None if int(row.error_code) else int(row.offset)


def raw_values(bootstrap: str) -> dict[int, bytes]:
    """What the topic `raw` has, by offset."""
    place = TopicPartition("raw", 0, 0)
    with closing(clients.confluent_consumer(bootstrap)) as consumer:
        consumer.assign([place])
        _, end = consumer.get_watermark_offsets(place, timeout=DEADLINE_S)
        found: dict[int, bytes] = {}
        while len(found) < end:
            for message in consumer.consume(end - len(found), timeout=DEADLINE_S):
                found[clients.place_of(message)[1]] = clients.value_of(message)
    return found


@pytest.mark.exhaustive
async def test_workers_of_a_paused_head_acknowledge_nothing_and_tell_no_old_ends(
    tmp_path: Path,
) -> None:
    with ExitStack() as stack:
        cluster = Cluster(tmp_path, f"file://{tmp_path}/bucket", stack)
        for node_id in (1, 2):
            cluster.start(node_id, SETTINGS)
        partition = TopicIdPartition(cluster.create(1, "t"), 0)
        cluster.create(1, "raw", 1)
        for node_id in (1, 2):
            until(lambda node_id=node_id: cluster.live_brokers(node_id) == {1, 2}, "both are known")
        is_first = await asyncio.to_thread(cluster.leads, 1, partition)
        leads = 1 if is_first else 2
        paused, other = cluster.brokers[leads], cluster.brokers[3 - leads]
        workers = workers_of(paused)
        load = Load(cluster.bootstrap)
        await load.until_newer_ones_are_read()
        producers, askers = await connections(paused), await connections(paused)
        values = [b"of connection %d" % number for number in range(CONNECTIONS)]

        os.kill(paused.pid, signal.SIGSTOP)
        paused_at = time.monotonic()
        try:
            productions = [
                asyncio.ensure_future(produced(client, value))
                for client, value in zip(producers, values, strict=True)
            ]
            await load.until_newer_ones_are_read()
            ends_at_least = load.end_of(0)
            ends = [asyncio.ensure_future(latest(client)) for client in askers]
            while time.monotonic() < paused_at + PAUSE_S:
                await load.until_newer_ones_are_read()
            answered = [*productions, *ends]
            assert not any(one.done() and one.result() is not None for one in answered)
            until(lambda: not any(map(is_alive, workers)), "workers to end without their head")
        finally:
            os.kill(paused.pid, signal.SIGCONT)

        answers = await asyncio.gather(*productions)
        for end in await asyncio.gather(*ends):
            assert end is None or end >= ends_at_least
        await load.until_newer_ones_are_read()
        for client in (*producers, *askers):
            await client.close()
        until(lambda: len(workers_of(paused)) == len(workers), "the head to have others")
        for node_id in (1, 2):
            until(lambda node_id=node_id: cluster.live_brokers(node_id) == {1, 2}, "it is back")
        load.finish()
        for broker in (paused, other):
            assert_each_once(broker.bootstrap, load.producer)
            stored = raw_values(broker.bootstrap)
            assert max(Counter(stored.values()).values(), default=1) == 1
            assert set(stored.values()) <= set(values)
            for value, offset in zip(values, answers, strict=True):
                assert offset is None or stored[offset] == value
