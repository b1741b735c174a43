"""Counts what became of the commits that drivers of sinks asked this broker for."""

from collections import Counter

from metadata.sink_operations import SinkCommit
from wal.errors import DisklessError, OutcomeUnknown, Retriable


class SinkCounts:
    """Of one broker, since its start; for the metrics."""

    def __init__(self) -> None:
        self.commits: Counter[str] = Counter(committed=0, repeated=0, refused=0, failed=0)
        """By result. What failed may be asked for again, and may have happened."""
        self.refusals: Counter[str] = Counter()
        """Of those refused, by the class of the error."""
        self.committed_bytes = 0
        """Of the objects that were committed."""

    def answered(self, answer: SinkCommit, size_bytes: int) -> None:
        """Count one commit by its answer, with the bytes of its objects."""
        if answer.error is not None:
            self.raised(answer.error)
        elif answer.is_repeated:
            self.commits["repeated"] += 1
        else:
            self.commits["committed"] += 1
            self.committed_bytes += size_bytes

    def raised(self, error: DisklessError) -> None:
        """A commit ended with an error."""
        if isinstance(error, (Retriable, OutcomeUnknown)):
            self.commits["failed"] += 1
        else:
            self.commits["refused"] += 1
            self.refusals[type(error).__name__] += 1
