"""Decides a commit of a sink: all the objects of one batch, once, or nothing.

Of each sink the last batch is kept. So a commit is

- a repetition, if it has the id and the digest of that batch: it gets the answer of the first time,
  whatever objects it names. A driver that was killed behind its commit has staged the same records
  in other objects; those are orphans;
- refused, if the id is lower, or the digest is another: two drivers use one sink id, or a query
  that does not give the same records twice was run again. To take it would write records twice, to
  drop it would lose them, and nobody but the user knows which;
- new, if the id is greater. Ids need not follow each other.

A new batch is all or nothing: a partition that is not there, an object that is too old, given up,
or committed by an earlier batch refuses the whole of it. Its records go into one batch of the
metadata log, which is applied whole or not at all.

An object may be committed for `sink.stage.max.age.ms` after it was begun, by the wall clock and by
the time of the log, which does not go back: a tombstone is forgotten behind that age, and a clock
that was set back must not let the object in then. So staged objects need no `forgotten_until_ms`.

Objects whose partitions live at other coordinators are shares (metadata/rules/sinks/share.py). A
batch with shares is decided here, in one append with the home's own objects, and is open until all
shares are committed. Until then the sink's next batch waits, the sink is not forgotten, and nobody
gives up an object of a share. From the decision on the batch is committed, whoever dies: so what
could refuse it is asked before (diskless/sinks/shares.py).

The sink belongs to the principal of its first commit for as long as it is remembered:
`sink.id.expiration.ms` after its last one. Every coordinator keeps sinks of its own, and who asks
one asks all of them first (diskless/api/coordinator/sinks.py).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from metadata.metadata_settings import CoordinatorSettings
from metadata.operations import CommitFile
from metadata.records.records import MetadataRecord
from metadata.records.sinks import SinkCommittedRecord, SinkDecidedRecord, SinksExpiredRecord
from metadata.rules.commit import Decision, accept
from metadata.rules.commit_request import CheckedCommit, check_commit
from metadata.rules.files import commit_age_max_ms
from metadata.rules.sinks.ranges import ends_of, grown_since
from metadata.sink_operations import (
    SINK_DIGEST_BYTES,
    STAGED_OBJECTS_MAX,
    CommitSink,
    Sink,
    SinkCommit,
    SinkRange,
    StoredShare,
    open_batch,
)
from metadata.state.speculative import FileStanding, SpeculativeView
from wal.errors import (
    ClusterAuthorizationFailed,
    ConcurrentTransactions,
    PolicyViolation,
    Rejected,
)
from wal.staging.staged_keys import check_sink_id

SINKS_MAX: Final = 10_000
"""Every broker keeps all of them in memory, and shares as well."""

OPEN_BATCHES_MAX: Final = 100
"""Of one home, which has them all in memory, each as large as a commit may be."""

BATCH_ID_MAX: Final = 2**63 - 1


class CheckedShare(NamedTuple):
    """A share as the home keeps it, and what is in it."""

    stored: StoredShare
    commits: Sequence[CheckedCommit]


def answered_before(
    sink: Sink | None, *, sink_id: str, principal: str, batch_id: int, digest: bytes
) -> SinkCommit | None:
    """The answer that the batch got already; None: it is new.

    Raises: ClusterAuthorizationFailed (somebody else's sink), Rejected (it is not the next one).
    """
    if sink is None:
        return None
    if sink.principal != principal:
        raise ClusterAuthorizationFailed(f"sink id {sink_id} belongs to another principal")
    if batch_id > sink.batch_id:
        return None
    if batch_id < sink.batch_id:
        raise Rejected(
            f"sink {sink_id}: batch {batch_id} comes after batch {sink.batch_id} was committed. A"
            " new query, or one with a new checkpoint, needs a sink.id of its own"
        )
    if digest != sink.digest:
        raise Rejected(
            f"sink {sink_id}: batch {batch_id} was committed with other records. Either another"
            " query uses this sink.id, or the query does not give the same records when it is run"
            " again"
        )
    return SinkCommit(is_repeated=True, ranges=sink.ranges)


def has_expired(sink: Sink | None, steady_ms: int, settings: CoordinatorSettings) -> bool:
    """Whether there is such a sink and it committed nothing for too long."""
    return sink is not None and steady_ms - sink.committed_at_ms > settings.sink_expiration_ms


def check_sink_commit(request: CommitSink, settings: CoordinatorSettings) -> None:
    """What can be said of the whole of it without any state. Raises Rejected."""
    check_sink_id(request.sink_id)
    if not 0 <= request.batch_id <= BATCH_ID_MAX:
        raise Rejected(f"sink {request.sink_id}: batch id {request.batch_id}")
    if len(request.digest) != SINK_DIGEST_BYTES:
        raise Rejected(f"sink {request.sink_id}: a digest has {SINK_DIGEST_BYTES} bytes")
    files = [*request.files, *(file for share in request.shares for file in share.files)]
    if len(files) > STAGED_OBJECTS_MAX:
        raise Rejected(f"{len(files)} objects, {STAGED_OBJECTS_MAX} may be committed")
    batches = sum(len(file.batches) for file in files)
    if batches > settings.commit_batches_max:
        raise Rejected(
            f"sink {request.sink_id}: batch {request.batch_id} has {batches} record batches,"
            f" {settings.commit_batches_max} fit into one commit"
        )
    if len({file.object_key for file in files}) < len(files):
        raise Rejected(f"sink {request.sink_id}: an object is named twice")
    if len({share.coordinator for share in request.shares}) < len(request.shares):
        raise Rejected(f"sink {request.sink_id}: a coordinator is named twice")


def check_files(
    sink_id: str, files: Sequence[CommitFile], settings: CoordinatorSettings
) -> Sequence[CheckedCommit]:
    """The same of its objects. Raises Rejected."""
    return [check_commit(file, settings, sink_id=sink_id) for file in files]


def decide_commit_sink(
    view: SpeculativeView,
    request: CommitSink,
    commits: Sequence[CheckedCommit],
    shares: Sequence[CheckedShare] = (),
    *,
    now_ms: int,
    wall_ms: int,
    steady_ms: int,
    settings: CoordinatorSettings,
) -> Decision[SinkCommit]:
    """Raises (and leaves the view alone): Rejected and what stands below it, and
    ConcurrentTransactions (the sink's last batch is open, or too many are).

    The answer has the home's own ranges only, if the batch is open.
    """
    sink_id = request.sink_id
    known = last = view.sink(sink_id)
    opened = view.open_batch(sink_id)
    if opened is None and has_expired(known, steady_ms, settings):
        known = None
    repeated = answered_before(
        known,
        sink_id=sink_id,
        principal=request.principal,
        batch_id=request.batch_id,
        digest=request.digest,
    )
    if repeated is not None:
        return Decision((), repeated)
    if opened is not None:
        raise ConcurrentTransactions(
            f"sink {sink_id}: batch {opened.sink.batch_id} is not committed everywhere yet"
        )
    if shares and view.open_batch_count() >= OPEN_BATCHES_MAX:
        raise ConcurrentTransactions(f"{OPEN_BATCHES_MAX} batches of sinks are open already")
    if last is None and len(view.sinks()) >= SINKS_MAX:
        raise PolicyViolation(f"there are {SINKS_MAX} sinks already")
    before = ends_of(view, commits)
    latest_ms = max(now_ms, wall_ms)
    for commit in (*commits, *(commit for share in shares for commit in share.commits)):
        _check_may_commit(view, commit, latest_ms, settings)

    records: list[MetadataRecord] = []
    for commit in commits:
        record, _ = accept(
            view, commit, is_owner=True, now_ms=now_ms, steady_ms=steady_ms, settings=settings
        )
        records.append(record)
    sink = Sink(
        sink_id=sink_id,
        principal=request.principal,
        batch_id=request.batch_id,
        digest=request.digest,
        # A share is told under this time, so no two decisions of a sink have the same.
        committed_at_ms=steady_ms if last is None else max(steady_ms, last.committed_at_ms + 1),
        ranges=grown_since(view, before),
    )
    view.put_sink(sink_id, sink)
    if shares:
        stored = tuple(share.stored for share in shares)
        view.put_open_batch(sink_id, open_batch(sink, stored))
        records.append(SinkDecidedRecord(sink=sink, shares=stored))
    else:
        records.append(SinkCommittedRecord(sink=sink))
    return Decision(records, SinkCommit(ranges=sink.ranges))


def decide_complete_sink(
    view: SpeculativeView,
    sink_id: str,
    decided_at_ms: int,
    ranges: Sequence[SinkRange],
    *,
    steady_ms: int,
) -> Decision[None]:
    """All shares of that decision are committed, at `ranges`; what was completed stays so.

    The sink is remembered from here on, however long that took: its driver may not know yet.
    """
    opened = view.open_batch(sink_id)
    if opened is None or opened.sink.committed_at_ms != decided_at_ms:
        return Decision((), None)
    sink = replace(
        opened.sink,
        committed_at_ms=max(steady_ms, decided_at_ms),
        ranges=tuple(sorted((*opened.sink.ranges, *ranges))),
    )
    view.put_sink(sink_id, sink)
    view.put_open_batch(sink_id, None)
    return Decision((SinkCommittedRecord(sink=sink),), None)


def decide_expire_sinks(view: SpeculativeView, *, before_ms: int, limit: int) -> Decision[int]:
    """Forget up to `limit` sinks whose last commit was earlier than that; how many they were."""
    expired = [
        sink
        for sink in view.sinks().values()
        if sink.committed_at_ms < before_ms and view.open_batch(sink.sink_id) is None
    ]
    expired.sort(key=lambda sink: (sink.committed_at_ms, sink.sink_id))
    ids = [sink.sink_id for sink in expired[:limit]]
    for sink_id in ids:
        view.put_sink(sink_id, None)
    return Decision([SinksExpiredRecord(sink_ids=ids)] if ids else [], len(ids))


def _check_may_commit(
    view: SpeculativeView, commit: CheckedCommit, latest_ms: int, settings: CoordinatorSettings
) -> None:
    key = commit.request.object_key
    known = view.file(key)
    if known is not None and known.standing is FileStanding.COMMITTED:
        raise Rejected(f"{key} was committed by an earlier batch")
    if known is not None:
        raise Rejected(f"{key} was given up: it is older than sink.stage.max.age.ms")
    if latest_ms - commit.minted_ms > commit_age_max_ms(key, settings):
        raise Rejected(f"{key} is older than sink.stage.max.age.ms; stage its records anew")
