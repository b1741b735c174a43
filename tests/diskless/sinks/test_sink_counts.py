"""What commits of sinks are counted as."""

from diskless.sinks.sink_counts import SinkCounts
from metadata.sink_operations import SinkCommit
from wal.errors import CommitOutcomeUnknown, Overloaded, Rejected, UnknownPartition


def test_commits_are_counted_by_result_and_refusals_by_cause() -> None:
    counts = SinkCounts()
    counts.answered(SinkCommit(), 100)
    counts.answered(SinkCommit(is_repeated=True), 50)
    counts.answered(SinkCommit(error=UnknownPartition("gone")), 70)
    counts.raised(Rejected("batch 1 comes after batch 2"))
    counts.raised(Overloaded("wait"))
    counts.raised(CommitOutcomeUnknown("nobody answered"))
    assert counts.commits == {"committed": 1, "repeated": 1, "refused": 2, "failed": 2}
    assert counts.refusals == {"UnknownPartition": 1, "Rejected": 1}
    assert counts.committed_bytes == 100
