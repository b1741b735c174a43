"""When the open chunk is sealed: as soon as waiting longer brings nothing, within a budget of puts.

A chunk costs a put and a commit whatever is in it, so it is worth waiting for more batches; but
only while more batches are coming, or while the chunk would wait for its commit anyway. The write
loop asks `seal_at` after each append, after each answer of the coordinator, and at the time that
`seal_at` gave before. No I/O happens here; time comes from the caller.

A chunk may be sealed, whichever comes first:

- when it is full (`wal.chunk.max.bytes`, `wal.chunk.max.batches`), or takes no more appends
- early, when no chunk is under way from its seal to its answer, no Produce is half received, and
  the producers who were answered last have sent as many batches again, or had `awaited_s` to do so
  and pause for as long, within twice that (those of large batches, which take long to build: had
  ANSWERED_S and pause for QUIET_S)
- early, in a pause: when no Produce arrived, whole or in part, in the last QUIET_S seconds, those
  who were answered last are not awaited any more, the chunk has `wal.commit.early.bytes`, and fewer
  than `wal.commit.early.chunks` are under way; a small one only if the budget lasts for as many as
  are under way then, all the time
- early, when it is large (`wal.puts.large.bytes`) and fewer than `wal.upload.concurrency` are under
  way
- `wal.commit.interval.ms` after its first batch

Why a large one waits for nothing: producers have so much in flight and no more, and what is in
flight waits for the whole put of its chunk. Eight connections that carry 3 MB each are done long
before three that carry 8 MB. A put of that size costs a fifteenth of what storing it for a month
does, so the budget, which is there for small ones, does not count it. When all connections have
something to do, chunks grow again, up to `wal.chunk.max.bytes`.

Why wait for who was answered: producers send again what they may have in flight. Their batches
would just miss a chunk that is sealed with the answer, and wait for two commits instead of one.
A client that sends several requests at once, and more when it has all answers, does not send after
the answer to a part of them. So where other batches waited at an answer, those who did not send
after it are awaited after the next one too; otherwise a round that was split once stays split.
Nobody is awaited after a third: who has gone, or pauses, delays others twice, by `awaited_s` after
the last of them, by twice that at most.

Why the wait grows with the answers: a client on a busy machine sends after 2 to 10 ms. Who is
sealed without it waits for two answers instead of one, again and again, and so does the client:
waits of 275 ms where it is 145, with answers that take 60 ms. Where they take 5 ms, a wait of that
kind would cost what it saves.

Why each that comes makes it longer: a client's requests come one behind the other, the fourth of an
answer 1.2 ms after it. Sealed without that one, the round would be two objects.

Why the budget must last: producers who are answered apart from each other stay apart. Were two
small chunks under way where the budget lasts for one and a half in the time of an answer, each
would wait for it again and again, where one chunk with the batches of both waits for nothing.

With `wal.commit.early=false` only the first and the last of these hold. Where a PUT takes a few
milliseconds of this machine's processors and not of another's, a second small chunk beside the
first would make both of them later; so the pause is for chunks of some size there, and for all of
them where PUTs take long.

Invariants:

- In no second more than `wal.puts.per.second.max` chunks that are not large are sealed, whatever
  the reason; only a flush and the end of the write loop do not wait for it. A few of them may come
  at once, the others are spread evenly. A full chunk that waits for the budget goes on growing
  (`bytes_max`).
- While the uploader is behind only full chunks are sealed, so chunks do not pile up that only wait.
- Nothing is sealed where nothing was appended: an idle broker makes no puts.
- A client that stops in the middle of a request delays others by QUIET_S: then it does not count.
"""

import math
from collections import deque
from typing import Final, NamedTuple

from wal.chunks.wal_settings import WalSettings

QUIET_S: Final = 2e-3
"""A client that sends has something in the socket more often than this."""
ANSWERED_S: Final = 1e-3
"""A client on the same host answers an answer within it,"""
ANSWERED_SHARE: Final = 1 / 10
"""or, where answers take long, is waited for this share of that time,"""
ANSWERED_S_MAX: Final = 10e-3
"""but for no longer than this."""
_LARGE_BYTES: Final = 256 << 10
"""A chunk of this size holds large batches, or very many."""
_NEWEST_SHARE: Final = 1 / 8
"""What the last answer counts in how long answers take."""
_BURST_SHARE: Final = 5
"""A second's budget divided by this may come at once,"""
_BURST_MAX: Final = 10
"""but at most this many: a second that begins with them has fewer left, further apart."""
_GROWTH: Final = 4
"""A chunk that waits for the budget may become this many times `wal.chunk.max.bytes`."""


