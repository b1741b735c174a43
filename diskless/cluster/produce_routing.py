"""Chooses the broker that a client writes to, among the produce gateways of a partition.

A `ProduceRouting` is made for one membership (who is alive, where, and which broker hosts which
coordinator) and thrown away with it; a `Cluster` keeps the current one and asks it for `leader_of`
and for PreferredProduceBrokers. It does no I/O and may be asked once per partition of a Metadata
answer.

The gateway that a partition gets stays the same while that broker is a gateway for the client's
rack. Readers of a rack are sent to the same broker, whose cache they then share. Partitions without
a known coordinator, and clusters without coordinators, are spread over the
brokers of the client's rack, or over all of them.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final
from uuid import UUID

from diskless.cluster.client_rack import client_rack
from diskless.ports import BrokerEndpoint, ClientInfo
from metadata.clients.produce_gateways import GatewayBroker, choose_gateway, select_produce_gateways
from wal.coordinates import TopicIdPartition

CLIENT_IDS_CACHED_MAX: Final = 1_000
"""Client ids whose rack is remembered: a Metadata answer asks for it once per partition."""


class ProduceRouting:
    """For one membership; `coordinator_of` says which coordinator has a partition, if any."""

    def __init__(
        self,
        brokers: Sequence[BrokerEndpoint],
        *,
        hosts: Mapping[int, int | None],
        coordinator_of: Callable[[TopicIdPartition], int | None],
    ) -> None:
        members = [GatewayBroker(broker.node_id, broker.rack or "") for broker in brokers]
        racks = frozenset(broker.rack for broker in members if broker.rack)
        self.racks: Final = racks
        """Those in which a broker is alive."""
        self._rack_of_broker = {broker.broker_id: broker.rack for broker in members}
        self._gateways = select_produce_gateways(members, hosts)
        self._coordinator_of = coordinator_of
        self._in_rack = {
            rack: tuple(broker.broker_id for broker in members if rack in (None, broker.rack))
            for rack in (None, *racks)
        }
        self._rack_of = lru_cache(CLIENT_IDS_CACHED_MAX)(
            lambda client_id: client_rack(client_id, racks)
        )
        self._preferred = lru_cache(maxsize=None)(self._gateways.preferred_produce_brokers)

    def preferred_produce_brokers(
        self, topic_id: UUID, partition: int, client: ClientInfo
    ) -> tuple[int, ...]:
        """The gateways for this client, best first; empty when the coordinator is not known."""
        return self._gateways_in(self._rack_of(client.client_id), topic_id, partition)

    def leader_of(self, topic_id: UUID, partition: int, client: ClientInfo) -> int | None:
        """The broker this client is sent to for a partition; None when nobody is alive."""
        return self._choose(self._rack_of(client.client_id), topic_id, partition)

    def reader_in(self, rack: str, topic_id: UUID, partition: int) -> int | None:
        """The broker that clients of `rack` use for a partition; None when nobody is there."""
        return self._choose(rack, topic_id, partition) if rack in self.racks else None

    def replicas_of(self, topic_id: UUID, partition: int, client: ClientInfo) -> tuple[int, ...]:
        """The leader, and for each rack that is not its own the broker that readers there use."""
        leader = self.leader_of(topic_id, partition, client)
        if leader is None:
            return ()
        others = [
            self._choose(rack, topic_id, partition)
            for rack in sorted(self.racks)
            if rack != self._rack_of_broker[leader]
        ]
        return (leader, *(broker for broker in others if broker not in (None, leader)))

    def _choose(self, rack: str | None, topic_id: UUID, partition: int) -> int | None:
        gateways = self._gateways_in(rack, topic_id, partition)
        return choose_gateway(gateways or self._in_rack[rack], topic_id, partition)

    def _gateways_in(self, rack: str | None, topic_id: UUID, partition: int) -> tuple[int, ...]:
        coordinator = self._coordinator_of(TopicIdPartition(topic_id, partition))
        return () if coordinator is None else self._preferred(coordinator, rack)
