"""This broker's place in a cluster of several: it registers, and it knows who else is there.

`Membership.run` tells the leader of the catalogue every third of a session that this broker is
alive. It does so at once when it reads that it was put out: a leader whose lease ended, in an
outage of the store say, is put out by the next one (metadata/workers/broker_sessions.py).
`SharedCluster` reads the registered brokers from this broker's replica of the catalogue, and
the leaders from its replicas of the metadata partitions; with that, clients are sent to the produce
gateways of their rack (diskless/cluster/produce_routing.py), and to a broker that joins only when
all others have read of it (diskless/cluster/presence.py). It is rebuilt when either changed, for
each listener: who came through one is only sent to brokers that have it, at their addresses of it.

Failure cases: a leader that is not there is tried again with the next beat; meanwhile this broker
serves on what it knows. A node id that another live broker has ends this broker with the reason,
and so does a release that writes other metadata than the leader's.
"""

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import structlog

from diskless.cluster.presence import Presence
from diskless.cluster.produce_routing import ProduceRouting
from diskless.cluster.reachable import ReachableBroker, brokers_at
from diskless.listeners.endpoints import Endpoint, format_endpoints, parse_endpoints
from diskless.ports import BrokerEndpoint, ClientInfo, TopicsById
from metadata.clients.routed_client import RoutedClient
from metadata.leadership.candidate import Candidate
from metadata.metadata_version import METADATA_VERSION
from metadata.operations import CATALOGUE, Leader, RegisteredBroker
from wal.clock import Clock, Sleep
from wal.coordinates import TopicIdPartition
from wal.errors import CommitOutcomeUnknown, Retriable

_BEATS_PER_SESSION: Final = 3
_LOOKS_PER_BEAT: Final = 16
_RECORD: Final = "the record of a broker"
SETTLE_FOLLOWS: Final = 10
"""Follow intervals until every broker has read a change: each may be late, or slow to read."""

log = structlog.get_logger(__name__)


