"""Which broker a client is sent to, by its rack and by the partition's coordinator."""

from uuid import UUID

import pytest

from diskless.cluster.client_rack import client_rack
from diskless.cluster.produce_routing import ProduceRouting
from diskless.ports import BrokerEndpoint, ClientInfo

RACKS = ("eu-west-1a", "eu-west-1b", "b")
TOPIC = UUID(int=3)
BROKERS = [
    BrokerEndpoint(number, "host", 9092, rack)
    for number, rack in enumerate(["eu-west-1a", "eu-west-1b", "b"] * 2)
]


def client(client_id: str) -> ClientInfo:
    return ClientInfo(1, client_id, "10.0.0.1")


@pytest.mark.parametrize(
    ("client_id", "rack"),
    [
        ("diskless_az=eu-west-1a", "eu-west-1a"),
        ("diskless_rack_id=eu-west-1a", "eu-west-1a"),
        ("billing,diskless_az=b", "b"),
        ("billing diskless_az=b|x=y", "b"),
        ("billing|diskless_rack_id=b,more", "b"),
        ("diskless_az=eu-west-1b-producer-1", "eu-west-1b"),
        ("diskless_az=b-StreamThread-2-consumer", "b"),
        ("diskless_az=mars diskless_rack_id=b", "b"),
        ("diskless_az=mars", None),
        ("diskless_az=eu-west-1", None),
        ("diskless_az=eu-west-1aa", None),
        ("diskless_az=", None),
        ("my_diskless_az=b", None),
        ("", None),
    ],
)
def test_the_rack_is_read_from_the_client_id(client_id: str, rack: str | None) -> None:
    assert client_rack(client_id, RACKS) == rack


def routing(hosts: dict[int, int | None] | None = None) -> ProduceRouting:
    known = {number: number for number in range(6)} if hosts is None else hosts
    return ProduceRouting(
        BROKERS,
        hosts=known,
        coordinator_of=lambda partition: partition.partition % 6 if known else None,
    )


def test_a_client_is_sent_to_the_gateway_in_its_rack() -> None:
    routes = routing()
    for partition in range(30):
        for rack in RACKS:
            asking = client(f"diskless_az={rack}")
            (gateway,) = routes.preferred_produce_brokers(TOPIC, partition, asking)
            assert BROKERS[gateway].rack == rack
            assert routes.leader_of(TOPIC, partition, asking) == gateway


def test_a_client_without_a_rack_is_offered_the_coordinators_host_first() -> None:
    routes = routing()
    for partition in range(30):
        preferred = routes.preferred_produce_brokers(TOPIC, partition, client("anyone"))
        assert preferred[0] == partition % 6
        assert len(preferred) == 3
        assert routes.leader_of(TOPIC, partition, client("anyone")) in preferred


def test_partitions_without_a_coordinator_are_spread_over_the_rack() -> None:
    routes = routing({})
    asking = client("diskless_az=b")
    assert routes.preferred_produce_brokers(TOPIC, 0, asking) == ()
    assert {routes.leader_of(TOPIC, partition, asking) for partition in range(50)} == {2, 5}
    everywhere = {routes.leader_of(TOPIC, partition, client("x")) for partition in range(200)}
    assert everywhere == set(range(6))


@pytest.mark.parametrize("hosts", [None, {}], ids=["coordinators", "no coordinators"])
@pytest.mark.parametrize("asking", ["anyone", "diskless_az=a", "diskless_az=c"])
def test_replicas_are_the_leader_and_a_reader_of_each_other_rack(
    hosts: dict[int, int | None] | None, asking: str
) -> None:
    routes = routing(hosts)
    for partition in range(30):
        leader, *others = routes.replicas_of(TOPIC, partition, client(asking))
        assert leader == routes.leader_of(TOPIC, partition, client(asking))
        racks = [BROKERS[broker].rack for broker in (leader, *others)]
        assert sorted(rack or "" for rack in racks) == sorted(RACKS)
        for broker in others:
            rack = BROKERS[broker].rack
            assert rack is not None
            assert routes.reader_in(rack, TOPIC, partition) == broker


def test_readers_of_a_rack_are_sent_where_its_producers_are() -> None:
    routes = routing()
    for partition in range(30):
        for rack in RACKS:
            leader = routes.leader_of(TOPIC, partition, client(f"diskless_az={rack}"))
            assert routes.reader_in(rack, TOPIC, partition) == leader
    assert routes.reader_in("nowhere", TOPIC, 0) is None


def test_without_racks_the_leader_is_the_only_replica() -> None:
    brokers = [broker._replace(rack=None) for broker in BROKERS]
    routes = ProduceRouting(brokers, hosts={0: 0}, coordinator_of=lambda _: 0)
    for partition in range(10):
        leader = routes.leader_of(TOPIC, partition, client("x"))
        assert routes.replicas_of(TOPIC, partition, client("x")) == (leader,)
    assert routes.racks == frozenset()


def test_nobody_alive_is_nobody_to_be_sent_to() -> None:
    routes = ProduceRouting([], hosts={0: None}, coordinator_of=lambda _: 0)
    assert routes.leader_of(TOPIC, 0, client("x")) is None
    assert routes.replicas_of(TOPIC, 0, client("x")) == ()
