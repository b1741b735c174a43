"""Produce gateways: the scenarios of KIP-1164, what must always hold, and how little moves."""

from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.clients.produce_gateways import (
    GatewayBroker,
    ProduceGateways,
    choose_gateway,
    gateway_count,
    select_produce_gateways,
)

RACKS = ("a", "b", "c")


def even_cluster(broker_count: int, racks: tuple[str, ...] = RACKS) -> list[GatewayBroker]:
    return [GatewayBroker(number, racks[number % len(racks)]) for number in range(broker_count)]


def even_hosts(coordinator_count: int, brokers: list[GatewayBroker]) -> dict[int, int | None]:
    return {number: brokers[number % len(brokers)].broker_id for number in range(coordinator_count)}


def gateways_for(broker_count: int, coordinator_count: int) -> ProduceGateways:
    brokers = even_cluster(broker_count)
    return select_produce_gateways(brokers, even_hosts(coordinator_count, brokers))


def coordinators_of(gateways: ProduceGateways) -> dict[int, list[int]]:
    """Broker -> the coordinators it is a gateway for."""
    served: dict[int, list[int]] = {}
    for coordinator, by_rack in gateways.by_rack.items():
        for ids in by_rack.values():
            for broker in ids:
                served.setdefault(broker, []).append(coordinator)
    return served


def outbound_calls(gateways: ProduceGateways, broker: int) -> int:
    """Commit calls over the network for one object with batches of all it is a gateway for."""
    served = coordinators_of(gateways).get(broker, [])
    return len({gateways.hosts[coordinator] for coordinator in served} - {broker})


class Figures:
    """What the KIP's scenarios are about, as (fewest, most) over all brokers."""

    def __init__(self, broker_count: int) -> None:
        gateways = gateways_for(broker_count, coordinator_count=12)
        served = coordinators_of(gateways)
        loads = [len(served.get(broker, [])) for broker in range(broker_count)]
        self.per_rack = {
            len(ids) for by_rack in gateways.by_rack.values() for ids in by_rack.values()
        }
        self.fewest, self.most = min(loads), max(loads)
        self.calls_max = max(outbound_calls(gateways, broker) for broker in range(broker_count))


def test_scenario_1_three_brokers_are_gateways_for_all_twelve_coordinators() -> None:
    found = Figures(3)
    assert (found.per_rack, found.fewest, found.most) == ({1}, 12, 12)
    # "Up to n_brokers": three, of which the one to itself is no network call.
    assert found.calls_max == 2


def test_scenario_2_six_brokers_are_gateways_for_six_coordinators_each() -> None:
    found = Figures(6)
    assert (found.per_rack, found.fewest, found.most) == ({1}, 6, 6)
    # "Up to n_brokers", six, without mirroring; with it n_racks, one of them local.
    assert found.calls_max == 2


def test_scenario_3_twelve_brokers_are_gateways_for_three_coordinators_each() -> None:
    found = Figures(12)
    assert (found.per_rack, found.fewest, found.most) == ({1}, 3, 3)
    # The text says up to n_brokers, twelve; a gateway for three coordinators calls three at most.
    assert found.calls_max == 2


def test_scenario_4_twenty_four_brokers_are_gateways_for_one_or_two_coordinators() -> None:
    found = Figures(24)
    # 12 * 1 * 3 / 24 = 1.5, in whole coordinators 1 or 2.
    assert (found.per_rack, found.fewest, found.most) == ({1}, 1, 2)
    assert found.calls_max <= 2


def test_scenario_5_thirty_six_brokers_are_gateways_for_one_coordinator_each() -> None:
    found = Figures(36)
    assert (found.per_rack, found.fewest, found.most) == ({1}, 1, 1)
    assert found.calls_max == 1


def test_scenario_6_a_hundred_and_eight_brokers_give_three_gateways_per_rack() -> None:
    found = Figures(108)
    # The text divides by "18 brokers", which would make six; there are 108, which makes one.
    assert (found.per_rack, found.fewest, found.most) == ({3}, 1, 1)
    assert found.calls_max == 1


@pytest.mark.parametrize(
    ("brokers", "coordinators", "racks", "count"),
    [(3, 12, 3, 1), (36, 12, 3, 1), (71, 12, 3, 1), (72, 12, 3, 2), (5, 1, 1, 5), (0, 3, 0, 0)],
)
def test_the_count_is_divided_in_integers(
    brokers: int, coordinators: int, racks: int, count: int
) -> None:
    assert gateway_count(brokers, coordinators, racks) == count


def test_one_broker_is_the_gateway_for_everything_in_every_clients_eyes() -> None:
    gateways = select_produce_gateways([GatewayBroker(7, "a")], {0: 7, 1: 7})
    for rack in ("a", "b", None):
        assert gateways.preferred_produce_brokers(0, rack) == (7,)
        assert gateways.preferred_produce_brokers(1, rack) == (7,)