class Membership:
    """Keeps this broker registered."""

    def __init__(
        self,
        registry: RoutedClient,
        *,
        candidate: Candidate,
        rack: str,
        endpoints: Sequence[Endpoint],
        session_timeout_ms: int,
        registered: Callable[[], Mapping[int, RegisteredBroker]],
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`registered` are the brokers of the catalogue, as far as this broker has read it."""
        self._registry = registry
        self._registered = registered
        self._is_there = False
        self._broker = RegisteredBroker(
            candidate.broker_id,
            candidate.host,
            candidate.port,
            rack,
            candidate.incarnation,
            format_endpoints(endpoints),
            candidate.may_lead,
            METADATA_VERSION,
        )
        self._interval_s = session_timeout_ms / 1000 / _BEATS_PER_SESSION
        self._sleep = sleep

    async def run(self) -> None:
        """Register and stay registered until cancelled. Raises InvalidRequest (node id taken)."""
        while True:
            await self._beat(self._broker)
            await self._sleep_unless_put_out()

    async def _sleep_unless_put_out(self) -> None:
        for _ in range(_LOOKS_PER_BEAT):
            await self._sleep(self._interval_s / _LOOKS_PER_BEAT)
            was_there, self._is_there = self._is_there, self._broker.broker_id in self._registered()
            if was_there and not self._is_there:
                return

    async def leave(self) -> None:
        """Tell the cluster that this broker stops, so that clients are not sent here any more."""
        try:
            async with asyncio.timeout(self._interval_s):
                await self._beat(self._broker._replace(host="", port=0))
        except TimeoutError:
            log.warning("stopping without having left the cluster")

    async def _beat(self, broker: RegisteredBroker) -> None:
        try:
            # A leader that does not answer within a beat may not lead any more.
            await self._registry.register_broker(broker, timeout_ms=round(self._interval_s * 1000))
        except (Retriable, CommitOutcomeUnknown) as error:
            log.info("not registered, trying again", error=str(error))


class _View(NamedTuple):
    """The cluster as clients of one listener see it."""

    brokers: Sequence[BrokerEndpoint]
    routing: ProduceRouting


class FollowedReplica(Protocol):
    """The part of `Replica` that membership uses. Only the catalogue's replica knows brokers."""

    def brokers(self) -> Mapping[int, RegisteredBroker]: ...

    def subscribe_applied(self, listener: Callable[[], None]) -> None: ...


class LedPartition(Protocol):
    """The part of `MetadataPartition` that membership uses."""

    @property
    def leader(self) -> Leader | None: ...

    @property
    def replica(self) -> FollowedReplica: ...


class SharedCluster:
    """`diskless.ports.Cluster` of all brokers that share a bucket prefix."""

    def __init__(
        self,
        partitions: Sequence[LedPartition],
        registry: TopicsById,
        *,
        cluster_id: str,
        myself: ReachableBroker,
        follow_interval_ms: int,
        clock: Clock,
    ) -> None:
        """`follow_interval_ms` is how far the brokers may be apart in what they have read."""
        self._partitions = partitions
        self._registry = registry
        self.cluster_id: Final = cluster_id
        self.node_id: Final = myself.node_id
        self._myself = myself
        self._clock = clock
        catalogue = partitions[CATALOGUE].replica
        self._registered = catalogue.brokers
        self._presence = Presence(
            catalogue.brokers(), settle_s=SETTLE_FOLLOWS * follow_interval_ms / 1000
        )
        # It counts from when a change can be read, not from when the next client asks.
        catalogue.subscribe_applied(self._look)
        self._is_seen = False
        self._leaders: Sequence[Leader | None] = ()
        self._brokers: Sequence[ReachableBroker] = (myself,)
        self._hosts: Mapping[int, int | None] = {}
        self._views: dict[str, _View] = {}

    @property
    def controller_id(self) -> int:
        """The leader of the catalogue, if it is registered; any broker takes admin requests."""
        leader = self._partitions[CATALOGUE].leader
        self._refresh()
        known = {broker.node_id for broker in self._brokers}
        return leader.broker_id if leader and leader.broker_id in known else self.node_id

    def brokers(self, listener: str) -> Sequence[BrokerEndpoint]:
        return self._view(listener).brokers

    def leader_of(self, topic_id: uuid.UUID, partition: int, client: ClientInfo) -> int:
        leader = self._routing(client).leader_of(topic_id, partition, client)
        return self.node_id if leader is None else leader

    def replicas_of(self, topic_id: uuid.UUID, partition: int, client: ClientInfo) -> Sequence[int]:
        return self._routing(client).replicas_of(topic_id, partition, client) or (self.node_id,)

    def is_another_rack(self, rack: str, client: ClientInfo) -> bool:
        return rack != self._myself.rack and rack in self._routing(client).racks

    def reader_in(self, rack: str, topic_id: uuid.UUID, partition: int, client: ClientInfo) -> int:
        reader = self._routing(client).reader_in(rack, topic_id, partition)
        return self.node_id if reader is None else reader

    def preferred_produce_brokers(
        self, topic_id: uuid.UUID, partition: int, client: ClientInfo
    ) -> Sequence[int]:
        return self._routing(client).preferred_produce_brokers(topic_id, partition, client)

    def _look(self) -> None:
        if self._presence.look(self._registered(), self._clock.monotonic()):
            self._is_seen = False

    def _refresh(self) -> None:
        """Rebuild what follows from who is there and who leads, if that changed."""
        self._look()
        leaders = tuple(partition.leader for partition in self._partitions)
        if self._is_seen and leaders == self._leaders:
            return
        others = [
            ReachableBroker(
                broker.broker_id,
                broker.rack,
                parse_endpoints(broker.endpoints, _RECORD),
            )
            for broker in self._presence.listed()
            if broker.broker_id != self.node_id
        ]
        self._brokers = (self._myself, *others)
        self._hosts = {
            index: None if leader is None else leader.broker_id
            for index, leader in enumerate(leaders)
        }
        self._views.clear()
        self._leaders = leaders
        self._is_seen = True

    def _routing(self, client: ClientInfo) -> ProduceRouting:
        return self._view(client.listener).routing

    def _view(self, listener: str) -> "_View":
        """What clients of a listener see; they come through listeners of this broker only."""
        self._refresh()
        view = self._views.get(listener)
        if view is None:
            brokers = brokers_at(listener, self._brokers)
            settled = self._presence.settled() or {self.node_id}
            routing = ProduceRouting(
                [broker for broker in brokers if broker.node_id in settled],
                hosts=self._hosts,
                coordinator_of=self._coordinator_of,
            )
            view = self._views[listener] = _View(brokers, routing)
        return view

    def _coordinator_of(self, partition: TopicIdPartition) -> int | None:
        topic = self._registry.topic_by_id(partition.topic_id)
        if topic is None or partition.partition >= topic.partition_count:
            return None
        return topic.coordinator_of(partition.partition)
