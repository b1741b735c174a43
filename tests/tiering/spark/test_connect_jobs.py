"""The job over Spark Connect: a server of somebody else, and no Java where the job runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.brokers.live_broker import LiveBroker
from tests.support.clients import stock_clients as clients
from tests.support.tiers.rolled import roll_everything
from tests.support.tiers.spark_connect_server import spark_connect_server
from wal.failpoint import ENVIRONMENT_VARIABLE

pytestmark = [pytest.mark.spark, pytest.mark.exhaustive]

REPOSITORY = Path(__file__).resolve().parents[3]
SETTINGS = {"diskless.file.delete.grace.ms": "0", "diskless.file.cleaner.interval.ms": "50"}
KEYS = 5
ROUNDS = 9


def without_java(directory: Path) -> dict[str, str]:
    """An environment for the job, whose packages are found by their path."""
    nowhere = {"JAVA_HOME": str(directory / "no-java"), "PATH": str(directory)}
    return {**os.environ, **nowhere, "PYTHONPATH": str(REPOSITORY)}


def produce(broker: LiveBroker) -> None:
    """A record for each key, to both topics."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(KEYS):
        for topic in ("flights", "boards"):
            producer.produce(topic, b"value", b"%d" % number)
    assert producer.flush(30) == 0


def offsets_of(broker: LiveBroker, topic: str) -> list[int]:
    """Of all records that a consumer gets."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "connect"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    (_, end) = consumer.get_watermark_offsets(TopicPartition(topic, 0))
    found: list[int] = []
    while not found or found[-1] < end - 1:
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        found.append(message.offset() or 0)
    consumer.close()
    return found


def test_one_job_rolls_merges_and_compacts_though_each_task_is_killed_once(tmp_path: Path) -> None:
    with LiveBroker(tmp_path / "data", SETTINGS) as broker:
        admin = clients.confluent_admin(broker.bootstrap)
        clients.create_topic(admin, "flights")
        compact = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0"}
        clients.create_topic(admin, "boards", **compact)
        for _ in range(ROUNDS - 1):
            produce(broker)
            roll_everything(broker)
        produce(broker)
        with spark_connect_server(tmp_path) as server:
            points = (f"{step}.after_put=kill" for step in ("roll", "merge", "compact"))
            tier = subprocess.run(
                [
                    *(sys.executable, "-m", "diskless.cli.cli", "tier", "--once", "--all"),
                    *("--bootstrap", broker.bootstrap, "--remote", server.remote),
                ],
                env=without_java(tmp_path) | {ENVIRONMENT_VARIABLE: ",".join(points)},
                check=False,
                capture_output=True,
                text=True,
            )
        assert tier.returncode == 0, tier.stdout + tier.stderr
        assert offsets_of(broker, "flights") == [*range(ROUNDS * KEYS)]
        assert offsets_of(broker, "boards") == [*range((ROUNDS - 1) * KEYS, ROUNDS * KEYS)]
        names = [path.name for path in tmp_path.rglob("topic=flights/**/*.parquet")]
        assert f"{0:020}-{ROUNDS * KEYS - 1:020}-1.parquet" in names, "nothing was merged"


ROLL = """
import json, os, sys
from uuid import UUID
from metadata.operations import SegmentPlan
from tiering.rounds import Failed
from tiering.spark import drivers
from tiering.spark.roller import SparkRoller
from wal.coordinates import Offset, TopicIdPartition
from wal.errors import InvalidSettings

remote, store = sys.argv[1:]
# A server that is away is tried once more, at once.
drivers.CONNECT_RETRIES_MAX = 1

def plan_of(base):
    partition = TopicIdPartition(UUID(int=1), 0)
    return SegmentPlan(
        partition=partition, topic_name="flights", object_key="segments/%d" % base,
        base_offset=Offset(base), last_offset=Offset(base), extents=[],
    )

def work(plan, store):
    if plan.base_offset == 2:
        os.kill(os.getpid(), 9)
    return plan.base_offset

told = []

def say_what_becomes_of_plans(roller):
    results = roller.each(work, [plan_of(base) for base in range(4)], store, told.append)
    said = [one.reason if isinstance(one, Failed) else one.made for one in results]
    print(json.dumps([said, told, roller.is_alive]), flush=True)

def say_what_is_refused(**settings):
    try:
        SparkRoller(remote=remote + "/;token=secret", **settings).session
    except InvalidSettings as error:
        print(json.dumps(str(error)), flush=True)

say_what_is_refused(spark_settings={"spark.executor.memory": "1g"})
with SparkRoller(remote=remote) as roller:
    say_what_becomes_of_plans(roller)
    input()
    say_what_becomes_of_plans(roller)
say_what_is_refused()
"""


def test_a_plan_that_kills_its_tasks_fails_alone_and_a_server_that_dies_fails_all(
    tmp_path: Path,
) -> None:
    with (
        spark_connect_server(tmp_path) as server,
        subprocess.Popen(
            [sys.executable, "-c", ROLL, server.remote, tmp_path.as_uri()],
            env=without_java(tmp_path),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as job,
    ):
        assert job.stdout is not None
        setting = json.loads(job.stdout.readline())
        results, told, is_alive = json.loads(job.stdout.readline())
        server.process.kill()
        server.process.wait()
        rest, _ = job.communicate("the server is gone\n")
        after, _, is_alive_after = json.loads(rest.splitlines()[0])
        away = json.loads(rest.splitlines()[1])
    assert "spark.executor.memory cannot be set by a session of Spark Connect" in setting
    assert [*results[:2], results[3]] == [0, 1, 3]
    assert results[2].startswith("its Spark task died: ")
    assert is_alive
    assert max(told) <= 4
    assert all("its Spark task died" in str(reason) for reason in after)
    assert not is_alive_after
    assert away.startswith(f"the Spark Connect server {server.remote}/ cannot be used: ")
    assert "secret" not in setting + away
