"""Who owned which partition when in a storm, and what each read: the rules that must hold.

The ledger is written by the members' own callbacks: a partition is a member's from the moment its
client says so until the callback of its revocation has ended. From these intervals `Ledger` finds
out whether a partition ever had two owners, whether anything was delivered twice or left out within
one interval, and whether an owner went on where the one before it had stopped.

A client may be told too late that it has lost its partitions: the broker gives them to others when
the member's session has ended, which is while the client cannot hear it. Intervals that end so, or
with a commit that is refused because of it, count as ended one session earlier.
"""

import math
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

SESSION_MS: Final = 6_000


@dataclass(slots=True, eq=False)
class Tenure:
    """One member's time with one partition."""

    member: str
    partition: int
    began: float
    ended: float | None = None
    was_lost: bool = False
    first: int | None = None
    """The first offset it read."""
    next_offset: int | None = None
    """What it would read next."""
    committed: int | None = None

    @property
    def surely_ended(self) -> float:
        """When others may have the partition."""
        if self.ended is None:
            return math.inf
        return self.ended - (SESSION_MS / 1000 if self.was_lost else 0)


@dataclass(slots=True)
class Ledger:
    """What all members say. Its methods may be called from any thread."""

    tenures: dict[int, list[Tenure]] = field(default_factory=dict)
    """By partition, in the order in which they began."""
    delivered: dict[int, set[int]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    """What was wrong the moment it happened."""
    refused_commits: list[str] = field(default_factory=list)
    _open: dict[tuple[str, int], Tenure] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def assigned(self, member: str, partitions: Iterable[int]) -> None:
        now = time.monotonic()
        with self._lock:
            for partition in partitions:
                if (member, partition) in self._open:
                    self.faults.append(f"{member} was given {partition} while it had it")
                tenure = Tenure(member, partition, now)
                self._open[member, partition] = tenure
                self.tenures.setdefault(partition, []).append(tenure)

    def ended(self, member: str, partitions: Iterable[int], *, was_lost: bool = False) -> None:
        now = time.monotonic()
        with self._lock:
            for partition in partitions:
                tenure = self._open.pop((member, partition), None)
                if tenure is None:
                    self.faults.append(f"{member} gave up {partition}, which it did not have")
                else:
                    tenure.ended = now
                    tenure.was_lost = was_lost

    def read(self, member: str, partition: int, offset: int, value: bytes) -> None:
        with self._lock:
            tenure = self._open.get((member, partition))
            if tenure is None:
                self.faults.append(f"{member} read {partition}@{offset} without having it")
                return
            if tenure.next_offset is None:
                tenure.first = offset
            elif offset != tenure.next_offset:
                self.faults.append(
                    f"{member} read {partition}@{offset} where {tenure.next_offset} was next"
                )
            tenure.next_offset = offset + 1
            if int(value) != offset:
                self.faults.append(f"{partition}@{offset} is number {int(value)} that was sent")
            self.delivered.setdefault(partition, set()).add(offset)

    def positions(self, member: str, partitions: Iterable[int]) -> dict[int, int]:
        """What a member should commit: where it has read to, and has not committed."""
        with self._lock:
            return {
                partition: tenure.next_offset
                for partition in partitions
                if (tenure := self._open.get((member, partition))) is not None
                and tenure.next_offset is not None
                and tenure.next_offset != tenure.committed
            }

    def committed(self, member: str, positions: Mapping[int, int]) -> None:
        with self._lock:
            for partition, position in positions.items():
                tenure = self._open.get((member, partition))
                if tenure is not None:
                    tenure.committed = position

    def refused(self, member: str, why: object) -> None:
        with self._lock:
            self.refused_commits.append(f"{member}: {why}")

    def gone(self, member: str) -> None:
        """It will say nothing more."""
        with self._lock:
            left = [partition for owner, partition in self._open if owner == member]
            if left:
                self.faults.append(f"{member} is gone and did not give up {left}")

    def owners(self) -> dict[int, list[str]]:
        """Who has which partition now."""
        with self._lock:
            found: dict[int, list[str]] = {}
            for member, partition in self._open:
                found.setdefault(partition, []).append(member)
            return found

    def delivered_count(self) -> int:
        with self._lock:
            return sum(map(len, self.delivered.values()))

    def overlaps(self) -> list[str]:
        """Times at which a partition had two owners. To be asked when all members have left."""
        found = []
        for partition, tenures in self.tenures.items():
            by_start = sorted(tenures, key=lambda one: one.began)
            latest = by_start[0]
            for following in by_start[1:]:
                if following.began < latest.surely_ended:
                    found.append(
                        f"{partition}: {following.member} had it "
                        f"{latest.surely_ended - following.began:.3f} s before "
                        f"{latest.member} had given it up"
                    )
                if following.surely_ended > latest.surely_ended:
                    latest = following
        return found

    def leaps(self) -> list[str]:
        """Owners that began behind what had been read by all before them: records left out."""
        found = []
        for partition, tenures in self.tenures.items():
            reached = 0
            for tenure in tenures:
                if tenure.first is None or tenure.next_offset is None:
                    continue
                if tenure.first > reached:
                    found.append(
                        f"{partition}: {tenure.member} began at {tenure.first}, not {reached}"
                    )
                reached = max(reached, tenure.next_offset)
        return found

    def repeats(self) -> list[str]:
        """Owners that began before what the one before them had committed."""
        found = []
        for partition, tenures in self.tenures.items():
            committed = 0
            for tenure in tenures:
                if tenure.first is not None and tenure.first < committed:
                    found.append(
                        f"{partition}: {tenure.member} began at {tenure.first} though "
                        f"{committed} was committed"
                    )
                if tenure.committed is not None:
                    committed = max(committed, tenure.committed)
        return found

    def rebalances(self) -> int:
        """How often a partition was given to somebody."""
        return sum(map(len, self.tenures.values()))
