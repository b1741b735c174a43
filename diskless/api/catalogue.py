"""Wires all APIs for Kafka clients to what they call."""

from collections.abc import Callable

from diskless.api.access import Access
from diskless.api.acls import create_acls, delete_acls, describe_acls
from diskless.api.cluster import (
    api_versions,
    describe_cluster,
    describe_log_dirs,
    update_features,
)
from diskless.api.configs import (
    alter_client_quotas,
    alter_configs,
    describe_client_quotas,
    describe_configs,
    incremental_alter_configs,
    list_config_resources,
)
from diskless.api.groups import (
    consumer_group_describe,
    consumer_group_heartbeat,
    delete_groups,
    describe_groups,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
    txn_offset_commit,
)
from diskless.api.records import (
    delete_records,
    describe_producers,
    fetch,
    init_producer_id,
    list_offsets,
    offset_for_leader_epoch,
    produce,
)
from diskless.api.records.throttled_fetch import throttled
from diskless.api.topics import (
    alter_partition_reassignments,
    create_partitions,
    create_topics,
    delete_topics,
    describe_topic_partitions,
    elect_leaders,
    list_partition_reassignments,
    metadata,
)
from diskless.api.transactions import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    describe_transactions,
    end_txn,
    list_transactions,
)
from diskless.api.users import (
    alter_user_scram_credentials,
    describe_user_scram_credentials,
    sasl_authenticate,
    sasl_handshake,
)
from diskless.audit.audit_log import Audit
from diskless.authorization import Authorizer
from diskless.cluster.reader_routing import ReaderRouting
from diskless.fetch.fetch_sessions import FetchSessions
from diskless.groups.group_router import GroupRouter
from diskless.ports import (
    AclAdmin,
    BrokerConfigs,
    Cluster,
    ProducerIds,
    QuotaAdmin,
    ReplicaManager,
    ScramAdmin,
    StoredPartitions,
    TopicAdmin,
)
from diskless.quotas.quotas import QuotaEnforcer
from diskless.server.registry import ApiRegistry
from diskless.topics.topic_config_entries import TopicConfigs
from diskless.transactions.transaction_numbers import TransactionNumbers
from diskless.transactions.transaction_router import TransactionRouter


def kafka_apis(
    *,
    manager: ReplicaManager,
    cluster: Cluster,
    groups: GroupRouter,
    transactions: TransactionRouter,
    transaction_numbers: TransactionNumbers,
    topics: TopicAdmin,
    producer_ids: ProducerIds,
    broker_configs: BrokerConfigs,
    stored: StoredPartitions,
    quotas: QuotaEnforcer,
    quota_admin: QuotaAdmin,
    scram_admin: ScramAdmin,
    fetch_sessions: FetchSessions,
    authorizer: Authorizer,
    acl_admin: AclAdmin | None,
    audit: Audit,
    now_ms: Callable[[], int],
) -> ApiRegistry:
    """A registry to which more may be added; ApiVersions lists what is in it when it is asked.

    `acl_admin` is None where the authorizer asks no rules.
    """
    access = Access(authorizer, audit)
    routing = ReaderRouting(cluster, topics)
    topic_configs = TopicConfigs(broker_configs.entries())
    registry = ApiRegistry(
        [
            produce.api(manager, topics, quotas, access),
            throttled(fetch.api(manager, topics, fetch_sessions, routing, access), quotas),
            list_offsets.api(manager, access),
            metadata.api(cluster, topics, access),
            find_coordinator.api(cluster, groups, transactions, access),
            offset_for_leader_epoch.api(manager, access),
            create_topics.api(topics, topic_configs, access),
            delete_topics.api(topics, access),
            create_partitions.api(topics, access),
            elect_leaders.api(topics, access),
            alter_partition_reassignments.api(cluster, topics, access),
            list_partition_reassignments.api(access),
            delete_records.api(topics, topic_configs, access),
            offset_commit.api(groups, access),
            txn_offset_commit.api(groups, access),
            offset_fetch.api(groups, access),
            join_group.api(groups, access),
            heartbeat.api(groups, access),
            leave_group.api(groups, access),
            sync_group.api(groups, access),
            consumer_group_heartbeat.api(groups, access),
            describe_groups.api(groups, access),
            consumer_group_describe.api(groups, access),
            list_groups.api(groups, access),
            delete_groups.api(groups, access),
            offset_delete.api(groups, access),
            init_producer_id.api(producer_ids, transactions, access),
            add_partitions_to_txn.api(transactions, transaction_numbers, access),
            add_offsets_to_txn.api(transactions, access),
            end_txn.api(transactions, access),
            describe_configs.api(cluster, topics, topic_configs, broker_configs, access),
            list_config_resources.api(cluster, topics, access),
            alter_configs.api(topics, access),
            incremental_alter_configs.api(topics, topic_configs, access),
            describe_topic_partitions.api(cluster, topics, access),
            describe_log_dirs.api(cluster, topics, stored, access),
            describe_producers.api(topics, stored, access),
            describe_transactions.api(transactions, topics, access),
            list_transactions.api(transactions, now_ms, access),
            describe_cluster.api(cluster, access),
            update_features.api(access),
            describe_client_quotas.api(quota_admin, access),
            alter_client_quotas.api(quota_admin, access),
            describe_acls.api(acl_admin, access),
            create_acls.api(acl_admin, access),
            delete_acls.api(acl_admin, access),
            sasl_handshake.api(),
            sasl_authenticate.api(),
            describe_user_scram_credentials.api(scram_admin, access),
            alter_user_scram_credentials.api(scram_admin, access),
        ]
    )
    registry.add(api_versions.api(registry))
    return registry
