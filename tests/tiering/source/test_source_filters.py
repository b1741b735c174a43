"""Filters of a query as bounds: what is not understood leaves everything in."""

import datetime
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from tiering.source.filters import ALL, Bounds, narrowed

UTC = datetime.UTC
TIME = datetime.datetime(2024, 5, 1, 12, 0, 0, 1_500, tzinfo=UTC)
TIME_MS = 1_714_564_800_001


@pytest.mark.parametrize(
    ("filters", "bounds"),
    [
        ([], ALL),
        ([EqualTo(("partition",), 3)], Bounds(partitions=frozenset([3]))),
        (
            [In(("partition",), (1, 2, None)), In(("partition",), (2, 3))],
            Bounds(partitions=frozenset([2])),
        ),
        (
            [GreaterThan(("offset",), 5), LessThan(("offset",), 9)],
            Bounds(offset_min=5, offset_max=9),
        ),
        (
            [GreaterThanOrEqual(("offset",), 5), GreaterThanOrEqual(("offset",), 7)],
            Bounds(offset_min=7),
        ),
        ([In(("offset",), (4, 9, 6))], Bounds(offset_min=4, offset_max=9)),
        ([EqualTo(("offset",), 4)], Bounds(offset_min=4, offset_max=4)),
        (
            [GreaterThan(("timestamp",), TIME), LessThanOrEqual(("timestamp",), TIME)],
            Bounds(timestamp_min_ms=TIME_MS, timestamp_max_ms=TIME_MS),
        ),
        # What is passed over.
        ([GreaterThan(("timestamp",), TIME.replace(tzinfo=None))], ALL),
        ([GreaterThan(("partition",), 3)], ALL),
        ([Not(EqualTo(("offset",), 3))], ALL),
        ([IsNotNull(("offset",))], ALL),
        ([EqualTo(("value",), b"x")], ALL),
        ([EqualTo(("headers", "offset"), 1)], ALL),
        ([EqualTo(("offset",), "1")], ALL),
        ([In(("offset",), (1, "2"))], ALL),
    ],
)
def test_bounds_are_as_narrow_as_the_filters_say(filters: list[Filter], bounds: Any) -> None:
    assert narrowed(ALL, filters) == bounds
