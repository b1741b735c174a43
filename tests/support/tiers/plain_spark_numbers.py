"""The demo's numbers by stock Spark.

`python -m tests.support.tiers.plain_spark_numbers FLIGHTS WEATHER`: the two arguments are
directories of segments, read with plain `spark.read.parquet`: of ours is only what is asked of the
rows. A process of its own, so that Spark begins with the settings it is given.
"""

import sys

from demo.spark_numbers import format_numbers, numbers_of, session

if __name__ == "__main__":
    flights_directory, weather_directory = sys.argv[1:]
    spark = session()
    try:
        read = spark.read.parquet
        print(format_numbers(numbers_of(read(flights_directory), read(weather_directory))))
    finally:
        spark.stop()
