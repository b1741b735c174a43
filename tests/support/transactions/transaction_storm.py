"""Random transactions over the coordinators of several logs, and what must be true of their logs.

    storm = TransactionStorm(random.Random(seed), epoch_max=32_766)
    storm.cluster = cluster
    await storm.begin()
    for _ in range(100):
        await storm.step()
    await storm.settle()

What is tried: producers of three transactional ids, which begin, go on with an old or a new epoch,
add, write, commit offsets and end, under both versions, side by side in one group of the pipeline;
batches and offsets that come late, with numbers and epochs of long ago; ends that are told in any
order, in part, twice, to a coordinator that had lost its answer; aborts by time and by hand;
appends that fail, and answers that are lost behind each failpoint. `die` leaves things under way;
another cluster on the same logs goes on. What a producer is answered is not predicted here; `check`
reads what the logs say:

- who was fenced can do nothing any more;
- one decision for a number, which no answer contradicts;
- a part ends once, as was decided, and before its transaction is completed;
- nothing is appended under a number that was ended there before;
- offsets of a group show no other transactions than committed ones;
- the last stable offset never goes back.

`settle` ends everything, and then every reader of committed records sees what was committed, and
nothing else.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from metadata import operations as ops
from metadata.coordinator.transactions import Transactions
from metadata.records.groups import CommittedOffset
from metadata.records.records import FileCommittedRecord, MetadataRecord, record_of
from metadata.records.transactions import (
    TransactionCompletedRecord,
    TransactionDecidedRecord,
    TransactionEndedRecord,
    TransactionGrewRecord,
)
from metadata.rules.groups import group_coordinator
from metadata.transaction_operations import (
    AbortTransaction,
    AddToTransaction,
    EndParts,
    EndTransaction,
    InitProducer,
    JoinTransaction,
    Transaction,
    TransactionGroup,
    TransactionPartition,
    TransactionState,
)
from tests.support.coordinators.coordinator_bench import batch
from tests.support.coordinators.file_cluster import Cluster
from wal.coordinates import NO_TRANSACTION, TopicIdPartition
from wal.errors import (
    CommitFailed,
    CommitOutcomeUnknown,
    DisklessError,
    InvalidProducerIdMapping,
    NotCoordinator,
    ProducerFenced,
    Rejected,
)
from wal.failpoint import FailpointError, arm

NAMES: Final = ("pay", "ship", "bill")
GROUPS: Final = ("g", "h")
TIMEOUT_MS: Final = 30_000

NOT_ANSWERED: Final = (Rejected, CommitFailed, CommitOutcomeUnknown, NotCoordinator, FailpointError)

Pair = tuple[int, int]
Part = TypeVar("Part")


class Place(NamedTuple):
    """A transaction as its producer knows it."""

    name: str
    pair: Pair
    number: int


@dataclass
class Producer:
    pairs: list[Pair] = field(default_factory=list)
    """All that it ever had; the last one is the present one."""
    bumps: bool = False


@dataclass
class Log:
    """What one log says, as far as it was read."""

    read: int = 0
    grown: dict[tuple[str, int], set[object]] = field(default_factory=dict)
    decided: dict[tuple[str, int], TransactionDecidedRecord] = field(default_factory=dict)
    ended: dict[tuple[object, int, int], bool] = field(default_factory=dict)
    """(part, producer id, number): whether it was committed."""
    last_ended: dict[tuple[object, int], int] = field(default_factory=dict)


class TransactionStorm:
    cluster: Cluster

    def __init__(self, rng: random.Random, *, epoch_max: int) -> None:
        self.rng = rng
        self.epoch_max = epoch_max
        self.homes: dict[TopicIdPartition, int] = {}
        self.producers = {name: Producer() for name in NAMES}
        self.ids: dict[int, str] = {}
        """The transactional id that a producer id was given to."""
        self.fresh = 100
        self.fenced: list[str] = [*NAMES]
        """Those that have to begin anew before they can do anything."""
        self.dead: set[Pair] = set()
        """Those that were fenced."""
        self.late: list[Callable[[], Awaitable[None]]] = []
        self.sequences: dict[tuple[TopicIdPartition, Pair], int] = {}
        self.written: dict[tuple[TopicIdPartition, int], Place] = {}
        """(partition, offset) of a record: its transaction."""
        self.offsets: dict[int, tuple[str, int]] = {}
        self.told: dict[tuple[str, int], set[int]] = {}
        self.logs: list[Log] = []
        self.answered: dict[tuple[str, int], bool] = {}
        self.stable: dict[TopicIdPartition, int] = {}
        self.outcomes: dict[str, int] = {}
        """How often something came to this end, so that a test sees that it happened."""

    async def begin(self, partitions: int = 2) -> None:
        self.logs += [Log() for _ in range(self.count)]
        for index, bench in self.cluster.benches.items():
            topic = await bench.topic(f"t{index}", partitions)
            for place in range(partitions):
                self.homes[TopicIdPartition(topic.topic_id, place)] = index
        while self.fenced:
            await self.init()

    @property
    def count(self) -> int:
        return len(self.cluster.benches)

    def home(self, name: str) -> int:
        return group_coordinator(name, self.count)

    def at(self, index: int) -> Transactions:
        return self.cluster.benches[index].coordinator.transactions

    def of(self, name: str) -> Transactions:
        return self.at(self.home(name))

    # -- steps ----------------------------------------------------------------------------------

    async def step(self) -> None:
        """One thing, or a few side by side; then everything is looked at."""
        steps = [
            (self.init, 2),
            (self.add, 10),
            (self.write, 12),
            (self.commit_offsets, 10),
            (self.come_late, 4),
            (self.end, 5),
            (self.tell, 12),
            (self.complete, 6),
            (self.abort, 0.5),
            (self.pass_time, 0.7),
            (self.fail_an_append, 0.7),
            (self.lose_an_answer, 0.7),
        ]
        chosen = self.rng.choices(
            [step for step, _ in steps],
            [weight for _, weight in steps],
            k=self.rng.choice((1, 1, 1, 2, 4)),
        )
        await asyncio.gather(*(self._tried(step) for step in chosen))
        await self.check()

    async def _tried(self, step: Callable[[], Awaitable[None]]) -> None:
        try:
            await step()
        except NOT_ANSWERED as error:
            self._note(f"{step.__name__}: {type(error).__name__}")

    def _note(self, outcome: str) -> None:
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1

    def _heard(
        self, what: str, name: str, pair: Pair, error: DisklessError | None, *, was_dead: bool
    ) -> None:
        assert error is not None or not was_dead, f"{pair} of {name} can still {what}"
        self._note(f"{what}: {type(error).__name__}")
        is_fenced = isinstance(error, ProducerFenced | InvalidProducerIdMapping)
        if is_fenced and pair == self.producers[name].pairs[-1]:
            self.fenced.append(name)

    def _pair(self, name: str) -> Pair:
        """The present one, or now and then one of long ago."""
        pairs = self.producers[name].pairs or [(1, 0)]
        return self.rng.choice(pairs) if self.rng.random() < 0.1 else pairs[-1]

    async def init(self) -> None:
        name = self.rng.choice([*(self.fenced or NAMES)])
        pair = self._pair(name) if self.rng.random() < 0.4 else (-1, -1)
        self.fresh += 1
        fresh = self.fresh
        answer = await self.of(name).init_producer(InitProducer(name, TIMEOUT_MS, fresh, *pair))
        self._note(f"init: {type(answer.error).__name__}")
        if answer.error is None:
            given = (answer.producer_id, answer.producer_epoch)
            if pair == (-1, -1):
                assert given not in self.producers[name].pairs, "somebody has it"
                self.dead.update(self.producers[name].pairs)
            self._given(name, given)

    def _given(self, name: str, pair: Pair) -> None:
        self.fenced = [other for other in self.fenced if other != name]
        assert pair[1] <= self.epoch_max
        assert pair not in self.dead
        owner = self.ids.setdefault(pair[0], name)
        assert owner == name, f"producer {pair} was given to {owner} and {name}"
        producer = self.producers[name]
        if pair in producer.pairs:
            producer.pairs.remove(pair)
        producer.pairs.append(pair)
        producer.bumps = self.rng.random() < 0.5

    async def add(self) -> None:
        name = self.rng.choice(NAMES)
        partitions = self.rng.choices([*self.homes], k=self.rng.randint(1, 3))
        groups = [group for group in GROUPS if self.rng.random() < 0.5]
        transactions = self.of(name)
        pair = self._pair(name)
        was_dead = pair in self.dead
        answer = await transactions.add_to_transaction(
            AddToTransaction(
                name,
                *pair,
                [
                    TransactionPartition(partition, self.homes[partition])
                    for partition in partitions
                ],
                [TransactionGroup(group, self.home(group)) for group in groups],
                self.producers[name].bumps,
            )
        )
        self._heard("add", name, pair, answer.error, was_dead=was_dead)

    def _joined(self, name: str, part: TopicIdPartition | str) -> Place | None:
        pair = self._pair(name)
        asked = JoinTransaction(name, *pair)
        if isinstance(part, str):
            answer = self.of(name).join(asked._replace(groups=[part]))
        else:
            answer = self.of(name).join(asked._replace(partitions=[part]))
        self._heard("join", name, pair, answer.error, was_dead=pair in self.dead)
        return Place(name, pair, answer.number) if answer.error is None else None

    def _part(self, name: str, parts: Sequence[Part], known: Collection[Part]) -> Part:
        """Mostly one that belongs to the open transaction."""
        return self.rng.choice([*known] if known and self.rng.random() < 0.9 else [*parts])

    async def write(self) -> None:
        name = self.rng.choice(NAMES)
        known = self.of(name).transaction(name)
        mine = () if known is None else [*known.partitions]
        partition = self._part(name, [*self.homes], mine)
        place = self._joined(name, partition)
        if place is None:
            return
        if self.rng.random() < 0.3:
            self.late.append(lambda: self._write(partition, place))
        else:
            await self._write(partition, place)

    async def _write(self, partition: TopicIdPartition, place: Place) -> None:
        """The sequence is the next one, so only the number keeps it from being appended."""
        producer, epoch = place.pair
        sequence = self.sequences.get((partition, place.pair), 0)
        sent = batch(partition, 1, producer=producer, epoch=epoch, sequence=sequence)
        bench = self.cluster.benches[self.homes[partition]]
        (answer,) = await bench.commit(sent._replace(transaction_number=place.number))
        self._note(f"write: {type(answer.error).__name__}")
        if answer.error is None:
            self.sequences[partition, place.pair] = sequence + 1

    async def commit_offsets(self) -> None:
        name = self.rng.choice(NAMES)
        known = self.of(name).transaction(name)
        group = self._part(name, GROUPS, () if known is None else [*known.groups])
        place = self._joined(name, group)
        if place is None:
            return
        if self.rng.random() < 0.3:
            self.late.append(lambda: self._commit_offsets(group, place))
        else:
            await self._commit_offsets(group, place)

    async def _commit_offsets(self, group: str, place: Place) -> None:
        value = len(self.offsets) + 1
        self.offsets[value] = (place.name, place.number)
        partition = self.rng.choice([*self.homes])
        bench = self.cluster.benches[self.home(group)]
        offset = CommittedOffset(partition, value, bench.clock.now_ms())
        await bench.coordinator.transactions.commit_offsets(
            group, *place.pair, place.number, [offset]
        )
        self._note("offsets")

    async def come_late(self) -> None:
        if self.late:
            await self.late.pop(self.rng.randrange(len(self.late)))()

    async def end(self) -> None:
        name = self.rng.choice(NAMES)
        pair, is_commit = self._pair(name), self.rng.random() < 0.6
        self.fresh += 1
        bumps, was_dead = self.producers[name].bumps, pair in self.dead
        answer = await self.of(name).end_transaction(
            EndTransaction(name, *pair, is_commit, bumps, self.fresh)
        )
        self._heard("end", name, pair, answer.error, was_dead=was_dead)
        if answer.error is None:
            assert self.answered.setdefault((name, answer.number), is_commit) is is_commit
            self._given(name, (answer.producer_id, answer.producer_epoch))

    async def tell(self) -> None:
        """Some coordinator hears of some decision, perhaps not for the first time."""
        name = self.rng.choice(NAMES)
        transactions = self.of(name)
        known = transactions.transaction(name)
        if known is None or not TransactionState(known.state).is_decided:
            return
        homes = {*known.partitions.values(), *known.groups.values()}
        untold = homes - self.told.get((name, known.number), set())
        index = self.rng.choice([*(untold or range(self.count))])
        part = _part_at(known, index)
        told = self.at(index)
        if self.rng.random() < 0.2:
            again = part._replace(partitions=part.partitions[:1])
            assert await told.end_parts([part, again]) == [None, None]
        else:
            assert await told.end_parts([part]) == [None]
        self.told.setdefault((name, known.number), set()).add(index)
        if self.rng.random() < 0.3:
            # The answer was lost, or a leader before comes late with it.
            self.late.append(lambda: self._told_again(index, part))

    async def _told_again(self, index: int, part: EndParts) -> None:
        (error,) = await self.at(index).end_parts([part])
        assert error is None

    async def complete(self) -> None:
        name = self.rng.choice(NAMES)
        transactions = self.of(name)
        known = transactions.transaction(name)
        if known is not None and TransactionState(known.state).is_decided:
            homes = {*known.partitions.values(), *known.groups.values()}
            if homes <= self.told.get((name, known.number), set()):
                await transactions.complete(name, known.number)

    async def abort(self) -> None:
        name = self.rng.choice(NAMES)
        transactions = self.of(name)
        known = transactions.transaction(name)
        if known is not None:
            number = known.number - self.rng.choice((0, 0, 1))
            answer = await transactions.abort_transaction(AbortTransaction(name, number))
            if answer.error is None:
                assert self.answered.setdefault((name, number), False) is False
            if answer.error is None and known.state == TransactionState.ONGOING:
                self.dead.add((known.producer_id, known.producer_epoch))

    async def pass_time(self) -> None:
        self.cluster.clock.advance(self.rng.choice((1, 20, 40)))
        for bench in self.cluster.benches.values():
            await bench.coordinator.transactions.abort_timed_out(10)

    async def fail_an_append(self) -> None:
        self.cluster.logs[self.rng.randrange(self.count)].failures.append(CommitFailed("disk"))

    async def lose_an_answer(self) -> None:
        point = self.rng.choice(("txn.after_decision", "txn.after_end", "txn.after_offsets"))
        arm(f"{point}=raise")

    def die(self) -> "asyncio.Future[list[None]]":
        """Leave a few things under way; the caller stops the cluster, and awaits this then."""
        arm("")
        some = self.rng.choices((self.init, self.add, self.write, self.end, self.tell), k=4)
        return asyncio.gather(*(self._tried(step) for step in some))

    # -- what must be true ----------------------------------------------------------------------

    async def check(self) -> None:
        found: list[tuple[Log, MetadataRecord]] = []
        for index, log in enumerate(self.logs):
            batches = self.cluster.logs[index].batches
            for metadata_batch in batches[log.read :]:
                found += [(log, record_of(data)) for data in metadata_batch.records]
            log.read = len(batches)
        # What one log says of the same step may follow from what another one says.
        for check in (self._check_decided, self._check_ended, self._check_completed):
            for log, record in found:
                check(log, record)
        for (name, number), is_commit in self.answered.items():
            assert self.logs[self.home(name)].decided[name, number].is_commit is is_commit
        for partition, home in self.homes.items():
            replica = self.cluster.benches[home].coordinator.replica
            stable, end = replica.last_stable_offset(partition), replica.high_watermark(partition)
            assert stable is not None
            assert end is not None
            assert self.stable.get(partition, 0) <= stable <= end
            self.stable[partition] = stable
        for group in GROUPS:
            replica = self.cluster.benches[self.home(group)].coordinator.replica
            for offset in (await replica.group_offsets(group)).values():
                assert self._is_committed(*self.offsets[offset.offset])

    def _is_committed(self, name: str, number: int) -> bool:
        decided = self.logs[self.home(name)].decided.get((name, number))
        return decided is not None and decided.is_commit

    def _check_decided(self, log: Log, record: MetadataRecord) -> None:
        if isinstance(record, TransactionGrewRecord):
            parts = log.grown.setdefault((record.transactional_id, record.number), set())
            parts |= {part.partition for part in record.partitions}
            parts |= {part.group_id for part in record.groups}
        elif isinstance(record, TransactionDecidedRecord):
            key = (record.transactional_id, record.number)
            assert key not in log.decided, f"{key} is decided twice"
            log.decided[key] = record

    def _check_ended(self, log: Log, record: MetadataRecord) -> None:
        if isinstance(record, FileCommittedRecord):
            for sent in record.batches:
                if sent.transaction_number != NO_TRANSACTION:
                    pair = (sent.producer_id, sent.producer_epoch)
                    self.written[sent.partition, sent.base_offset] = Place(
                        self.ids[sent.producer_id], pair, sent.transaction_number
                    )
                    last = log.last_ended.get((sent.partition, sent.producer_id), 0)
                    assert sent.transaction_number > last, f"{sent} opens what has ended"
        elif isinstance(record, TransactionEndedRecord):
            name = self.ids[record.producer_id]
            decided = self.logs[self.home(name)].decided[name, record.number]
            assert decided.is_commit is record.is_commit
            assert decided.producer_epoch == record.producer_epoch
            ended: list[object] = [of.partition for of in record.partitions]
            for part in (*ended, *([] if record.group_id is None else [record.group_id])):
                key = (part, record.producer_id, record.number)
                assert key not in log.ended, f"{key} ends twice"
                log.ended[key] = record.is_commit
                log.last_ended[part, record.producer_id] = record.number

    def _check_completed(self, log: Log, completed: MetadataRecord) -> None:
        if not isinstance(completed, TransactionCompletedRecord):
            return
        key = (completed.transactional_id, completed.number)
        decided = log.decided[key]
        for part in log.grown[key]:
            home = self.homes[part] if isinstance(part, TopicIdPartition) else self.home(str(part))
            found = [
                is_commit
                for (ended, producer_id, number), is_commit in self.logs[home].ended.items()
                if ended == part
                and number == completed.number
                and self.ids[producer_id] == completed.transactional_id
            ]
            assert found == [decided.is_commit], f"{part} of {key}"

    # -- the end --------------------------------------------------------------------------------

    async def settle(self) -> None:
        """End all there is; then readers see all that was committed, and nothing else."""
        arm("")
        for log in self.cluster.logs.values():
            log.failures.clear()
        for late in self.late:
            with suppress(*NOT_ANSWERED):
                await late()
        self.cluster.clock.advance(TIMEOUT_MS)
        for index, bench in self.cluster.benches.items():
            transactions = bench.coordinator.transactions
            await transactions.abort_timed_out(10)
            for known in transactions.transactions():
                if TransactionState(known.state).is_decided:
                    await self._end_everywhere(index, known.transactional_id)
        await self.check()
        for partition, home in self.homes.items():
            replica = self.cluster.benches[home].coordinator.replica
            assert replica.last_stable_offset(partition) == replica.high_watermark(partition)
            assert not replica.open_transactions(partition)
            assert await self._committed_records(partition) == {
                offset
                for (where, offset), written in self.written.items()
                if where == partition and self._is_committed(written.name, written.number)
            }
        for group in GROUPS:
            replica = self.cluster.benches[self.home(group)].coordinator.replica
            assert not await replica.pending_partitions(group)

    async def _end_everywhere(self, index: int, name: str) -> None:
        transactions = self.at(index)
        known = transactions.transaction(name)
        assert known is not None
        for bench in self.cluster.benches.values():
            part = _part_at(known, bench.coordinator.coordinator_id)
            assert await bench.coordinator.transactions.end_parts([part]) == [None]
        await transactions.complete(name, known.number)

    async def _committed_records(self, partition: TopicIdPartition) -> set[int]:
        """Offsets that a reader of committed records is shown, by the aborted list it is given."""
        bench = self.cluster.benches[self.homes[partition]]
        (found,) = await bench.coordinator.replica.find_batches(
            [ops.FindBatches(partition, 0, 1 << 30)],
            max_bytes=1 << 30,
            isolation=ops.READ_COMMITTED,
        )
        assert found.error is None
        return {
            offset
            for (where, offset), written in self.written.items()
            if where == partition
            and not any(
                aborted.first_offset <= offset < aborted.marker_offset
                and aborted.producer_id == written.pair[0]
                for aborted in found.aborted
            )
        }


def _part_at(known: Transaction, index: int) -> EndParts:
    """What the coordinator `index` has to be told."""
    return EndParts(
        known.producer_id,
        known.producer_epoch,
        known.number,
        TransactionState(known.state).is_commit,
        5,
        [partition for partition, home in known.partitions.items() if home == index],
        [group for group, home in known.groups.items() if home == index],
    )
