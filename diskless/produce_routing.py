"""Which broker a client is sent to: the produce gateways, seen from one client and one partition.

A `ProduceRouting` is made for one membership (who is alive, where, and which broker hosts which
coordinator) and thrown away with it; a `Cluster` keeps the current one and asks it for `leader_of`
and for PreferredProduceBrokers. It does no I/O and may be asked once per partition of a Metadata
answer.

The gateway that a partition gets stays the same while that broker is a gateway for the client's
rack. Partitions without a known coordinator, and clusters without coordinators, are spread over the
brokers of the client's rack, or over all of them.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final
from uuid import UUID

from diskless.client_rack import client_rack
from diskless.ports import BrokerEndpoint, ClientInfo
from metadata.produce_gateways import GatewayBroker, choose_gateway, select_produce_gateways
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
        coordinator = self._coordinator_of(TopicIdPartition(topic_id, partition))
        if coordinator is None:
            return ()
        return self._preferred(coordinator, self._rack_of(client.client_id))

    def leader_of(self, topic_id: UUID, partition: int, client: ClientInfo) -> int | None:
        """The broker this client shall use for a partition; None when nobody is alive."""
        gateways = self.preferred_produce_brokers(topic_id, partition, client)
        return choose_gateway(
            gateways or self._in_rack[self._rack_of(client.client_id)], topic_id, partition
        )
