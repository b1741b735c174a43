"""AlterPartitionReassignments, key 45, versions 0-1: moves replicas, of which brokers have none.

The object store replicates, and any broker serves any partition. So a reassignment is done when it
is asked for: it is checked as Kafka checks it, answered with success, and changes nothing.
Metadata goes on naming the brokers that clients are sent to.

- A list of replicas names brokers that are alive, each once, and at least one:
  INVALID_REPLICA_ASSIGNMENT. Version 1 may forbid another number of them than Metadata names:
  INVALID_REPLICATION_FACTOR.
- To cancel a reassignment is NO_REASSIGNMENT_IN_PROGRESS, since none ever is.
- Asks for ALTER on the cluster. Who may not is told so for each partition, and for the whole.
"""

from collections.abc import Collection, Sequence
from typing import Any, Final

from diskless.api.access import Access
from diskless.api.errors import (
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    NoReassignmentInProgress,
    error_fields,
)
from diskless.api.topics.named_topics import known_partition
from diskless.authorization import AclOperation
from diskless.loop.long_work import Steps
from diskless.ports import ClientInfo, Cluster, TopicAdmin
from diskless.protocol.messages import decode_request, encode_response
from diskless.server.registry import Api, Outcome, Request
from wal.errors import DisklessError

KEY: Final = 45


def api(cluster: Cluster, topics: TopicAdmin, access: Access) -> Api:
    def problem(
        name: str, item: Any, alive: Collection[int], client: ClientInfo, *, may_resize: bool
    ) -> DisklessError | None:
        try:
            partition = known_partition(topics, name, item.partition_index)
            if item.replicas is None:
                raise NoReassignmentInProgress("no partition is ever being reassigned")
            _check_replicas(item.replicas, alive)
            count = len(cluster.replicas_of(partition.topic_id, partition.partition, client))
            if not may_resize and len(item.replicas) != count:
                raise InvalidReplicationFactor(
                    f"The replication factor is {count}, and changing it is not allowed."
                )
        except DisklessError as error:
            return error
        return None

    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)
        client = request.client
        refused = access.refused_cluster(client, AclOperation.ALTER)
        may_resize = getattr(asked, "allow_replication_factor_change", True)
        alive = {broker.node_id for broker in cluster.brokers(client.listener)}
        responses = []
        for topic in asked.topics:
            rows = []
            for item in topic.partitions:
                error = refused or problem(topic.name, item, alive, client, may_resize=may_resize)
                rows.append({"partition_index": item.partition_index, **error_fields(error)})
                yield
            responses.append({"name": topic.name, "partitions": rows})
            yield
        answer = {
            "allow_replication_factor_change": may_resize,
            "responses": responses,
            **error_fields(refused),
        }
        return (yield from encode_response(KEY, request.version, answer))

    return Api(
        key=KEY,
        name="AlterPartitionReassignments",
        versions=range(2),
        flexible_from=0,
        handler=handle,
    )


def _check_replicas(replicas: Sequence[int], alive: Collection[int]) -> None:
    """Raises InvalidReplicaAssignment, in Kafka's words."""
    said = "The manual partition assignment includes "
    if not replicas:
        raise InvalidReplicaAssignment(f"{said}an empty replica list.")
    seen = set()
    for broker in replicas:
        if broker in seen:
            raise InvalidReplicaAssignment(f"{said}the broker {broker} more than once.")
        if broker not in alive:
            raise InvalidReplicaAssignment(
                f"{said}broker {broker}, but no such broker is registered."
            )
        seen.add(broker)
