"""Divides the objects of a batch among coordinators, and asks these what would refuse it.

An object has batches of one coordinator's partitions only, so that it belongs to one metadata log.
The sink's home decides about a batch alone; from then on nobody refuses it. So its shares are
looked at before: their partitions are there, which only a deletion changes afterwards, and no
object was committed by an earlier batch. Whether an object was given up is for the home to say,
without which no object goes (metadata/workers/file_agreement.py).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from metadata.clients.coordinator_client import CoordinatorClient
from metadata.operations import CommitFile, ListOffsets
from metadata.sink_operations import SinkShare
from wal.batch_extents import BatchExtents
from wal.coordinates import TopicIdPartition
from wal.errors import Rejected, UnknownFile

_LATEST: Final = -1


def shares_of(
    files: Sequence[CommitFile], coordinator_of: Callable[[TopicIdPartition], int]
) -> Mapping[int, Sequence[CommitFile]]:
    """The files of each coordinator. Raises Rejected: one has batches for several."""
    shares: dict[int, list[CommitFile]] = {}
    for file in files:
        coordinators = {
            coordinator_of(partition) for partition in BatchExtents.of(file.batches).partitions
        }
        if len(coordinators) > 1:
            raise Rejected(
                f"{file.object_key} has batches for {len(coordinators)} metadata partitions; an"
                " object is for one"
            )
        for coordinator in coordinators:
            shares.setdefault(coordinator, []).append(file)
    return shares


async def check_shares(
    client: CoordinatorClient, shares: Sequence[SinkShare], *, timeout_ms: int
) -> None:
    """Raises: Rejected, UnknownPartition; and as calls of coordinators do."""
    partitions = {
        partition: None
        for share in shares
        for file in share.files
        for partition in BatchExtents.of(file.batches).partitions
    }
    asked = [ListOffsets(partition, _LATEST) for partition in partitions]
    for listed in await client.list_offsets(asked, timeout_ms=timeout_ms):
        if listed.error is not None:
            raise listed.error
    for share in shares:
        keys = [file.object_key for file in share.files]
        answers = await client.describe_files(
            keys, coordinator=share.coordinator, timeout_ms=timeout_ms
        )
        for key, answer in zip(keys, answers, strict=True):
            if answer.error is None:
                raise Rejected(f"{key} was committed by an earlier batch")
            if not isinstance(answer.error, UnknownFile):
                raise answer.error
