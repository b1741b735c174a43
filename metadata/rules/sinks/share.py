"""Decides at a coordinator the commit of its share of a sink's batch, which the home has decided.

The batch is committed since that decision, so nothing refuses its share any more: neither the age
of an object nor that somebody wanted to give it up, since it is known to the home and so was not
deleted (metadata/workers/file_agreement.py). What is gone by now stays out: a deleted partition,
and an object that an earlier batch had, which only a driver could name that gave it twice.

A share is told until it is answered, so it may come again, at any time. Of each sink and home the
last one is kept, as a sink under the name of the share, with the time of its decision. That time
grows with every decision of the sink, so a share that is not later than the last one is a
repetition. Source: the numbers of transactions (metadata/rules/transactions/parts.py), whose part
this time has here.
"""

from collections.abc import Sequence

from metadata.metadata_settings import CoordinatorSettings
from metadata.records.records import FilesDeletedRecord, MetadataRecord
from metadata.records.sinks import SinkCommittedRecord
from metadata.rules.commit import Decision, accept
from metadata.rules.commit_request import CheckedCommit
from metadata.rules.sinks.ranges import ends_of, grown_since
from metadata.sink_operations import CommitShare, Sink, SinkCommit, share_name
from metadata.state.speculative import FileStanding, SpeculativeView


def decide_commit_share(
    view: SpeculativeView,
    share: CommitShare,
    commits: Sequence[CheckedCommit],
    *,
    now_ms: int,
    steady_ms: int,
    settings: CoordinatorSettings,
) -> Decision[SinkCommit]:
    """Append what is told, or answer as before."""
    name = share_name(share.home, share.sink_id)
    last = view.sink(name)
    if last is not None and last.committed_at_ms >= share.decided_at_ms:
        return Decision((), SinkCommit(is_repeated=True, ranges=last.ranges))
    before = ends_of(view, commits, all_there=False)
    records: list[MetadataRecord] = []
    for commit in commits:
        key = commit.request.object_key
        known = view.file(key)
        if known is not None and known.standing is FileStanding.COMMITTED:
            continue
        if known is not None:
            view.forget_file(key)
            records.append(FilesDeletedRecord(object_keys=(key,)))
        record, _ = accept(
            view, commit, is_owner=True, now_ms=now_ms, steady_ms=steady_ms, settings=settings
        )
        records.append(record)
    sink = Sink(
        sink_id=name,
        principal=share.principal,
        batch_id=share.batch_id,
        digest=share.digest,
        committed_at_ms=share.decided_at_ms,
        ranges=grown_since(view, before),
    )
    view.put_sink(name, sink)
    return Decision((*records, SinkCommittedRecord(sink=sink)), SinkCommit(ranges=sink.ranges))
