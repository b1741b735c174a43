"""Computes the produce gateways of every coordinator: the brokers that producers should write to.

Any broker takes a Produce request for any partition, and one WAL object holds what a broker got
from all its producers. An object with batches of many coordinators needs a commit call to each of
them. So producers are directed: for each coordinator a few brokers of each rack are its *gateways*,
and a broker that is a gateway for few coordinators makes few calls per object.

How many, per coordinator and rack:

    max(1, n_brokers // n_dcs // n_racks)

in integers; the KIP does not say how it rounds. Rounding up would make coordinators share brokers
where there are enough for each to have its own. `n_racks` counts the racks that have a broker.
Brokers that the division leaves over are gateways of no coordinator; a rack with fewer brokers than
the count gives all it has.

Which ones:

- *Before the saturation point* (n_brokers < n_dcs * n_racks) coordinators that run on one broker
  share their gateways too: they are one *unit*. Their commits travel in one call, so a broker makes
  at most as many calls per object as it has units: n_racks, where coordinators and racks are even.
  A host of more coordinators than are a gateway's fair share, as after a failover, makes several
  units. That costs no call, since they all lead to one broker; not to do it would send all the
  producers of a rack to one broker. Coordinators whose host is not known are units of their own.
- *From the saturation point on* every coordinator is a unit of its own.
- Every broker of a rack is a gateway for units * count / brokers of the rack, rounded down or up.
  Before saturation they are also kept level in coordinators, as far as that allows.
- A host is a gateway for its own coordinators first (that call is none), within its limit.
- Everything else is rendezvous hashing within the limits, best pair of unit and broker first. The
  outcome depends on who is there and not on the order in which they came, and one broker more or
  less moves little beyond its own share.

Everything here is a pure function of who is alive and who leads; callers keep the result until one
of the two changes. A broker without a rack belongs to the rack "".

Source: KIP-1164, "Reducing multi-DC commit operations"; PreferredProduceBrokers is KIP-1163's.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple
from uuid import UUID


class GatewayBroker(NamedTuple):
    """A live broker and where it is."""

    broker_id: int
    rack: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceGateways:
    """The outcome for one membership."""

    by_rack: Mapping[int, Mapping[str, tuple[int, ...]]]
    """Coordinator id -> rack -> broker ids: the coordinator's own host first, then best first."""
    hosts: Mapping[int, int | None]
    """Coordinator id -> the broker it runs on; None = not known."""

    def of(self, coordinator_id: int, rack: str) -> tuple[int, ...]:
        """The gateways in `rack`; empty when nobody is there or there is no such coordinator."""
        return self.by_rack.get(coordinator_id, {}).get(rack, ())

    def preferred_produce_brokers(
        self, coordinator_id: int, client_rack: str | None
    ) -> tuple[int, ...]:
        """Returns where a client of `client_rack` should produce to this coordinator's partitions.

        A client whose rack is not known, or has no broker, is served from all racks, the
        coordinator's host first: wherever it goes, it leaves its rack. Empty only when the
        coordinator is not known or nobody is alive.
        """
        in_rack = self.of(coordinator_id, client_rack) if client_rack is not None else ()
        if in_rack:
            return in_rack
        host = self.hosts.get(coordinator_id)
        everywhere = [
            broker for found in self.by_rack.get(coordinator_id, {}).values() for broker in found
        ]
        return tuple(sorted(everywhere, key=lambda broker: broker != host))


class _Unit(NamedTuple):
    """Coordinators that share their gateways."""

    coordinators: tuple[int, ...]
    host: int | None

    @property
    def key(self) -> int:
        """The key it is hashed by: the same for one coordinator alone as for those that join it."""
        return self.coordinators[0]


