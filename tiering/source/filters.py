"""The part of a query's filters that decides which extents and row groups are read.

Ranges on `partition`, `offset` and `timestamp`, from `where` clauses that Spark pushes down. They
only leave out what cannot match; Spark filters the rows that come. So whatever is not understood
here is passed over, and a bound may be wider than the query's, never narrower.

Spark hands over times as `datetime` with a time zone. One without is passed over: nobody knows the
session's zone where a query is planned.
"""

import datetime
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND: Final = datetime.timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a record must be within to matter; None: no limit."""

    partitions: frozenset[int] | None = None
    offset_min: int | None = None
    offset_max: int | None = None
    timestamp_min_ms: int | None = None
    timestamp_max_ms: int | None = None


ALL: Final = Bounds()


def narrowed(bounds: Bounds, filters: Iterable[Filter]) -> Bounds:
    """`bounds` and all of `filters`."""
    for item in filters:
        bounds = _narrowed(bounds, item)
    return bounds


def _narrowed(bounds: Bounds, item: Filter) -> Bounds:
    match item:
        case In(attribute=(name,), value=values):
            known = [value for value in values if value is not None]
            if name == "partition" and all(type(value) is int for value in known):
                return _within_partitions(bounds, frozenset(known))
            if known:
                try:
                    low, high = min(known), max(known)
                except TypeError:
                    return bounds
                return _between(bounds, name, low, high)
        case (
            EqualTo(attribute=(name,), value=value) | EqualNullSafe(attribute=(name,), value=value)
        ):
            if name == "partition" and type(value) is int:
                return _within_partitions(bounds, frozenset([value]))
            return _between(bounds, name, value, value)
        case (
            GreaterThan(attribute=(name,), value=value)
            | GreaterThanOrEqual(attribute=(name,), value=value)
        ):
            return _between(bounds, name, value, None)
        case (
            LessThan(attribute=(name,), value=value)
            | LessThanOrEqual(attribute=(name,), value=value)
        ):
            return _between(bounds, name, None, value)
    return bounds


def _within_partitions(bounds: Bounds, wanted: frozenset[int]) -> Bounds:
    if bounds.partitions is not None:
        wanted &= bounds.partitions
    return replace(bounds, partitions=wanted)


def _between(bounds: Bounds, name: str, low: Any, high: Any) -> Bounds:
    """Bounds with both ends included, None for an open one."""
    if name == "offset":
        if type(low) is int:
            bounds = replace(bounds, offset_min=_most(bounds.offset_min, low))
        if type(high) is int:
            bounds = replace(bounds, offset_max=_least(bounds.offset_max, high))
    elif name == "timestamp":
        if (low_ms := _milliseconds(low)) is not None:
            bounds = replace(bounds, timestamp_min_ms=_most(bounds.timestamp_min_ms, low_ms))
        if (high_ms := _milliseconds(high)) is not None:
            # A record at this millisecond may still be below what the microseconds say.
            bounds = replace(bounds, timestamp_max_ms=_least(bounds.timestamp_max_ms, high_ms))
    return bounds


def _milliseconds(value: Any) -> int | None:
    if not isinstance(value, datetime.datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // _MILLISECOND


def _most(known: int | None, value: int) -> int:
    return value if known is None else max(known, value)


def _least(known: int | None, value: int) -> int:
    return value if known is None else min(known, value)
