"""Bounds the memory that requests hold in the whole broker, and decides who waits for it.

Counted is what is really held: the receive buffers that are lent out, whole, and what each request
keeps beside them until it is answered (`charge`). The bytes of a Produce request go back when they
are in the chunk file, long before its answer. What a length field announces is not counted: an
announcement costs its sender nothing, and must cost others nothing.

Accounts, owners and their shares are those of `diskless.server.memory_budget`. The rules, in the
order in which they are asked:

1. **A connection with nothing unanswered may receive and start one request of up to
   REQUEST_ALLOWANCE_BYTES**, however much others hold. So nobody locks anybody out, and memory is
   bounded by the limit and one such request for each connection.
2. **An owner holds at most half of the limit**, all its connections together, and all owners
   together hold at most the limit. Who would exceed that waits: it is not read from, in the middle
   of a frame if need be, and nothing that it sent is started. It goes on when a quarter of what was
   exceeded is free again, so that a broker at its limit does not stop and start for every buffer.
   Buffers that come back and requests that are answered end the wait; nobody polls.
3. **Larger frames are received beyond the limit in turn.** Those who hold the memory may not let go
   of it for long. So of the connections with nothing unanswered and a frame above the allowance,
   the one that has waited longest may go on until its frame is complete, then the next. The turn is
   given only while the frames that are complete and not yet written are few (less than a quarter of
   the limit): in an outage of the store memory does not grow by a frame for every connection.
   A client that stalls in its turn runs into its receive deadline, and loses it.

Nothing unanswered means: no request without an answer, and no buffer of an earlier request, which a
request that timed out leaves in the write queue.

Those who wait go on one after the other, in turns of the loop (`take_turn`), an owner at a time.
"""

from collections.abc import Callable, Collection, Hashable
from typing import Final

from diskless.loop.turns import Turn
from diskless.server.memory_budget import MemoryBudget
from wal.chunks.buffer import BufferPool

REQUEST_ALLOWANCE_BYTES: Final = 64 << 10
"""The largest frame that is always received. Metadata, Fetch, group requests and most Produce
requests of stock clients are smaller; ten thousand connections may hold 640 MiB with it."""

REQUEST_COST_BYTES: Final = 32 << 10
"""What takes the processor as long to move as a request takes besides its bytes: some 60 µs."""

_QUARTERS: Final = 4


class RequestAccount:
    """What one connection holds: a `Borrower` of buffers. Made by `RequestBudget.open`."""

    __slots__ = (
        "_budget",
        "_owner",
        "_resume",
        "charged_bytes",
        "lent_bytes",
        "moved_bytes",
        "receiving_bytes",
    )

    def __init__(
        self, budget: "RequestBudget", owner: "_Owner", resume: Callable[[], None]
    ) -> None:
        self._budget = budget
        self._owner = owner
        self._resume = resume
        self.charged_bytes = 0
        """For requests that are not answered; 0 only when there are none."""
        self.lent_bytes = 0
        self.receiving_bytes = 0
        """Of `lent_bytes`, the buffers of the frame that is being received, and of those behind."""
        self.moved_bytes = 0
        """Received in buffers and answered, ever, and REQUEST_COST_BYTES for each answer."""

    def lent(self, size_bytes: int) -> None:
        self.lent_bytes += size_bytes
        self.receiving_bytes += size_bytes
        self._owner.held_bytes += size_bytes
        self._owner.receiving_bytes += size_bytes

    def received(self, size_bytes: int) -> None:
        self.receiving_bytes -= size_bytes
        self.moved_bytes += size_bytes
        self._owner.receiving_bytes -= size_bytes

    def returned(self, size_bytes: int) -> None:
        self.lent_bytes -= size_bytes
        self._owner.held_bytes -= size_bytes
        self._budget.buffer_returned(self)

    def charge(self, count: int) -> None:
        """A request keeps `count` bytes besides its receive buffers, until `answered`."""
        self.charged_bytes += count
        self._owner.held_bytes += count
        self._budget.charged_bytes += count

    def answered(self, count: int) -> None:
        """A request for which `count` bytes were charged is done with."""
        self.charged_bytes -= count
        self._owner.held_bytes -= count
        self._budget.charged_bytes -= count
        self._budget.go_on()

    def completed(self) -> None:
        """A frame was received to its end, or the connection gives up its turn to receive one."""
        self._budget.end_turn(self)

    def close(self) -> None:
        """The connection ended; what it had received was released before.

        What was charged for requests that still run goes back with `answered`.
        """
        self._budget.forget(self)
        self._budget.end_turn(self)
        self._budget.go_on()

    def is_at_limit(self) -> bool:
        """Whether it may have to wait once it has read what it is about to read."""
        return self._budget.is_at_limit(self)

    def must_wait(self, frame_bytes: int) -> bool:
        """Whether it may not go on now; if so, `resume` is called once it is worth asking again.

        `frame_bytes`: of the frame that it is receiving or about to start, 0 while not known.
        """
        return self._budget.must_wait(self, frame_bytes)

    @property
    def held_bytes(self) -> int:
        return self.lent_bytes + self.charged_bytes

    @property
    def has_nothing_unanswered(self) -> bool:
        return not self.charged_bytes and self.lent_bytes == self.receiving_bytes


