"""Decides who may do what: the question that the API handlers ask, and the authorizers that answer.

The words are Kafka's: an operation on a resource of some type, named, or the cluster as a whole.
Which API asks for which operation is said in the handlers (diskless/api/access.py has what they
share) and is the same as in Kafka.

There is no list of rules here: `AllowEverything` is what a broker is started with that was not
told to have an authorizer. The one that has rules is diskless/acls/acl_authorizer.py.

Invariants of an Authorizer: it answers from memory, since it is asked on the event loop for every
request; it has no effects; and equal questions have equal answers within a request.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Final, Protocol

from diskless.ports import ClientInfo


class ResourceType(IntEnum):
    """What an operation is done to, by Kafka's numbers."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class AclOperation(IntEnum):
    """What is done, by Kafka's numbers."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


BROKER_USER: Final = "__broker"
"""The name by which the brokers of a cluster log in to each other. No client can have it."""

CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the one resource of type CLUSTER."""

OPERATIONS_OF: Final[Mapping[ResourceType, Sequence[AclOperation]]] = {
    ResourceType.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        AclOperation.READ,
        AclOperation.DELETE,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
    ),
}
"""What can be done to a resource, as far as clients are told which of it they may."""


class Authorizer(Protocol):
    """Says what a client may not do. See the invariants above."""

    def denied(
        self,
        client: ClientInfo,
        operation: AclOperation,
        resource_type: ResourceType,
        names: Iterable[str],
    ) -> Collection[str]:
        """Those of `names` to which `client` may not do `operation`; empty: it may with all.

        `names` is read once at most, and not at all by an authorizer that need not know them. A
        principal that may read, write, delete or alter a resource may describe it as well, as in
        Kafka; to say so is the authorizer's part.
        """
        ...

    def denied_everywhere(
        self, client: ClientInfo, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        """Whether there is no name at all, of something that exists or not, with which it may."""
        ...

    def version(self) -> int:
        """Another one whenever an answer may be another than before."""
        ...


class AllowEverything:
    """Everybody may do everything, as in a Kafka without an authorizer."""

    def denied(
        self,
        client: ClientInfo,
        operation: AclOperation,
        resource_type: ResourceType,
        names: Iterable[str],
    ) -> Collection[str]:
        return ()

    def denied_everywhere(
        self, client: ClientInfo, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        return False

    def version(self) -> int:
        return 0
