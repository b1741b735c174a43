"""The parts of a worker: what of a broker moves records, and a line to its head for the rest.

    connections ── Produce ──▶ replica manager ──▶ own chunks ──▶ store ──▶ commits: the head
                ── Fetch ────▶ chunks of all processes, caches, store; where: the head
                ── others ───▶ relayed to the head

Made like a broker (`diskless.broker`), of the same parts; the chunks are a directory of its own.

Clients say who they are here, and what a worker answers itself is authorized here; the head is told
who they are with what is relayed to it (`diskless.workers.security`).
"""

import asyncio
import random
import socket
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry

from diskless.acls.acl_authorizer import AclAuthorizer
from diskless.api.access import Access
from diskless.api.cluster import api_versions
from diskless.api.records import fetch, list_offsets, produce
from diskless.api.records.throttled_fetch import throttled
from diskless.api.users import sasl_authenticate, sasl_handshake
from diskless.audit.audit_log import AuditLog
from diskless.authorization import AllowEverything, Authorizer
from diskless.broker_metrics import process_metrics
from diskless.cluster.cluster import CoordinatorTopics, SingleBroker
from diskless.cluster.membership import SharedCluster
from diskless.cluster.reachable import ReachableBroker
from diskless.cluster.reader_routing import ReaderRouting
from diskless.config import Config
from diskless.listeners.connection_limits import ListenerLimits
from diskless.listeners.listeners import Listener, listeners_elsewhere, plan_listeners
from diskless.listeners.tls_keys import KeyWatch, TlsKeys
from diskless.loop.loop_watch import LoopWatch
from diskless.metrics import MetricsPage
from diskless.parts.background import run_until_stop
from diskless.parts.coordination import asker
from diskless.parts.logins import PASSWORD_CHECKS_MAX, login_rules
from diskless.parts.read_path import ReadPath
from diskless.parts.storage import Storage, StoreOpener, open_shared
from diskless.parts.tokens import TOKEN_CHECKS_MAX, Tokens, open_tokens
from diskless.parts.write_path import WritePath
from diskless.ports import Cluster
from diskless.quotas.quotas import QuotaEnforcer
from diskless.replica.metadata_topic import MetadataTopic
from diskless.request_metrics import LoopLag, RequestMetrics
from diskless.sasl.login import LoginRules
from diskless.security_metrics import security_metrics
from diskless.server.registry import ApiRegistry
from diskless.server.server import KafkaServer
from diskless.shared.chunk_notices import ChunkNotices
from diskless.shared.connection_counts import ConnectionCounts
from diskless.shared.shared_counts import SharedCounts
from diskless.shared.shared_descriptors import SharedDescriptors
from diskless.shared.shared_rates import SharedRates
from diskless.shared.sibling_chunks import SiblingChunks
from diskless.storage.cluster_identity import OBJECT_LOG
from diskless.storage.data_directory import DataDirectory
from diskless.topics.schema_notes import SchemaNotes
from diskless.transactions.transaction_numbers import TransactionNumbers
from diskless.workers.birth_facts import BirthFacts
from diskless.workers.connections.accepted import AcceptedConnections
from diskless.workers.connections.heavy_connections import HeavyConnections
from diskless.workers.connections.metrics import heavy_connection_metrics
from diskless.workers.doors import Doors
from diskless.workers.head_client import HeadClient
from diskless.workers.head_line import HeadLine
from diskless.workers.relay import Relay
from diskless.workers.security.line_notes import LineNotes
from metadata.clients.near_replicas import NearReplicas
from metadata.clients.wire_client import WireClient
from metadata.messages.transactions import ADD_TO_TRANSACTION, JOIN_TRANSACTIONS
from wal.clock import Clock
from wal.disk import Disk

_SILENCE_S_MIN: Final = 5.0
"""A busy machine may keep a head from answering for seconds, and it costs all connections."""
_CONNECTION_BITS: Final = 32
"""Of a connection's number; the life of its worker is above them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGround:
    """What all parts of a worker are made with."""

    config: Config
    """With this worker's share of all limits."""
    clock: Clock
    rng: random.Random
    facts: BirthFacts
    data: DataDirectory
    listeners: Sequence[Listener]
    tls: KeyWatch
    """The keys of the listeners; the head says when to look at their files."""
    registry: CollectorRegistry
    metrics_page: MetricsPage
    audit: AuditLog
    audit_sink: LineNotes

    @property
    def is_shared(self) -> bool:
        """Whether other brokers work on the same metadata, in the object store."""
        return self.config.broker.metadata_log == OBJECT_LOG

    @property
    def node_id(self) -> int:
        return self.facts.node_id

    @property
    def lane(self) -> int:
        return self.facts.number


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """The metadata, as a worker has it; see `diskless.parts.process_parts.State`."""

    client: HeadClient
    metadata_topic: MetadataTopic
    transaction_numbers: TransactionNumbers


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerParts:
    """All parts of a worker that runs."""

    base: WorkerGround
    storage: Storage
    writes: WritePath
    reads: ReadPath
    quotas: QuotaEnforcer
    tokens: Tokens
    server: KafkaServer


