"""The commands of docs/tables.md, from the top of the page to its end, on one broker.

What a reader has to put in, addresses, directories and options that were given before, is put in;
nothing else is changed. But in the test of the job itself, rolls and table passes run in this
process, where the page has `diskless tier`. Spark 4.1 reads tables as the page says in
tests/tiering/tables/test_table_spark.py, and the view of a compacted topic is in
tests/tiering/test_latest_view.py.
"""

import ast
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame

from demo.lake import open_duckdb
from diskless.cli.cli import _parser, main
from metadata.operations import PlanSegments
from metadata.table_operations import ListTables
from tests.support.brokers.live_broker import LiveBroker, until
from tests.support.ports import own_port
from tests.support.tiers.table_engines import catalogue_url
from tests.support.tiers.topic_table import roll_typed
from tiering.coordinator_client import CoordinatorClient
from tiering.jobs.rolls import roll_once
from tiering.spark.roller import SparkRoller
from tiering.tables.passes import TablePasses
from wal.clock import SystemClock

REPOSITORY: Final = Path(__file__).parents[3]
PAGE: Final = (REPOSITORY / "docs" / "tables.md").read_text("utf-8")
SCHEMA: Final = {
    "type": "object",
    "properties": {"carrier": {"type": "string"}, "delay": {"type": "integer"}},
}
pytestmark = pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated")

DECEMBER_MS: Final = 1_796_083_200_000
"""Of 2026, behind what conditions of the page ask for."""
PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"


class Reader:
    """Somebody who types in what the page shows."""

    def __init__(self, broker: LiveBroker, directory: Path) -> None:
        self.broker = broker
        self.directory = directory
        self.names: dict[str, Any] = {}
        self._given = {
            "localhost:9092": broker.bootstrap,
            "http://localhost:9644": catalogue_url(broker),
            "s3a://bucket/prefix": broker.broker.storage.store.url,
            "127.0.0.1:9645": f"127.0.0.1:{own_port()}",
            "/data/objects": str(directory / "broker" / "objects"),
            "/data/": f"{directory}/",
            "  # and the others": (
                f'.option("bootstrap", "{broker.bootstrap}").option("topic", "flights")'
            ),
        }

    def block(self, language: str, part: str) -> str:
        """The one block of the page that has `part`, with what a reader puts in."""
        blocks = re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL)
        (text,) = [text for written_in, text in blocks if written_in == language and part in text]
        for shown, put_in in self._given.items():
            text = text.replace(shown, put_in)
        return str(text)

    def python(self, part: str) -> Any:
        """Run a block; its last expression is what it comes to."""
        tree = ast.parse(self.block("python", part))
        last = tree.body[-1]
        if not isinstance(last, ast.Expr):
            exec(compile(tree, part, "exec"), self.names)
            return None
        body = ast.Module(tree.body[:-1], [])
        exec(compile(body, part, "exec"), self.names)
        return eval(compile(ast.Expression(last.value), part, "eval"), self.names)

    def shell(self, part: str) -> None:
        """Run the lines of a block that are commands for brokers, and parse those of jobs."""
        for line in self.block("sh", part).splitlines():
            words = shlex.split(line, comments=True)
            if words[:2] == ["diskless", "tier"]:
                _parser().parse_args(words[1:])
            elif words[:1] == ["diskless"]:
                assert main([*words[1:], "--bootstrap", self.broker.bootstrap]) == 0

    @contextmanager
    def job(self, part: str) -> Iterator[subprocess.Popen[bytes]]:
        """A process of the one line of a block, which ends as the page says."""
        words = shlex.split(self.block("sh", part))
        assert words[:2] == ["diskless", "tier"]
        command = [sys.executable, "-m", "diskless.cli.cli", *words[1:]]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        with (self.directory / "tier.log").open("wb") as log:
            process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True
            )
            try:
                yield process
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def produce(self, count: int, topic: str = "flights") -> None:
        producer = Producer({"bootstrap.servers": self.broker.bootstrap})
        for number in range(count):
            value = json.dumps({"carrier": "UA" if number % 2 else "AA", "delay": number})
            producer.produce(topic, value, str(number), timestamp=DECEMBER_MS)
        assert producer.flush(30) == 0

    def roll(self, topic: str = "flights") -> None:
        asked = PlanSegments(include_partial=True, topics=(topic,))
        client = CoordinatorClient(self.broker.bootstrap)
        report = roll_once(client, roll_typed, asked=asked)
        assert report.segments, report

    def write_tables(self) -> None:
        with TablePasses(
            CoordinatorClient(self.broker.bootstrap),
            ListTables(),
            object_store_url=None,
            clock=SystemClock(),
            rng=random.Random(1),
        ) as passes:
            assert not passes.run_pass().failures


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """It has typed a topic, which has 40 records in a segment."""
    monkeypatch.chdir(tmp_path)
    Path("flight.json").write_text(json.dumps(SCHEMA))
    settings = {"http.listen": "127.0.0.1:0", "log.retention.ms": "-1"}
    settings["log.message.timestamp.after.max.ms"] = str(2**63 - 1)
    # What was replaced goes at once.
    settings |= {"diskless.file.delete.grace.ms": "0", "diskless.file.cleaner.interval.ms": "50"}
    with LiveBroker(tmp_path / "broker", settings) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        names = ("flights", "flights-as-json", "boards")
        made = admin.create_topics([NewTopic(name, 1) for name in names])
        assert [future.result(30) for future in made.values()] == [None] * len(names)
        reader = Reader(broker, tmp_path)
        reader.shell("--set value.schema=@flight.json")
        reader.produce(40)
        reader.roll()
        yield reader


