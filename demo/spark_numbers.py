"""What a data engineer computes with Spark's data source: `python -m demo.spark_numbers BOOTSTRAP`.

The topics are read as `format("diskless")`, Parquet and what is not rolled yet as one table. A
process of its own, started by `demo.main`, so that the JVM ends with it. Prints the numbers as one
line of JSON; `parse_numbers` reads it again.
"""

import json
import sys
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from demo.events import CarrierNumbers, Numbers
from tiering.source import register

MARK: Final = "numbers: "
"""Precedes the JSON, since Spark writes what it likes to the same log."""

_FLIGHT: Final = "carrier string, dep_delay bigint, distance bigint"
_OBSERVATION: Final = "origin string, wind_dir bigint"


def compute(bootstrap: str) -> Numbers:
    """The same numbers as `demo.events.reference_numbers`, from the topics."""
    spark = session()
    register(spark)

    def topic(name: str) -> DataFrame:
        options = {"bootstrap": bootstrap, "topic": name, "columns": "value"}
        return spark.read.format("diskless").options(**options).load()

    try:
        return numbers_of(topic("flights"), topic("weather"))
    finally:
        spark.stop()


def session() -> SparkSession:
    """A small Spark, in this process."""
    return (
        SparkSession.builder.master("local[2]")
        .appName("diskless demo")
        .config("spark.ui.enabled", "false")
        # A minute's work: what an optimising compiler takes, it does not give back.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )


def numbers_of(flights: DataFrame, weather: DataFrame) -> Numbers:
    """From the records of both topics; of them it needs the column `value`."""
    carriers = (
        flights.select(f.from_json(f.col("value").cast("string"), _FLIGHT).alias("flight"))
        .groupBy("flight.carrier")
        .agg(
            f.count("*").alias("flights"),
            f.count("flight.dep_delay").alias("departed"),
            f.sum("flight.dep_delay").alias("delay"),
            f.sum("flight.distance").alias("distance"),
        )
        .collect()
    )
    origins = (
        weather.select(
            f.from_json(f.col("value").cast("string"), _OBSERVATION).alias("observation")
        )
        .groupBy("observation.origin")
        .agg(f.count("*").alias("rows"), f.sum("observation.wind_dir").alias("wind_dir"))
        .collect()
    )
    return Numbers(
        carriers={
            row.carrier: CarrierNumbers(row.flights, row.departed, row.delay, row.distance)
            for row in carriers
        },
        weather_rows=sum(row.rows for row in origins),
        weather_rows_per_origin={row.origin: row.rows for row in origins},
        wind_dir_sum_degrees=sum(row.wind_dir for row in origins),
    )


def format_numbers(numbers: Numbers) -> str:
    """One line, without its end."""
    return MARK + json.dumps(numbers._asdict())


def parse_numbers(output: str) -> Numbers:
    """The numbers in the output of this module. Raises ValueError when there are none."""
    for line in output.splitlines():
        if line.startswith(MARK):
            fields = json.loads(line.removeprefix(MARK))
            carriers = fields.pop("carriers")
            return Numbers(
                carriers={name: CarrierNumbers(*numbers) for name, numbers in carriers.items()},
                **fields,
            )
    raise ValueError("Spark printed no numbers")


if __name__ == "__main__":
    print(format_numbers(compute(*sys.argv[1:])))
