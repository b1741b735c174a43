"""When the open chunk is sealed: as soon as waiting longer brings nothing, within a budget of puts.

A chunk costs a put and a commit whatever is in it, so it is worth waiting for more batches; but
only while more batches are coming, or while the chunk would wait for its commit anyway. The write
loop asks `seal_at` after each append, after each answer of the coordinator, and at the time that
`seal_at` gave before. No I/O happens here; time comes from the caller.

A chunk may be sealed, whichever comes first:

- when it is full (`wal.chunk.max.bytes`, `wal.chunk.max.batches`), or takes no more appends
- early, when no chunk is under way from its seal to its answer, no Produce is half received, and
  the producers who were answered last have sent as many batches again, or had ANSWERED_S to do so
  (those of large batches, which take long to build: pause for QUIET_S)
- early, in a pause: when no Produce arrived, whole or in part, in the last QUIET_S seconds, the
  chunk has `wal.commit.early.bytes`, and fewer than `wal.commit.early.chunks` are under way
- `wal.commit.interval.ms` after its first batch

Why wait for who was answered: producers send again what they may have in flight. Their batches
would just miss a chunk that is sealed with the answer, and wait for two commits instead of one.

With `wal.commit.early=false` only the first and the last of these hold. Where a PUT takes a few
milliseconds of this machine's processors and not of another's, a second small chunk beside the
first would make both of them later; so the pause is for chunks of some size there, and for all of
them where PUTs take long.

Invariants:

- In no second more than `wal.puts.per.second.max` chunks are sealed, whatever the reason; only a
  flush and the end of the write loop do not wait for it. A few of them may come at once, the others
  are spread evenly. A full chunk that waits for the budget goes on growing (`bytes_max`).
- While the uploader is behind only full chunks are sealed, so chunks do not pile up that only wait.
- Nothing is sealed where nothing was appended: an idle broker makes no puts.
- A client that stops in the middle of a request delays others by QUIET_S: then it does not count.
"""

import math
from typing import Final, NamedTuple

from wal.chunks.wal_settings import WalSettings

QUIET_S: Final = 2e-3
"""A client that sends has something in the socket more often than this."""
ANSWERED_S: Final = 1e-3
"""A client on the same host answers an answer within it."""
_LARGE_BYTES: Final = 256 << 10
"""A chunk of this size holds large batches, or very many."""
_BURST_SHARE: Final = 5
"""A second's budget divided by this may come at once,"""
_BURST_MAX: Final = 10
"""but at most this many: what may come at once is taken off the steady rate."""
_GROWTH: Final = 4
"""A chunk that waits for the budget may become this many times `wal.chunk.max.bytes`."""


class Arrivals:
    """Tells of bytes that are no batches yet: the server writes it, the policy reads it."""

    __slots__ = ("last_at", "unfinished")

    def __init__(self) -> None:
        self.unfinished = 0
        """Connections with a Produce that has begun to arrive and was not taken yet."""
        self.last_at = -math.inf
        """Monotonic seconds at which the last part of such a Produce was received."""

    def expected_until(self) -> float:
        """How long the rest of them is waited for."""
        return self.last_at + QUIET_S if self.unfinished else -math.inf


class PutBudget:
    """At most `puts_per_s` takes in any second; a few of them may come at once."""

    def __init__(self, puts_per_s: int) -> None:
        burst = min(max(puts_per_s // _BURST_SHARE, 1), _BURST_MAX)
        self._pause_s = 1 / max(puts_per_s - burst, 1)
        self._ahead_s = (burst - 1) * self._pause_s
        self._paid_until = -math.inf

    def available_at(self) -> float:
        """From when on a put may be taken."""
        return self._paid_until - self._ahead_s

    def take(self, now: float) -> None:
        """Count one put. One that is taken before its time makes the next wait longer."""
        self._paid_until = max(self._paid_until, now) + self._pause_s


class OpenChunk(NamedTuple):
    """What the policy must know of a chunk."""

    opened_at: float
    """Monotonic seconds; as `appended_at`, which is when something was appended to it last."""
    appended_at: float
    data_bytes: int
    is_full: bool


class SealPolicy:
    """Decides for one write loop; see the module's text."""

    def __init__(self, settings: WalSettings, arrivals: Arrivals) -> None:
        self._settings = settings
        self._arrivals = arrivals
        self._budget = PutBudget(settings.puts_per_second_max)
        self._awaited = 0
        self._awaited_until = -math.inf

    def seal_at(self, chunk: OpenChunk, *, under_way: int, is_behind: bool) -> float:
        """When the chunk may be sealed if nothing happens until then; infinite for "not before".

        `under_way` counts chunks that are sealed and not answered yet.
        """
        available_at = self._budget.available_at()
        if chunk.is_full:
            return available_at
        if is_behind:
            return math.inf
        settings = self._settings
        seal_at = chunk.opened_at + settings.commit_interval_ms / 1000
        if settings.commit_early:
            whole_at = self._arrivals.expected_until()
            if under_way == 0:
                seal_at = min(seal_at, max(whole_at, self._awaited_until_for(chunk)))
            elif (
                under_way < settings.commit_early_chunks
                and chunk.data_bytes >= settings.commit_early_bytes
            ):
                seal_at = min(seal_at, max(whole_at, chunk.appended_at + QUIET_S))
        return max(seal_at, available_at)

    def _awaited_until_for(self, chunk: OpenChunk) -> float:
        """How long those who were answered are waited for."""
        if self._awaited <= 0:
            return -math.inf
        if chunk.data_bytes >= _LARGE_BYTES:
            return max(self._awaited_until, chunk.appended_at + QUIET_S)
        return self._awaited_until

    def answered(self, batches: int, now: float) -> None:
        """The producers of this number of batches have their answers."""
        self._awaited = batches
        self._awaited_until = now + ANSWERED_S

    def arrived(self, batches: int) -> None:
        """This number of batches came."""
        self._awaited -= batches

    def sealed(self, now: float) -> None:
        """A chunk is being sealed."""
        self._budget.take(now)

    def bytes_max(self, now: float) -> int:
        """How large a chunk may become by appends to it; a larger call gets one of its own."""
        settings = self._settings
        size = settings.chunk_max_bytes
        if now >= self._budget.available_at():
            return size
        return min(size * _GROWTH, size + settings.chunk_overflow_bytes)
