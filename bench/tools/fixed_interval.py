"""A broker that commits at a fixed interval: what sealing early is compared with."""

from collections.abc import Mapping


def fixed_interval(milliseconds: int) -> Mapping[str, object]:
    """The configuration keys of it: no chunk is sealed before, unless it is full."""
    return {
        "wal.commit.interval.ms": milliseconds,
        "wal.commit.early": "false",
        "wal.puts.per.second.max": 100_000,
    }
