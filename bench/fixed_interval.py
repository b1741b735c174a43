"""A broker that commits at a fixed interval: what sealing early is compared with."""

from collections.abc import Mapping
from typing import Final

INTERVAL: Final = "wal.commit.interval.ms"


def fixed_interval(milliseconds: int) -> Mapping[str, object]:
    """The configuration keys of it."""
    return {INTERVAL: milliseconds}
