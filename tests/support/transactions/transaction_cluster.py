"""Brokers in one process, each leading some of the metadata partitions, and their transactions.

    async with TransactionCluster(tmp_path, coordinators=3, brokers=3) as cluster:
        topic = await cluster.topic(3)
        producer = await cluster.producer("pay")
        await cluster.add(producer, topic, [0, 1, 2])
        leader = cluster.leader_of("pay")
        leader.gate.at = "tell"                    # it stops when it comes to tell an end
        ending = cluster.ending(producer, is_commit=True)
        await leader.gate.held()
        await cluster.kill(leader)

Sinks work the same: `leader.gate.at = "share"` stops it when it comes to tell a share of a batch.

Every broker follows all metadata logs, which are in one object store; broker i stands for partition
i at first, and for all of them when somebody has died. Brokers ask each other by the bytes of their
operations, without sockets. `clock` is the test's; sleeping is a short real pause.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, cast
from uuid import UUID

from diskless.sinks.home_asker import home_asker
from diskless.sinks.share_teller import ShareTeller
from diskless.transactions.settings import TransactionSettings
from diskless.transactions.transaction_ends import transaction_ends
from diskless.transactions.transaction_numbers import TransactionNumbers
from diskless.transactions.transaction_router import Producer, TransactionRouter
from metadata import operations as ops
from metadata.clients.local_client import LocalClient
from metadata.clients.routed_client import PeerAddress, RoutedClient
from metadata.clients.wire_client import WireClient
from metadata.coordinator.coordinator import PartitionCoordinator
from metadata.coordinator.metadata_partition import MetadataPartition, Worker
from metadata.coordinator.placement import Placement
from metadata.coordinator.sinks import Sinks
from metadata.coordinator.transactions import Transactions
from metadata.leadership.candidate import Candidate
from metadata.messages.codec import Operation
from metadata.messages.shapes import Addressed
from metadata.messages.sinks import COMMIT_SHARES_HERE
from metadata.messages.transactions import ADD_TO_TRANSACTION, END_PARTS, JOIN_TRANSACTIONS
from metadata.metadata_settings import CoordinatorSettings
from metadata.records.groups import CommittedOffset
from metadata.replica.replica import Replica
from metadata.replica.snapshots import SnapshotStore
from metadata.rules.groups import group_coordinator
from metadata.sink_operations import CommitShare, SinkCommit, SinkRange
from metadata.state.image import PartitionState
from metadata.transaction_operations import AddToTransaction, EndParts, JoinTransaction, Transaction
from tests.support.coordinators.contender import until
from tests.support.coordinators.coordinator_bench import batch
from tests.support.logs.log_media import LEASE_MS, TICK_S, ObjectLogs, sleep_a_little
from tests.support.stores.stepped_store import Fate, Steps
from wal.clock import ManualClock
from wal.coordinates import BatchExtent, ByteOffset, TopicIdPartition
from wal.errors import CommitFailed, DisklessError
from wal.stores.memory_store import MemoryStore
from wal.ulid import mint_ulid, wal_object_key

SETTINGS: Final = CoordinatorSettings(state_readers=1, follow_interval_ms=1)
TIMEOUT_MS: Final = 60_000
ASKED_WITHIN_MS: Final = 500


class Gate:
    """Where a test stops what goes on in one broker."""

    def __init__(self) -> None:
        self.at: str | None = None
        """`tell`, `told`, `complete` at who decides, `hear`, `heard` at who is told by another
        broker; for batches of sinks `share`, `shared`, `complete_sink`, `hear_share`,
        `heard_share`. What stops there never goes on."""
        self.reached = asyncio.Event()

    async def pass_by(self, place: str) -> None:
        if place == self.at:
            self.reached.set()
            await asyncio.Event().wait()

    async def held(self) -> None:
        async with asyncio.timeout(60):
            await self.reached.wait()


class HeldStore:
    """The transactions of a coordinator; nobody notes a completion while the gate is there."""

    def __init__(self, store: Transactions, gate: Gate) -> None:
        self._store = store
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def complete(self, transactional_id: str, number: int) -> None:
        await self._gate.pass_by("complete")
        await self._store.complete(transactional_id, number)


class HeldSinks:
    """The sinks of a coordinator, likewise."""

    def __init__(self, store: Sinks, gate: Gate) -> None:
        self._store = store
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def complete(self, sink_id: str, decided_at_ms: int, ranges: Sequence[SinkRange]) -> None:
        await self._gate.pass_by("complete_sink")
        await self._store.complete(sink_id, decided_at_ms, ranges)


class TransactionBroker:
    """One broker of the cluster."""

    def __init__(self, cluster: "TransactionCluster", broker_id: int) -> None:
        self.broker_id = broker_id
        self.steps = Steps()
        self.may_lead = lambda index: index % cluster.broker_count == broker_id
        self.is_alive = True
        self.gate = Gate()
        self._cluster = cluster
        self._stack = AsyncExitStack()
        self._rng = random.Random(broker_id)
        self._incarnation = UUID(int=broker_id + 1)
        self.partitions: list[MetadataPartition] = []
        self.client: RoutedClient
        self.transactions: TransactionRouter
        self.numbers: TransactionNumbers
        self._task: asyncio.Task[None]

    async def start(self) -> None:
        cluster, enter = self._cluster, self._stack.enter_async_context
        for index in range(cluster.coordinators):
            self.partitions.append(await enter(await self._partition(index)))
        local = LocalClient(self.partitions, rng=self._rng)
        self.local: Final = local
        self.client = await enter(
            RoutedClient(
                local,
                connect=self._connect,
                clock=cluster.clock,
                rng=self._rng,
                sleep=sleep_a_little,
            )
        )
        local.topics.peers = self.client
        ends = await enter(transaction_ends(self._tell))
        placed = Placement(self.partitions[0].replica, cluster.coordinators)
        self.numbers = await enter(
            TransactionNumbers(
                self._join,
                placed,
                add=self._add,
                kept_ms=SETTINGS.transaction_max_timeout_ms,
                clock=cluster.clock,
            )
        )
        self.transactions = TransactionRouter(
            self.partitions,
            self.client,
            self.client.topics,
            ends.ask,
            settings=TransactionSettings(),
            timeout_max_ms=SETTINGS.transaction_max_timeout_ms,
            placed=placed,
            clock=cluster.clock,
            sleep=sleep_a_little,
        )
        self._task = asyncio.create_task(self._run())

    async def _partition(self, index: int) -> MetadataPartition:
        cluster = self._cluster
        return MetadataPartition(
            Replica(
                cluster.path / f"broker-{self.broker_id}" / str(index),
                settings=SETTINGS,
                coordinator_id=index,
                snapshots=SnapshotStore(cluster.store, partition=index, cluster_id="c"),
                catalogue=self.partitions[ops.CATALOGUE].replica if self.partitions else None,
                sleep=sleep_a_little,
            ),
            await cluster.logs.open(index, self.steps),
            candidate=partial(self._candidate, index),
            workers=self._workers,
            clock=cluster.clock,
            rng=self._rng,
            settings=SETTINGS,
            lease_ms=LEASE_MS,
            sleep=sleep_a_little,
        )

    def _candidate(self, index: int) -> Candidate:
        return Candidate(
            broker_id=self.broker_id,
            host=f"broker-{self.broker_id}",
            port=9092,
            incarnation=self._incarnation,
            may_lead=self.may_lead(index),
        )

    def _workers(self, coordinator: PartitionCoordinator) -> Sequence[Worker]:
        leader = coordinator.replica.leader
        assert leader is not None
        store = HeldStore(coordinator.transactions, self.gate)
        epoch = leader.leader_epoch
        index = coordinator.coordinator_id
        sinks = HeldSinks(coordinator.sinks, self.gate)
        coordinator.sinks.unsettled.ask_homes(home_asker(self.client, timeout_ms=ASKED_WITHIN_MS))
        return [
            self.transactions.led(index, store, lambda: epoch),
            ShareTeller(sinks, index, self._tell_share, sleep=sleep_a_little),
        ]

    def _connect(self, peer: PeerAddress) -> WireClient:
        return cast(WireClient, Peer(self._cluster, int(peer.host.removeprefix("broker-"))))

    async def _tell(
        self, coordinator: int, parts: Sequence[EndParts]
    ) -> Sequence[DisklessError | None]:
        await self.gate.pass_by("tell")
        answers = await self.client.call(
            END_PARTS, Addressed(coordinator, parts), timeout_ms=ASKED_WITHIN_MS
        )
        await self.gate.pass_by("told")
        return answers

    async def _tell_share(
        self, coordinator: int, shares: Sequence[CommitShare]
    ) -> Sequence[SinkCommit]:
        await self.gate.pass_by("share")
        answers = await self.client.call(
            COMMIT_SHARES_HERE, Addressed(coordinator, shares), timeout_ms=ASKED_WITHIN_MS
        )
        await self.gate.pass_by("shared")
        return answers

    async def _join(self, coordinator: int, asked: Sequence[JoinTransaction]) -> Sequence[Any]:
        return await self.client.call(
            JOIN_TRANSACTIONS, Addressed(coordinator, asked), timeout_ms=ASKED_WITHIN_MS
        )

    async def _add(self, coordinator: int, asked: Sequence[AddToTransaction]) -> Sequence[Any]:
        return await self.client.call(
            ADD_TO_TRANSACTION, Addressed(coordinator, asked), timeout_ms=ASKED_WITHIN_MS
        )

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for one in self.partitions:
                tasks.create_task(one.run())

    async def stop(self, *, dies: bool = False) -> None:
        """`dies`: nothing of it reaches the store of the logs any more, so it resigns nothing."""
        self.is_alive = False
        self.steps.held = dies
        self._task.cancel()
        while not self._task.done():
            for waiting in [each for each in self.steps.waiting if not each.fate.done()]:
                waiting.decide(Fate.AWAY)
            await asyncio.wait([self._task], timeout=TICK_S)
        self.steps.held = False
        await self._stack.aclose()


class Peer:
    """Another broker, asked by bytes."""

    def __init__(self, cluster: "TransactionCluster", broker_id: int) -> None:
        self._cluster = cluster
        self._broker_id = broker_id

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def call(
        self, operation: Operation[Any, Any], request: Any, *, timeout_ms: int
    ) -> Sequence[Any]:
        broker = self._cluster.brokers[self._broker_id]
        if not broker.is_alive:
            raise CommitFailed(f"broker {self._broker_id} is dead")
        asked, _ = operation.decode_request(operation.encode_request(request, timeout_ms))
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                answers = await self._answered(broker, operation, asked)
            body = operation.encode_response(asked, answers)
        except TimeoutError as error:
            raise operation.unanswered("no answer") from error
        except DisklessError as error:
            body = operation.encode_failure(asked, error)
        answers, error_of_call = operation.decode_response(request, body)
        if error_of_call is not None:
            raise error_of_call
        return answers

    @staticmethod
    async def _answered(
        broker: TransactionBroker, operation: Operation[Any, Any], asked: Any
    ) -> Sequence[Any]:
        kind = {END_PARTS.key: "", COMMIT_SHARES_HERE.key: "_share"}.get(operation.key)
        if kind is not None:
            await broker.gate.pass_by(f"hear{kind}")
        answers = await broker.local.call(operation, asked)
        if kind is not None:
            await broker.gate.pass_by(f"heard{kind}")
        return answers


class TransactionCluster:
    """See the module's text."""

    def __init__(self, path: Path, *, coordinators: int, brokers: int = 1) -> None:
        self.path = path
        self.coordinators = coordinators
        self.broker_count = brokers
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock)
        self.logs = ObjectLogs(self.store, self.clock)
        self.brokers = {number: TransactionBroker(self, number) for number in range(brokers)}
        self._rng = random.Random(11)

    async def __aenter__(self) -> Self:
        for broker in self.brokers.values():
            await broker.start()
        await self._until_led()
        return self

    async def __aexit__(self, *_: object) -> None:
        for broker in self.alive:
            await broker.stop()

    @property
    def alive(self) -> Sequence[TransactionBroker]:
        return [broker for broker in self.brokers.values() if broker.is_alive]

    @property
    def any(self) -> TransactionBroker:
        return self.alive[0]

    # -- leaders --------------------------------------------------------------------------------

    def leading(self, index: int) -> TransactionBroker | None:
        for broker in self.alive:
            if broker.partitions[index].coordinator is not None:
                return broker
        return None

    def coordinator(self, index: int) -> PartitionCoordinator:
        broker = self.leading(index)
        assert broker is not None
        coordinator = broker.partitions[index].coordinator
        assert coordinator is not None
        return coordinator

    def leader_of(self, transactional_id: str) -> TransactionBroker:
        broker = self.leading(self.index_of(transactional_id))
        assert broker is not None
        return broker

    def index_of(self, name: str) -> int:
        """The metadata partition of a transactional id, or a group."""
        return group_coordinator(name, self.coordinators)

    async def _until_led(self) -> None:
        """Somebody leads everything; who is silent for longer than a lease leads no more."""
        indexes = range(self.coordinators)
        for _ in range(400):
            await asyncio.sleep(TICK_S)
            if all(self.leading(index) is not None for index in indexes):
                break
            self.clock.advance(LEASE_MS / 20_000)
        await until(
            lambda: all(self._is_known(index) for index in indexes), "everybody knows who leads"
        )

    def _is_known(self, index: int) -> bool:
        broker = self.leading(index)
        return broker is not None and all(
            other.partitions[index].leader is not None
            and other.partitions[index].leader.broker_id == broker.broker_id
            for other in self.alive
        )

    async def kill(self, broker: TransactionBroker) -> None:
        """It dies, and the others lead what it led."""
        await broker.stop(dies=True)
        await self.elect()

    async def elect(self) -> None:
        """Whoever is alive may lead whatever nobody leads."""
        for broker in self.alive:
            broker.may_lead = lambda index: True
        await self._until_led()

    # -- producing ------------------------------------------------------------------------------

    async def topic(self, name: str, partitions: int) -> ops.TopicDescription:
        (created,) = await self.any.client.create_topics(
            [ops.CreateTopic(name=name, partition_count=partitions, configs={})]
        )
        assert isinstance(created, ops.TopicDescription), created
        await until(
            lambda: all(name in broker.client.topics() for broker in self.alive),
            "every broker knows the topic",
        )
        return created

    async def producer(self, transactional_id: str, *, timeout_ms: int = TIMEOUT_MS) -> Producer:
        nobody = Producer(transactional_id, -1, -1)
        answer = await self.leader_of(transactional_id).transactions.init_producer(
            nobody, timeout_ms
        )
        assert answer.error is None, answer
        return Producer(transactional_id, answer.producer_id, answer.producer_epoch)

    async def add(
        self,
        producer: Producer,
        topic: str,
        partitions: Iterable[int],
        groups: Iterable[str] = (),
    ) -> int:
        """Begin or extend the transaction; its number."""
        router = self.leader_of(producer.transactional_id).transactions
        errors = await router.add_partitions(producer, [(topic, index) for index in partitions])
        assert not isinstance(errors, DisklessError), errors
        assert not any(errors), errors
        for group in groups:
            assert await router.add_group(producer, group) is None
        known = router.describe(producer.transactional_id)
        assert isinstance(known, Transaction), known
        return known.number

    def partition(self, topic: str, index: int) -> TopicIdPartition:
        return TopicIdPartition(self.any.client.topics()[topic].topic_id, index)

    async def write(
        self, producer: Producer, topic: str, index: int, *, sequence: int = 0, count: int = 3
    ) -> ops.BatchCommit:
        """A batch of the transaction that is open, through any broker."""
        place = self.partition(topic, index)
        broker = self.alive[-1]
        joined = await broker.numbers.ask(JoinTransaction(*producer, partitions=[place]))
        if joined.error is not None:
            return ops.BatchCommit(error=joined.error)
        return await self.commit(self.batch(producer, place, joined.number, sequence, count))

    def batch(
        self, producer: Producer, place: TopicIdPartition, number: int, sequence: int, count: int
    ) -> BatchExtent:
        return batch(place, count)._replace(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=sequence,
            transaction_number=number,
            byte_offset=ByteOffset(16),
        )

    async def commit(self, extent: BatchExtent) -> ops.BatchCommit:
        file = ops.CommitFile(
            object_key=wal_object_key(mint_ulid(self.clock, self._rng)),
            file_size_bytes=extent.length_bytes + 200,
            uploader_broker_id=9,
            batches=[extent],
        )
        (answer,) = await self.alive[-1].client.commit_file(file)
        return answer

    async def keep_offset(self, producer: Producer, group: str, offset: CommittedOffset) -> None:
        joined = await self.any.numbers.ask(JoinTransaction(*producer, groups=[group]))
        assert joined.error is None, joined
        coordinator = self.coordinator(self.index_of(group))
        await coordinator.transactions.commit_offsets(
            group, producer.producer_id, producer.producer_epoch, joined.number, [offset]
        )

    def ending(
        self, producer: Producer, *, is_commit: bool
    ) -> "asyncio.Task[DisklessError | None]":
        router = self.leader_of(producer.transactional_id).transactions

        async def error() -> DisklessError | None:
            return (await router.end(producer, is_commit=is_commit)).error

        return asyncio.create_task(error())

    # -- what is there --------------------------------------------------------------------------

    def state(self, topic: str, index: int) -> PartitionState:
        """The partition as its coordinator's leader has it."""
        place = self.partition(topic, index)
        coordinator = self.coordinator(self.any.local.coordinator_of(place))
        state = coordinator.replica.image.partitions.get(place)
        assert state is not None
        return state

    def transaction(self, transactional_id: str) -> Transaction:
        known = self.coordinator(self.index_of(transactional_id)).transactions.transaction(
            transactional_id
        )
        assert known is not None
        return known

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        await until(condition, what)
