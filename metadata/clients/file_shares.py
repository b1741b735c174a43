"""Files of one commit, divided by coordinator, and their answers put together again."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from metadata.clients.shares import in_parallel, partitions_of, taken
from metadata.operations import CATALOGUE, BatchCommit, CommitFile, CommittedFile
from metadata.rules.files import permuted_owners
from wal.batch_extents import BatchExtents
from wal.coordinates import BatchExtent, TopicIdPartition
from wal.errors import NotCoordinator, ObjectExpired, Rejected


class FileShare(NamedTuple):
    """The batches of one file that are one coordinator's."""

    place: int
    """Of the file in the commit."""
    positions: Sequence[int]
    """Of the batches in the file."""
    file: CommitFile
    is_whole: bool


def divided(
    files: Sequence[CommitFile], coordinator_of: Callable[[TopicIdPartition], int]
) -> Mapping[int, Sequence[FileShare]]:
    """The shares of each coordinator, in the order of the files; no batches: the catalogue's."""
    shares: dict[int, list[FileShare]] = {}
    for place, file in enumerate(files):
        positions_of = _positions_of(file.batches, coordinator_of)
        is_whole = len(positions_of) <= 1
        for coordinator, positions in (positions_of or {CATALOGUE: []}).items():
            share = file if is_whole else replace(file, batches=taken(file.batches, positions))
            shares.setdefault(coordinator, []).append(FileShare(place, positions, share, is_whole))
    return shares


def _positions_of(
    batches: Sequence[BatchExtent], coordinator_of: Callable[[TopicIdPartition], int]
) -> Mapping[int, Sequence[int]]:
    """Where the batches of each coordinator are."""
    if isinstance(batches, BatchExtents):
        coordinators = set(map(coordinator_of, batches.partitions))
        if len(coordinators) == 1:
            return {coordinators.pop(): range(len(batches))}
    positions_of: dict[int, list[int]] = {}
    for position, partition in enumerate(partitions_of(batches)):
        positions_of.setdefault(coordinator_of(partition), []).append(position)
    return positions_of


def put_together(
    files: Sequence[CommitFile],
    answered: Sequence[tuple[Sequence[FileShare], Sequence[CommittedFile]]],
) -> Sequence[CommittedFile]:
    """The answers to `files`, by position.

    A file is refused as a whole by the only coordinator that has batches of it. What one of several
    refuses, and what nobody led, concerns those batches alone; repeating the commit then gives the
    others their first answer again.
    """
    if all(share.is_whole for shares, _ in answered for share in shares):
        return _whole(files, answered)
    refused: dict[int, CommittedFile] = {}
    batches: list[list[BatchCommit]] = [[BatchCommit()] * len(file.batches) for file in files]
    for shares, answers in answered:
        for share, answer in zip(shares, answers, strict=True):
            if share.is_whole and isinstance(answer.error, Rejected | ObjectExpired):
                refused[share.place] = answer
                continue
            commits = answer.batches
            if answer.error is not None:
                commits = [BatchCommit(error=answer.error)] * len(share.positions)
            for position, commit in zip(share.positions, commits, strict=True):
                batches[share.place][position] = commit
    return [refused.get(place) or CommittedFile(some) for place, some in enumerate(batches)]


def _whole(
    files: Sequence[CommitFile],
    answered: Sequence[tuple[Sequence[FileShare], Sequence[CommittedFile]]],
) -> Sequence[CommittedFile]:
    """Files of which no coordinator has a part alone."""
    found: list[CommittedFile] = [CommittedFile()] * len(files)
    for shares, answers in answered:
        for share, answer in zip(shares, answers, strict=True):
            if answer.error is not None and not isinstance(answer.error, Rejected | ObjectExpired):
                failed = [BatchCommit(error=answer.error)] * len(share.positions)
                answer = CommittedFile(failed)
            found[share.place] = answer
    return found


async def commit_divided(
    files: Sequence[CommitFile],
    *,
    coordinator_of: Callable[[TopicIdPartition], int],
    knows: Callable[[int], bool],
    is_shared: bool,
    commit_at: Callable[[int, Sequence[CommitFile]], Awaitable[Sequence[CommittedFile]]],
) -> Sequence[CommittedFile]:
    """Commit files at the coordinators of their batches, all at the same time.

    `knows`: whether a coordinator is one that was configured. `is_shared`: there are several, and
    who owns an object is chosen here. `commit_at` answers NotCoordinator for every file where
    nobody leads. Raises what it raises, and NotCoordinator where nobody leads any of them.
    """
    if is_shared:
        files = [_owned(file, coordinator_of, knows) for file in files]
    shares = divided(files, coordinator_of)

    async def commit_share(coordinator: int, some: Sequence[FileShare]) -> Sequence[CommittedFile]:
        return await commit_at(coordinator, [share.file for share in some])

    answers = await in_parallel(
        [commit_share(coordinator, some) for coordinator, some in shares.items()]
    )
    tried = [
        answer
        for coordinator, some in zip(shares, answers, strict=True)
        if knows(coordinator)
        for answer in some
    ]
    if tried and all(isinstance(answer.error, NotCoordinator) for answer in tried):
        # Nothing happened at all, so the whole commit may be tried again later.
        raise NotCoordinator(f"{files[0].object_key}: {tried[0].error}")
    return put_together(files, [*zip(shares.values(), answers, strict=True)])


def _owned(
    file: CommitFile,
    coordinator_of: Callable[[TopicIdPartition], int],
    knows: Callable[[int], bool],
) -> CommitFile:
    coordinators = set(map(coordinator_of, partitions_of(file.batches)))
    owners = set(filter(knows, coordinators)) or {CATALOGUE}
    return replace(file, owner_ids=permuted_owners(file.object_key, owners))
