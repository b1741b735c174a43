"""The metadata log: the coordinator's truth, whatever it is stored on.

A metadata log is an ordered sequence of *metadata records* (metadata/records/records.py), each an
opaque byte string here. Offsets count records, as in Kafka, without gaps. Records are appended in
*batches*: all records of a batch become durable together or not at all, which is how one operation
that needs several records stays whole. The coordinator decides, appends here, applies what was
appended to SQLite, and answers; at start it reads from the offset that SQLite has reached.

Any number of processes may have the same log open and read it. At any time at most one of them
*leads*: it alone appends and prunes. The log itself is the election: the process that has caught up
and appends the next batch with `lead` is the leader from then on, and has deposed the one before.

Every implementation keeps these promises; tests/support/logs/log_contract.py asks for each of them:

L1  When `append` or `lead` returns, its records survive whatever the implementation promises to
    survive (the local log: the death of every process and the loss of power, not the loss of the
    disk; the object log: whatever the object store survives).
L2  Batches are atomic and never change. `append` takes all its batches or none, except that a
    crash in the middle may keep a prefix of whole batches that nobody was told about.
L3  Calls are served in the order they were made; the first record of the first batch gets
    `end_offset`.
L4  A failed append leaves no hole. CommitFailed, Overloaded, AppendTooLarge and NotCoordinator mean
    that nothing of it is in the log or ever will be. After CommitOutcomeUnknown and NotCoordinator
    this log object does not lead any more: it refuses every further append with NotCoordinator.
    Whether a commit of unknown outcome is in the log is known once the next leader's first batch
    is: what lies before that batch happened, everything else did not.
L5  `read` returns only durable batches, and the same ones for ever, until they are pruned.
L6  Damaged bytes are CorruptLog, never other records.
L7  Fencing: an append is acknowledged only if its log object led when its batches became durable.
    No clock takes part in that, as long as `prune` leaves what a deposed leader may still collide
    with; see metadata/log/object_log.py for how a delay covers the rest. Reads ask `prove`, which
    returns only if nobody else had appended when it was called. `lease_expires_at` is what others
    wait for before they lead; no promise rests on it.
L8  A log object that does not lead any more can `refresh`, be read to the end, and `lead` again.
    Exception: a local log whose disk failed a sync must be opened again.

Two implementations: metadata/log/local_log.py in a directory, whose lock is the election, and
metadata/log/object_log.py with one object per append in an object store. Nothing in this interface
lets a caller assume that the log is a file.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar, runtime_checkable

from wal.worker_threads import Job

_Result = TypeVar("_Result")

LEASE_MARGIN: Final = 1.1
"""Monotonic clocks of two machines run this close to each other, by far. A broker that waits for
the end of another's lease waits for this many leases of its own."""


class MetadataRecordBatch(NamedTuple):
    """One atomic batch as it lies in the log; `records` are metadata records in offset order."""

    base_offset: int
    timestamp_ms: int
    """The wall clock of its writer."""
    records: Sequence[bytes]

    @property
    def next_offset(self) -> int:
        """The offset behind the batch's last record."""
        return self.base_offset + len(self.records)


class MetadataLog(Protocol):
    """One partition of the metadata log: to be read while open, to be appended to while it leads.

    The local log leads from its opening on, because only one process can have it open.
    """

    @property
    def start_offset(self) -> int:
        """The first offset that can still be read; what is below was pruned."""
        ...

    @property
    def end_offset(self) -> int:
        """The offset the next record will get, as far as this log object knows.

        Everything below is durable. Appends of this log object move it, and `refresh`.
        """
        ...

    @property
    def lease_expires_at(self) -> float | None:
        """The time until which nobody else stands who keeps to the lease, in monotonic seconds.

        None when this log object does not lead; infinite where nobody else can.
        """
        ...

    @property
    def proven_since(self) -> float | None:
        """A time at which nobody else had appended for certain, in monotonic seconds.

        None when this log object does not lead; infinite where nobody else can.
        """
        ...

    async def prove(self) -> None:
        """Return when nobody else has appended until this call, which a leader makes.

        What was read from the leader's state before is the newest there is then. Cheaper than an
        append, and does not prolong the lease.
        Raises: NotCoordinator (deposed), StorageFailed, CorruptLog.
        """
        ...

    async def refresh(self) -> int:
        """Look for batches that others appended; returns `end_offset`.

        A leader that finds any was deposed. The local log has nothing to look for.
        Raises: NotCoordinator (closed), CorruptLog, StorageFailed.
        """
        ...

    async def peek(self) -> bool:
        """Whether something is known to follow `end_offset`; cheaper than `refresh`.

        False may be wrong when the log was pruned beyond `end_offset`: refresh now and then, too.
        Raises: NotCoordinator (closed), StorageFailed.
        """
        ...

    async def lead(self, records: Sequence[bytes], timestamp_ms: int, *, at_offset: int) -> int:
        """Become the leader by appending one batch at exactly `at_offset`, and return that.

        `at_offset` is the end of the log as the caller knows it: it has read and applied everything
        below. Leading log objects may lead again; each time is a new beginning.

        Raises: NotCoordinator (somebody else's batch is there: refresh, catch up, try again later),
        CommitFailed (nothing happened, or the log ends before `at_offset`), CommitOutcomeUnknown
        (the batch may be there or come to be there: refresh and look), AppendTooLarge, Overloaded.
        """
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

        Raises: CommitFailed (nothing was appended and nothing will be; try again), NotCoordinator
        (likewise, and this log object does not lead), CommitOutcomeUnknown (see L4: stop serving),
        AppendTooLarge (a batch is larger than this log accepts; the log is as it was), Overloaded
        (too much under way; the log is as it was).
        """
        ...

    async def read(self, offset: int, max_bytes: int) -> Sequence[MetadataRecordBatch]:
        """Durable batches in order, the first being the one that contains `offset`.

        No more than fit into `max_bytes` of their stored size, but at least one; empty exactly when
        `offset` is `end_offset`.
        Raises: OutOfBounds (below `start_offset` or above `end_offset`), CorruptLog, StorageFailed.
        """
        ...

    async def read_encoded(self, offset: int, max_bytes: int) -> Sequence[bytes]:
        """Reads like `read`; returns the RecordBatches as they are stored (log/log_batch.py)."""
        ...

    async def prune(self, before_offset: int) -> int:
        """Forget batches that lie wholly below `before_offset`, as far as that is cheap and safe.

        Returns the new `start_offset`, which is <= `before_offset`: storage is freed in units of
        the implementation's own (whole files, whole objects), and the last batch always stays.
        Raises: OutOfBounds (above `end_offset`), NotCoordinator (not leading), StorageFailed.
        """
        ...

    async def close(self) -> None:
        """Wait for appends under way and let go of the log; everything afterwards is refused.

        A closed log raises NotCoordinator. A second close does nothing.
        """
        ...


@runtime_checkable
class ThreadLog(Protocol):
    """A metadata log that appends in a thread, which can go on with what follows the append."""

    def begin_append(
        self,
        batches: Sequence[Sequence[bytes]],
        timestamp_ms: int,
        *,
        at_offset: int,
        then: Callable[[], _Result],
    ) -> Job[_Result]:
        """`MetadataLog.append`, begun, and then `then()`, whose result is that of the job.

        `then` is called in the log's thread when the batches are durable, and not if they are not
        appended; it happens whatever becomes of those who wait. Until it has returned, nothing else
        is appended or read. The job raises what `append` does.
        """
        ...
