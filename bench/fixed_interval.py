"""A broker that commits at a fixed interval: what sealing early is compared with."""

from collections.abc import Mapping

from wal.chunks.wal_settings import WalSettings
from wal.settings import settings_of


def fixed_interval(milliseconds: int) -> Mapping[str, object]:
    """The configuration keys of it: no chunk is sealed before, unless it is full."""
    known = {described.key for _, described in settings_of(WalSettings)}
    settings = {
        "wal.commit.interval.ms": milliseconds,
        "wal.commit.early": "false",
        "wal.puts.per.second.max": 100_000,
    }
    return {key: settings[key] for key in settings if key in known}
