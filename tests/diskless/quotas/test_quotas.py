"""Whose quota counts for a request, whose rate it is, and what is kept of clients."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskless.authorization import BROKER_USER
from diskless.ports import ClientInfo
from diskless.quotas import rates as quotas_module
from diskless.quotas.quota_settings import QuotaSettings
from diskless.quotas.quotas import QuotaEnforcer
from diskless.quotas.rates import THROTTLE_MAX_S
from metadata.operations import QuotaEntity
from wal.clock import ManualClock

PRODUCER, CONSUMER = "producer_byte_rate", "consumer_byte_rate"


class Bench:
    """An enforcer whose quotas and whose time a test sets."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.quotas: Mapping[QuotaEntity, Mapping[str, float]] = {}
        self.enforcer = QuotaEnforcer(
            lambda: self.quotas, settings=QuotaSettings(), clock=self.clock
        )

    def set(self, entity: QuotaEntity, **quotas: float) -> None:
        self.quotas = {**self.quotas, entity: quotas}

    def wait_s(self, size_bytes: int, client_id: str = "c", user: str = "u") -> float:
        """For how long who produces this much has to be quiet."""
        until = self.enforcer.produced(client(client_id, user), size_bytes)
        return max(until - self.clock.monotonic(), 0.0)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def client(client_id: str, user: str = "u") -> ClientInfo:
    return ClientInfo(1, client_id, "10.0.0.1", user)


def entity(user: str | None = "", client_id: str | None = "") -> QuotaEntity:
    """None: the default; empty: not of the entity."""
    parts = {"client-id": client_id, "user": user}
    return tuple((kind, name) for kind, name in parts.items() if name != "")


IN_ORDER = [
    entity("u", "c"),
    entity("u", None),
    entity("u"),
    entity(None, "c"),
    entity(None, None),
    entity(None),
    entity(client_id="c"),
    entity(client_id=None),
]


def test_without_quotas_nobody_waits(bench: Bench) -> None:
    assert bench.enforcer.produced(client("c"), 1 << 30) == 0.0
    assert bench.enforcer.fetched(client("c"), 1 << 30) == 0.0
    assert bench.enforcer.may_fetch(client("c"), 1 << 30) == (0.0, 1 << 30)
    assert bench.enforcer.left_ms(0.0) == 0
    assert {one.rates for one in bench.enforcer.statistics().values()} == {0}


@pytest.mark.parametrize("first", range(8))
def test_the_most_specific_entity_counts(first: int) -> None:
    bench = Bench()
    for position, name in enumerate(IN_ORDER[first:]):
        bench.set(name, producer_byte_rate=100.0 * (position + 1))
    # 100 a second is exceeded by 1,500 for 5 seconds, the quotas of the others by nothing.
    assert bench.wait_s(1_500) == pytest.approx(5.0)
    # Quotas of somebody else and of another kind do not count.
    for name in (entity("v", "c"), entity("u", "d"), entity("v"), entity(client_id="d")):
        bench.set(name, producer_byte_rate=1.0)
    bench.set(IN_ORDER[0], **{**bench.quotas.get(IN_ORDER[0], {}), CONSUMER: 1.0})
    bench.clock.advance(100)
    assert bench.wait_s(1_500) == pytest.approx(5.0)


@given(st.sets(st.sampled_from(range(8))), st.sampled_from([PRODUCER, CONSUMER]))
def test_any_set_of_quotas_gives_the_first_in_order(positions: set[int], key: str) -> None:
    bench = Bench()
    for position in positions:
        bench.set(IN_ORDER[position], **{key: 10.0 * 1.5**position})
    record = bench.enforcer.produced if key == PRODUCER else bench.enforcer.fetched
    until = record(client("c"), 5_000)
    expected = 5_000 / (10.0 * 1.5 ** min(positions)) - 10 if positions else 0.0
    assert until == pytest.approx(max(expected, 0.0), abs=0.002)


