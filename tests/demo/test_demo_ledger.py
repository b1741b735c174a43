"""The demo's comparison: it holds for what was sent, and no single change escapes it."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demo.events import Event
from demo.ledger import DIFFERENCES_TOLD_MAX, Ledger, ReadRecord

PARTITIONS = 3


def some_events(count: int = 12) -> list[Event]:
    return [
        Event(b"key-%d" % n, b"value-%d" % n, (("h", b"a"), ("h", None)), 1_000 + n)
        for n in range(count)
    ]


def delivered_ledger(events: Sequence[Event]) -> tuple[Ledger, list[ReadRecord]]:
    """A ledger whose events went round the partitions, and a perfect reading of it."""
    ledger = Ledger("t", events, PARTITIONS)
    places = [(number % PARTITIONS, number // PARTITIONS) for number in range(len(events))]
    for number, (partition, offset) in enumerate(places):
        ledger.delivered(number, partition, offset)
    reading = [
        ReadRecord(partition, offset, event)
        for (partition, offset), event in zip(places, events, strict=True)
    ]
    return ledger, sorted(reading, key=lambda record: record[:2])


def test_a_perfect_reading_holds_and_counts_what_it_read() -> None:
    events = some_events()
    ledger, reading = delivered_ledger(events)
    comparison = ledger.compare(iter(reading))
    assert comparison.held
    assert (comparison.records, comparison.told) == (len(events), ())
    assert comparison.size_bytes == sum(event.size_bytes for event in events)


def test_partitions_may_be_read_in_any_interleaving() -> None:
    ledger, reading = delivered_ledger(some_events())
    interleaved = sorted(reading, key=lambda record: (record.offset, record.partition))
    assert ledger.compare(interleaved).held


@pytest.mark.parametrize(
    ("field", "changed"),
    [
        ("key", b"key-X"),
        ("key", None),
        ("value", b"value-X"),
        ("value", b""),
        ("headers", (("h", None), ("h", b"a"))),
        ("headers", (("h", b"a"), ("h", b""))),
        ("headers", ()),
        ("timestamp_ms", 999),
    ],
)
def test_a_change_of_any_field_is_told(field: str, changed: Any) -> None:
    ledger, reading = delivered_ledger(some_events())
    partition, offset, event = reading[5]
    reading[5] = ReadRecord(partition, offset, event._replace(**{field: changed}))
    comparison = ledger.compare(reading)
    assert comparison.differences == 1
    (told,) = comparison.told
    assert f"{partition}@{offset} differs: {field} was" in told


@given(st.data())
def test_a_missing_repeated_or_swapped_record_is_told(data: st.DataObject) -> None:
    ledger, reading = delivered_ledger(some_events())
    index = data.draw(st.integers(0, len(reading) - 2))
    match data.draw(st.sampled_from(["missing", "repeated", "events swapped"])):
        case "missing":
            del reading[index]
        case "repeated":
            reading.insert(index, reading[index])
        case "events swapped":
            one, other = reading[index], reading[index + 1]
            reading[index] = one._replace(event=other.event)
            reading[index + 1] = other._replace(event=one.event)
    assert not ledger.compare(reading).held


def test_a_record_past_the_last_acknowledged_offset_is_told() -> None:
    ledger, reading = delivered_ledger(some_events())
    partition, offset, event = reading[-1]
    reading.append(ReadRecord(partition, offset + 1, event))
    assert any("never acknowledged" in told for told in ledger.compare(reading).told)


def test_only_the_first_differences_are_told_but_all_are_counted() -> None:
    ledger, reading = delivered_ledger(some_events())
    broken = [record._replace(event=record.event._replace(value=None)) for record in reading]
    comparison = ledger.compare(broken)
    assert (comparison.differences, len(comparison.told)) == (len(reading), DIFFERENCES_TOLD_MAX)


def test_full_dense_ordered_deliveries_have_no_problems() -> None:
    ledger, _ = delivered_ledger(some_events())
    assert ledger.delivery_problems() == []


def test_missing_refused_and_repeated_deliveries_are_problems() -> None:
    ledger = Ledger("t", some_events(4), PARTITIONS)
    ledger.delivered(0, 0, 0)
    ledger.delivered(0, 0, 1)
    ledger.failed(1, "too large")
    problems = ledger.delivery_problems()
    assert problems == [
        "event 0 was reported twice",
        "event 1: too large",
        "3 of 4 events were never acknowledged",
    ]


def test_a_delivery_to_a_partition_the_topic_does_not_have_is_a_problem() -> None:
    ledger = Ledger("t", some_events(1), PARTITIONS)
    ledger.delivered(0, PARTITIONS, 0)
    assert ledger.delivery_problems()[0] == f"event 0 went to partition {PARTITIONS}"


def test_offset_holes_and_reordered_deliveries_are_problems() -> None:
    ledger = Ledger("t", some_events(4), PARTITIONS)
    for number, (partition, offset) in enumerate([(0, 1), (0, 0), (1, 0), (1, 2)]):
        ledger.delivered(number, partition, offset)
    assert ledger.delivery_problems() == [
        "partition 0: offsets are not in the order of sending",
        "partition 1: offsets are not 0 to 1",
    ]


def test_two_events_acknowledged_at_one_offset_are_a_problem() -> None:
    ledger = Ledger("t", some_events(2), PARTITIONS)
    ledger.delivered(0, 2, 0)
    ledger.delivered(1, 2, 0)
    assert ledger.delivery_problems() == ["partition 2: offsets are not 0 to 1"]
