"""Whose bucket prefix it is: the cluster id that is stored in it, under `meta/cluster`.

The object has two lines, the cluster's id and where its metadata log is: `local` or `object`. A
prefix belongs to one cluster for ever, and a cluster keeps its kind of log. Brokers with the
metadata log in the object store take their cluster's id from there. A broker with a local metadata
log writes its own there, and refuses to work on a prefix that has another: what one cluster does
not know are orphans to it, and it would
delete the objects of the other.

Failure cases: a store that cannot be asked does not keep a broker with a local log from starting,
since it can still serve what it has; but nobody looks for orphans as long as the prefix is not
known to be its own. A data directory that was lost, or is another one, is refused with what to do.
"""

import random
import uuid
from typing import Final

import structlog

from diskless.storage.data_directory import DataDirectory
from wal.coordinates import ObjectKey
from wal.errors import (
    CorruptObject,
    InvalidSettings,
    ObjectExists,
    ObjectNotFound,
    ObjectStoreUnavailable,
    UploadOutcomeUnknown,
)
from wal.stores.object_store import BytesBody, ObjectStore

CLUSTER_OBJECT: Final = ObjectKey("meta/cluster")
"""Holds the cluster's id; whoever comes first writes it."""

LOCAL_LOG: Final = "local"
OBJECT_LOG: Final = "object"

log = structlog.get_logger(__name__)


async def shared_cluster_id(store: ObjectStore, rng: random.Random) -> str:
    """The id of the cluster that shares this bucket prefix, made now if nobody did.

    Raises: InvalidSettings (that cluster's metadata log is local), ObjectStoreUnavailable,
    UploadOutcomeUnknown, CorruptObject.
    """
    proposed = str(uuid.UUID(int=rng.getrandbits(128), version=4))
    return await _claimed(store, proposed, OBJECT_LOG)


async def known_cluster_id(store: ObjectStore) -> str:
    """The id of the cluster that shares this bucket prefix.

    Raises: ObjectNotFound (none does), ObjectStoreUnavailable, CorruptObject.
    """
    return (await _known(store))[0]


async def _known(store: ObjectStore) -> tuple[str, str]:
    """The cluster's id, and where its metadata log is."""
    stored = await store.get(CLUSTER_OBJECT)
    try:
        cluster_id, kind = stored.decode("ascii").splitlines()
        if kind in (LOCAL_LOG, OBJECT_LOG):
            return str(uuid.UUID(cluster_id)), kind
    except ValueError as error:
        raise CorruptObject(f"{CLUSTER_OBJECT} names no cluster: {stored!r}") from error
    raise CorruptObject(f"{CLUSTER_OBJECT} names no kind of metadata log: {stored!r}")


async def _claimed(store: ObjectStore, proposed: str, kind: str) -> str:
    try:
        await store.put(CLUSTER_OBJECT, BytesBody(f"{proposed}\n{kind}\n".encode("ascii")))
    except ObjectExists:
        cluster_id, known_kind = await _known(store)
        if known_kind != kind:
            raise InvalidSettings(
                f"{store.url} belongs to cluster {cluster_id}, whose diskless.metadata.log is "
                f"{known_kind}, not {kind}: give this broker a prefix of its own"
            ) from None
        return cluster_id
    return proposed


async def move_log(store: ObjectStore, kind: str) -> None:
    """For `diskless rebuild`: the cluster, if there is one, has its metadata log there from now on.

    Raises: ObjectStoreUnavailable, UploadOutcomeUnknown, CorruptObject.
    """
    try:
        cluster_id, known_kind = await _known(store)
    except ObjectNotFound:
        return
    if known_kind != kind:
        await store.delete([CLUSTER_OBJECT])
        await _claimed(store, cluster_id, kind)


async def claim_prefix(store: ObjectStore, data: DataDirectory) -> tuple[DataDirectory, bool]:
    """For a local metadata log: the data directory, and whether the prefix is known to be its own.

    A directory that `diskless rebuild` has filled takes over the cluster's id from the bucket.
    Raises: InvalidSettings (the prefix is another cluster's), CorruptObject.
    """
    try:
        owner = await _claimed(store, data.cluster_id, LOCAL_LOG)
    except (ObjectStoreUnavailable, UploadOutcomeUnknown) as error:
        log.warning("not known whose the object store is; no orphans are deleted", error=str(error))
        return data, False
    if owner == data.cluster_id:
        return data, True
    if data.is_new and data.has_metadata:
        return data.of_cluster(owner), True
    raise InvalidSettings(
        f"{store.url} belongs to cluster {owner}, {data.path} to {data.cluster_id}: use the data "
        "directory that goes with it, let `diskless rebuild` make its metadata anew from the "
        "objects, or give this broker a prefix of its own"
    )
