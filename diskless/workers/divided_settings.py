"""Divides the limits of a broker among its workers.

A setting says what the whole broker may hold or do, however many processes it is. Memory, disk and
rates are divided evenly: a worker that has little to do leaves its share unused, and nobody has to
be asked. No share is smaller than what one worker needs to get on at all; so many workers on small
limits may together have more than was set.

Not divided: what belongs to one request, connection or object, whatever process it is in; what only
the head does; and numbers of connections, which are counted over all processes, because clients do
not spread evenly.
"""

from dataclasses import replace
from typing import Any, Final

from diskless.config import Config
from wal.settings import SettingValue, as_mapping, settings_of, with_values

DIVIDED: Final = frozenset(
    {
        "fetch.memory.idle.max.bytes",
        "fetch.read.ahead.max.bytes",
        "inflation.max.bytes",
        "max.connection.creation.rate",
        "max.incremental.fetch.session.cache.slots",
        "object.cache.disk.bytes",
        "object.cache.memory.bytes",
        "queued.max.request.bytes",
        "queued.max.response.bytes",
        "segment.cache.max.bytes",
        "ssl.handshakes.max",
        "ssl.handshakes.per.ip.max",
        "ssl.handshakes.per.second.max",
        "wal.buffer.max.bytes",
        "wal.buffer.pool.max.bytes",
        "wal.cache.max.bytes",
        "wal.cache.memory.max.bytes",
        "wal.puts.per.second.max",
        "wal.quarantine.max.bytes",
    }
)

_SECTIONS: Final = ("server", "tls", "wal", "read", "cache", "inflation", "segments")
_CHUNKS_MIN: Final = 2
"""One that is filled while another is uploaded."""
_BLOCKS_MIN: Final = 2


def share_of(config: Config, workers: int) -> Config:
    """Returns the configuration of one of `workers` workers."""
    if workers == 1:
        return config
    least: dict[str, SettingValue] = {
        "wal.buffer.max.bytes": _CHUNKS_MIN * config.wal.chunk_max_bytes,
        "object.cache.memory.bytes": _BLOCKS_MIN * config.cache.block_bytes,
    }
    sections = {name: _divided(getattr(config, name), workers, least) for name in _SECTIONS}
    per_listener = {
        listener: {
            key: _share(value, workers, 1) if key in DIVIDED else value
            for key, value in values.items()
        }
        for listener, values in config.per_listener.items()
    }
    return replace(config, **sections, per_listener=per_listener)


def _divided(section: Any, workers: int, least: dict[str, SettingValue]) -> Any:
    values = as_mapping(section)
    shares: dict[str, SettingValue] = {}
    for _, described in settings_of(type(section)):
        key = described.key
        if key in DIVIDED:
            shares[key] = _share(values[key], workers, least.get(key, described.minimum or 0))
    return with_values(section, shares)


def _share(value: SettingValue, workers: int, least: SettingValue) -> SettingValue:
    """No more than it was; and what is off stays off."""
    assert isinstance(value, int)
    assert isinstance(least, int | float)
    return min(value, max(value // workers, int(least)))
