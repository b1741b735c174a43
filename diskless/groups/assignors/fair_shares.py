"""Computes how many partitions each member gets: as evenly as possible, then with the fewest moves.

Partitions of topics with the same readers are interchangeable here; they are one *kind*, and only
counts matter: how many of a kind a member has now, and gets. Finding the counts is a flow of
partitions from kinds to members, whose cost is first the sum of the squares of what members get
(the least sum is the evenest shares, whatever members may read), then the partitions that change
hands.

    keep      everybody keeps what they have
    place     what nobody has goes to the member that may have it and has least
    level     the member that has least is given by the one that has most of those that can give
    chain     the same over others in between: a gives to b, b gives something else to c
    settle    exchanges that leave everybody as much, and more of what they had

The first three are enough, and exact, when all members want the same topics, which is how most
groups are. With different subscriptions `chain` makes shares as even as possible (a flow without an
improving path is the cheapest), and `settle` moves as few as possible (likewise, without a cycle).
These two search, so they share a budget of steps. When it is used up, what was reached is taken: a
complete assignment, in which somebody has more than necessary or more moved than had to.

Everything goes in the order of kinds and members, so the same question has the same answer.
"""

import heapq
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from diskless.loop.long_work import Steps, batched, collected

SEARCH_STEPS_MAX: Final = 2_000_000
"""Edges that are looked at in both searches together: about a second."""

_EDGES_AT_ONCE: Final = 1_000


class Kind(NamedTuple):
    """Partitions that the same members may read."""

    readers: Sequence[int]
    """Members by number, ascending; never empty."""
    partitions: int
    """How many."""


def fair_shares(
    kinds: Sequence[Kind],
    owned: Sequence[dict[int, int]],
    *,
    search_steps_max: int = SEARCH_STEPS_MAX,
) -> Steps[Sequence[dict[int, int]]]:
    """Per member: how many of each kind. `owned`: the same of now, only what may stay."""
    shares = _Shares(kinds, owned, search_steps_max)
    yield from shares.place()
    yield from shares.level()
    if len(kinds) > 1:
        yield from shares.chain()
        yield from shares.settle()
    return shares.shares


class _Spent(Exception):
    """The budget of steps is used up."""


