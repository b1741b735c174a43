"""The object store, whose prefix the broker claims, and what is cached and buffered beside it.

Failure case: a store that cannot be reached stops only a broker that has its metadata log there;
with a local log there is something to serve. A store that refuses the broker ends the start.
"""

import random
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import structlog

from diskless.parts.foundation import Foundation
from diskless.parts.process_parts import Ground
from diskless.storage.cluster_identity import claim_prefix, shared_cluster_id
from diskless.storage.data_directory import DataDirectory
from diskless.storage.private_places import make_private, refuse_open
from diskless.storage.store_rights import check_rights
from wal.chunks.buffer import BufferPool
from wal.chunks.wal_settings import WalSettings, for_directory
from wal.clock import Clock
from wal.errors import ObjectStoreRefused, ObjectStoreUnavailable, UploadOutcomeUnknown
from wal.fd_cache import FdCache
from wal.stores.file_store import FileStoreSettings
from wal.stores.object_store import ObjectStore
from wal.stores.observed_store import ObservedStore, StoreReach
from wal.stores.s3_settings import S3Settings
from wal.stores.store_url import parse_store_url
from wal.worker_threads import WorkerThreads

_READ_THREADS: Final = 4

log = structlog.get_logger(__name__)


class StoreOpener(Protocol):
    """`wal.stores.store_url.open_store`, or a test's that injects faults into what it opens."""

    def __call__(
        self,
        url: str,
        *,
        clock: Clock,
        rng: random.Random,
        file_settings: FileStoreSettings,
        s3_settings: S3Settings,
    ) -> ObjectStore: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """What the write path and the read path share."""

    data: DataDirectory
    """That of the foundation, or the same as part of the cluster whose prefix this is."""
    cluster_id: str
    store: ObservedStore
    reach: StoreReach
    start_problem: str | None
    """Why the object store could not be reached at the start, if it could not."""
    wal_settings: WalSettings
    fd_cache: FdCache
    pool: BufferPool
    read_threads: WorkerThreads


async def open_storage(stack: AsyncExitStack, base: Foundation, opener: StoreOpener) -> Storage:
    """Open the store and claim its prefix; its reach counts for readiness from then on.

    Raises: InvalidSettings, ObjectStoreRefused, ObjectStoreUnavailable, UploadOutcomeUnknown,
    CorruptObject.
    """
    data = base.data
    _keep_private(_url(base, data), base)
    opened = await stack.enter_async_context(_open(base, data, opener))
    reach = StoreReach(opened.url, clock=base.clock)
    base.health.watch_store(reach)
    store = ObservedStore(opened, reach)
    cluster_id, start_problem = data.cluster_id, None
    try:
        if base.is_shared:
            cluster_id = await shared_cluster_id(store, base.rng)
        else:
            data = await claim_prefix(store, data)
            cluster_id = data.cluster_id
        await check_rights(store)
    except ObjectStoreRefused:
        raise
    except (ObjectStoreUnavailable, UploadOutcomeUnknown) as error:
        if base.is_shared:
            raise
        start_problem = str(error)
        log.warning(
            "the object store cannot be reached; orphans are not deleted before the next start",
            error=start_problem,
        )
    return _with_caches(stack, base, data, store, reach, cluster_id, start_problem)


async def open_shared(
    stack: AsyncExitStack, base: Ground, data: DataDirectory, opener: StoreOpener
) -> Storage:
    """As `open_storage`, of a store that another process of this broker has opened and checked."""
    opened = await stack.enter_async_context(_open(base, data, opener))
    reach = StoreReach(opened.url, clock=base.clock)
    return _with_caches(
        stack, base, data, ObservedStore(opened, reach), reach, data.cluster_id, None
    )


def _url(base: Ground, data: DataDirectory) -> str:
    return base.config.broker.object_store_url or f"file://{data.objects}"


def _open(base: Ground, data: DataDirectory, opener: StoreOpener) -> ObjectStore:
    config = base.config
    return opener(
        _url(base, data),
        clock=base.clock,
        rng=base.rng,
        file_settings=config.file_store,
        s3_settings=config.s3,
    )


def _with_caches(
    stack: AsyncExitStack,
    base: Ground,
    data: DataDirectory,
    store: ObservedStore,
    reach: StoreReach,
    cluster_id: str,
    start_problem: str | None,
) -> Storage:
    config = base.config
    settings = config.wal
    if not _url(base, data).startswith("s3://"):
        settings = for_directory(settings, config.explicit)
    fd_cache = FdCache(config.read.fd_cache_capacity)
    stack.callback(fd_cache.close)
    read_threads = WorkerThreads("read", _READ_THREADS)
    stack.push_async_callback(read_threads.close)
    return Storage(
        data=data,
        cluster_id=cluster_id,
        store=store,
        reach=reach,
        start_problem=start_problem,
        wal_settings=settings,
        fd_cache=fd_cache,
        pool=BufferPool(settings.buffer_pool_max_bytes),
        read_threads=read_threads,
    )


def _keep_private(url: str, base: Foundation) -> None:
    """Keep others out of a store that is a directory. Raises InvalidSettings."""
    location = parse_store_url(url)
    if location.scheme != "file":
        return
    place = Path(location.place)
    if base.is_protected:
        refuse_open(place, "object.store.url")
    # What keeps it from being made is told by the first put.
    with suppress(OSError):
        make_private(place)
