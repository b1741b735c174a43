"""Wires the APIs by which brokers and KIP-1164 clients reach the coordinators of this broker.

The seven of the KIP are listed by ApiVersions, as Kafka lists every API of a listener; stock
clients pass over keys that they have no use for. The private ones are not. FindCoordinator has no
key type for metadata coordinators: who leads a metadata partition is in its log, which every broker
reads.
"""

from collections.abc import Sequence

from diskless.api.access import Access
from diskless.api.coordinator import (
    diskless_between_brokers,
    diskless_commit_file,
    diskless_create_partitions,
    diskless_delete_records,
    diskless_delete_topics,
    diskless_describe_files,
    diskless_find_batches,
    diskless_list_offsets,
)
from diskless.api.coordinator.coordinator_operation import RunningOperations
from diskless.authorization import Authorizer
from diskless.replica.timestamp_search import TimestampSearch
from diskless.server.registry import Api
from metadata.clients.coordinator_client import CoordinatorClient


def coordinator_apis(
    client: CoordinatorClient,
    search: TimestampSearch,
    running: RunningOperations,
    authorizer: Authorizer,
) -> Sequence[Api]:
    """APIs to be added to a registry.

    `client` answers for the coordinators that this broker leads, and NotCoordinator for the others:
    it must not pass requests on, or two brokers that disagree would pass them back and forth.
    """
    access = Access(authorizer)
    return [
        diskless_create_partitions.api(client, running, access),
        diskless_delete_topics.api(client, running, access),
        diskless_commit_file.api(client, running, access),
        diskless_delete_records.api(client, running, access),
        diskless_list_offsets.api(client, search, running, access),
        diskless_find_batches.api(client, running, access),
        diskless_describe_files.api(client, running, access),
        *diskless_between_brokers.apis(client, running, access),
    ]
