"""What a bank saw of its transfers, and what is wrong with it: plain functions over plain values.

A transfer moves an amount from one account to another: a debit and a credit, each one record, which
is called a leg, in the partitions of the two accounts. Tellers say of each transfer how it ended;
readers of committed records say which legs they saw, and where; clerks say which balances they made
of the legs. Each function names the faults that it finds; none is what everybody hopes for.

Kafka has no cut across partitions: a reader may see one leg long before the other. So nothing here
compares two partitions at a time, but for whole transfers, when nothing is open.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

__all__ = [
    "Balance",
    "Leg",
    "LogEnd",
    "Outcome",
    "Transfer",
    "balance_faults",
    "disagreements",
    "late_legs",
    "log_end_faults",
    "order_faults",
    "outcome_faults",
]


class Outcome(Enum):
    """How a transfer ended, as far as its teller knows."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    """The teller aborted it, or never asked to commit it."""
    UNKNOWN = "unknown"
    """The teller asked to commit it, and had no answer or was fenced."""


class Transfer(NamedTuple):
    """One transfer of a teller."""

    transfer_id: str
    outcome: Outcome
    accounts: tuple[int, int]
    """Whose amount becomes less, and whose more."""
    amount: int
    committed_s: float | None = None
    """When the teller knew that it was committed, by the clock of the machine."""


class Leg(NamedTuple):
    """A record of a transfer where a reader found it."""

    partition: int
    offset: int
    transfer_id: str
    teller: str
    number: int
    """Rises with each transfer of a teller, over all its lives."""
    account: int
    amount: int
    """Below 0 for the debit."""
    seen_s: float = 0.0


class Balance(NamedTuple):
    """What a clerk wrote about one leg: what its account has since then."""

    partition: int
    leg_offset: int
    account: int
    amount: int


class LogEnd(NamedTuple):
    """Where a partition ended at one moment."""

    at_s: float
    partition: int
    last_stable_offset: int
    high_watermark: int
    """Asked for after the last stable offset."""


def order_faults(legs: Sequence[Leg]) -> list[str]:
    """What breaks the order of one reader, whose `legs` are in the order in which it read them.

    A teller that another one has replaced has a smaller number: what it writes afterwards is found
    here as well.
    """
    found = []
    offsets: dict[int, int] = {}
    numbers: dict[tuple[int, str], Leg] = {}
    for leg in legs:
        before = offsets.get(leg.partition, -1)
        if leg.offset <= before:
            found.append(f"{leg} was read after offset {before}")
        offsets[leg.partition] = leg.offset
        earlier = numbers.get((leg.partition, leg.teller))
        # Both legs of one transfer may be in one partition.
        if earlier is not None and leg.number < earlier.number:
            found.append(f"{leg} was read after number {earlier.number}")
        numbers[leg.partition, leg.teller] = leg
    return found


def outcome_faults(transfers: Iterable[Transfer], legs: Iterable[Leg]) -> list[str]:
    """Transfers that show other legs than they should, when nothing is open any more."""
    seen: dict[str, Counter[tuple[int, int]]] = defaultdict(Counter)
    for leg in legs:
        seen[leg.transfer_id][leg.account, leg.amount] += 1
    found = []
    for transfer in transfers:
        debited, credited = transfer.accounts
        whole = Counter([(debited, -transfer.amount), (credited, transfer.amount)])
        legs_seen = seen.pop(transfer.transfer_id, Counter())
        allowed = {
            Outcome.COMMITTED: [whole],
            Outcome.ABORTED: [Counter[tuple[int, int]]()],
            Outcome.UNKNOWN: [whole, Counter[tuple[int, int]]()],
        }[transfer.outcome]
        if legs_seen not in allowed:
            found.append(
                f"{transfer.transfer_id} is {transfer.outcome.value} and shows {dict(legs_seen)}"
            )
    found += [f"nobody began {transfer_id}, which was read" for transfer_id in seen]
    return found


def late_legs(transfers: Iterable[Transfer], legs: Iterable[Leg], within_s: float) -> list[str]:
    """Legs of committed transfers that a reader, who read all the time, saw too late."""
    committed = {one.transfer_id: one.committed_s for one in transfers if one.committed_s}
    return [
        f"{leg} was seen {leg.seen_s - known_s:.1f} s after its transfer was committed"
        for leg in legs
        if (known_s := committed.get(leg.transfer_id)) is not None
        and leg.seen_s - known_s > within_s
    ]


def disagreements(readers: Mapping[str, Sequence[Leg]]) -> list[str]:
    """Places at which two readers, who have all read to the same end, found different things."""
    found = []
    contents = {
        name: {(leg.partition, leg.offset): leg._replace(seen_s=0.0) for leg in legs}
        for name, legs in readers.items()
    }
    for (name, content), (other, other_content) in pairwise(contents.items()):
        for place in sorted(content.keys() | other_content.keys()):
            if content.get(place) != other_content.get(place):
                found.append(
                    f"{place}: {name} has {content.get(place)}, "
                    f"{other} has {other_content.get(place)}"
                )
    return found


def log_end_faults(ends: Iterable[LogEnd], open_max_s: float, gap_max_s: float) -> list[str]:
    """Last stable offsets that went back, or that something held for longer than `open_max_s`.

    The offset stands still below the high watermark while the transaction that begins there is
    open. Time between two samples of a partition that are further apart than `gap_max_s` does not
    count: nobody led it.
    """
    found = []
    by_partition: dict[int, list[LogEnd]] = defaultdict(list)
    for end in ends:
        by_partition[end.partition].append(end)
        if end.last_stable_offset > end.high_watermark:
            found.append(f"{end} is behind its high watermark")
    for samples in by_partition.values():
        open_s = 0.0
        for before, after in pairwise(samples):
            if after.last_stable_offset < before.last_stable_offset:
                found.append(f"{after} came after {before}")
            if after.last_stable_offset != before.last_stable_offset:
                open_s = 0.0
            elif before.last_stable_offset < before.high_watermark:
                passed_s = after.at_s - before.at_s
                open_s += passed_s if passed_s <= gap_max_s else 0.0
                if open_s > open_max_s:
                    found.append(f"{after} has had its transaction open for {open_s:.0f} s")
                    open_s = 0.0
    return found


def balance_faults(legs: Iterable[Leg], balances: Iterable[Balance]) -> list[str]:
    """Balances that are not what the legs come to: one for each leg, once, in their order."""
    expected: list[Balance] = []
    amounts: Counter[int] = Counter()
    for leg in sorted(legs, key=lambda one: (one.partition, one.offset)):
        amounts[leg.account] += leg.amount
        expected.append(Balance(leg.partition, leg.offset, leg.account, amounts[leg.account]))
    made: dict[int, list[Balance]] = defaultdict(list)
    for balance in balances:
        made[balance.partition].append(balance)
    wanted: dict[int, list[Balance]] = defaultdict(list)
    for balance in expected:
        wanted[balance.partition].append(balance)
    found = []
    for partition in sorted(made.keys() | wanted.keys()):
        for index, (one, other) in enumerate(zip(made[partition], wanted[partition], strict=False)):
            if one != other:
                found.append(f"balance {index} is {one} where {other} was to be")
                break
        else:
            if len(made[partition]) != len(wanted[partition]):
                found.append(
                    f"partition {partition} has {len(made[partition])} balances "
                    f"of {len(wanted[partition])} legs"
                )
    return found
