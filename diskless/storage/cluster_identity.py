"""Keeps the cluster id in the bucket, under `meta/cluster`: it says whose the prefix is.

The object has two lines, the cluster's id and where its metadata log is: `local` or `object`. A
prefix belongs to one cluster for ever, and a cluster keeps its kind of log. Brokers with the
metadata log in the object store take their cluster's id from there. A broker with a local metadata
log writes its own there, and refuses to work on a prefix that has another: what one cluster does
not know are orphans to it, and it would delete the objects of the other.

Failure cases: a store that cannot be reached does not keep a broker with a local log from
starting, since it can still serve what it has; but nobody looks for orphans as long as the prefix
is not known to be its own (`diskless.parts.storage`). A store that refuses the broker ends the
start. A data directory that was lost, or is another one, is refused with what to do.
"""

import random
import uuid
from typing import Final

from diskless.storage.data_directory import DataDirectory
from wal import errors
from wal.coordinates import ObjectKey
from wal.stores.object_store import BytesBody, ObjectStore

CLUSTER_OBJECT: Final = ObjectKey("meta/cluster")
"""Holds the cluster's id; the first broker writes it."""

LOCAL_LOG: Final = "local"
OBJECT_LOG: Final = "object"


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


def encode_identity(cluster_id: str, kind: str) -> bytes:
    """Encodes what `meta/cluster` holds."""
    return f"{cluster_id}\n{kind}\n".encode("ascii")


async def _known(store: ObjectStore) -> tuple[str, str]:
    """The cluster's id, and where its metadata log is."""
    stored = await store.get(CLUSTER_OBJECT)
    try:
        cluster_id, kind = stored.decode("ascii").splitlines()
        if kind in (LOCAL_LOG, OBJECT_LOG):
            return str(uuid.UUID(cluster_id)), kind
    except ValueError as error:
        raise errors.CorruptObject(f"{CLUSTER_OBJECT} names no cluster: {stored!r}") from error
    raise errors.CorruptObject(f"{CLUSTER_OBJECT} names no kind of metadata log: {stored!r}")


async def _claimed(store: ObjectStore, proposed: str, kind: str) -> str:
    try:
        await store.put(CLUSTER_OBJECT, BytesBody(encode_identity(proposed, kind)))
    except errors.ObjectExists:
        cluster_id, known_kind = await _known(store)
        if known_kind != kind:
            raise errors.InvalidSettings(
                f"{store.url} belongs to cluster {cluster_id}, whose diskless.metadata.log is "
                f"{known_kind}, not {kind}: give this broker a prefix of its own"
            ) from None
        return cluster_id
    return proposed


async def claim_for_rebuilt(store: ObjectStore, kind: str, cluster_id: str) -> None:
    """For `diskless rebuild`: the prefix's cluster has its metadata log there from now on.

    Where the bucket names no cluster any more, it is `cluster_id`, so that what a rebuild leaves is
    complete. Raises: ObjectStoreUnavailable, UploadOutcomeUnknown, CorruptObject.
    """
    try:
        cluster_id, known_kind = await _known(store)
    except errors.ObjectNotFound:
        await _claimed(store, cluster_id, kind)
        return
    if known_kind != kind:
        await store.delete([CLUSTER_OBJECT])
        await _claimed(store, cluster_id, kind)


async def claim_prefix(store: ObjectStore, data: DataDirectory) -> DataDirectory:
    """For a local metadata log: the data directory, when the prefix is its own.

    A directory that `diskless rebuild` has filled takes over the cluster's id from the bucket.
    Raises: InvalidSettings (the prefix is another cluster's), CorruptObject,
    ObjectStoreUnavailable, UploadOutcomeUnknown.
    """
    owner = await _claimed(store, data.cluster_id, LOCAL_LOG)
    if owner == data.cluster_id:
        return data
    if data.is_new and data.has_metadata:
        return data.of_cluster(owner)
    raise errors.InvalidSettings(
        f"{store.url} belongs to cluster {owner}, {data.path} to {data.cluster_id}: use the data "
        "directory that goes with it, let `diskless rebuild` make its metadata anew from the "
        "objects, or give this broker a prefix of its own"
    )