def gateway_count(broker_count: int, coordinator_count: int, rack_count: int) -> int:
    """Gateways per coordinator and rack."""
    if coordinator_count == 0 or rack_count == 0:
        return 0
    return max(1, broker_count // coordinator_count // rack_count)


def select_produce_gateways(
    brokers: Iterable[GatewayBroker], hosts: Mapping[int, int | None]
) -> ProduceGateways:
    """The gateways of every coordinator in `hosts` (coordinator id -> broker it runs on).

    A host that is not among `brokers` is a host that is not known.
    """
    racks: dict[str, list[int]] = {}
    for broker_id, rack in sorted(set(brokers), key=lambda broker: (broker.rack, broker.broker_id)):
        racks.setdefault(rack, []).append(broker_id)
    alive = {broker_id for ids in racks.values() for broker_id in ids}
    known_hosts = {
        coordinator: host if host in alive else None for coordinator, host in sorted(hosts.items())
    }
    count = gateway_count(len(alive), len(known_hosts), len(racks))
    is_saturated = len(alive) >= len(known_hosts) * len(racks)
    by_rack: dict[int, dict[str, tuple[int, ...]]] = {
        coordinator: {} for coordinator in known_hosts
    }
    for rack, ids in racks.items():
        if not known_hosts:
            break
        units = _units(known_hosts, ids, is_saturated=is_saturated)
        for unit, gateways in _place(units, rack, ids, min(count, len(ids))).items():
            for coordinator in unit.coordinators:
                by_rack[coordinator][rack] = gateways
    return ProduceGateways(by_rack=by_rack, hosts=known_hosts)


def choose_gateway(gateways: Sequence[int], topic_id: UUID, partition: int) -> int | None:
    """One of `gateways` for a partition; it changes only when that broker leaves them.

    Partitions of one coordinator spread over all its gateways. None when there are none.
    """
    if len(gateways) <= 1:
        return gateways[0] if gateways else None
    key = f"{topic_id}-{partition}"
    return max(gateways, key=lambda broker: (_score(key, broker), -broker))


def _units(
    hosts: Mapping[int, int | None], rack_brokers: Sequence[int], *, is_saturated: bool
) -> list[_Unit]:
    if is_saturated:
        return [_Unit((coordinator,), host) for coordinator, host in hosts.items()]
    fair_share = -(-len(hosts) // len(rack_brokers))
    together: dict[int, list[int]] = {}
    units = []
    for coordinator, host in hosts.items():
        if host is None:
            units.append(_Unit((coordinator,), None))
        else:
            together.setdefault(host, []).append(coordinator)
    for host, coordinators in together.items():
        for start in range(0, len(coordinators), fair_share):
            units.append(_Unit(tuple(coordinators[start : start + fair_share]), host))
    return units


def _place(
    units: Sequence[_Unit], rack: str, brokers: Sequence[int], count: int
) -> dict[_Unit, tuple[int, ...]]:
    """`count` different brokers of one rack for each unit; `count` is not above their number."""
    placement = _Placement(units, rack, brokers, count)
    placement.place_locally()
    placement.place_by_score()
    placement.place_the_rest()
    return {unit: placement.gateways(unit) for unit in units}


class _Placement:
    """Units going to brokers of one rack, each broker up to its limit."""

    def __init__(
        self, units: Sequence[_Unit], rack: str, brokers: Sequence[int], count: int
    ) -> None:
        self._units = units
        self._brokers = brokers
        self._count = count
        # Some brokers get one more than the others, and no more of them than there must be.
        self._units_min, self._extras_left = divmod(len(units) * count, len(brokers))
        coordinators = sum(len(unit.coordinators) for unit in units)
        self._coordinators_max = -(-coordinators * count // len(brokers))
        self._held: dict[int, set[_Unit]] = {broker: set() for broker in brokers}
        self._chosen: dict[_Unit, set[int]] = {unit: set() for unit in units}
        self._scores = {
            (unit, broker): _score(f"{rack}/{unit.key}", broker)
            for unit in units
            for broker in brokers
        }

    def place_locally(self) -> None:
        for unit in self._units:
            if unit.host in self._held and self._has_room(unit.host):
                self._put(unit, unit.host)

    def place_by_score(self) -> None:
        """The best pairs first, as long as both sides have room."""
        pairs = sorted(self._scores, key=lambda pair: (-self._scores[pair], pair[0].key, pair[1]))
        for unit, broker in pairs:
            load = sum(len(held.coordinators) for held in self._held[broker])
            if (
                self._is_wanting(unit)
                and broker not in self._chosen[unit]
                and self._has_room(broker)
                and load + len(unit.coordinators) <= self._coordinators_max
            ):
                self._put(unit, broker)

    def place_the_rest(self) -> None:
        """Units that fit nowhere evenly: the least loaded broker with room takes them."""
        for unit in self._units:
            while self._is_wanting(unit):
                free = [broker for broker in self._brokers if self._has_room(broker)]
                fresh = [broker for broker in free if broker not in self._chosen[unit]]
                if fresh:
                    self._put(unit, min(fresh, key=lambda broker: self._rank(unit, broker)))
                else:
                    self._swap_in(unit, free[0])

    def _swap_in(self, unit: _Unit, free: int) -> None:
        """Only a broker that has `unit` already has room: another one's unit goes there.

        There always is one: only fuller brokers than `free` have no room left, and a fuller broker
        without `unit` holds one that `free` has not.
        """
        other = next(broker for broker in self._brokers if broker not in self._chosen[unit])
        moved = min(
            self._held[other] - self._held[free],
            key=lambda held: (held.host == other, self._scores[held, other], held.key),
        )
        self._put(moved, free)
        self._held[other].remove(moved)
        self._chosen[moved].remove(other)
        self._held[other].add(unit)
        self._chosen[unit].add(other)

    def gateways(self, unit: _Unit) -> tuple[int, ...]:
        return tuple(
            sorted(
                self._chosen[unit],
                key=lambda broker: (broker != unit.host, -self._scores[unit, broker], broker),
            )
        )

    def _rank(self, unit: _Unit, broker: int) -> tuple[int, int, int]:
        load = sum(len(held.coordinators) for held in self._held[broker])
        return load, -self._scores[unit, broker], broker

    def _is_wanting(self, unit: _Unit) -> bool:
        return len(self._chosen[unit]) < self._count

    def _has_room(self, broker: int) -> bool:
        held = len(self._held[broker])
        return held < self._units_min or (held == self._units_min and self._extras_left > 0)

    def _put(self, unit: _Unit, broker: int) -> None:
        self._extras_left -= len(self._held[broker]) == self._units_min
        self._held[broker].add(unit)
        self._chosen[unit].add(broker)


def _score(key: str, broker: int) -> int:
    return int.from_bytes(blake2b(f"{key}/{broker}".encode(), digest_size=8).digest())
