"""The ledger of a storm notices what it is there to notice."""

from tests.support.groups.storm_ledger import Ledger


def read(ledger: Ledger, member: str, *offsets: int, partition: int = 0) -> None:
    for offset in offsets:
        ledger.read(member, partition, offset, b"%d" % offset)


def test_one_owner_after_the_other_is_as_it_should_be() -> None:
    ledger = Ledger()
    ledger.assigned("a", [0, 1])
    read(ledger, "a", 0, 1, 2)
    ledger.committed("a", ledger.positions("a", [0, 1]))
    assert ledger.owners() == {0: ["a"], 1: ["a"]}
    ledger.ended("a", [0, 1])
    ledger.gone("a")
    ledger.assigned("b", [0])
    read(ledger, "b", 3, 4)
    ledger.ended("b", [0])
    assert ledger.delivered == {0: {0, 1, 2, 3, 4}}
    assert ledger.faults == ledger.overlaps() == ledger.leaps() == ledger.repeats() == []


def test_two_owners_at_a_time_are_noticed() -> None:
    ledger = Ledger()
    ledger.assigned("a", [0])
    ledger.assigned("b", [0])
    ledger.ended("a", [0])
    ledger.assigned("c", [0])
    ledger.ended("b", [0])
    ledger.ended("c", [0])
    assert len(ledger.overlaps()) == 2


def test_an_owner_that_was_told_too_late_of_its_loss_is_excused() -> None:
    ledger = Ledger()
    ledger.assigned("a", [0])
    ledger.assigned("b", [0])
    ledger.ended("a", [0], was_lost=True)
    ledger.ended("b", [0])
    assert ledger.overlaps() == []


def test_what_comes_twice_or_not_at_all_or_without_having_it_is_noticed() -> None:
    ledger = Ledger()
    ledger.assigned("a", [0])
    read(ledger, "a", 0, 1, 1, 3)
    read(ledger, "b", 4)
    ledger.read("a", 0, 4, b"5")
    ledger.assigned("a", [0])
    ledger.ended("b", [0])
    ledger.gone("a")
    assert len(ledger.faults) == 7


def test_an_owner_that_leaves_out_what_nobody_read_is_noticed() -> None:
    ledger = Ledger()
    ledger.assigned("a", [0])
    read(ledger, "a", 0, 1)
    ledger.ended("a", [0])
    ledger.assigned("b", [0])
    read(ledger, "b", 3)
    assert len(ledger.leaps()) == 1


def test_an_owner_that_begins_before_what_was_committed_is_noticed() -> None:
    ledger = Ledger()
    ledger.assigned("a", [0])
    read(ledger, "a", 0, 1, 2)
    ledger.committed("a", {0: 2})
    ledger.ended("a", [0])
    ledger.assigned("b", [0])
    read(ledger, "b", 2)
    assert ledger.repeats() == []
    ledger.ended("b", [0])
    ledger.assigned("c", [0])
    read(ledger, "c", 1)
    assert len(ledger.repeats()) == 1
