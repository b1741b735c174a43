"""Wires the APIs by which brokers and KIP-1164 clients reach the coordinators of this broker.

The seven of the KIP are listed by ApiVersions, as Kafka lists every API of a listener; stock
clients pass over keys that they have no use for. The private ones are not. FindCoordinator has no
key type for metadata coordinators: who leads a metadata partition is in its log, which every broker
reads.

Every operation of metadata/messages is served in version 0, each as its row says; those of a
tiering job in `segments`. What is said here is only what is special:

- CreatePartitions, CreateTopics, CreatePartitionsAt, AlterTopicConfigs, AlterClientQuotas: a bad
  name, count, config or quota refuses its entry alone (`topic_checks`).
- CommitFile, CommitFilesAt, CommitSinkHere, CommitSegmentsHere, CommitRewritesHere, EndParts,
  JoinTransactions: never divided. A CommitFile of 4 MiB, the default limit of
  `socket.control.request.max.bytes`, holds 50,000 batches.
- DeleteRecords: -1 is the high watermark; LowWatermark is the log start offset afterwards.
- ListOffsets, FindBatches: `diskless_list_offsets`, `diskless_find_batches`.
- PlanSegmentsHere, PlanRewritesHere: an answer ends where one to a tiering job does (`segments`).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from diskless.api.access import Access
from diskless.api.coordinator import diskless_find_batches, diskless_list_offsets, topic_checks
from diskless.api.coordinator.coordinator_operation import (
    Call,
    Check,
    RunningOperations,
    coordinator_api,
    passed_on,
)
from diskless.api.coordinator.segments import planning, planning_rewrites
from diskless.audit.audit_log import UNNOTED, Audit
from diskless.authorization import Authorizer
from diskless.loop.long_work import PORTION_ROWS, PORTION_TOPICS
from diskless.quotas.quota_entities import check_quotas
from diskless.replica.timestamp_search import TimestampSearch
from diskless.server.registry import Api
from metadata.clients.coordinator_client import CoordinatorClient
from metadata.messages import brokers, coordinator
from metadata.messages.access_tokens import TOKENS_BETWEEN_BROKERS
from metadata.messages.commit_file import COMMIT_FILE, COMMIT_FILES_AT
from metadata.messages.feeds import FEEDS_BETWEEN_BROKERS
from metadata.messages.find_batches import FIND_BATCHES
from metadata.messages.sinks import COMMIT_SINK_HERE, SINKS_BETWEEN_BROKERS
from metadata.messages.tables import TABLES_BETWEEN_BROKERS
from metadata.messages.transactions import (
    END_PARTS,
    JOIN_TRANSACTIONS,
    TRANSACTIONS_BETWEEN_BROKERS,
)

_CHECKS: Final[Mapping[int, Check]] = {
    coordinator.CREATE_PARTITIONS.key: topic_checks.checked_growth,
    brokers.CREATE_TOPICS.key: topic_checks.checked_topic,
    brokers.CREATE_PARTITIONS_AT.key: topic_checks.checked_share,
    brokers.ALTER_TOPIC_CONFIGS.key: topic_checks.checked_configs,
    brokers.ALTER_CLIENT_QUOTAS.key: check_quotas,
}
_PORTIONS: Final[Mapping[int, int | None]] = {
    COMMIT_FILE.key: None,
    COMMIT_FILES_AT.key: None,
    COMMIT_SINK_HERE.key: None,
    brokers.COMMIT_SEGMENTS_HERE.key: None,
    brokers.COMMIT_REWRITES_HERE.key: None,
    END_PARTS.key: None,
    JOIN_TRANSACTIONS.key: None,
    coordinator.DELETE_RECORDS.key: PORTION_ROWS,
    coordinator.DESCRIBE_FILES.key: PORTION_ROWS,
}
"""Entries that are read at once, where that is not PORTION_TOPICS. None reads all."""


def coordinator_apis(
    client: CoordinatorClient,
    search: TimestampSearch,
    running: RunningOperations,
    authorizer: Authorizer,
    audit: Audit = UNNOTED,
) -> Sequence[Api]:
    """APIs to be added to a registry.

    `client` answers for the coordinators that this broker leads, and NotCoordinator for the others:
    it must not pass requests on, or two brokers that disagree would pass them back and forth.
    """
    access = Access(authorizer, audit)
    own: Mapping[int, Call[Any, Any]] = {
        coordinator.LIST_OFFSETS.key: diskless_list_offsets.exact_listing(client, search),
        FIND_BATCHES.key: diskless_find_batches.bounded_search(client),
        brokers.PLAN_SEGMENTS_HERE.key: planning(client, ""),
        brokers.PLAN_REWRITES_HERE.key: planning_rewrites(client, ""),
    }
    return [
        coordinator_api(
            operation,
            own.get(operation.key)
            or passed_on(
                operation,
                client,
                check=_CHECKS.get(operation.key),
                portion=_PORTIONS.get(operation.key, PORTION_TOPICS),
            ),
            running,
            access,
        )
        for operation in (
            *coordinator.OF_THE_KIP,
            *brokers.BETWEEN_BROKERS,
            *TABLES_BETWEEN_BROKERS,
            *SINKS_BETWEEN_BROKERS,
            *TOKENS_BETWEEN_BROKERS,
            *TRANSACTIONS_BETWEEN_BROKERS,
            *FEEDS_BETWEEN_BROKERS,
        )
    ]