@pytest.mark.parametrize(
    ("name", "shares_rate", "has_its_own"),
    [
        (entity("u"), [("other", "u")], [("c", "v")]),
        (entity(None), [("other", "u")], [("c", "v")]),
        (entity(client_id="c"), [("c", "v")], [("other", "u")]),
        (entity(client_id=None), [("c", "v")], [("other", "u")]),
        (entity("u", None), [], [("other", "u"), ("c", "v")]),
        (entity(None, None), [], [("other", "u"), ("c", "v")]),
    ],
)
def test_a_rate_is_shared_by_those_the_entity_names(
    bench: Bench,
    name: QuotaEntity,
    shares_rate: Sequence[tuple[str, str]],
    has_its_own: Sequence[tuple[str, str]],
) -> None:
    bench.set(name, producer_byte_rate=100.0)
    assert bench.wait_s(1_000) == 0.0
    for client_id, user in has_its_own:
        assert bench.wait_s(100, client_id, user) == 0.0
    for client_id, user in shares_rate:
        assert bench.wait_s(100, client_id, user) == pytest.approx(1.0)


def test_a_changed_quota_counts_from_the_next_request_on(bench: Bench) -> None:
    bench.set(entity("u"), producer_byte_rate=100.0)
    assert bench.wait_s(2_000) == pytest.approx(10.0)
    bench.set(entity("u"), producer_byte_rate=1_000.0)
    assert bench.wait_s(100) == 0.0
    bench.set(entity("u"), producer_byte_rate=100.0)
    assert bench.wait_s(100) == pytest.approx(12.0)
    bench.quotas = {}
    assert bench.wait_s(1 << 40) == 0.0
    assert bench.enforcer.statistics()["Produce"].rates == 0


def test_produce_and_fetch_have_rates_of_their_own(bench: Bench) -> None:
    bench.set(entity("u"), producer_byte_rate=100.0, consumer_byte_rate=100.0)
    assert bench.wait_s(1_100) == pytest.approx(1.0)
    assert bench.enforcer.fetched(client("c"), 1_000) == 0.0
    assert bench.enforcer.fetched(client("c"), 200) == pytest.approx(2.0)
    assert bench.enforcer.statistics()["Fetch"][:2] == (1, pytest.approx(2.0))


def test_a_fetch_gets_the_rest_of_the_burst_and_then_a_windows_worth(bench: Bench) -> None:
    bench.set(entity("u"), consumer_byte_rate=100.0)
    assert bench.enforcer.may_fetch(client("c"), 500) == (0.0, 500)
    assert bench.enforcer.may_fetch(client("c"), 5_000) == (0.0, 1_000)
    bench.enforcer.fetched(client("c"), 700)
    assert bench.enforcer.may_fetch(client("c"), 5_000) == (0.0, 300)
    bench.enforcer.fetched(client("c"), 290)
    assert bench.enforcer.may_fetch(client("c"), 5_000) == (0.0, 100)
    bench.enforcer.fetched(client("c"), 110)
    assert bench.enforcer.may_fetch(client("c"), 5_000) == (pytest.approx(1.0), 100)


def test_what_is_left_of_a_wait_is_told_in_milliseconds(bench: Bench) -> None:
    bench.set(entity("u"), producer_byte_rate=100.0)
    until = bench.enforcer.produced(client("c"), 1_000 + 50)
    assert bench.enforcer.left_ms(until) == 500
    bench.clock.advance(0.4)
    assert bench.enforcer.left_ms(until) in (100, 101)
    bench.clock.advance(0.4)
    assert bench.enforcer.left_ms(until) == 0


def test_a_wait_of_less_than_a_millisecond_is_added_to_the_next(bench: Bench) -> None:
    bench.set(entity("u"), producer_byte_rate=1e6)
    assert bench.wait_s(10_000_000) == 0.0
    assert bench.wait_s(900) == 0.0
    assert bench.wait_s(900) == pytest.approx(0.0018)


def test_no_wait_is_longer_than_a_connection_may_be_unread(bench: Bench) -> None:
    bench.set(entity("u"), producer_byte_rate=1.0)
    assert bench.wait_s(100 << 20) == THROTTLE_MAX_S
    bench.clock.advance(THROTTLE_MAX_S)
    assert bench.wait_s(1) == THROTTLE_MAX_S, "the rest is owed still"


