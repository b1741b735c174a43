"""Brokers on one bucket, as processes, under stock clients: killed, paused and joined by others.

The metadata log is in the object store. Every test runs on a directory as the store and on moto's
S3 server.
"""

import asyncio
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psutil
import pytest
from confluent_kafka import KafkaException, TopicPartition

from metadata.operations import ListedOffset
from tests.support.brokers.broker_cluster import Cluster
from tests.support.brokers.live_broker import until
from tests.support.clients import stock_clients as clients
from tests.support.clients.numbered_records import (
    PARTITIONS,
    NumberedProducer,
    assert_each_once,
    everything,
)
from wal.coordinates import TopicIdPartition
from wal.errors import CommitFailed, CommitOutcomeUnknown, DisklessError, NotCoordinator

ON_S3 = pytest.param("s3", marks=pytest.mark.moto)
ON_S3_TOO = pytest.param("s3", marks=[pytest.mark.moto, pytest.mark.exhaustive])
on_both = pytest.mark.parametrize("cluster", ["directory", ON_S3], indirect=True)
on_a_directory = pytest.mark.parametrize("cluster", ["directory", ON_S3_TOO], indirect=True)
"""What a lease and a fence ask of S3 is tried on it in tests/metadata and tests/faults."""

COMMITTED = {f"group-{number}": number for number in range(1, 4)}
"""The offset that each group has committed; the groups are of both coordinators."""


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    if request.param == "directory":
        url = f"file://{tmp_path}/bucket"
    else:
        endpoint = request.getfixturevalue("moto_endpoint")
        bucket = request.getfixturevalue("moto_bucket")
        url = f"s3://{bucket}/cluster?endpoint_url={endpoint}"
    with ExitStack() as stack:
        yield Cluster(tmp_path, url, stack)


def until_leads(cluster: Cluster, node_id: int, partition: TopicIdPartition) -> None:
    until(lambda: cluster.leads(node_id, partition), f"broker {node_id} leads")


@on_both
def test_what_is_written_through_one_broker_is_read_through_the_other(cluster: Cluster) -> None:
    cluster.start(1)
    cluster.start(2)
    cluster.create(2, "t")
    for node_id in (1, 2):
        until(lambda node_id=node_id: cluster.live_brokers(node_id) == {1, 2}, "both are known")
    first = NumberedProducer(cluster.brokers[1].bootstrap)
    first.send(300)
    first.flush()
    for broker in cluster.brokers.values():
        assert_each_once(broker.bootstrap, first)


@on_a_directory
def test_a_killed_leader_is_replaced_and_every_acknowledged_record_is_there_once(
    cluster: Cluster,
) -> None:
    for node_id in (1, 2, 3):
        cluster.start(node_id)
    topic_id = cluster.create(1, "t")
    partitions = [TopicIdPartition(topic_id, index) for index in range(PARTITIONS)]
    assert all(cluster.leads(1, partition) for partition in partitions), "the first one leads"
    producer = NumberedProducer(cluster.bootstrap)
    producer.send(300)
    until(lambda: _polled(producer) > 100, "some are acknowledged")
    for group, offset in COMMITTED.items():
        with closing(clients.confluent_consumer(cluster.bootstrap, group_id=group)) as consumer:
            consumer.commit(offsets=[TopicPartition("t", 0, offset)], asynchronous=False)
    cluster.brokers[1].kill()
    producer.send(300)
    for partition in partitions:
        until(
            lambda partition=partition: any(cluster.leads(n, partition) for n in (2, 3)),
            "another one leads",
        )
    producer.flush()
    for group, offset in COMMITTED.items():
        until(lambda group=group: _committed(cluster, group) is not None, f"OffsetFetch of {group}")
        assert _committed(cluster, group) == offset
    until(lambda: 1 not in cluster.live_brokers(2), "the dead broker is taken out")
    assert_each_once(cluster.brokers[2].bootstrap, producer)
    cluster.start(1)
    assert_each_once(cluster.brokers[1].bootstrap, producer)


