"""Operations about sinks as bytes: API keys 10060 to 10062 between brokers, 10070 and 10071 of a
driver.

    between brokers                   of a driver
    10060 CommitSinkHere              10070 OpenSink
    10061 FindSinkHere                10071 CommitStaged
    10062 CommitSharesHere

Laid out like those of metadata/messages/brokers.py; docs/coordinator-api.md has the fields. A
driver may ask any broker. That one looks into the objects, and sends the batches that it found to
the sink's home, whose leader tells other coordinators their shares.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from metadata import sink_operations as ops
from metadata.messages.codec import (
    Address,
    MessageReader,
    Operation,
    RequestShape,
)
from metadata.messages.commit_file import read_files, write_files
from metadata.messages.shapes import (
    ERROR,
    Addressed,
    addressed,
    alone,
    in_order,
    or_error,
    single,
)
from wal.errors import DisklessError
from wal.wire.fields import INT32, INT64, NO_TAGS, compact_bytes, compact_string, uvarint
from wal.wire.layouts import fields_of, layout

_SINK_COMMIT: Final = fields_of(ops.SinkCommit, "error", "is_repeated", "ranges", error=ERROR)
_SHARE_BYTES_MIN: Final = 6


class CommitSinkAt(NamedTuple):
    """A batch of a sink, and the sink's home."""

    coordinator: int
    commit: ops.CommitSink


def _write_commit(asked: CommitSinkAt, parts: list[bytes]) -> Mapping[int, bytes]:
    commit = asked.commit
    parts += (
        INT32.pack(asked.coordinator),
        compact_string(commit.sink_id),
        compact_string(commit.principal),
        INT64.pack(commit.batch_id),
        compact_bytes(commit.digest),
    )
    write_files(commit.files, parts)
    parts.append(uvarint(len(commit.shares) + 1))
    for share in commit.shares:
        parts.append(INT32.pack(share.coordinator))
        write_files(share.files, parts)
        parts.append(NO_TAGS)
    return {}


def _read_share(reader: MessageReader) -> ops.SinkShare:
    share = ops.SinkShare(reader.int32(), tuple(read_files(reader)))
    reader.skip_tags()
    return share


def _read_commit(reader: MessageReader) -> tuple[CommitSinkAt, int]:
    coordinator = reader.int32()
    commit = ops.CommitSink(
        reader.compact_string(),
        reader.compact_string(),
        reader.int64(),
        reader.compact_bytes(),
        tuple(read_files(reader)),
        tuple(_read_share(reader) for _ in reader.entries(_SHARE_BYTES_MIN)),
    )
    timeout_ms, _ = reader.request_end()
    return CommitSinkAt(coordinator, commit), timeout_ms


async def _commit_sink(coordinator: Any, asked: CommitSinkAt) -> Sequence[ops.SinkCommit]:
    return [await coordinator.sinks.commit(asked.commit)]


COMMIT_SINK_HERE: Final[Operation[CommitSinkAt, ops.SinkCommit]] = Operation(
    key=10_060,
    name="CoordinatorCommitSinkHere",
    address=Address.NAMED,
    request=RequestShape(
        _write_commit, _read_commit, lambda asked: (asked.commit,), lambda asked, _: asked
    ),
    answers=alone(_SINK_COMMIT),
    at=_commit_sink,
    failed=lambda error: ops.SinkCommit(error=error),
)


async def _commit_shares(
    coordinator: Any, asked: Addressed[ops.CommitShare]
) -> Sequence[ops.SinkCommit]:
    return [await coordinator.sinks.commit_share(share) for share in asked.entries]


COMMIT_SHARES_HERE: Final[Operation[Addressed[ops.CommitShare], ops.SinkCommit]] = Operation(
    key=10_062,
    name="CoordinatorCommitSharesHere",
    address=Address.NAMED,
    request=addressed(layout(ops.CommitShare)),
    answers=in_order(layout(ops.SinkCommit, "error", "is_repeated", "ranges", error=ERROR)),
    at=_commit_shares,
    failed=lambda error: ops.SinkCommit(error=error),
    # Who tells tells again by itself.
    is_repeated=False,
)


class FindSink(NamedTuple):
    """Which sink is asked about."""

    sink_id: str


async def _find_sink(coordinator: Any, asked: FindSink) -> Sequence[ops.FoundSinks]:
    sink = await coordinator.sinks.find(asked.sink_id)
    found = [] if sink is None else [ops.FoundSink(coordinator.coordinator_id, sink)]
    return [ops.FoundSinks(found)]


def _all_found(
    asked: FindSink, answers: Sequence[Sequence[ops.FoundSinks | DisklessError]]
) -> Sequence[ops.FoundSinks | DisklessError]:
    found: list[ops.FoundSink] = []
    for (answer,) in answers:
        if isinstance(answer, DisklessError):
            return (answer,)
        found += answer.found
    return (ops.FoundSinks(found),)


_FOUND: Final = fields_of(ops.FoundSinks)

FIND_SINK_HERE: Final[Operation[FindSink, ops.FoundSinks | DisklessError]] = Operation(
    key=10_061,
    name="CoordinatorFindSinkHere",
    address=Address.LED,
    request=single(fields_of(FindSink)),
    answers=alone(or_error(_FOUND, _FOUND.write(ops.FoundSinks(())))),
    at=_find_sink,
    merged=_all_found,
    changes_state=False,
)

_OPENED: Final = fields_of(ops.OpenedSink)

OPEN_SINK: Final[Operation[ops.OpenSink, ops.OpenedSink | DisklessError]] = Operation(
    key=10_070,
    name="OpenSink",
    address=Address.CATALOGUE,
    request=single(fields_of(ops.OpenSink)),
    answers=alone(or_error(_OPENED, _OPENED.write(ops.OpenedSink((), "", 0, -1)))),
    changes_state=False,
)

COMMIT_STAGED: Final[Operation[ops.CommitStaged, ops.SinkCommit]] = Operation(
    key=10_071,
    name="CommitStaged",
    address=Address.CATALOGUE,
    request=single(fields_of(ops.CommitStaged)),
    answers=alone(_SINK_COMMIT),
    failed=lambda error: ops.SinkCommit(error=error),
)

SINKS_BETWEEN_BROKERS: Final[Sequence[Operation[Any, Any]]] = (
    COMMIT_SINK_HERE,
    FIND_SINK_HERE,
    COMMIT_SHARES_HERE,
)
SINKS_OF_A_DRIVER: Final[Sequence[Operation[Any, Any]]] = (OPEN_SINK, COMMIT_STAGED)