def test_without_coordinators_or_brokers_there_are_no_gateways() -> None:
    assert select_produce_gateways(even_cluster(6), {}).preferred_produce_brokers(0, "a") == ()
    nobody = select_produce_gateways([], {0: 1})
    assert nobody.preferred_produce_brokers(0, "a") == ()
    assert nobody.preferred_produce_brokers(0, None) == ()


def test_a_client_of_a_rack_without_brokers_is_served_from_all_racks_the_host_first() -> None:
    gateways = gateways_for(6, 12)
    for coordinator, host in gateways.hosts.items():
        for rack in ("nowhere", None):
            everywhere = gateways.preferred_produce_brokers(coordinator, rack)
            assert everywhere[0] == host
            assert len(everywhere) == len(RACKS)


def test_brokers_without_a_rack_are_in_a_rack_of_their_own() -> None:
    brokers = [GatewayBroker(1), GatewayBroker(2), GatewayBroker(3, "a")]
    gateways = select_produce_gateways(brokers, {0: 3, 1: 3, 2: 1})
    assert gateways.of(0, "a") == (3,)
    assert set(gateways.of(0, "")) < {1, 2}


def test_fewer_brokers_than_racks_that_are_configured_leave_a_gateway_per_rack_that_is_there() -> (
    None
):
    gateways = select_produce_gateways(even_cluster(2), dict.fromkeys(range(12), 0))
    for coordinator in range(12):
        assert gateways.of(coordinator, "a") == (0,)
        assert gateways.of(coordinator, "b") == (1,)
        assert gateways.of(coordinator, "c") == ()


def test_a_rack_smaller_than_the_count_gives_all_its_brokers() -> None:
    brokers = [GatewayBroker(number, "big") for number in range(20)] + [GatewayBroker(20, "small")]
    gateways = select_produce_gateways(brokers, {0: 0, 1: 1})
    assert len(gateways.of(0, "big")) == 5  # 21 // 2 // 2
    assert gateways.of(0, "small") == (20,)


def test_coordinators_that_share_a_host_share_their_gateways_in_the_other_racks() -> None:
    gateways = gateways_for(6, 12)
    by_host: dict[int | None, set[tuple[tuple[int, ...], ...]]] = {}
    for coordinator, host in gateways.hosts.items():
        places = tuple(gateways.of(coordinator, rack) for rack in RACKS)
        by_host.setdefault(host, set()).add(places)
    assert all(len(places) == 1 for places in by_host.values())


def test_a_host_is_the_first_gateway_for_its_coordinators_in_its_rack() -> None:
    for broker_count in (3, 6, 12, 24, 36, 108):
        gateways = gateways_for(broker_count, 12)
        for coordinator, host in gateways.hosts.items():
            assert host is not None
            assert gateways.of(coordinator, RACKS[host % 3])[0] == host


def test_a_host_of_everything_does_not_take_all_the_producers_of_its_rack() -> None:
    brokers = even_cluster(6, ("a",))
    gateways = select_produce_gateways(brokers, dict.fromkeys(range(12), 0))
    served = coordinators_of(gateways)
    assert {len(served[broker]) for broker in range(6)} == {2}
    assert {outbound_calls(gateways, broker) for broker in range(1, 6)} == {1}
    assert outbound_calls(gateways, 0) == 0


def test_a_host_that_is_gone_is_a_host_that_is_not_known() -> None:
    gateways = select_produce_gateways(even_cluster(3), {0: 99, 1: None})
    assert gateways.hosts == {0: None, 1: None}
    assert all(gateways.of(coordinator, rack) for coordinator in (0, 1) for rack in RACKS)


brokers_strategy = st.dictionaries(
    st.integers(0, 200), st.sampled_from(["a", "b", "c", ""]), min_size=1, max_size=40
)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[GatewayBroker], dict[int, int | None]]:
    brokers = [GatewayBroker(*item) for item in draw(brokers_strategy).items()]
    ids = [broker.broker_id for broker in brokers]
    hosts = draw(
        st.dictionaries(st.integers(0, 50), st.one_of(st.none(), st.sampled_from(ids)), max_size=24)
    )
    return brokers, hosts


