"""The service of a broker: every API on its parts, the server, and its place in the cluster.

Joining the cluster is the last step: from then on clients of other brokers are sent here too.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import NamedTuple

from diskless.acls.acl_authorizer import AclAuthorizer
from diskless.acls.acl_settings import check_chosen, check_not_locked_out
from diskless.api import (
    RunningOperations,
    SinkService,
    coordinator_apis,
    kafka_apis,
    reader_apis,
    segment_apis,
    sink_apis,
    token_apis,
    transaction_apis,
)
from diskless.audit.audit_log import UNNOTED
from diskless.authorization import AllowEverything, Authorizer
from diskless.cluster.cluster import (
    ConfiguredValues,
    CoordinatorTopics,
    ReplicaPartitions,
    SingleBroker,
)
from diskless.cluster.membership import Membership, SharedCluster
from diskless.cluster.reachable import ReachableBroker
from diskless.listeners.connection_limits import ListenerLimits
from diskless.listeners.endpoints import format_endpoints
from diskless.listeners.exposure import is_loopback
from diskless.listeners.listener_settings import ADVERTISED_LISTENERS
from diskless.parts.background import run_until_stop
from diskless.parts.coordination import Coordination, hand_over
from diskless.parts.foundation import Foundation
from diskless.parts.logins import decoys_of, login_rules, set_first_users
from diskless.parts.read_path import ReadPath
from diskless.parts.storage import Storage
from diskless.parts.tokens import Tokens
from diskless.parts.write_path import WritePath
from diskless.ports import AclAdmin, Cluster
from diskless.request_metrics import RequestMetrics
from diskless.sasl.failure_delay import FailureDelay
from diskless.server.registry import ApiRegistry
from diskless.server.server import KafkaServer
from diskless.server.server_metrics import Unmeasured
from diskless.sinks.staged_check import StagedCheck
from diskless.topics.schema_notes import SchemaNotes
from diskless.topics.topic_defaults import topic_defaults
from metadata.operations import CATALOGUE

OpenWorkers = Callable[[KafkaServer, ApiRegistry], Awaitable[None]]
"""Starts processes that accept connections, given what serves their requests."""


class Rights(NamedTuple):
    """Who is asked what clients may do, and who changes its rules; None: nobody has any."""

    authorizer: Authorizer
    admin: AclAdmin | None = None


async def serve(
    stack: AsyncExitStack,
    tasks: asyncio.TaskGroup,
    base: Foundation,
    storage: Storage,
    coordination: Coordination,
    writes: WritePath,
    reads: ReadPath,
    tokens: Tokens,
    rights: Rights,
    workers: OpenWorkers | None = None,
) -> KafkaServer:
    """Answer on the bound sockets, and join the cluster; `workers` starts those who answer."""
    operations = await stack.enter_async_context(RunningOperations())
    await set_first_users(base, coordination.client)
    apis = _apis(base, storage, coordination, reads, operations, rights)
    # Made in a head, too: what is wrong with them is said before there is a worker.
    logins = login_rules(
        stack,
        base,
        coordination.client.scram_credentials,
        decoys=await decoys_of(base, coordination.secrets),
        secrets=coordination.secrets,
        tokens=tokens.check,
        delay=FailureDelay(base.config.sasl.failure_delay_ms, base.clock),
    )
    server = KafkaServer(
        base.listeners,
        apis=apis,
        settings=base.config.server,
        pool=storage.pool,
        clock=base.clock,
        metrics=RequestMetrics(base.registry) if workers is None else Unmeasured(),
        tls=base.config.tls,
        logins=logins if workers is None else {},
        pending_per_ip_max=base.config.sasl.pending_per_ip_max,
        long_work=reads.long_work,
        arrivals=writes.arrivals,
        limits=coordination.quotas,
        # Who comes and goes is known to who accepts.
        audit=base.audit if workers is None else UNNOTED,
        listener_limits=_listener_limits(base),
        accepts=workers is None,
    )
    await stack.enter_async_context(server)
    if workers is not None:
        await workers(server, apis)
    # Members may wait for minutes; so that the server need not, they are sent elsewhere first.
    stack.callback(coordination.groups.close)
    if base.is_shared:
        membership = Membership(
            coordination.client,
            candidate=coordination.candidate,
            rack=base.config.broker.rack,
            endpoints=base.advertised,
            session_timeout_ms=base.config.coordinator.session_timeout_ms,
            registered=lambda: coordination.partitions[CATALOGUE].replica.brokers(),
        )
        # While it still answers: what the others ask of a leader waits for the next one otherwise.
        stack.push_async_callback(hand_over, coordination.partitions)
        stack.push_async_callback(membership.leave)
        run_until_stop(stack, tasks, membership.run(), "membership")
    return server


def _listener_limits(base: Foundation) -> Mapping[str, ListenerLimits]:
    """Of those that have limits of their own."""
    limits = {}
    for name in base.config.per_listener:
        settings = base.config.of_listener(name, base.config.server)
        limits[name] = ListenerLimits(
            settings.max_connections, settings.max_connection_creation_rate
        )
    return limits


def _apis(
    base: Foundation,
    storage: Storage,
    coordination: Coordination,
    reads: ReadPath,
    operations: RunningOperations,
    rights: Rights,
) -> ApiRegistry:
    client, replicas, store_url = coordination.client, reads.replicas, storage.store.url
    audit = base.audit
    authorizer, acl_admin = rights
    apis = kafka_apis(
        manager=replicas,
        cluster=_cluster(base, storage, coordination),
        groups=coordination.groups,
        transactions=coordination.transactions,
        transaction_numbers=coordination.transaction_numbers,
        topics=CoordinatorTopics(
            client,
            base.config.broker,
            metadata_topic=coordination.metadata_topic.description,
            schema_notes=SchemaNotes(storage.store, clock=base.clock, rng=base.rng),
            on_deleted=replicas.forget,
        ),
        producer_ids=client,
        broker_configs=ConfiguredValues(
            base.config, {ADVERTISED_LISTENERS: format_endpoints(base.advertised)}
        ),
        stored=ReplicaPartitions(client, store_url),
        quotas=coordination.quotas,
        quota_admin=client,
        scram_admin=client,
        fetch_sessions=reads.fetch_sessions,
        authorizer=authorizer,
        acl_admin=acl_admin,
        audit=audit,
        now_ms=base.clock.now_ms,
    )
    for api in (
        *coordinator_apis(coordination.local, reads.search, operations, authorizer, audit),
        *segment_apis(client, store_url, operations, authorizer, audit),
        *reader_apis(client, reads.search, store_url, operations, authorizer, audit),
        *token_apis(client, base.clock.now_ms, operations, authorizer, audit),
        *transaction_apis(
            client, coordination.transactions.coordinator_of, operations, authorizer, audit
        ),
        *sink_apis(
            SinkService(
                client,
                StagedCheck(storage.store, reads.inflation, base.clock),
                coordination.quotas,
                coordination.sinks,
                object_store_url=store_url,
                batches_max=base.config.coordinator.commit_batches_max,
                topic_defaults=topic_defaults(base.config.values()),
            ),
            operations,
            authorizer,
            audit,
        ),
    ):
        apis.add(api)
    return apis


def open_rights(base: Foundation, coordination: Coordination) -> Rights:
    """Raises InvalidSettings: nobody could change the rules, or it is not said if there are any."""
    settings, client = base.config.authorizer, coordination.client
    check_chosen(
        settings,
        is_asked_who=any(
            listener.is_asking_who and not listener.is_loopback for listener in base.listeners
        )
        or (base.is_http_asking and base.http is not None and not is_loopback(base.http.host)),
    )
    if not settings.is_on:
        return Rights(AllowEverything())
    check_not_locked_out(settings, client.acls())
    return Rights(AclAuthorizer(client.acls, settings.policy()), client)


def _cluster(base: Foundation, storage: Storage, coordination: Coordination) -> Cluster:
    myself = ReachableBroker(base.node_id, base.config.broker.rack, base.advertised)
    if not base.is_shared:
        return SingleBroker(storage.cluster_id, myself)
    return SharedCluster(
        coordination.partitions,
        coordination.client,
        cluster_id=storage.cluster_id,
        myself=myself,
        follow_interval_ms=base.config.coordinator.follow_interval_ms,
        clock=base.clock,
    )
