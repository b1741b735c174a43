"""Makes room for TLS in the memory of the machine: how many connections of it may be open.

A connection without TLS costs a kibibyte while it is idle. One with TLS keeps what OpenSSL holds
for it, and room for what it once received or sent at once. So that a broker does not find out with
its last clients that its memory is gone, half of the memory is counted for them at start, and fewer
are admitted if that is less than was configured.
"""

from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from diskless.config import Config
from diskless.listeners.listeners import plan_listeners

TLS_CONNECTION_BYTES: Final = 256 << 10
"""What one may come to hold."""

_SHARE: Final = 2
"""One part of the memory in this many is for connections."""

_MEMINFO: Final = Path("/proc/meminfo")
_CGROUP: Final = Path("/sys/fs/cgroup/memory.max")

log = structlog.get_logger(__name__)


def fit_tls_memory(config: Config, memory_bytes: int | None) -> Config:
    """Returns `config`, with fewer connections if there is TLS and no memory for as many.

    `memory_bytes` is what the process may have; None: nobody knows. Raises InvalidSettings.
    """
    if memory_bytes is None:
        return config
    if not any(plan.protocol.is_tls for plan in plan_listeners(config.listeners)):
        return config
    room = max(memory_bytes // _SHARE // TLS_CONNECTION_BYTES, 1)
    if room >= config.server.max_connections:
        return config
    log.warning(
        "fewer connections than configured: TLS may need "
        f"{TLS_CONNECTION_BYTES >> 10} KiB for each, and half of the memory is for them",
        max_connections=room,
        configured=config.server.max_connections,
        memory_bytes=memory_bytes,
    )
    return replace(config, server=replace(config.server, max_connections=room))


def available_memory() -> int | None:
    """What this process may have, by its control group or by the machine; None: nobody knows."""
    found = [*_machine_bytes(), *_group_bytes()]
    return min(found, default=None)


def _machine_bytes() -> list[int]:
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return []
    return [int(line.split()[1]) << 10 for line in lines if line.startswith("MemTotal:")]


def _group_bytes() -> list[int]:
    try:
        limit = _CGROUP.read_text().strip()
    except OSError:
        return []
    return [int(limit)] if limit.isdecimal() else []
