"""Says which broker should lead which metadata partition.

Rendezvous hashing alone leaves it to chance: of four brokers and four metadata partitions, it gives
each broker one in a tenth of all cases. So brokers have limits: every broker leads floor(p / b)
metadata partitions, and the p mod b that are left over go to brokers that get one more. Pairs of a
partition and a broker are taken by score, best first, as long as both have room. This is the stable
matching: no partition and broker score each other higher than what they got.

- It is a pure function of the registered brokers that may lead: not of who leads now, nor of the
  order in which they came. So brokers that have read the same catalogue agree, and moves end.
- Some brokers lead one more than others, and nobody two more.
- A broker more or less moves about twice what it must: with four partitions, the fourth broker
  moves 1.6 of them on average where 1 has to go. To keep every leader that fits would move fewer;
  it was turned down because brokers then have to agree on who leads as well, which changes while
  they move.

The rank of a broker says how many stand before it when the leader is silent: 0 for the one that
should lead if the silent one is taken away, then the others by score. Ranks end at RANK_MAX: who
shares one stands at the same time, and the log takes one of them.

Failure cases: brokers that have read different catalogues may name different leaders. Whoever
stands, the log takes one, and a move to the right one follows.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from hashlib import blake2b
from typing import Final

from metadata.operations import RegisteredBroker

RANK_MAX: Final = 5
"""With a tenth of a lease for each rank, the last one waits half a lease longer."""


def balanced_leaders(partition_count: int, brokers: Iterable[int]) -> Mapping[int, int]:
    """Metadata partition -> the broker that should lead it; empty when there is no broker."""
    ids = sorted(set(brokers))
    if not ids:
        return {}
    least, extras_left = divmod(partition_count, len(ids))
    led = dict.fromkeys(ids, 0)
    leaders: dict[int, int] = {}
    pairs = [
        (-_score(partition, one), partition, one)
        for partition in range(partition_count)
        for one in ids
    ]
    for _, partition, broker in sorted(pairs):
        is_extra = led[broker] == least
        if partition in leaders or led[broker] > least or (is_extra and not extras_left):
            continue
        extras_left -= is_extra
        led[broker] += 1
        leaders[partition] = broker
    return leaders


class Ranks:
    """Answers for the brokers that are registered at the moment."""

    def __init__(
        self, partition_count: int, registered: Callable[[], Mapping[int, RegisteredBroker]]
    ) -> None:
        self._partition_count: Final = partition_count
        self._registered = registered
        self._known: dict[frozenset[int], Mapping[int, int]] = {}
        """Of the brokers as they are now, and of all of them but one."""

    def leader(self, partition: int, *, without: int | None = None) -> int | None:
        """Who should lead; None when nobody is registered. `without` counts as not registered."""
        return self._leaders(self._candidates(without)).get(partition)

    def rank(self, partition: int, broker_id: int, *, without: int | None = None) -> int:
        """How many brokers stand before `broker_id`, RANK_MAX at most.

        A broker that is not registered is the last one, unless there is no other.
        """
        candidates = self._candidates(without)
        first = self._leaders(candidates).get(partition)
        if first in (None, broker_id):
            return 0
        if broker_id not in candidates:
            return min(len(candidates), RANK_MAX)
        mine = _score(partition, broker_id)
        before = sum(_score(partition, one) > mine for one in candidates - {first, broker_id})
        return min(1 + before, RANK_MAX)

    def registered(self) -> Collection[int]:
        """All brokers, whether they may lead or not."""
        return self._registered().keys()

    def life_of(self, broker_id: int) -> RegisteredBroker | None:
        """The registration of a broker; None when it has none."""
        return self._registered().get(broker_id)

    def _candidates(self, without: int | None) -> frozenset[int]:
        return frozenset(
            broker.broker_id
            for broker in self._registered().values()
            if broker.may_lead and broker.broker_id != without
        )

    def _leaders(self, candidates: frozenset[int]) -> Mapping[int, int]:
        known = self._known.get(candidates)
        if known is None:
            if len(self._known) > len(self._registered()):
                self._known.clear()
            known = self._known[candidates] = balanced_leaders(self._partition_count, candidates)
        return known


def _score(partition: int, broker: int) -> int:
    return int.from_bytes(blake2b(f"{partition}/{broker}".encode(), digest_size=8).digest())