def averages(frame: DataFrame) -> dict[str, float]:
    return {row[0]: row[1] for row in frame.collect()}


def test_tables_are_read_as_the_page_says(reader: Reader) -> None:
    reader.shell("table.enabled=true")
    reader.write_tables()
    with open_duckdb() as lake:
        counts = lake.execute(reader.block("sql", "ATTACH")).fetchall()
        typed = "select carrier, avg(delay) from (select unnest(data) from lake.topics.flights)"
        assert dict(lake.execute(f"{typed} group by all").fetchall()) == {"AA": 19.0, "UA": 20.0}
        lake.execute(reader.block("sql", "view latest_flights"))
        (latest,) = lake.execute("select count(*), max(key) from latest_flights").fetchall()
    assert counts == [(0, 40, 39)]
    assert latest == (40, b"9")
    assert reader.python("RestCatalog").num_rows == 40


@pytest.mark.spark
@pytest.mark.exhaustive
def test_one_job_merges_and_compacts_and_ends_as_the_page_says(reader: Reader) -> None:
    if shutil.which("curl") is None:
        pytest.skip("the page's command needs curl: apt-get install curl")
    reader.shell("cleanup.policy=compact")
    for _ in range(9):
        reader.produce(5)
        reader.roll()
        reader.produce(5, "boards")
        reader.roll("boards")

    def files(topic: str) -> int:
        query = reader.block("sql", "as files from glob").replace("topic=flights", f"topic={topic}")
        (found,) = duckdb.sql(query).fetchall()
        return int(found[0])

    assert (files("flights"), files("boards")) == (10, 9)
    with reader.job("--interval 5") as process:
        log = reader.directory / "tier.log"

        def done() -> set[str]:
            assert process.poll() is None, log.read_text()
            told = subprocess.run(
                ["bash", "-c", reader.block("sh", "curl -s")], stdout=subprocess.PIPE, check=False
            ).stdout.decode()
            return set(re.findall(r'job="(\w+)"\} [1-9]', told))

        until(
            lambda: done() >= {"merge", "compact"},
            "the job has merged and compacted",
            deadline_s=120,
        )
        until(lambda: files("flights") < 8 and files("boards") < 8, "what was replaced is deleted")
        process.terminate()
        assert process.wait(60) == 0, log.read_text()

    def consumed(topic: str) -> list[int]:
        """The offsets that are there."""
        consumer = Consumer({"bootstrap.servers": reader.broker.bootstrap, "group.id": "page"})
        with closing(consumer):
            consumer.assign([TopicPartition(topic, 0, 0)])
            (_, end) = consumer.get_watermark_offsets(TopicPartition(topic, 0))
            found: list[int] = []
            while not found or found[-1] < end - 1:
                message = consumer.poll(30)
                assert message is not None
                assert message.error() is None
                found.append(message.offset() or 0)
        return found

    assert consumed("flights") == [*range(85)]
    assert consumed("boards") == [*range(40, 45)]


@pytest.mark.spark
@pytest.mark.exhaustive
def test_spark_reads_and_writes_as_the_page_says(reader: Reader, spark_roller: SparkRoller) -> None:
    spark = spark_roller.session
    reader.names["spark"] = spark
    delays = {"AA": 19.0, "UA": 20.0}
    assert averages(reader.python("spark.read.parquet")) == delays

    reader.produce(40)
    reader.python("register(spark)")
    flights: DataFrame = reader.names["flights"]
    assert averages(reader.python('"*,data,data_error"')) == delays
    reader.python('"pushdown", "true"')
    assert reader.names["flights"].load().where("partition = 0 and offset >= 75").count() == 5
    spark.conf.unset(PUSHDOWN)

    reader.python('"maxOffsetsPerTrigger"')
    reader.names["query"].awaitTermination(120)
    assert pq.read_table(reader.directory / "flights").num_rows == 80

    reader.names["flights"] = flights
    reader.python('"flights-as-json"')
    written = spark.read.format("diskless").option("topic", "flights-as-json")
    assert written.option("bootstrap", reader.broker.bootstrap).load().count() == 80
