"""The scenarios of KIP-1164 for produce gateways, with processes and stock clients in three racks.

They differ in how many brokers there are for a coordinator. In each, clients are sent to their own
rack only, and an object is committed at no more coordinators than the formula gives a broker:
coordinators * gateways of each in a rack * racks / brokers, rounded up.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from math import ceil
from pathlib import Path
from typing import NamedTuple

import pytest

from metadata.clients.produce_gateways import gateway_count
from tests.support.brokers.broker_racks import PARTITIONS, ROUNDS, Racks
from tests.support.brokers.live_broker import until

RACKS = ("a", "b", "c")


class Scenario(NamedTuple):
    """How many there are of what, and what the KIP says of it."""

    number: int
    in_each_rack: int
    coordinators: int
    concern: int
    """Coordinators that an object may concern."""
    calls: int
    """Brokers that may have to be called for them, its own included."""

    @property
    def racks(self) -> Mapping[int, str]:
        """By node id."""
        return {1 + at: RACKS[at % len(RACKS)] for at in range(self.in_each_rack * len(RACKS))}

    @property
    def gateways(self) -> int:
        """Of a coordinator, in each rack."""
        return gateway_count(len(self.racks), self.coordinators, len(RACKS))


SCENARIOS = (
    Scenario(1, in_each_rack=1, coordinators=12, concern=12, calls=3),
    Scenario(2, in_each_rack=2, coordinators=12, concern=6, calls=3),
    Scenario(3, in_each_rack=2, coordinators=6, concern=3, calls=3),
    Scenario(4, in_each_rack=2, coordinators=3, concern=2, calls=2),
    Scenario(5, in_each_rack=2, coordinators=2, concern=1, calls=1),
    Scenario(6, in_each_rack=2, coordinators=1, concern=1, calls=1),
)
"""1 and 2 have the KIP's own numbers. 3 has as many brokers as coordinators, 4 more, 5 is the
saturation point, and in 6 every coordinator has several gateways in a rack."""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def until_settled(racks: Racks, scenario: Scenario) -> None:
    """Every broker leads its share, and every rack's clients are sent to all brokers there."""
    brokers = set(racks.racks)
    if scenario.coordinators >= len(brokers):
        racks.until_each_leads(brokers)
    else:
        until(lambda: len(racks.leaders(brokers)) == scenario.coordinators, "leaders spread")
    used = min(scenario.coordinators * scenario.gateways, scenario.in_each_rack)
    for rack in RACKS:
        until(
            lambda rack=rack: (
                (found := racks.sent_to(f"diskless_az={rack}", 1)) <= racks.of(rack)
                and len(found) == used
            ),
            f"clients are sent to {used} brokers in rack {rack}",
        )


@pytest.mark.exhaustive
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: f"scenario {scenario.number}")
def test_clients_stay_in_their_rack_and_objects_concern_few_coordinators(
    scenario: Scenario, tmp_path: Path, stack: ExitStack
) -> None:
    shares = scenario.coordinators * scenario.gateways * len(RACKS) / len(scenario.racks)
    assert scenario.concern == ceil(shares)
    racks = Racks(tmp_path, stack, scenario.racks, coordinators=scenario.coordinators)
    until_settled(racks, scenario)
    before = racks.committed().keys()
    places = {rack: racks.produce(rack) for rack in RACKS}
    objects = {key: one for key, one in racks.committed().items() if key not in before}
    assert {racks.racks[one.uploader] for one in objects.values()} == set(RACKS)
    for key, one in objects.items():
        assert len(one.coordinators) <= scenario.concern, (key, one)
        assert len(one.hosts) <= scenario.calls, (key, one)

    # Consumers say their rack in Fetch alone, and ask a broker of another one first.
    everything = [place for some in places.values() for place in some]
    for number, rack in enumerate(RACKS):
        brokers = sorted(racks.racks)
        were = {node_id: racks.read_bytes(node_id) for node_id in brokers}
        elsewhere = min(racks.of(RACKS[number - 1]))
        racks.read_all(rack, elsewhere, everything)
        read_from = {node_id for node_id in brokers if racks.read_bytes(node_id) > were[node_id]}
        assert read_from, "somebody served it"
        assert read_from <= racks.of(rack)


@pytest.mark.exhaustive
def test_brokers_of_a_rack_go_one_after_the_other_and_come_back(
    tmp_path: Path, stack: ExitStack
) -> None:
    """The other broker of the rack takes over, then other racks; no record is lost or doubled."""
    saturated = SCENARIOS[4]
    racks = Racks(tmp_path, stack, saturated.racks, coordinators=saturated.coordinators)
    until_settled(racks, saturated)
    first, second = sorted(racks.of("b"))
    client, asked = "diskless_az=b", min(racks.of("a"))
    places = racks.produce("b")
    racks.cluster.brokers[first].kill()
    places += racks.produce("b")
    racks.until_sent_to(client, {second}, asked)
    racks.cluster.brokers[second].kill()
    places += racks.produce("b")
    racks.until_sent_to(client, racks.of("a") | racks.of("c"), asked)
    racks.read_all("b", asked, places)
    for node_id in (first, second):
        racks.start(node_id)
    until_settled(racks, saturated)
    places += racks.produce("b")
    assert len(set(places)) == len(places) == 4 * ROUNDS * PARTITIONS
    racks.read_all("b", asked, places)
