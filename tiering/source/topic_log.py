"""What the brokers know of one topic: where its partitions begin and end, and where records lie.

The driver plans with it, and each task looks up the extents of its share itself. So a plan holds
offsets alone, whatever the number of extents, and a task that begins late reads the segment that
replaced WAL objects meanwhile. Calls are repeated while that may help (`repeated`).

A log ends at its last stable offset here: below it every transaction has ended, so the records of a
range are the same whenever they are read. What is aborted of the batches in WAL objects comes with
their extents, from one look-up, and never changes; segments have nothing aborted.

A broker answers from its replica, which may be behind the leader; `ends` asks the leaders. So an
offset below an end that `ends` gave may be unknown to the broker for a moment, and is asked for
again.

Failure cases: UnknownPartition (no such topic), OffsetOutOfRange naming the partition,
CommitFailed when no broker answers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from metadata import operations as ops
from tiering.coordinator_client import CoordinatorClient, repeated
from wal.coordinates import TopicIdPartition
from wal.errors import CommitFailed, CorruptState, InvalidSettings, OffsetOutOfRange
from wal.security.client_security import PLAINTEXT, ClientSecurity

EXTENTS_PER_CALL: Final = 10_000

_INT32_MAX: Final = 2**31 - 1


class Located(NamedTuple):
    """Extents that follow each other, and the aborted transactions with batches among them."""

    extents: Sequence[ops.Extent] = ()
    aborted: Sequence[ops.AbortedTransaction] = ()


class TopicLog:
    """One topic, through the brokers at `bootstrap`; safe to use from any thread."""

    def __init__(
        self,
        bootstrap: str,
        name: str,
        *,
        sleep: Callable[[float], None],
        security: ClientSecurity = PLAINTEXT,
    ) -> None:
        self._brokers = CoordinatorClient(bootstrap, security)
        self.name = name
        self._sleep = sleep

    def topic(self) -> ops.ReadableTopic:
        """As it is now. Raises: UnknownPartition."""
        return repeated(lambda: self._brokers.read_topic(self.name), self._sleep)

    def starts(self, partitions: Sequence[TopicIdPartition]) -> Mapping[int, int]:
        """The first offset of each partition, by its number."""
        return self.offsets(partitions, ops.EARLIEST_TIMESTAMP)

    def ends(self, partitions: Sequence[TopicIdPartition]) -> Mapping[int, int]:
        """The last stable offset of each partition; no record below it is undecided."""
        return self.offsets(partitions, ops.LATEST_TIMESTAMP)

    def offsets(self, partitions: Sequence[TopicIdPartition], timestamp: int) -> Mapping[int, int]:
        """The first offset at or after `timestamp`, as ListOffsets; -1: there is none.

        What is not below the last stable offset is told as that.
        """
        if not partitions:
            return {}
        asked = [ops.ListOffsets(partition, timestamp) for partition in partitions]

        def ask() -> Sequence[ops.ListedOffset]:
            answers = self._brokers.read_offsets(asked)
            for answer in answers:
                if answer.error is not None:
                    raise answer.error
            return answers

        answers = repeated(ask, self._sleep)
        return {
            partition.partition: min(answer.offset, answer.last_stable_offset)
            for partition, answer in zip(partitions, answers, strict=True)
        }

    def extents(
        self, partition: TopicIdPartition, start: int, end: int, *, page: int = EXTENTS_PER_CALL
    ) -> Iterator[ops.Extent]:
        """Where [start, end) lies, in offset order and gapless; asked for `page` by page.

        The first and the last extent may reach beyond. Raises: OffsetOutOfRange, CorruptState.
        """
        for located in self.located(partition, start, end, page=page):
            yield from located.extents

    def located(
        self, partition: TopicIdPartition, start: int, end: int, *, page: int = EXTENTS_PER_CALL
    ) -> Iterator[Located]:
        """As `extents`, with what is aborted of them."""
        position = start
        while position < end:
            found = self._found(partition, position, page)
            extents = []
            for extent in found.extents:
                if not extent.base_offset <= position <= extent.last_offset:
                    raise CorruptState(f"{self.name}-{partition.partition}: a gap at {position}")
                extents.append(extent)
                position = extent.last_offset + 1
                if position >= end:
                    break
            yield Located(extents, found.aborted)

    def _found(self, partition: TopicIdPartition, offset: int, page: int) -> ops.FoundBatches:
        def ask() -> ops.FoundBatches:
            asked = ops.FindBatches(partition, offset, _INT32_MAX)
            (found,) = self._brokers.read_extents([asked], extents_max=page)
            if isinstance(found.error, OffsetOutOfRange):
                raise OffsetOutOfRange(
                    f"{self.name}-{partition.partition}: offset {offset} is not within"
                    f" {found.log_start_offset} .. {found.high_watermark}"
                )
            if found.error is not None:
                raise found.error
            if not found.extents:
                raise CommitFailed(
                    f"{self.name}-{partition.partition}: no broker knows yet where {offset} lies"
                )
            return found

        return repeated(ask, self._sleep)


def store_url(topic: ops.ReadableTopic, given: str | None) -> str:
    """Where the objects lie. Raises: InvalidSettings."""
    url = given or topic.object_store_url
    if not url:
        raise InvalidSettings("the broker names no object store: set option objectStore to its URL")
    return url