def open_ground(
    config: Config,
    facts: BirthFacts,
    line: HeadLine,
    *,
    registry: CollectorRegistry,
    metrics_page: MetricsPage,
    clock: Clock,
    rng: random.Random,
) -> WorkerGround:
    """What a worker has before its parts. Raises InvalidSettings."""
    planned = plan_listeners(config.listeners)
    keys = [
        TlsKeys(plan.bind.listener, config.of_listener(plan.bind.listener, config.tls), clock)
        for plan in planned
        if plan.protocol.is_tls
    ]
    notes = LineNotes(line.send, clock)
    return WorkerGround(
        config=config,
        clock=clock,
        rng=rng,
        facts=facts,
        data=DataDirectory(
            path=Path(facts.data), node_id=facts.node_id, cluster_id=facts.cluster_id
        ),
        listeners=listeners_elsewhere(planned, facts.addresses, keys),
        tls=KeyWatch(keys),
        registry=registry,
        metrics_page=metrics_page,
        audit=AuditLog(notes, clock),
        audit_sink=notes,
    )


async def open_worker(
    stack: AsyncExitStack,
    tasks: asyncio.TaskGroup,
    base: WorkerGround,
    line: HeadLine,
    doors: Doors,
    accepted: socket.socket,
    shared: SharedDescriptors,
    *,
    opener: StoreOpener,
    disk: Disk,
) -> WorkerParts:
    """Build, recover the own chunks, serve what is `accepted`; what is opened is on `stack`."""
    config, clock = base.config, base.clock
    watch = LoopWatch(config.loop, clock=clock, metrics=LoopLag(base.registry))
    await stack.enter_async_context(watch)
    run_until_stop(stack, tasks, watch.run(), "loop-watch")
    storage = await open_shared(stack, base, base.data, opener)
    state = await _open_state(stack, base, line, doors)
    notices = ChunkNotices(shared.notices, base.lane)
    writes = WritePath(base, storage, state, disk, lane=base.lane, notices=notices)
    recovered = await writes.recover(stack)
    lanes = [base.data.chunks_of(lane) for lane in range(base.facts.count + 1)]
    reads = ReadPath(
        base,
        storage,
        state,
        writes,
        lane=base.lane,
        siblings=SiblingChunks(lanes, notices, storage.fd_cache),
        refresh=line.take,
    )
    await reads.open(stack, state)
    line.known.subscribe_deletions(reads.replicas.forget)
    await writes.run(stack, tasks, recovered)
    rates = SharedRates(
        shared.rates,
        base.lane,
        window_s=config.quotas.window_s,
        window_count=config.quotas.window_count,
        now=clock.monotonic,
    )
    quotas = QuotaEnforcer(
        line.known.client_quotas, settings=config.quotas, clock=clock, others=rates.of
    )
    relay = Relay(doors, line.synced)
    run_until_stop(stack, tasks, relay.sweep(), "relay")
    run_until_stop(stack, tasks, _follow_keys(line, base.tls), "tls-keys")
    # The head has read a file of keys when it began, and a worker that is started again later must
    # not fail because of one that is being written.
    checks_max = max(1, TOKEN_CHECKS_MAX // base.facts.count)
    tokens = await open_tokens(stack, tasks, base, checks_max=checks_max, is_checked=False)
    counts = ConnectionCounts(shared.connections, base.lane)
    server = KafkaServer(
        base.listeners,
        apis=_apis(base, line, storage, state, reads, quotas, relay),
        settings=config.server,
        pool=storage.pool,
        clock=clock,
        metrics=RequestMetrics(base.registry),
        tls=config.tls,
        logins=_logins(stack, tasks, base, line, tokens),
        pending_per_ip_max=config.sasl.pending_per_ip_max,
        long_work=reads.long_work,
        arrivals=writes.arrivals,
        limits=quotas,
        audit=base.audit,
        listener_limits=_listener_limits(config),
        other_connections=SharedCounts(shared.names, base.lane),
        processes=base.facts.count,
        counts=counts,
        first_connection=(base.facts.life << _CONNECTION_BITS) + 1,
        ended=relay.gone,
    )
    await stack.enter_async_context(server)
    names = [listener.name for listener in base.listeners]
    taker = AcceptedConnections(
        accepted,
        admit=lambda one: server.admit(names[one.listener], one.client, one.host),
        took=counts.took,
    )
    stack.callback(taker.close)
    taker.start()
    heavy = HeavyConnections(server, line.tell_load, clock=clock)
    run_until_stop(stack, tasks, heavy.tell_loads(), "load")
    silence_s = max(config.coordinator.session_timeout_ms / 1000, _SILENCE_S_MIN)
    run_until_stop(stack, tasks, line.end_in_silence(silence_s), "head-silence")
    run_until_stop(stack, tasks, heavy.give_up_when_asked(line.giving_up), "heavy-connections")
    parts = WorkerParts(
        base=base,
        storage=storage,
        writes=writes,
        reads=reads,
        quotas=quotas,
        tokens=tokens,
        server=server,
    )
    base.metrics_page.add(
        [*process_metrics(parts), *security_metrics(parts), *heavy_connection_metrics(heavy)]
    )
    return parts


async def _follow_keys(line: HeadLine, keys: KeyWatch) -> None:
    """Look at the files of keys when the head has, until cancelled."""
    while True:
        await line.keys_changed.wait()
        line.keys_changed.clear()
        await keys.reload()


def _logins(
    stack: AsyncExitStack,
    tasks: asyncio.TaskGroup,
    base: WorkerGround,
    line: HeadLine,
    tokens: Tokens,
) -> Mapping[str, LoginRules]:
    """As in a broker of one process; users and secrets are those that the head tells."""
    secrets = line.rights.broker_secrets(base.clock)
    if secrets is not None:
        run_until_stop(stack, tasks, line.rights.follow(secrets), "secrets")
    return login_rules(
        stack,
        base,
        line.rights.scram_credentials,
        decoys=line.rights.decoys,
        secrets=secrets,
        tokens=tokens.check,
        delay=line,
        checks_max=max(1, PASSWORD_CHECKS_MAX // base.facts.count),
    )


async def _open_state(
    stack: AsyncExitStack, base: WorkerGround, line: HeadLine, doors: Doors
) -> WorkerState:
    def client() -> WireClient:
        return WireClient(
            "head",
            0,
            clock=base.clock,
            rng=base.rng,
            client_id=f"worker-{base.lane}",
            connect=doors.connect,
        )

    known = line.known
    config = base.config.coordinator
    near = NearReplicas(
        [base.data.metadata_partition(index) for index in range(config.metadata_partitions)],
        readers=config.state_readers,
        coordinator_of=known.coordinator_of,
    )
    await stack.enter_async_context(near)
    head = await stack.enter_async_context(HeadClient(known, client, near))
    numbers = TransactionNumbers(
        asker(head, JOIN_TRANSACTIONS),
        known.coordinator_of_name,
        add=asker(head, ADD_TO_TRANSACTION),
        kept_ms=base.config.coordinator.transaction_max_timeout_ms,
        clock=base.clock,
    )
    await stack.enter_async_context(numbers)
    return WorkerState(
        client=head,
        metadata_topic=MetadataTopic(known.partitions),
        transaction_numbers=numbers,
    )


def _apis(
    base: WorkerGround,
    line: HeadLine,
    storage: Storage,
    state: WorkerState,
    reads: ReadPath,
    quotas: QuotaEnforcer,
    relay: Relay,
) -> ApiRegistry:
    """What moves records, and everything else as the head serves it."""
    rules = base.config.authorizer
    authorizer: Authorizer = AllowEverything()
    if rules.is_on:
        authorizer = AclAuthorizer(line.rights.acls, rules.policy())
    access = Access(authorizer, base.audit)
    replicas = reads.replicas
    topics = CoordinatorTopics(
        state.client,
        base.config.broker,
        metadata_topic=state.metadata_topic.description,
        on_deleted=replicas.forget,
        schema_notes=SchemaNotes(storage.store, clock=base.clock, rng=base.rng),
    )
    routing = ReaderRouting(_cluster(base, line), topics)
    registry = ApiRegistry(
        [
            produce.api(replicas, topics, quotas, access),
            throttled(fetch.api(replicas, topics, reads.fetch_sessions, routing, access), quotas),
            list_offsets.api(replicas, access),
            sasl_handshake.api(),
            sasl_authenticate.api(),
        ]
    )
    registry.add(api_versions.api(registry))
    for relayed in base.facts.apis:
        if registry.find(relayed.key) is None:
            registry.add(relay.api(relayed))
    return registry


def _cluster(base: WorkerGround, line: HeadLine) -> Cluster:
    config, facts = base.config, base.facts
    advertised = [listener.advertised for listener in base.listeners]
    myself = ReachableBroker(base.node_id, config.broker.rack, advertised)
    if config.broker.metadata_log != OBJECT_LOG:
        return SingleBroker(facts.cluster_id, myself)
    return SharedCluster(
        line.known.partitions,
        line.known,
        cluster_id=facts.cluster_id,
        myself=myself,
        follow_interval_ms=config.coordinator.follow_interval_ms,
        clock=base.clock,
    )


def _listener_limits(config: Config) -> Mapping[str, ListenerLimits]:
    limits = {}
    for name in config.per_listener:
        settings = config.of_listener(name, config.server)
        limits[name] = ListenerLimits(
            settings.max_connections, settings.max_connection_creation_rate
        )
    return limits
