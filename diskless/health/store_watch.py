"""Checks that the object store can be reached, also while the broker is idle.

Real operations tell (`wal.stores.observed_store`). An interval in which none was answered ends with
a probe: a GET of `meta/cluster`, or a put of what is there already when puts were failing and none
was tried since. So every broker finds out, also one with nothing to upload, and no question to
`/readyz` causes a request or waits for one.

A probe has no timeout: the store's own deadline ends it, and one that hangs is not repeated but
left alone; the time since the last answer goes on meanwhile. The log gets a line when the store was
not reached for `object.store.unreached.max.ms`, and one when it is again.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from diskless.health.health_settings import HealthSettings
from diskless.storage.cluster_identity import CLUSTER_OBJECT
from wal.errors import DisklessError
from wal.stores.object_store import BytesBody, ObjectStore
from wal.stores.observed_store import StoreReach

log = structlog.get_logger(__name__)


class StoreWatch:
    """The task that probes and logs; `problem` is what it and `/readyz` say of the store."""

    def __init__(
        self,
        store: ObjectStore,
        reach: StoreReach,
        *,
        settings: HealthSettings,
        identity: bytes,
    ) -> None:
        """`store` is observed by `reach`; `identity` is what `meta/cluster` holds."""
        self._store = store
        self._reach = reach
        self._settings = settings
        self._identity = identity
        self._outage = ""

    async def run(self) -> None:
        """Probe and log until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            probe: asyncio.Task[None] | None = None
            while True:
                probed = await self._idle_probe()
                if probed is not None and (probe is None or probe.done()):
                    probe = tasks.create_task(probed(), name="store-probe")
                self._log_change()

    async def _idle_probe(self) -> Callable[[], Coroutine[Any, Any, None]] | None:
        """After an interval: what to ask of the store, if nothing told meanwhile."""
        reach = self._reach
        interval_s = self._settings.store_probe_interval_ms / 1000
        writes = reach.write_outcomes
        await asyncio.sleep(interval_s)
        if reach.writes_failing_s() and reach.write_outcomes == writes:
            return self._put
        return self._get if reach.unreached_s() >= interval_s else None

    async def _get(self) -> None:
        try:
            await self._store.get(CLUSTER_OBJECT)
        except DisklessError:
            pass  # noted, whatever it was: that is what the probe is for

    async def _put(self) -> None:
        try:
            await self._store.put(CLUSTER_OBJECT, BytesBody(self._identity))
        except DisklessError:
            pass  # noted as well

    def _log_change(self) -> None:
        problem = store_problem(self._reach, self._settings)
        if problem and not self._outage:
            log.error("the object store is not reached", problem=problem)
        elif self._outage and not problem:
            log.warning("the object store is reached again", url=self._reach.url)
        self._outage = problem


def store_problem(reach: StoreReach, settings: HealthSettings) -> str:
    """Why a broker is not ready because of its store, in one line; empty when it is."""
    limit_s = settings.store_unreached_max_ms / 1000
    unreached_s, failing_s = reach.unreached_s(), reach.writes_failing_s()
    said = f": {reach.last_error}" if reach.last_error else ""
    if unreached_s > limit_s:
        return f"object store {reach.url} was not reached for {unreached_s:.0f} s{said}"
    if failing_s > limit_s:
        return f"object store {reach.url} has taken nothing for {failing_s:.0f} s{said}"
    return ""
