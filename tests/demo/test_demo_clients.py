"""The demo's clients against librdkafka's own mock cluster: a Kafka that is not ours.

What holds here holds of the demo itself, so a failure of `make demo` points at the broker.
"""

import logging
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException, Producer

from demo import clients, events
from demo.ledger import Ledger

MOCK_PARTITIONS = 4  # what the mock cluster gives a topic it creates
LOG = logging.getLogger("tests.demo.clients")


@pytest.fixture
def mock_cluster() -> Iterator[str]:
    """The address of a mock broker; it lives as long as the producer that carries it."""
    carrier = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock"}, logger=LOG)
    (broker,) = carrier.list_topics(timeout=120).brokers.values()
    yield f"{broker.host}:{broker.port}"
    carrier.flush()


def flights_ledger(count: int) -> Ledger:
    made = list(events.flight_events(events.read_flights(count)))
    return Ledger("flights", made, MOCK_PARTITIONS)


def test_everything_produced_is_acknowledged_and_read_back_equal(mock_cluster: str) -> None:
    ledger = flights_ledger(5_000)
    sent: list[int] = []
    clients.produce(mock_cluster, ledger, advance=sent.append, log=LOG, outstanding_max=1_000)
    assert ledger.delivery_problems() == []
    assert sum(sent) == 5_000

    read: list[int] = []
    comparison = ledger.compare(
        clients.read_all(mock_cluster, ledger, advance=read.append, log=LOG)
    )
    assert comparison.told == ()
    assert (comparison.records, sum(read)) == (5_000, 5_000)


def test_the_half_way_call_comes_once_with_events_unacknowledged(mock_cluster: str) -> None:
    ledger = flights_ledger(5_000)
    calls: list[tuple[int, int]] = []
    clients.produce(
        mock_cluster,
        ledger,
        advance=lambda count: None,
        log=LOG,
        outstanding_max=500,
        at_half_way=lambda waiting: calls.append((waiting, ledger.delivered_count)),
    )
    ((unacknowledged, acknowledged),) = calls
    assert unacknowledged >= 250
    assert 2_500 <= acknowledged < 5_000
    assert ledger.delivery_problems() == []


def test_reading_an_unknown_topic_is_an_error_and_not_an_empty_reading(mock_cluster: str) -> None:
    ledger = Ledger("not a topic name", [], 1)
    with pytest.raises(KafkaException):
        list(clients.read_all(mock_cluster, ledger, advance=lambda count: None, log=LOG))
