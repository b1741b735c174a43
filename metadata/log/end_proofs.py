"""Proves to a leader that nobody else has appended behind it: what its strict reads rest on.

A strict read takes state, and then asks the log whether it ends where its leader says. What another
leader acknowledged before the read came is in the log, so an end that is proven by something that
began after the read came proves that the read missed nothing. A proof is one of these:

- The store is asked by name for the object that begins at the end, and has none. That counts only
  when the answer arrives within `delay_s` (`diskless.coordinator.prune.delay.ms`) of the beginning
  of the last proof: later, the object may have come and have been pruned. Nobody prunes before it
  has led for 1.1 times that, and whoever leads next does so after the last proof began.
- After that time a listing behind the last own object shows nothing. The last object of a log is
  never deleted, so whoever has led left something there. A listing that took as long as `delay_s`
  is not believed when it shows nothing.
- An own append that succeeded within that time, or behind which such a listing showed nothing.

An object at the end may be that of an own append under way. It proves nothing, since others may
have appended behind it: its append is waited for, and the end is asked for again, unless an append
that began later has succeeded meanwhile. Any other object there deposes.

Waiters share only a question that began after they came. A question never renews the lease: only an
append is seen by those who want to lead.

Failure cases: StorageFailed (the store does not answer; nothing is known), NotCoordinator (deposed,
or the term has ended meanwhile: what was read before may be old even if this process leads again).
"""

import asyncio
import math
from collections.abc import Callable
from typing import Final, NamedTuple

from metadata.log.log_object import LogObjectHeader
from metadata.log.object_log_reader import ObjectLogReader
from wal.clock import Clock
from wal.errors import NotCoordinator, ObjectNotFound, StorageFailed


class Append(NamedTuple):
    """An own append under way."""

    number: int
    began: float
    put_id: bytes
    ended: asyncio.Event


class _Question(NamedTuple):
    number: int
    task: "asyncio.Task[None]"


class EndProofs:
    """The proofs of one log object, whose appends it is told of. In its event loop."""

    def __init__(
        self,
        reader: ObjectLogReader,
        *,
        clock: Clock,
        delay_s: float,
        leads: Callable[[], bool],
        deposed: Callable[[str], None],
    ) -> None:
        """`leads`: whether the log object does; `deposed` is told why it does not any more."""
        self._reader: Final = reader
        self._clock = clock
        self._delay_s = delay_s
        self._leads = leads
        self._deposed = deposed
        self._terms = 0
        """How often a term has ended: what began in another one proves nothing."""
        self._begun = 0
        """The number of the latest question or append that has begun."""
        self._proven = 0
        """The highest number of one that proved the end."""
        self._since = -math.inf
        self._append: Append | None = None
        self._question: _Question | None = None

    @property
    def since(self) -> float:
        """When the newest proof began, in monotonic seconds: until then nobody else has led."""
        return self._since

    def is_fresh(self) -> bool:
        """Whether nothing can have been pruned that came after the newest proof."""
        return self._clock.monotonic() < self._since + self._delay_s

    # -- what the log tells -----------------------------------------------------------------------

    def end_term(self) -> None:
        """The log object does not lead, or not any more."""
        self._terms += 1
        self._since = -math.inf

    def begin_append(self, put_id: bytes) -> Append:
        """An append begins at the end; there is one at a time, and `end_append` ends it."""
        self._begun += 1
        self._append = Append(self._begun, self._clock.monotonic(), put_id, asyncio.Event())
        return self._append

    def appended(self, append: Append) -> None:
        """It is in the log, and the index knows."""
        self._prove(append.number, append.began)

    def end_append(self, append: Append) -> None:
        """Whatever became of it."""
        self._append = None
        append.ended.set()

    async def close(self) -> None:
        """Wait for a question under way. The log object leads no more."""
        if self._question is not None:
            await asyncio.wait([self._question.task])

    def _prove(self, number: int, began: float) -> None:
        self._proven = max(self._proven, number)
        self._since = max(self._since, began)

    # -- asking -----------------------------------------------------------------------------------

    async def prove(self) -> None:
        """Return when nobody else has appended until this call. The log object leads.

        Raises: NotCoordinator, StorageFailed, CorruptLog.
        """
        term, came = self._terms, self._begun
        while self._proven <= came:
            question = self._question or self._new_question(term)
            await asyncio.wait([question.task])
            if question.number > came:
                question.task.result()
            self._check(term)

    def _new_question(self, term: int) -> _Question:
        self._begun += 1
        task = asyncio.create_task(self._ask(self._begun, term), name="metadata-log-end")
        task.add_done_callback(self._answered)
        self._question = _Question(self._begun, task)
        return self._question

    def _answered(self, task: "asyncio.Task[None]") -> None:
        self._question = None
        if not task.cancelled():
            # Looked at, so that asyncio does not complain when all who wait were cancelled.
            task.exception()

    def _is_same(self, term: int) -> bool:
        return term == self._terms and self._leads()

    def _check(self, term: int) -> None:
        if not self._is_same(term):
            raise NotCoordinator("this process does not lead the metadata log any more")

    async def _ask(self, number: int, term: int) -> None:
        """Ask what is at the end: a proof, or an append that is waited for, or it deposes."""
        end = self._reader.end_offset
        began = self._clock.monotonic()
        if self.is_fresh():
            found = await self._found(end)
            is_proof = found is None and self.is_fresh()
        else:
            found, is_proof = None, False
        if found is None and not is_proof and self._is_same(term):
            began = self._clock.monotonic()
            is_proof = not await self._reader.list(after=end - 1, limit=1)
            if is_proof and self._clock.monotonic() - began >= self._delay_s:
                raise StorageFailed(
                    f"{self._reader.prefix}: a listing took longer than the prune delay; what it"
                    " does not show may have come and gone meanwhile"
                )
            found = None if is_proof else await self._found(end)
        if not self._is_same(term):
            return
        if is_proof:
            self._prove(number, began)
        elif self._reader.end_offset > end:
            pass  # taken by an own append, which has ended meanwhile
        elif (
            (append := self._append) is not None
            and found is not None
            and (found.put_id == append.put_id)
        ):
            await append.ended.wait()
        else:
            why = f"{self._reader.key(end)}: another writer has appended there"
            self._deposed(why)
            raise NotCoordinator(why)

    async def _found(self, offset: int) -> LogObjectHeader | None:
        try:
            return await self._reader.stored_header(offset)
        except ObjectNotFound:
            return None
