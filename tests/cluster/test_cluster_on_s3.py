"""Three broker processes in three racks on a real S3 server: their leader dies, their store goes.

Every broker leads or follows three metadata partitions, whose logs are in the bucket.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.support.brokers.broker_cluster import Cluster
from tests.support.brokers.live_broker import until
from tests.support.clients.numbered_records import (
    PARTITIONS,
    NumberedProducer,
    assert_each_once,
    everything,
)
from tests.support.exhaustive import IS_EXHAUSTIVE
from tests.support.s3_servers import S3Server, on_every_server
from wal.coordinates import TopicIdPartition

pytestmark = on_every_server

RACKS: Final = {1: "a", 2: "b", 3: "c"}
OUTAGE_S: Final = 60 if IS_EXHAUSTIVE else 10
"""More than the lease of a leader and the session of a broker (`broker_cluster.SETTINGS`)."""


@pytest.fixture
def cluster(s3_server: S3Server, tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        cluster = Cluster(tmp_path, s3_server.url("cluster"), stack)
        for node_id, rack in RACKS.items():
            settings = {"broker.rack": rack, "diskless.metadata.topic.num.partitions": "3"}
            cluster.start(node_id, settings)
        yield cluster


def assert_in_order(bootstrap: str) -> None:
    """In each partition, numbers ascend as they were sent, on offsets without a gap."""
    numbers = everything(bootstrap)
    for partition in range(PARTITIONS):
        stored = sorted((place[1], n) for place, n in numbers.items() if place[0] == partition)
        assert [offset for offset, _ in stored] == list(range(len(stored)))
        assert [number for _, number in stored] == sorted(number for _, number in stored)


def test_killed_leaders_and_a_store_that_goes_away_lose_nothing_that_was_acknowledged(
    cluster: Cluster, s3_server: S3Server
) -> None:
    topic_id = cluster.create(1, "t")
    partitions = [TopicIdPartition(topic_id, index) for index in range(PARTITIONS)]
    producer = NumberedProducer(cluster.bootstrap, client_rack="b")
    producer.send(300)
    until(lambda: polled(producer) > 100, "some are acknowledged")

    assert all(cluster.leads(1, partition) for partition in partitions), "the first one leads"
    cluster.brokers[1].kill()
    producer.send(300)
    producer.flush()

    with s3_server.away():
        producer.send(300)
        ends_at = time.monotonic() + OUTAGE_S
        while time.monotonic() < ends_at:
            producer.poll()
        assert len(producer.acknowledged) == 600
        until(lambda: any_tells_of(s3_server, cluster), "a warning of what cannot be reached")
    producer.flush()
    assert not producer.errors
    for node_id in (2, 3):
        assert_each_once(cluster.brokers[node_id].bootstrap, producer)
    assert_in_order(cluster.brokers[2].bootstrap)
    cluster.start(1)
    assert_each_once(cluster.brokers[1].bootstrap, producer)


def any_tells_of(s3_server: S3Server, cluster: Cluster) -> bool:
    """Whether a broker names an object and where it should be; LocalStack hangs: that takes longer.

    Which of them it is depends on who leads the partitions since the first one died.
    """
    place = f"{s3_server.endpoint}/{s3_server.bucket}/cluster/wal/"
    return s3_server.is_localstack or any(
        "upload failed" in line and place in line
        for node_id in (2, 3)
        for line in cluster.log(node_id).splitlines()
    )


def polled(producer: NumberedProducer) -> int:
    producer.poll()
    return len(producer.acknowledged)
