"""Makes room for sockets among the files that a process may have open.

Every connection is a descriptor, and so is every file that is read. The system grants a process
some number of them: a soft limit, which the process may raise up to a hard one. A broker that ran
into it could not open what it needs to answer those that are connected, so it takes what it may
need before it starts, and admits fewer clients if that is less than was configured.
"""

import resource
from dataclasses import replace
from typing import Final

import structlog

from diskless.config import Config
from diskless.listeners.lingering import LINGERING_MAX
from wal.errors import InvalidSettings

OTHER_DESCRIPTORS: Final = 200 + LINGERING_MAX
"""Log, state and chunk files, the event loop, the metrics page, connections to other brokers, and
those of clients that are counted no more."""

log = structlog.get_logger(__name__)


def fit_descriptors(config: Config) -> Config:
    """Raise the soft limit as far as `config` needs; else `config` with fewer connections.

    `config` has the number of workers. Raises: InvalidSettings when there is no room for any.
    """
    workers = config.broker.workers
    # A worker has another socket, to its head, for a client that asks what is the head's.
    each, lines = (1, 0) if workers == 1 else (2, 2 * workers)
    besides = (
        config.read.fd_cache_capacity
        + config.file_store.fd_capacity
        + config.s3.connections_max
        + OTHER_DESCRIPTORS
        + lines
    )
    allowed = _raise_soft_limit(besides + each * config.server.max_connections)
    room = (allowed - besides) // each
    if room >= config.server.max_connections:
        return config
    if room < 1:
        raise InvalidSettings(
            f"this process may have {allowed} files open (ulimit -n), which is not enough for "
            f"fd.cache.capacity, file.store.fd.capacity, s3.connections.max and "
            f"{OTHER_DESCRIPTORS} more"
        )
    log.warning(
        "fewer connections than configured: the limit of open files (ulimit -n) is too low",
        max_connections=room,
        configured=config.server.max_connections,
        open_files=allowed,
    )
    return replace(config, server=replace(config.server, max_connections=room))


def _raise_soft_limit(wanted: int) -> int:
    """How many descriptors the process may have now: `wanted`, if the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    except (OSError, ValueError) as error:
        log.warning("the limit of open files cannot be raised", error=str(error), limit=soft)
        return soft
    return raised