@given(clusters())
def test_every_coordinator_has_its_gateways_in_every_rack_and_no_broker_has_too_many(
    cluster: tuple[list[GatewayBroker], dict[int, int | None]],
) -> None:
    brokers, hosts = cluster
    gateways = select_produce_gateways(brokers, hosts)
    by_rack: dict[str, set[int]] = {}
    for broker in brokers:
        by_rack.setdefault(broker.rack, set()).add(broker.broker_id)
    count = gateway_count(len(brokers), len(hosts), len(by_rack))
    assert set(gateways.by_rack) == set(hosts)
    for coordinator in hosts:
        for rack, ids in by_rack.items():
            found = gateways.of(coordinator, rack)
            assert len(set(found)) == len(found) == min(count, len(ids))
            assert set(found) <= ids
    for ids in by_rack.values():
        units = _units_in(hosts, len(brokers), len(by_rack), len(ids))
        served = coordinators_of(gateways)
        fair_share = -(-len(hosts) // len(ids))
        limit = -(-units * min(count, len(ids)) // len(ids))
        for broker_id in ids:
            mine = served.get(broker_id, [])
            # No more calls than units, and before saturation no unit above a fair share.
            assert len({gateways.hosts[dc] for dc in mine}) <= limit
            assert len(mine) <= limit * fair_share


def _units_in(
    hosts: dict[int, int | None], broker_count: int, rack_count: int, rack_brokers: int
) -> int:
    if broker_count >= len(hosts) * rack_count:
        return len(hosts)
    fair_share = -(-len(hosts) // rack_brokers)
    together = Counter(host for host in hosts.values() if host is not None)
    alone = sum(host is None for host in hosts.values())
    return alone + sum(-(-size // fair_share) for size in together.values())


@given(
    rack_count=st.integers(1, 4),
    brokers_per_rack=st.integers(1, 8),
    coordinators_per_broker=st.integers(1, 4),
)
def test_before_saturation_an_even_cluster_calls_one_broker_per_rack_at_most(
    rack_count: int, brokers_per_rack: int, coordinators_per_broker: int
) -> None:
    brokers = even_cluster(rack_count * brokers_per_rack, ("a", "b", "c", "d")[:rack_count])
    hosts = even_hosts(len(brokers) * coordinators_per_broker, brokers)
    gateways = select_produce_gateways(brokers, hosts)
    served = coordinators_of(gateways)
    for broker in brokers:
        assert len(served[broker.broker_id]) == rack_count * coordinators_per_broker
        assert outbound_calls(gateways, broker.broker_id) <= rack_count - 1


@given(cluster=clusters(), seed=st.randoms(use_true_random=False))
def test_the_order_in_which_brokers_are_named_does_not_matter(
    cluster: tuple[list[GatewayBroker], dict[int, int | None]], seed: object
) -> None:
    brokers, hosts = cluster
    shuffled = list(brokers)
    seed.shuffle(shuffled)  # type: ignore[attr-defined]
    again = select_produce_gateways(shuffled, dict(reversed(hosts.items())))
    assert again.by_rack == select_produce_gateways(brokers, hosts).by_rack


@pytest.mark.parametrize("broker_count", [6, 12, 24, 36, 48, 120])
def test_one_broker_less_moves_little_more_than_its_own_gateways(broker_count: int) -> None:
    brokers = even_cluster(broker_count)
    hosts = even_hosts(12, brokers)
    before = select_produce_gateways(brokers, hosts)
    share = sum(map(len, coordinators_of(before).values())) / broker_count
    moved = []
    for gone in brokers:
        left = [broker for broker in brokers if broker != gone]
        after = select_produce_gateways(
            left,
            {
                dc: left[dc % len(left)].broker_id if host == gone.broker_id else host
                for dc, host in hosts.items()
            },
        )
        moved.append(
            sum(
                len(set(before.of(dc, rack)) - set(after.of(dc, rack)))
                for dc in hosts
                for rack in RACKS
            )
        )
    # Its own share has to move, and the coordinators it hosted take their gateways along; a change
    # of everything would move 36 of them or more.
    assert sum(moved) / broker_count <= 3 * share + 2
    assert max(moved) <= 12


def test_when_the_count_changes_the_gateways_that_stay_are_the_same() -> None:
    brokers = even_cluster(108)
    hosts = even_hosts(12, brokers)
    three = select_produce_gateways(brokers, hosts)
    two = select_produce_gateways(brokers[:-1], hosts)
    kept = 0
    for coordinator in hosts:
        for rack in RACKS:
            before, after = set(three.of(coordinator, rack)), set(two.of(coordinator, rack))
            assert (len(before), len(after)) == (3, 2)
            kept += len(before & after)
    assert kept >= 60  # of 72


def test_a_broker_that_comes_back_restores_the_gateways_as_they_were() -> None:
    brokers = even_cluster(12)
    hosts = even_hosts(12, brokers)
    before = select_produce_gateways(brokers, hosts)
    select_produce_gateways(brokers[1:], hosts)
    assert select_produce_gateways(brokers, hosts) == before


def test_partitions_of_a_coordinator_spread_over_its_gateways_and_stay_there() -> None:
    topic = UUID(int=5)
    before = {index: choose_gateway((1, 2, 3), topic, index) for index in range(300)}
    spread = Counter(before.values())
    assert set(spread) == {1, 2, 3}
    assert min(spread.values()) > 60
    for index, broker in before.items():
        after = choose_gateway((3, 1), topic, index)
        assert after == broker or broker == 2
    assert choose_gateway((), topic, 0) is None
