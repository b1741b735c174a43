"""Whose bucket prefix it is: the cluster id that is stored in it, under `meta/cluster`.

A prefix belongs to one cluster for ever. Brokers with the metadata log in the object store take
their cluster's id from there. A broker with a local metadata log writes its own there, and refuses
to work on a prefix that has another: what one cluster does not know are orphans to it, and it would
delete the objects of the other.

Failure cases: a store that cannot be asked does not keep a broker with a local log from starting,
since it can still serve what it has; but nobody looks for orphans as long as the prefix is not
known to be its own. A data directory that was lost, or is another one, is refused with what to do.
"""

import random
import uuid
from typing import Final

import structlog

from diskless.data_directory import DataDirectory
from wal.coordinates import ObjectKey
from wal.errors import (
    CorruptObject,
    InvalidSettings,
    ObjectExists,
    ObjectStoreUnavailable,
    UploadOutcomeUnknown,
)
from wal.object_store import BytesBody, ObjectStore

CLUSTER_OBJECT: Final = ObjectKey("meta/cluster")
"""Holds the cluster's id; whoever comes first writes it."""

log = structlog.get_logger(__name__)


async def shared_cluster_id(store: ObjectStore, rng: random.Random) -> str:
    """The id of the cluster that shares this bucket prefix, made now if nobody did.

    Raises: ObjectStoreUnavailable, UploadOutcomeUnknown, CorruptObject.
    """
    return await _claimed(store, str(uuid.UUID(int=rng.getrandbits(128), version=4)))


async def known_cluster_id(store: ObjectStore) -> str:
    """The id of the cluster that shares this bucket prefix.

    Raises: ObjectNotFound (none does), ObjectStoreUnavailable, CorruptObject.
    """
    stored = await store.get(CLUSTER_OBJECT)
    try:
        return str(uuid.UUID(stored.decode("ascii")))
    except ValueError as error:
        raise CorruptObject(f"{CLUSTER_OBJECT} is no cluster id: {stored!r}") from error


async def _claimed(store: ObjectStore, proposed: str) -> str:
    try:
        await store.put(CLUSTER_OBJECT, BytesBody(proposed.encode("ascii")))
    except ObjectExists:
        return await known_cluster_id(store)
    return proposed


async def claim_prefix(store: ObjectStore, data: DataDirectory) -> tuple[DataDirectory, bool]:
    """For a local metadata log: the data directory, and whether the prefix is known to be its own.

    A directory that `diskless rebuild` has filled takes over the cluster's id from the bucket.
    Raises: InvalidSettings (the prefix is another cluster's), CorruptObject.
    """
    try:
        owner = await _claimed(store, data.cluster_id)
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