def awaited_s(answer_s: float) -> float:
    """For how long those who were answered are awaited; answers take `answer_s`, inf: not known."""
    if answer_s == math.inf:
        return ANSWERED_S
    return max(ANSWERED_S, min(answer_s * ANSWERED_SHARE, ANSWERED_S_MAX))


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
    """At most `puts_per_s` takes in any second; a few of them may come at once.

    The j-th take after another comes (j - few + 1) steps after it or later, for each j from `few`
    up to `puts_per_s`, where it is a second. So who takes steadily has the whole budget.
    """

    def __init__(self, puts_per_s: int) -> None:
        few = min(max(puts_per_s // _BURST_SHARE, 1), _BURST_MAX)
        self._puts_per_s = puts_per_s
        self._few = few
        self._step_s = 1 / (puts_per_s - few + 1)
        self._takes = 0
        # The last takes that nothing has to wait for yet: fewer than `few`.
        self._free: deque[float] = deque()
        # Of those before, the ones that may be the last to be waited for: (number, time less its
        # number's steps), in falling order of the second.
        self._awaited: deque[tuple[int, float]] = deque()

    def available_at(self) -> float:
        """From when on a put may be taken."""
        if not self._awaited:
            return -math.inf
        return self._awaited[0][1] + (self._takes - self._few + 1) * self._step_s

    def take(self, now: float) -> None:
        """Count one put. One that is taken before its time makes the next wait longer."""
        self._free.append(now)
        self._takes += 1
        if len(self._free) == self._few:
            number = self._takes - self._few
            at = self._free.popleft() - number * self._step_s
            while self._awaited and self._awaited[-1][1] <= at:
                self._awaited.pop()
            self._awaited.append((number, at))
            if self._awaited[0][0] < self._takes - self._puts_per_s:
                self._awaited.popleft()


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
        self._answered_at = -math.inf
        self._wait_s = ANSWERED_S
        # Of those awaited, the ones whose answer came before the last one.
        self._awaited_again = 0
        # Whether batches came after the last seal; whether any waited at the last answer.
        self._has_arrived = False
        self._is_split = False
        # When those under way were sealed, the oldest first; seconds until an answer, once known.
        self._sealed_at: deque[float] = deque()
        self._answer_s = math.inf

    def seal_at(self, chunk: OpenChunk, *, under_way: int, is_behind: bool) -> float:
        """When the chunk may be sealed if nothing happens until then; infinite for "not before".

        `under_way` counts chunks that are sealed and not answered yet.
        """
        settings = self._settings
        while len(self._sealed_at) > under_way:
            self._sealed_at.popleft()  # Lost, and never answered.
        is_large = self._is_large(chunk.data_bytes)
        available_at = -math.inf if is_large else self._budget.available_at()
        if chunk.is_full:
            return available_at
        if is_behind:
            return math.inf
        if is_large and settings.commit_early and under_way < settings.upload_concurrency:
            return available_at
        seal_at = chunk.opened_at + settings.commit_interval_ms / 1000
        if settings.commit_early:
            whole_at = self._arrivals.expected_until()
            if under_way == 0:
                seal_at = min(seal_at, max(whole_at, self._awaited_until_for(chunk)))
            elif (
                under_way < settings.commit_early_chunks
                and chunk.data_bytes >= settings.commit_early_bytes
                and (chunk.data_bytes >= _LARGE_BYTES or self._lasts_for(under_way + 1))
            ):
                paused_at = max(chunk.appended_at + QUIET_S, self._awaited_until_for(chunk))
                seal_at = min(seal_at, max(whole_at, paused_at))
        return max(seal_at, available_at)

    def _awaited_until_for(self, chunk: OpenChunk) -> float:
        """How long those who were answered are waited for."""
        if self._awaited <= 0:
            return -math.inf
        if chunk.data_bytes >= _LARGE_BYTES:
            return max(self._answered_at + ANSWERED_S, chunk.appended_at + QUIET_S)
        wait_s = self._wait_s
        began_at = max(chunk.opened_at, self._answered_at)
        longest_until = min(chunk.appended_at + wait_s, began_at + 2 * wait_s)
        return max(self._answered_at + wait_s, longest_until)

    def _lasts_for(self, chunks: int) -> bool:
        """Whether the budget lasts for this number of chunks under way at any time."""
        return self._answer_s * self._settings.puts_per_second_max >= chunks

    def answered(self, batches: int, now: float, chunks: int = 1) -> None:
        """The producers of this number of batches, of the oldest chunks, have their answers."""
        for _ in range(min(chunks, len(self._sealed_at))):
            took_s = now - self._sealed_at.popleft()
            known_s = self._answer_s if self._answer_s < math.inf else took_s
            self._answer_s = known_s + _NEWEST_SHARE * (took_s - known_s)
        # Arrivals count for the newest first, so nobody is awaited after a third answer.
        not_sent = max(self._awaited - self._awaited_again, 0)
        self._awaited_again = not_sent if self._is_split else 0
        self._awaited = batches + self._awaited_again
        self._wait_s = awaited_s(self._answer_s)
        self._answered_at = now
        self._is_split = self._has_arrived or bool(self._sealed_at)

    def arrived(self, batches: int) -> None:
        """This number of batches came."""
        self._awaited -= batches
        self._has_arrived = True

    def sealed(self, now: float, data_bytes: int) -> None:
        """A chunk of this size is being sealed."""
        self._sealed_at.append(now)
        self._has_arrived = False
        if not self._is_large(data_bytes):
            self._budget.take(now)

    def bytes_max(self, now: float) -> int:
        """How large a chunk may become by appends to it; a larger call gets one of its own."""
        settings = self._settings
        size = settings.chunk_max_bytes
        if self._is_large(size) or now >= self._budget.available_at():
            return size
        return min(size * _GROWTH, size + settings.chunk_overflow_bytes)

    def _is_large(self, data_bytes: int) -> bool:
        """Whether a chunk of this size is put beside the budget (`wal.puts.large.bytes`)."""
        return 0 < self._settings.puts_large_bytes <= data_bytes