def _committed(cluster: Cluster, group: str) -> int | None:
    """The offset that a new client of a group is told; None when nobody answers."""
    with closing(clients.confluent_consumer(cluster.bootstrap, group_id=group)) as consumer:
        try:
            (found,) = consumer.committed([TopicPartition("t", 0)], timeout=2)
        except KafkaException:
            return None
    return None if found.error else int(found.offset)


def _polled(producer: NumberedProducer) -> int:
    producer.poll()
    return len(producer.acknowledged)


@on_a_directory
def test_a_leader_that_was_paused_past_its_lease_acknowledges_nothing(cluster: Cluster) -> None:
    old = cluster.start(1)
    cluster.start(2)
    partition = TopicIdPartition(cluster.create(1, "t"), 0)
    # A paused broker's sockets stay open: only a time-out tells the client to look elsewhere.
    producer = NumberedProducer(cluster.brokers[2].bootstrap, socket_timeout_ms=2_000)
    producer.send(30)
    producer.flush()
    assert cluster.leads(1, partition)
    before = everything(cluster.brokers[2].bootstrap)

    psutil.Process(old.pid).send_signal(signal.SIGSTOP)
    until_leads(cluster, 2, partition)
    producer.send(30)
    producer.flush()

    async def wake_up() -> tuple[object, object]:
        # Both requests are in the old leader's socket when it wakes, before anything else.
        asked = asyncio.ensure_future(cluster.commit_and_read(1, partition))
        await asyncio.sleep(0.2)
        psutil.Process(old.pid).send_signal(signal.SIGCONT)
        return await asked

    commit, read = asyncio.run(wake_up())
    assert _is_refused(commit), commit
    assert _is_refused(read), read
    # It was taken out of the cluster, and comes back.
    for node_id in (1, 2):
        until(lambda node_id=node_id: cluster.live_brokers(node_id) == {1, 2}, "it is back")
    assert len(everything(cluster.brokers[2].bootstrap)) == len(before) + 30
    assert_each_once(cluster.brokers[2].bootstrap, producer)
    until(
        lambda: (
            isinstance(cluster.ask(1, partition), ListedOffset)
            and isinstance(cluster.ask(1, partition).error, NotCoordinator)
        ),  # type: ignore[union-attr]
        "the old leader says that it does not lead",
    )
    assert_each_once(old.bootstrap, producer)


def _is_refused(answer: object) -> bool:
    error = answer if isinstance(answer, DisklessError) else getattr(answer, "error", None)
    return isinstance(error, (NotCoordinator, CommitFailed, CommitOutcomeUnknown))


@on_a_directory
def test_a_broker_that_stops_hands_over_without_anyone_waiting_for_its_lease(
    cluster: Cluster,
) -> None:
    leases = {"diskless.coordinator.lease.ms": "600000"}
    cluster.start(1, leases)
    cluster.start(2, leases)
    partition = TopicIdPartition(cluster.create(1, "t"), 0)
    cluster.brokers[1].stop()
    until_leads(cluster, 2, partition)
    producer = NumberedProducer(cluster.brokers[2].bootstrap)
    producer.send(30)
    producer.flush()
    assert_each_once(cluster.brokers[2].bootstrap, producer)


@on_both
def test_all_brokers_lose_their_disks_and_the_bucket_has_everything(
    cluster: Cluster, remove_data: Callable[[int], None]
) -> None:
    for node_id in (1, 2):
        cluster.start(node_id)
    cluster.create(1, "t")
    producer = NumberedProducer(cluster.bootstrap)
    producer.send(300)
    producer.flush()
    for node_id in (1, 2):
        cluster.brokers[node_id].kill()
        remove_data(node_id)
    cluster.start(2)
    # A request that librdkafka has queued for a broker it was told of stays with that broker.
    until(lambda: cluster.live_brokers(2) == {2}, "the broker that is gone is taken out")
    assert_each_once(cluster.brokers[2].bootstrap, producer)


@pytest.fixture
def remove_data(tmp_path: Path) -> Callable[[int], None]:
    return lambda node_id: shutil.rmtree(tmp_path / f"data-{node_id}")
