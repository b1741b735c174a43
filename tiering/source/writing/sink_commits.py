"""What the driver of an exactly-once sink asks of brokers: whether it may write, and to commit.

A commit that failed on the way may have happened, so it is asked for again, for PATIENCE_S. The
coordinator knows the batch by its id and digest, and answers as the first time. Over a quota the
commit waits likewise. What is refused is raised at once.

Failure cases: Rejected and what stands below it; CommitFailed, CommitOutcomeUnknown or Overloaded
when the patience ends: the batch is not lost, since Spark writes it again, and is told if it was
committed after all.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from metadata.sink_operations import (
    STAGED_OBJECTS_MAX,
    CommitStaged,
    OpenedSink,
    OpenSink,
    SinkCommit,
)
from tiering.coordinator_client import CoordinatorClient, repeated
from tiering.source.writing.content_digest import digest_of
from tiering.source.writing.staging import Staged
from wal.errors import CommitOutcomeUnknown, Rejected, Retriable

PATIENCE_S: Final = 600.0
FIRST_PAUSE_S: Final = 0.2
PAUSE_MAX_S: Final = 10.0

_Result = TypeVar("_Result")


class SinkCommits:
    """One sink, through the brokers that `client` reaches."""

    def __init__(
        self,
        client: CoordinatorClient,
        sink_id: str,
        topic: str,
        *,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._sink_id = sink_id
        self._topic = topic
        self._sleep = sleep
        self._monotonic = monotonic

    def open(self) -> OpenedSink:
        """Raises: Rejected when the sink may not write to the topic, or never could commit."""
        asked = OpenSink(self._sink_id, [self._topic])
        return repeated(lambda: self._client.open_sink(asked), self._sleep)

    def commit(self, opened: OpenedSink, batch_id: int, parts: Sequence[Staged]) -> SinkCommit:
        """Commit what all tasks of a batch have staged, once."""
        count = sum(part.batch_count for part in parts)
        files = [file for part in parts for file in part.files]
        if count > opened.batches_max or len(files) > STAGED_OBJECTS_MAX:
            raise Rejected(
                f"batch {batch_id} of sink {self._sink_id} has {count} record batches in"
                f" {len(files)} objects; {opened.batches_max} in {STAGED_OBJECTS_MAX} fit into one"
                " commit: let a trigger take less (maxOffsetsPerTrigger), or write with fewer"
                " tasks, each of which makes a batch for every partition that it has rows of"
            )
        asked = CommitStaged(
            self._sink_id,
            batch_id,
            digest_of(opened.topics[0].topic_id, (part.content for part in parts)),
            [self._topic],
            files,
        )
        return self._until_answered(lambda: self._client.commit_staged(asked))

    def _until_answered(self, ask: Callable[[], _Result]) -> _Result:
        deadline = self._monotonic() + PATIENCE_S
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                return ask()
            except (Retriable, CommitOutcomeUnknown):
                if self._monotonic() >= deadline:
                    raise
            self._sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
