"""The pointer of a table as it is stored, with the commits that decide what may be deleted.

A segment that left the live ones is deleted `table.snapshot.retention.ms` after a commit that had
applied its leaving (metadata/rules/tables.py). So each pointer keeps, beside its location, when it
was committed and with which applied offsets, for as many commits as that question needs:

- Of the commits that are older than the retention the newest one tells all: applied offsets only
  grow.
- Of younger ones there are two within 1/COMMITS_KEPT of the retention at most: another one takes
  the place of the second. So their number is bounded however often somebody commits, and a segment
  is deleted that much later at most.

What is kept follows from the records alone, so that all replicas keep the same.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from wal.coordinates import ObjectKey
from wal.errors import CorruptLog, CorruptState
from wal.wire.fields import FieldReader
from wal.wire.layouts import Int32, layout

COMMITS_KEPT: Final = 64
"""Part of STATE_VERSION."""


class AppliedCommit(NamedTuple):
    """When a pointer was committed, and what each coordinator had applied."""

    committed_at_ms: int
    applied: Mapping[Int32, int]


class StoredTable(NamedTuple):
    """The pointer of a table. `commits` in their order; the last one set the pointer."""

    location: ObjectKey
    commits: Sequence[AppliedCommit]

    @property
    def committed_at_ms(self) -> int:
        return self.commits[-1].committed_at_ms

    @property
    def applied(self) -> Mapping[int, int]:
        """What each coordinator had applied when it was asked for the current files."""
        return self.commits[-1].applied


class _History(NamedTuple):
    commits: Sequence[AppliedCommit]


_HISTORY: Final = layout(_History)


def with_commit(
    commits: Sequence[AppliedCommit], commit: AppliedCommit, retention_ms: int
) -> Sequence[AppliedCommit]:
    """Returns `commits` and `commit`, without those that tell nothing any more."""
    expired_ms = commit.committed_at_ms - retention_ms
    kept = [*commits]
    while len(kept) > 1 and kept[1].committed_at_ms <= expired_ms:
        del kept[0]
    # Only the last one is ever replaced, and not when that would put off a deletion for longer.
    spacing_ms = retention_ms // COMMITS_KEPT
    if len(kept) > 1 and commit.committed_at_ms - kept[-2].committed_at_ms < spacing_ms:
        del kept[-1]
    return (*kept, commit)


def pack_commits(commits: Sequence[AppliedCommit]) -> bytes:
    """`tables.commits`."""
    return _HISTORY.write(_History(commits))


def unpack_commits(data: bytes) -> Sequence[AppliedCommit]:
    """The inverse of `pack_commits`. Raises CorruptState."""
    reader = FieldReader(data, "the commits of a table")
    try:
        commits = _HISTORY.read(reader).commits
        reader.finish()
    except CorruptLog as error:
        raise CorruptState(str(error)) from error
    if not commits:
        raise CorruptState("a table without a commit")
    return tuple(commits)
