"""The topics as tables: DuckDB attached to a broker's catalogue, asked what the CSV is asked.

DuckDB's extensions come from their wheels, so nothing is downloaded. Objects are read by DuckDB
itself; on a bucket it needs credentials of its own, as any engine does.
"""

from pathlib import Path

import duckdb

from demo.events import CarrierNumbers, Numbers


def open_duckdb() -> duckdb.DuckDBPyConnection:
    """A DuckDB that reads Iceberg; times are in UTC."""
    connection = duckdb.connect(config={"allow_unsigned_extensions": True})
    packages = Path(duckdb.__file__).parent.parent
    for name in ("avro", "httpfs", "iceberg"):
        (extension,) = (packages / f"duckdb_extension_{name}").rglob("*.duckdb_extension")
        connection.execute(f"LOAD '{extension}'")
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def attach(connection: duckdb.DuckDBPyConnection, catalogue_url: str) -> None:
    """As `lake`, and anew: within one attachment DuckDB keeps what it has loaded."""
    connection.execute("DETACH DATABASE IF EXISTS lake")
    connection.execute(
        f"ATTACH '' AS lake (TYPE iceberg, ENDPOINT '{catalogue_url}', AUTHORIZATION_TYPE 'none')"
    )


def numbers(catalogue_url: str, credentials: str) -> Numbers:
    """The same numbers as `demo.events.reference_numbers`, from the tables' typed columns.

    `credentials` is the statement that gives DuckDB those of the bucket, if it needs any. Raises
    duckdb.Error.
    """
    with open_duckdb() as lake:
        if credentials:
            lake.execute(credentials)
        attach(lake, catalogue_url)
        carriers = lake.execute(
            "SELECT data.carrier, count(*), count(data.dep_delay), sum(data.dep_delay), "
            "sum(data.distance) FROM lake.topics.flights GROUP BY ALL"
        ).fetchall()
        weather = lake.execute(
            "SELECT data.origin, count(*), sum(data.wind_dir) FROM lake.topics.weather GROUP BY ALL"
        ).fetchall()
    return Numbers(
        carriers={name: CarrierNumbers(*map(int, found)) for name, *found in carriers},
        weather_rows=sum(rows for _, rows, _ in weather),
        weather_rows_per_origin={origin: rows for origin, rows, _ in weather},
        wind_dir_sum_degrees=int(sum(wind_dir for _, _, wind_dir in weather)),
    )
