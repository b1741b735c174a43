"""One topic of a streaming read: where a micro-batch may begin and end in it, and its tasks.

Failure cases: RecordsGone naming option failOnDataLoss when records were deleted before they were
read, or the topic was made anew, or ends before the checkpoint does; UnknownPartition when there is
no such topic.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from metadata.operations import ReadableTopic
from tiering.source.options import LATEST, SourceOptions
from tiering.source.planning import bytes_up_to, shares
from tiering.source.reading import ShareOfTopic, checked_starts, chosen, open_log, resolved
from tiering.source.rows.share_rows import RecordsGone
from tiering.source.topic_log import store_url
from wal.coordinates import TopicIdPartition


class Position(NamedTuple):
    """The first offset of each partition that is not read yet."""

    topic_id: UUID
    offsets: Mapping[int, int]

    def as_json(self) -> dict[str, Any]:
        # Spark compares positions as text: equal ones must be written alike.
        offsets = {str(partition): self.offsets[partition] for partition in sorted(self.offsets)}
        return {"id": str(self.topic_id), "offsets": offsets}

    @classmethod
    def of(cls, position: Mapping[str, Any]) -> "Position":
        offsets = {int(partition): offset for partition, offset in position["offsets"].items()}
        return cls(UUID(position["id"]), offsets)


class TopicStream:
    """Asks the brokers; kept in the driver's process while the query runs."""

    def __init__(self, options: SourceOptions) -> None:
        """`options` are those of the one topic."""
        self._options = options
        self._log = open_log(options, options.topic)

    def initial(self) -> Position:
        """Of a query without a checkpoint."""
        topic, partitions = self._now()
        edge = self._options.starting or LATEST
        firsts = self._log.starts(partitions)
        starts = resolved(self._log, partitions, edge, "startingOffsets")
        starts = checked_starts(self._log, starts, firsts, fail=self._options.fail_on_data_loss)
        return Position(topic.topic_id, starts)

    def end(self) -> Position:
        """What is committed now."""
        topic, partitions = self._now()
        return Position(topic.topic_id, self._log.ends(partitions))

    def begin(self, start: Position | None, end: Position) -> Mapping[int, int]:
        """Where reading goes on in each partition that is known; the others are new."""
        if start is None:
            return {}
        if start.topic_id != end.topic_id:
            self._lost(
                f"{self._log.name} was deleted and made again: its id is {end.topic_id}, the"
                f" checkpoint has read {start.topic_id}"
            )
            return {}
        for partition, last in end.offsets.items():
            if (first := start.offsets.get(partition, 0)) > last:
                self._lost(
                    f"{self._log.name}-{partition} ends at {last}, the checkpoint has read up to"
                    f" {first}"
                )
        return start.offsets

    def tasks(self, start: Position | None, last: Position) -> Sequence[ShareOfTopic]:
        """Those of a micro-batch between two positions."""
        topic = self._log.topic()
        if topic.topic_id != last.topic_id:
            self._lost(f"{self._log.name} was deleted and made again since the query was planned")
            return []
        begin = self.begin(start, last)
        url = store_url(topic, self._options.object_store_url)
        starts = {
            number: first
            for number, offset in last.offsets.items()
            if offset > (first := begin.get(number, 0))
        }
        tasks: list[ShareOfTopic] = []
        for number, first in self.checked(topic.topic_id, starts).items():
            offset = last.offsets[number]
            extents = self._log.extents(TopicIdPartition(topic.topic_id, number), first, offset)
            tasks += (
                ShareOfTopic(
                    topic=self._log.name,
                    topic_id=topic.topic_id,
                    object_store_url=url,
                    share=share,
                )
                for share in shares(number, first, offset, extents)
            )
        return tasks

    def checked(self, topic_id: UUID, starts: Mapping[int, int]) -> Mapping[int, int]:
        """`starts`, none of them before the log's. Raises: RecordsGone."""
        firsts = self._log.starts([TopicIdPartition(topic_id, number) for number in starts])
        fail = self._options.fail_on_data_loss
        return checked_starts(self._log, starts, firsts, fail=fail)

    def bytes_up_to(
        self, topic_id: UUID, number: int, first: int, last: int, limit_bytes: int
    ) -> tuple[int, int]:
        """See `planning.bytes_up_to`, of a range of one partition."""
        extents = self._log.extents(TopicIdPartition(topic_id, number), first, last)
        return bytes_up_to(first, last, extents, limit_bytes)

    def _now(self) -> tuple[ReadableTopic, Sequence[TopicIdPartition]]:
        topic = self._log.topic()
        return topic, chosen(self._options, topic.topic_id, topic.partition_count)

    def _lost(self, what: str) -> None:
        lost(self._options, what)


def lost(options: SourceOptions, what: str) -> None:
    """Raise RecordsGone when that is to fail a query."""
    if options.fail_on_data_loss:
        raise RecordsGone(
            f"{what}. Set option failOnDataLoss=false to go on with what there is, or begin"
            " anew with another checkpointLocation"
        )
