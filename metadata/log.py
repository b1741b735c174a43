"""The metadata log: what the coordinator's truth is, whatever it is stored on.

A metadata log is an ordered sequence of *metadata records* (metadata/records.py), each an opaque
byte string here. Offsets count records, as in Kafka, without gaps. Records are appended in
*batches*: all records of a batch become durable together or not at all, which is how one operation
that needs several records stays whole. The coordinator decides, appends here, applies what was
appended to SQLite, and answers; at start it reads from the offset that SQLite has reached.

Every implementation keeps these promises; tests/metadata/log_contract.py asks for each of them:

L1  When `append` returns, its records survive whatever the implementation promises to survive
    (the local log: the death of every process and the loss of power, not the loss of the disk).
L2  Batches are atomic and never change. `append` takes all its batches or none, except that a
    crash in the middle may keep a prefix of whole batches that nobody was told about.
L3  Calls are served in the order they were made; the first record of the first batch gets
    `end_offset`.
L4  A failed append leaves no hole: CommitFailed means that the log is as it was; after
    CommitOutcomeUnknown this log object refuses every further append with NotCoordinator, and what
    is true is known when the log has been opened again and read.
L5  `read` returns only durable batches, and the same ones for ever, until they are pruned.
L6  Damaged bytes are CorruptLog, never other records.

The object log will keep them with one object per append, named by the base offset of its first
batch and written put-if-absent: whoever creates the object owns those offsets. A writer whose put
meets a foreign object has been deposed: that append and every later one is NotCoordinator, without
any lease or clock taking part. A put whose answer was lost is resolved by reading the object back
(it carries the writer's own put-id); only when that is impossible is it CommitOutcomeUnknown.
Nothing in this interface lets a caller assume that the log is a file.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class MetadataRecordBatch(NamedTuple):
    """One atomic batch as it lies in the log; `records` are metadata records in offset order."""

    base_offset: int
    timestamp_ms: int
    """Wall clock of whoever appended it."""
    records: Sequence[bytes]

    @property
    def next_offset(self) -> int:
        """The offset behind the batch's last record."""
        return self.base_offset + len(self.records)


class MetadataLog(Protocol):
    """One partition of the metadata log, opened by the only process that may append to it."""

    @property
    def start_offset(self) -> int:
        """The first offset that can still be read; what is below was pruned."""
        ...

    @property
    def end_offset(self) -> int:
        """The offset the next record will get. Everything below is durable."""
        ...

    async def append(
        self,
        batches: Sequence[Sequence[bytes]],
        timestamp_ms: int,
        *,
        at_offset: int | None = None,
    ) -> int:
        """Append non-empty `batches` in order and return the offset of their first record.

        All of them are durable on return, at the price of one sync or one put (group commit): a
        caller gathers what arrives while its previous append is under way. `at_offset`: the append
        fails with CommitFailed unless its first record gets exactly this offset; a caller that has
        several appends under way passes it so that nothing lands on top of one that failed.

        Cancelling the call does not stop the append: read `end_offset` afterwards.

        Raises: CommitFailed (nothing was appended and nothing will be; try again),
        CommitOutcomeUnknown and NotCoordinator (see L4: stop serving), AppendTooLarge (a batch is
        larger than this log accepts; the log is as it was), Overloaded (too many under way).
        """
        ...

    async def read(self, offset: int, max_bytes: int) -> Sequence[MetadataRecordBatch]:
        """Durable batches in order, the first being the one that contains `offset`.

        As many as fit into `max_bytes` of their stored size, but at least one; empty exactly when
        `offset` is `end_offset`.
        Raises: OutOfBounds (below `start_offset` or above `end_offset`), CorruptLog, StorageFailed.
        """
        ...

    async def prune(self, before_offset: int) -> int:
        """Forget batches that lie wholly below `before_offset`, as far as that is cheap.

        Returns the new `start_offset`, which is <= `before_offset`: storage is freed in units of
        the implementation's own (whole files of the local log), and the last batch always stays.
        Raises: OutOfBounds (above `end_offset`), StorageFailed.
        """
        ...

    async def close(self) -> None:
        """Wait for appends under way and let go of the log; everything afterwards is refused."""
        ...