class _Shares:
    def __init__(
        self, kinds: Sequence[Kind], owned: Sequence[dict[int, int]], search_steps_max: int
    ) -> None:
        self._kinds = kinds
        self._owned = owned
        self.shares = [dict(mine) for mine in owned]
        self._loads = [sum(mine.values()) for mine in owned]
        self._wanted: list[list[int]] = [[] for _ in owned]
        self._steps_left = search_steps_max

    def place(self) -> Steps[None]:
        """Give what nobody has, beginning with what the fewest may have."""
        for number, kind in enumerate(self._kinds):
            for member in kind.readers:
                self._wanted[member].append(number)
            yield
        placed = [0] * len(self._kinds)
        for mine in self.shares:
            for number, count in mine.items():
                placed[number] += count
            yield
        fewest_first = sorted(
            range(len(self._kinds)), key=lambda kind: (len(self._kinds[kind].readers), kind)
        )
        for number in fewest_first:
            yield
            left = self._kinds[number].partitions - placed[number]
            if not left:
                continue
            for member, count in filled(self._loads, self._kinds[number].readers, left):
                self._give(member, number, count)

    def level(self) -> Steps[None]:
        """Move from those with most to those with least, where one can give to the other.

        Who has received something is a giver no more: it has at most one more than the least.
        """
        givers: list[list[tuple[int, int]]] = [[] for _ in self._kinds]
        for member, mine in enumerate(self.shares):
            for kind, count in mine.items():
                if count:
                    givers[kind].append((-self._loads[member], member))
            yield
        for heap in givers:
            heapq.heapify(heap)
        least = [(load, member) for member, load in enumerate(self._loads)]
        heapq.heapify(least)
        while least:
            yield
            load, member = least[0]
            giver, kind = self._richest_giver(member, givers)
            if giver is None or self._loads[giver] < load + 2:
                heapq.heappop(least)
                continue
            self._take(giver, kind)
            self._give(member, kind)
            heapq.heapreplace(least, (load + 1, member))

    def _richest_giver(
        self, member: int, givers: Sequence[list[tuple[int, int]]]
    ) -> tuple[int | None, int]:
        """The member with most that has what `member` wants, and the kind it can give."""
        best: tuple[int, int] | None = None
        best_kind = 0
        for kind in self._wanted[member]:
            heap = givers[kind]
            while heap:
                load, giver = heap[0]
                if not self.shares[giver].get(kind):
                    heapq.heappop(heap)
                elif self._loads[giver] != -load:
                    heapq.heapreplace(heap, (-self._loads[giver], giver))
                else:
                    break
            if heap and (best is None or heap[0] < best):
                best, best_kind = heap[0], kind
        return (best[1], best_kind) if best is not None else (None, 0)

    def chain(self) -> Steps[None]:
        """Level over others in between, until no chain from a giver to a receiver is left.

        Members are looked at from those with least upwards. All from whom those can receive, if
        nobody among them has two more, are as even as they can be; they are out of the search.
        """
        done: set[int] = set()
        try:
            while len(done) < len(self._loads):
                least = min(load for member, load in enumerate(self._loads) if member not in done)
                reached = yield from self._improve(least, done)
                if reached is not None:
                    done |= reached
        except _Spent:
            return

    def _improve(self, least: int, done: set[int]) -> Steps[set[int] | None]:
        """One chain to somebody with `least`; if there is none, all that could have begun one."""
        queue = [
            member
            for member, load in enumerate(self._loads)
            if load == least and member not in done
        ]
        gets_from: dict[int, tuple[int, int] | None] = dict.fromkeys(queue)
        """Giver -> (who receives from it, which kind)."""
        seen_kinds: set[int] = set()
        for receiver in queue:
            for kind in self._wanted[receiver]:
                if kind in seen_kinds:
                    continue
                seen_kinds.add(kind)
                yield
                readers = self._kinds[kind].readers
                self._spend(len(readers))
                for giver in readers:
                    if giver in gets_from or giver in done or not self.shares[giver].get(kind):
                        continue
                    gets_from[giver] = receiver, kind
                    if self._loads[giver] >= least + 2:
                        self._pass_along(giver, gets_from)
                        return None
                    queue.append(giver)
        return set(gets_from)

    def _pass_along(self, giver: int, gets_from: dict[int, tuple[int, int] | None]) -> None:
        while (step := gets_from[giver]) is not None:
            receiver, kind = step
            self._take(giver, kind)
            self._give(receiver, kind)
            giver = receiver

    def settle(self) -> Steps[None]:
        """Undo moves that were not needed, as long as everybody can keep the size of their share.

        Who has one more than another may also change places with it.
        """
        if all(
            mine.get(kind, 0) >= count
            for mine, owned in zip(self.shares, self._owned, strict=True)
            for kind, count in owned.items()
        ):
            return
        try:
            while cycles := (yield from self._saving_cycles()):
                for cycle in cycles:
                    for start, end in cycle:
                        self._apply(start, end)
                        yield
        except _Spent:
            return

    # The graph of exchanges. Nodes: members 0 .. m-1, then kinds, then one for each size of a
    # share. An edge is one partition that goes from its start to its end: a kind gives it to a
    # member, a member gives it back to its kind. A member that receives one more than it had hands
    # on its "one more" to the node of its old size, which takes it from a member with one more.

    def _edges(self) -> Iterator[tuple[int, int, int]]:
        """(start, end, cost): cost 1 takes away what a member had, -1 gives it back."""
        members = len(self._loads)
        sizes = members + len(self._kinds)
        for member, load in enumerate(self._loads):
            mine, owned = self.shares[member], self._owned[member]
            for kind in self._wanted[member]:
                has, had = mine.get(kind, 0), owned.get(kind, 0)
                yield members + kind, member, -1 if has < had else 0
                if has:
                    yield member, members + kind, 1 if has <= had else 0
            yield member, sizes + load, 0
            if load:
                yield sizes + load - 1, member, 0

    def _apply(self, start: int, end: int) -> None:
        members = len(self._loads)
        kinds = range(members, members + len(self._kinds))
        if start in kinds:
            self._give(end, start - members)
        elif end in kinds:
            self._take(start, end - members)

    def _saving_cycles(self) -> Steps[list[list[tuple[int, int]]]]:
        """Cycles without a node in common, each of which saves moves; none if nothing does.

        Bellman and Ford's search from everywhere at once: a cycle among the edges by which nodes
        were reached most cheaply is one of negative cost.
        """
        edges = yield from collected(self._edges())
        nodes = len(self._loads) + len(self._kinds) + max(self._loads, default=0) + 1
        costs = [0] * nodes
        came_from = [-1] * nodes
        for _ in range(nodes):
            self._spend(len(edges))
            changed = False
            for some in batched(edges, _EDGES_AT_ONCE):
                yield
                for start, end, cost in some:
                    if costs[start] + cost < costs[end]:
                        costs[end] = costs[start] + cost
                        came_from[end] = start
                        changed = True
            if not changed:
                return []
            if cycles := _cycles(came_from):
                return cycles
        raise AssertionError("costs fall for ever, and no cycle")

    def _spend(self, steps: int) -> None:
        self._steps_left -= steps
        if self._steps_left < 0:
            raise _Spent

    def _give(self, member: int, kind: int, count: int = 1) -> None:
        self.shares[member][kind] = self.shares[member].get(kind, 0) + count
        self._loads[member] += count

    def _take(self, member: int, kind: int) -> None:
        self.shares[member][kind] -= 1
        self._loads[member] -= 1


def filled(loads: Sequence[int], readers: Sequence[int], count: int) -> Iterator[tuple[int, int]]:
    """Yields who gets how many of `count` partitions, one by one to the first with least."""
    by_load = sorted(readers, key=lambda member: loads[member])
    level, filled = loads[by_load[0]], 0
    while count:
        # Those with least are filled up to the next one, or as far as it goes.
        while filled < len(by_load) and loads[by_load[filled]] == level:
            filled += 1
        room = loads[by_load[filled]] - level if filled < len(by_load) else count
        rise = min(room, count // filled)
        if not rise:
            break
        level += rise
        count -= rise * filled
    for member in sorted(by_load[:filled]):
        one_more = 1 if count else 0
        count -= one_more
        if gets := level - loads[member] + one_more:
            yield member, gets


def _cycles(came_from: Sequence[int]) -> list[list[tuple[int, int]]]:
    """The cycles of a graph in which every node has one predecessor, or none (-1)."""
    found = []
    visited = [-1] * len(came_from)
    for origin in range(len(came_from)):
        node = origin
        while node != -1 and visited[node] == -1:
            visited[node] = origin
            node = came_from[node]
        if node == -1 or visited[node] != origin:
            continue
        cycle, end = [], node
        while True:
            start = came_from[end]
            cycle.append((start, end))
            end = start
            if end == node:
                break
        found.append(cycle)
    return found
