"""A topic as a table for Spark: it reads what DuckDB and PyIceberg read (test_table_steps.py).

Of the newest Spark that Iceberg has a runtime for; Maven brings both. The program `spark-sql` is in
PySpark of that release, which cannot be installed beside the one that the project runs on.
"""

import os
import random
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from demo.lake import open_duckdb
from tests.support.brokers.live_broker import LiveBroker
from tests.support.clients.jvm import JvmUnavailable
from tests.support.profiles import IS_EXHAUSTIVE
from tests.support.tiers.spark_tables import SPARK_LINE, CommandLine, SparkTables, spark_tables
from tests.support.tiers.table_engines import (
    catalogue_url,
    expected_facts,
    told_by_duckdb,
    told_by_pyiceberg,
    told_by_spark,
)
from tests.support.tiers.topic_table import PARTITIONS, RANGE_MS, START_MS, TopicTable

pytestmark = pytest.mark.jvm

REPOSITORY: Final = Path(__file__).parents[3]
PAGE: Final = REPOSITORY / "docs" / "tables.md"
STEPS: Final = 200 if IS_EXHAUSTIVE else 9
COMPARED_EVERY: Final = 40 if IS_EXHAUSTIVE else STEPS


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LiveBroker]:
    settings = {"http.listen": "127.0.0.1:0", "log.retention.check.interval.ms": "3600000"}
    with LiveBroker(tmp_path / "data", settings) as running:
        yield running


@pytest.fixture
def spark(broker: LiveBroker) -> Iterator[SparkTables]:
    try:
        with spark_tables(catalogue_url(broker)) as running:
            yield running
    except JvmUnavailable as missing:
        pytest.skip(str(missing))


def test_spark_sees_what_the_other_engines_see(broker: LiveBroker, spark: SparkTables) -> None:
    assert spark.version.startswith(f"{SPARK_LINE}.")
    rng = random.Random(7)
    topic = TopicTable(broker, "steps", rng)
    lake = open_duckdb()
    for number in range(STEPS):
        step = topic.steps[number] if number < len(topic.steps) else rng.choice(topic.steps)
        step()
        topic.run_pass()
        if (number + 1) % COMPARED_EVERY == 0:
            cut_ms = START_MS + rng.randrange(RANGE_MS)
            expected = expected_facts(topic, cut_ms)
            assert told_by_spark(spark, topic, cut_ms) == expected, (number, step)
            assert told_by_duckdb(lake, topic, cut_ms) == expected, (number, step)
            assert told_by_pyiceberg(topic, cut_ms) == expected, (number, step)
    assert topic.merged
    found = spark.sql(CommandLine.of_the_page().query.replace(".flights", ".steps"))
    rows = topic.expected()
    assert sorted(tuple(row.values()) for row in found) == [
        (partition, len(offsets), max(offsets))
        for partition in range(PARTITIONS)
        if (offsets := [row.offset for where, row in rows if where == partition])
    ]
    (view,) = re.findall(r"```sql\n(create temporary view.*?)```", PAGE.read_text(), re.S)
    spark.sql(view.replace(".flights", ".steps"))
    (latest,) = spark.sql("select count(*) as count, max(offset) as last from latest_flights")
    newest = {where: row.offset for where, row in rows}  # all have one key
    assert (latest["count"], latest["last"]) == (len(newest), max(newest.values()))
    with pytest.raises(AssertionError, match="does not support endpoint"):
        spark.sql("delete from lake.topics.steps")


@pytest.mark.exhaustive
def test_the_line_of_the_page_runs_as_it_is(broker: LiveBroker, tmp_path: Path) -> None:
    """By the program `spark-sql` itself, which brings the runtime that the line names."""
    home = REPOSITORY / "build" / f"spark-{SPARK_LINE}" / "pyspark"
    if not (home / "bin" / "spark-sql").exists():
        pytest.skip(
            f"Spark {SPARK_LINE} is not there; to bring it: .venv/bin/pip install --no-deps"
            f" --target build/spark-{SPARK_LINE} 'pyspark=={SPARK_LINE}.*'"
        )
    topic = TopicTable(broker, "flights", random.Random(7))
    topic.steps[0]()
    topic.run_pass()
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    finished = subprocess.run(
        ["bash", "-c", CommandLine.text().replace("http://localhost:9644", catalogue_url(broker))],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    rows = sorted(tuple(map(int, line.split())) for line in finished.stdout.splitlines())
    assert rows == [
        (partition, len(found), found[-1].offset) for partition, found in topic.rows.items()
    ]