class RequestBudget(MemoryBudget["_Owner"]):
    """Memory of requests, over all connections of a server; the pool lends to nobody else."""

    def __init__(
        self, limit_bytes: int, pool: BufferPool, wake: Callable[["RequestBudget"], None]
    ) -> None:
        """`wake` has `take_turn` called soon; calls before that count once."""
        self._pool = pool
        self._wake = wake
        super().__init__(limit_bytes, _Owner)
        self._all = _Level(limit_bytes)
        self._unwritten_max_bytes = limit_bytes // _QUARTERS
        self.charged_bytes = 0
        self._waiting: dict[RequestAccount, None] = {}
        self._owners_waiting: dict[_Owner, None] = {}
        """Owners with an account that waits; the first one goes on next."""
        self._large: dict[RequestAccount, None] = {}
        """Of `_waiting`, those with nothing unanswered and a frame beyond the allowance."""
        self._favoured: RequestAccount | None = None
        pool.listen(self.go_on)

    def open(self, owner: Hashable, resume: Callable[[], None]) -> RequestAccount:
        """The account of a new connection; `resume` must do no more than note that it may go on."""
        return RequestAccount(self, self._owner(owner), resume)

    @property
    def used_bytes(self) -> int:
        return self._pool.in_use_bytes + self.charged_bytes

    @property
    def waiting(self) -> int:
        """Connections that do not go on because of a limit."""
        return len(self._waiting)

    def owners_waited_for(
        self, owners: Collection[Hashable], unless: Collection[RequestAccount]
    ) -> Collection[Hashable]:
        """Those of `owners` whose memory would let some account go on that is not in `unless`."""
        if self._is_full():
            return owners if any(one not in unless for one in self._waiting) else ()
        return {
            owner
            for owner in owners
            if (known := self._owners.get(owner)) is not None
            and any(one not in unless for one in known.waiting)
        }

    def take_turn(self, turn: Turn) -> bool:
        """Let those go on who wait, an owner at a time; see `diskless.loop.turns.TurnTaker`."""
        if self._is_full():
            return False
        full: set[_Owner] = set()
        while len(self._owners_waiting) > len(full):
            if turn.is_over():
                return True
            owner = next(iter(self._owners_waiting))
            if owner.is_full():
                full.add(owner)
            else:
                account = next(iter(owner.waiting))
                self.forget(account)
                account._resume()
            if owner in self._owners_waiting:
                # Behind the others.
                del self._owners_waiting[owner]
                self._owners_waiting[owner] = None
        return False

    def has_backlog(self) -> bool:
        """Never: those that go on have their own turns."""
        return False

    # --- called by accounts

    def is_at_limit(self, account: RequestAccount) -> bool:
        if account is self._favoured:
            return False
        owner = account._owner
        return owner.held_bytes >= owner.limit_bytes or self.used_bytes >= self.limit_bytes

    def must_wait(self, account: RequestAccount, frame_bytes: int) -> bool:
        is_idle = account.has_nothing_unanswered
        if (
            account is self._favoured
            or (is_idle and frame_bytes <= REQUEST_ALLOWANCE_BYTES)
            or not (self._is_full() or account._owner.is_full())
        ):
            self.forget(account)
            return False
        self._waiting[account] = None
        account._owner.waiting[account] = None
        self._owners_waiting.setdefault(account._owner)
        if is_idle:
            self._large.setdefault(account)
            return not self._favour_next(account)
        # What it is asked for is a request behind others now.
        self._large.pop(account, None)
        return True

    def buffer_returned(self, account: RequestAccount) -> None:
        """Where that was the last one of earlier requests, the account need not wait for others."""
        if account in self._waiting and account.has_nothing_unanswered:
            account._resume()

    def go_on(self) -> None:
        """Something was released."""
        if not self._waiting:
            return
        if not self._is_full():
            self._wake(self)
        if self._large:
            self._favour_next(None)

    def end_turn(self, account: RequestAccount) -> None:
        if self._favoured is account:
            self._favoured = None
            self._favour_next(None)

    def forget(self, account: RequestAccount) -> None:
        if account not in self._waiting:
            return
        del self._waiting[account]
        self._large.pop(account, None)
        owner = account._owner
        del owner.waiting[account]
        if not owner.waiting:
            del self._owners_waiting[owner]

    def _favour_next(self, asking: RequestAccount | None) -> bool:
        """Give the turn to the one that has waited longest; whether that is `asking`."""
        unwritten = self._pool.in_use_bytes - self._pool.receiving_bytes
        if self._favoured is not None or unwritten >= self._unwritten_max_bytes or not self._large:
            return False
        self._favoured = next(iter(self._large))
        self.forget(self._favoured)
        if self._favoured is asking:
            return True
        self._favoured._resume()
        return False

    def _is_full(self) -> bool:
        self._all.held_bytes = self.used_bytes
        self._all.receiving_bytes = self._pool.receiving_bytes
        return self._all.is_full()


class _Level:
    """How full something is, with a mark below the limit that ends a time at the limit."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._low_mark_bytes = limit_bytes - limit_bytes // _QUARTERS
        self.held_bytes = 0
        self.receiving_bytes = 0
        self._is_draining = False
        """The limit was reached, and what is held has not fallen to the mark since."""

    def is_full(self) -> bool:
        if self.held_bytes >= self.limit_bytes:
            self._is_draining = True
        elif self._is_draining:
            # Unfinished frames above the mark would keep it from ever being reached.
            is_reachable = self.receiving_bytes < self._low_mark_bytes
            mark = self._low_mark_bytes if is_reachable else self.limit_bytes
            self._is_draining = self.held_bytes >= mark
        return self._is_draining


class _Owner(_Level):
    """What all connections of one owner hold."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self.waiting: dict[RequestAccount, None] = {}
