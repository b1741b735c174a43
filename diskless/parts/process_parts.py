"""What the write path and the read path need, in a broker of one process, a head or a worker.

A worker has no replicas and no coordinators; what it has instead is in `diskless.workers`.
"""

import random
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from diskless.config import Config
from diskless.replica.metadata_topic import MetadataTopic
from diskless.topics.noted_facts import KnownEnds
from diskless.transactions.transaction_numbers import TransactionNumbers
from metadata.clients.coordinator_client import Coordinator
from wal.clock import Clock
from wal.coordinates import TopicIdPartition


class Ground(Protocol):
    """What every process is made with."""

    @property
    def config(self) -> Config: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def rng(self) -> random.Random: ...
    @property
    def node_id(self) -> int: ...


class PathClient(Coordinator, Protocol):
    """The coordinators, what is known of partitions, and when that changes."""

    def partition_state(self, partition: TopicIdPartition) -> KnownEnds | None: ...

    def partition_states(
        self, partitions: Sequence[TopicIdPartition]
    ) -> Sequence[KnownEnds | None]: ...

    def subscribe(self, listener: Callable[[Collection[TopicIdPartition]], None]) -> None: ...


class State(Protocol):
    """What is known of the metadata, and how to ask for the rest."""

    @property
    def client(self) -> PathClient: ...
    @property
    def metadata_topic(self) -> MetadataTopic: ...
    @property
    def transaction_numbers(self) -> TransactionNumbers: ...
