"""Checks that a store grants what a broker needs, before the broker says `ready`.

A start puts `meta/cluster` if it is absent (`diskless.storage.cluster_identity`), which every start
on the prefix repeats: a put of what is there is refused like any other where puts are not allowed.
Here the other rights are exercised on that same object, so that nothing is left behind: it is read,
it is listed, and an object that never is there is deleted.
"""

from typing import Final

from diskless.storage.cluster_identity import CLUSTER_OBJECT
from wal.coordinates import ObjectKey
from wal.errors import ObjectStoreRefused
from wal.stores.object_store import ObjectStore

DELETE_PROBE: Final = ObjectKey("meta/delete-probe")
"""Never put. Where buckets keep versions, deleting it leaves a delete marker."""


async def check_rights(store: ObjectStore) -> None:
    """Read, list and delete once; call it when the prefix has been claimed.

    Raises: ObjectStoreRefused (a right is missing), ObjectStoreUnavailable, ObjectNotFound
    (somebody deletes `meta/cluster`).
    """
    await store.get(CLUSTER_OBJECT)
    _ = [stat async for stat in store.list(CLUSTER_OBJECT)]
    if DELETE_PROBE not in await store.delete([DELETE_PROBE]):
        raise ObjectStoreRefused(
            f"object store {store.url}: an object that is not there, {DELETE_PROBE}, cannot be "
            "deleted; grant s3:DeleteObject below the prefix"
        )
