"""A Spark session with Spark's Kafka source and sink, in a process of its own: the child.

`python -m tests.support.tiers.spark_kafka_session JARS` reads one JSON list per line, the name of a
function of this file and its arguments, and writes its result as one JSON line. A function that
fails ends the process. Spark's own output goes to standard error. (A process has one session, and
that of the other tests has other jars.)
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

DEADLINE_S: Final = 240

Options = dict[str, str]


class Jobs:
    """What the tests ask for; all of it is Spark's own, nothing of this project."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        self._query: StreamingQuery | None = None

    def read(self, options: Options) -> list[list[Any]]:
        """A batch: (partition, offset, key, value, timestamp in ms, headers) in log order."""
        frame = self.session.read.format("kafka").options(**options).load()
        rows = frame.selectExpr(
            "partition",
            "offset",
            "cast(key as string)",
            "cast(value as string)",
            "unix_millis(timestamp)",
            "transform(headers, header -> array(header.key, cast(header.value as string)))",
            "timestampType",
        ).collect()
        return sorted([list(row) for row in rows], key=lambda row: row[:2])

    def write(self, options: Options, count: int) -> int:
        """A batch of `count` records with keys and headers into the sink."""
        self.session.range(count).selectExpr(
            "cast(concat('key ', id) as binary) as key",
            "cast(concat('value ', id) as binary) as value",
            "array(named_struct('key', 'n', 'value', cast(cast(id as string) as binary)))"
            " as headers",
        ).write.format("kafka").options(**options).save()
        return count

    def copy_available(self, source: Options, sink: Options, checkpoint: str) -> list[int]:
        """A query that copies what is there and ends; how many rows each of its batches had."""
        query = self._copy(source, sink, checkpoint).trigger(availableNow=True).start()
        assert query.awaitTermination(DEADLINE_S), "the query does not end"
        return [progress["numInputRows"] for progress in query.recentProgress]

    def start_copying(self, source: Options, sink: Options, checkpoint: str) -> None:
        """A query that goes on until `stop_copying`."""
        self._query = self._copy(source, sink, checkpoint).start()

    def process_all(self) -> dict[str, Any]:
        """Wait until the query has everything; its last offsets by topic."""
        assert self._query is not None
        self._query.processAllAvailable()
        ends = [p["sources"][0]["endOffset"] for p in self._query.recentProgress]
        last: dict[str, Any] = ends[-1] if isinstance(ends[-1], dict) else json.loads(ends[-1])
        return last

    def stop_copying(self) -> None:
        assert self._query is not None
        self._query.stop()

    def _copy(self, source: Options, sink: Options, checkpoint: str) -> Any:
        rows: DataFrame = self.session.readStream.format("kafka").options(**source).load()
        return (
            rows.select("key", "value", "headers")
            .writeStream.format("kafka")
            .options(**sink)
            .option("checkpointLocation", checkpoint)
        )


def main() -> None:
    """Serve requests until there are no more."""
    # Spark and its tasks write what they like to standard output.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    jars = sorted(str(jar) for jar in Path(sys.argv[1]).glob("*.jar"))
    settings = {
        "spark.master": "local[2]",
        "spark.jars": ",".join(jars),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
    }
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    jobs = Jobs(session)
    try:
        for line in sys.stdin:
            name, *arguments = json.loads(line)
            work: Callable[..., Any] = getattr(jobs, name)
            answers.write(json.dumps(work(*arguments)) + "\n")
            answers.flush()
    finally:
        session.stop()


if __name__ == "__main__":
    main()