def test_rates_of_quiet_clients_are_forgotten(bench: Bench) -> None:
    bench.set(entity(client_id=None), producer_byte_rate=100.0)
    for number in range(100):
        bench.wait_s(1, f"c{number}")
    bench.wait_s(5_000, "in debt")
    assert bench.enforcer.statistics()["Produce"].rates == 101
    bench.clock.advance(20)
    for number in range(60):
        bench.wait_s(1, f"d{number}")
    assert bench.enforcer.statistics()["Produce"].rates == 61
    assert bench.wait_s(100, "in debt") == pytest.approx(50 + 1 - 10 - 20)


def test_there_are_never_more_rates_than_the_limit(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas_module, "RATES_MAX", 10)
    bench.set(entity(client_id=None), producer_byte_rate=100.0)
    for number in range(50):
        bench.wait_s(1, f"c{number}")
        bench.wait_s(1, "busy")
        assert bench.enforcer.statistics()["Produce"].rates <= 10
    assert bench.wait_s(1_000, "busy") == pytest.approx(0.5)


def test_a_client_cannot_fill_memory_with_its_name(bench: Bench) -> None:
    bench.set(entity(client_id=None), producer_byte_rate=100.0)
    one, other = "x" * 30_000 + "1", "x" * 30_000 + "2\ud800"
    assert bench.wait_s(1_000, one) == bench.wait_s(1_000, other) == 0.0
    assert bench.wait_s(100, one) == pytest.approx(1.0)
    kept = bench.enforcer._produce._rates
    assert max(len(name) for names in kept for name in names if name) < 100


def test_a_share_of_the_processor_is_measured_in_percent(bench: Bench) -> None:
    assert not bench.enforcer.measures_requests
    bench.set(entity("u"), request_percentage=10.0)
    assert bench.enforcer.measures_requests
    assert not bench.enforcer.used(client("c"), 1.0), "ten windows' worth may come at once"
    until = bench.enforcer.used(client("c"), 0.05)
    assert until == pytest.approx(0.5)
    assert not bench.enforcer.used(client("c", "v"), 9.0)


def test_who_has_used_much_is_never_muted_for_longer_than_a_window(bench: Bench) -> None:
    bench.set(entity("u"), request_percentage=1.0)
    assert bench.enforcer.used(client("c"), 60.0) == 1.0
    bench.clock.advance(1.0)
    # What is owed stays owed: the next request is followed by a wait as long.
    assert bench.enforcer.used(client("c"), 0.0001) == 2.0


def test_partitions_that_come_and_go_count_where_there_is_a_quota(bench: Bench) -> None:
    bench.set(entity("u"), controller_mutation_rate=2.5)
    assert not bench.enforcer.changed(client("c"), changes=1, partitions=25)
    assert bench.enforcer.changed(client("c"), changes=1, partitions=5) == pytest.approx(2.0)


def test_a_user_without_that_quota_is_held_to_the_broker_s_own(bench: Bench) -> None:
    def until(user: str) -> float:
        return bench.enforcer.changed(client("c", user), changes=20, partitions=1_000_000)

    assert [until("ann") for _ in range(6)] == [0.0] * 5 + [pytest.approx(2.0)]
    assert until("bob") == 0.0
    # A thousand topics in one request: their client is heard again before it gives up.
    assert bench.enforcer.changed(client("c", "eve"), changes=1_000, partitions=0) == 10.0
    for _ in range(10):
        assert until("ANONYMOUS") == until(BROKER_USER) == 0.0


def test_connections_count_by_address(bench: Bench) -> None:
    assert bench.enforcer.connected("10.0.0.1") == 0.0
    bench.set((("ip", None),), connection_creation_rate=1.0)
    bench.set((("ip", "10.0.0.1"),), connection_creation_rate=2.0)
    waits = [bench.enforcer.connected("10.0.0.1") for _ in range(22)]
    assert waits == [0.0] * 20 + [pytest.approx(0.5), pytest.approx(1.0)]
    others = [bench.enforcer.connected("10.0.0.2") for _ in range(11)]
    assert others == [0.0] * 10 + [pytest.approx(1.0)]
    assert not any(bench.enforcer.connected(f"10.0.1.{last}") for last in range(50))


def test_quotas_of_everybody_are_not_of_brokers(bench: Bench) -> None:
    bench.set(entity(None), producer_byte_rate=1.0, request_percentage=1.0)
    broker = client("c", BROKER_USER)
    assert bench.enforcer.produced(broker, 1 << 30) == 0.0
    assert bench.enforcer.used(broker, 1_000.0) == 0.0
