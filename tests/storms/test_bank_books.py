"""The books of a bank notice what they are there to notice, each fault planted once."""

import json
from collections.abc import Sequence
from typing import Any

from tests.support.bank.bank import transfers_of
from tests.support.bank.books import (
    Balance,
    Leg,
    LogEnd,
    Outcome,
    Transfer,
    balance_faults,
    disagreements,
    late_legs,
    log_end_faults,
    order_faults,
    outcome_faults,
)

COMMITTED = Transfer("t-1", Outcome.COMMITTED, (0, 1), 5, committed_s=10.0)
ABORTED = Transfer("t-2", Outcome.ABORTED, (1, 2), 7)
UNKNOWN = Transfer("t-3", Outcome.UNKNOWN, (0, 2), 9)


def legs(transfer: Transfer, offset: int = 0, seen_s: float = 10.5) -> list[Leg]:
    """Both, in the partitions of their accounts."""
    debited, credited = transfer.accounts
    teller, _, number = transfer.transfer_id.partition("-")
    return [
        Leg(account, offset, transfer.transfer_id, teller, int(number), account, amount, seen_s)
        for account, amount in ((debited, -transfer.amount), (credited, transfer.amount))
    ]


def test_what_is_as_it_should_be_has_no_fault() -> None:
    read = legs(COMMITTED)
    assert order_faults(read) == []
    assert outcome_faults([COMMITTED, ABORTED, UNKNOWN], read) == []
    assert outcome_faults([COMMITTED, UNKNOWN], [*read, *legs(UNKNOWN, 1)]) == []
    assert late_legs([COMMITTED], read, 1.0) == []
    assert disagreements({"one": read, "other": list(reversed(read))}) == []


def test_a_torn_transfer_is_noticed() -> None:
    for transfer in (COMMITTED, UNKNOWN):
        for leg in legs(transfer):
            assert len(outcome_faults([transfer], [leg])) == 1


def test_a_lost_transfer_and_a_leg_that_comes_twice_are_noticed() -> None:
    assert len(outcome_faults([COMMITTED], [])) == 1
    twice = [*legs(COMMITTED), legs(COMMITTED, 3)[0]]
    assert len(outcome_faults([COMMITTED], twice)) == 1


def test_a_leg_of_an_aborted_transfer_is_noticed_and_one_that_nobody_sent() -> None:
    assert len(outcome_faults([ABORTED], legs(ABORTED))) == 1
    assert len(outcome_faults([ABORTED], legs(ABORTED)[:1])) == 1
    assert len(outcome_faults([], legs(COMMITTED))) == 1


def test_what_breaks_the_order_is_noticed() -> None:
    first = legs(COMMITTED, 4)[0]
    assert len(order_faults([first, first])) == 1
    assert len(order_faults([first, first._replace(offset=3, number=2)])) == 1
    of_a_zombie = first._replace(offset=5, number=0)
    assert len(order_faults([first, of_a_zombie])) == 1
    elsewhere = of_a_zombie._replace(partition=9)
    assert order_faults([first, elsewhere]) == []


def test_readers_that_found_different_things_are_noticed() -> None:
    read = legs(COMMITTED)
    assert len(disagreements({"one": read, "other": read[:1]})) == 1
    other = [read[0]._replace(amount=1), read[1]]
    assert len(disagreements({"one": read, "other": other})) == 1


def test_a_leg_that_is_seen_late_is_noticed() -> None:
    first, second = legs(COMMITTED)
    assert len(late_legs([COMMITTED], [first, second._replace(seen_s=90.0)], 60.0)) == 1
    assert late_legs([UNKNOWN], [first._replace(seen_s=90.0)], 60.0) == []


def ends(*samples: tuple[float, int, int]) -> list[LogEnd]:
    return [LogEnd(at_s, 0, stable, highest) for at_s, stable, highest in samples]


def test_a_last_stable_offset_that_goes_back_is_noticed() -> None:
    assert len(log_end_faults(ends((0, 5, 5), (1, 4, 6)), 60.0, 3.0)) == 1
    assert log_end_faults(ends((0, 4, 5), (1, 4, 6), (2, 6, 6)), 60.0, 3.0) == []
    of_another = LogEnd(1.0, 1, 4, 6)
    assert log_end_faults([*ends((0, 5, 5)), of_another], 60.0, 3.0) == []


def test_a_last_stable_offset_beyond_the_high_watermark_is_noticed() -> None:
    assert len(log_end_faults(ends((0, 6, 5)), 60.0, 3.0)) == 1


def test_a_transaction_that_stays_open_is_noticed() -> None:
    held = ends(*((float(second), 5, 6) for second in range(20)))
    assert len(log_end_faults(held, 10.0, 3.0)) == 1
    closed_between = ends(*((float(second), 5 + second // 9, 99) for second in range(20)))
    assert log_end_faults(closed_between, 10.0, 3.0) == []
    nothing_open = ends(*((float(second), 6, 6) for second in range(20)))
    assert log_end_faults(nothing_open, 10.0, 3.0) == []
    led_by_nobody = ends((0, 5, 6), (1, 5, 6), (18, 5, 6), (19, 5, 6))
    assert log_end_faults(led_by_nobody, 10.0, 3.0) == []


def test_balances_that_are_not_the_replayed_legs_are_noticed() -> None:
    first, second = Leg(0, 0, "t-1", "t", 1, 0, -5), Leg(0, 3, "t-4", "t", 4, 0, 8)
    right = [Balance(0, 0, 0, -5), Balance(0, 3, 0, 3)]
    assert balance_faults([first, second], right) == []
    assert len(balance_faults([first, second], right[:1])) == 1
    assert len(balance_faults([first, second], [right[0], *right])) == 1
    assert len(balance_faults([first, second], [right[0], Balance(0, 3, 0, 8)])) == 1
    assert len(balance_faults([first], right)) == 1


def said(*events: str) -> Sequence[dict[str, Any]]:
    began = {"event": "began", "id": "t-1", "accounts": [0, 1], "amount": 5, "at": 1.0}
    told = [began, *({"event": event, "id": "t-1", "at": 2.0} for event in events)]
    return [json.loads(json.dumps(one)) for one in told]


def test_what_a_teller_said_last_is_how_its_transfer_ended() -> None:
    for events, outcome in (
        ((), Outcome.ABORTED),
        (("commits",), Outcome.UNKNOWN),
        (("commits", "failed"), Outcome.UNKNOWN),
        (("commits", "failed", "aborted"), Outcome.ABORTED),
        (("aborted",), Outcome.ABORTED),
        (("commits", "committed"), Outcome.COMMITTED),
    ):
        (transfer,) = transfers_of(said(*events))
        assert transfer.outcome is outcome
        assert (transfer.committed_s is not None) == (outcome is Outcome.COMMITTED)
