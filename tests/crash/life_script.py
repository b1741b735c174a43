"""What a broker does in a life that crash tests interrupt: lists of steps, the same every time."""

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple

from metadata import operations as ops
from metadata.rules.files import permuted_owners
from tests.crash.broker_life import (
    BIG_BATCHES,
    BIG_FILES,
    COORDINATORS,
    DOOMED,
    KEPT,
    PAYING,
    Answer,
    Life,
)
from tests.support.coordinators.coordinator_bench import batch
from wal.clock import ManualClock
from wal.coordinates import BatchExtent, ByteOffset, ObjectKey, TopicIdPartition
from wal.ulid import ulid_at, wal_object_key


class Step(NamedTuple):
    """One thing that is asked for, so long after the one before."""

    name: str
    after_s: float
    do: Callable[[Life], Awaitable[Answer]]
    request: ops.CommitFile | None = None
    """What it commits, if it does."""


class _Script:
    """Steps that are put behind each other, the same every time."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._start_ms = ManualClock().now_ms()
        self._time_s = 0.0
        self._sequences: dict[tuple[int, int], int] = {}

    def step(
        self,
        name: str,
        do: Callable[[Life], Awaitable[Answer]],
        after_s: float = 0.01,
        request: ops.CommitFile | None = None,
    ) -> None:
        self._time_s += after_s
        self.steps.append(Step(name, after_s, do, request))

    def key(self, after_s: float = 0.01, *first: int) -> ObjectKey:
        """Minted when the next step begins; its owners begin with `first`."""
        rng = random.Random(len(self.steps))
        while True:
            ulid = ulid_at(self._start_ms + round((self._time_s + after_s) * 1000), rng)
            made = wal_object_key(ulid)
            if permuted_owners(made, range(COORDINATORS))[: len(first)] == first:
                return made

    def of(
        self, partition: int, records: int, producer: int = -1, *, again: bool = False
    ) -> BatchExtent:
        sequence = -1
        if producer >= 0:
            at = (partition, producer)
            sequence = self._sequences.get(at, 0) - (records if again else 0)
            self._sequences[at] = sequence + records
        return batch(
            TopicIdPartition(KEPT, partition), records, producer=producer, sequence=sequence
        )

    def file(
        self, *batches: BatchExtent, owners: Sequence[int] = (), first: int = 0
    ) -> ops.CommitFile:
        made = self.key(0.01, first)
        placed, position = [], 16
        for one in batches:
            placed.append(one._replace(byte_offset=ByteOffset(position)))
            position += one.length_bytes + 1
        return ops.CommitFile(
            object_key=made,
            file_size_bytes=position + 64,
            uploader_broker_id=1,
            batches=placed,
            owner_ids=permuted_owners(made, owners or range(COORDINATORS)),
        )

    def commit(self, name: str, request: ops.CommitFile) -> None:
        self.step(f"commit {name}", lambda life: life.commit(request), request=request)

    def transaction(self, number: int, *, is_commit: bool) -> None:
        """Of two partitions at both coordinators, and of a group at the one that is not asked."""
        self.step("begin a transaction", lambda life: life.begin_transaction())
        paid = [self.of(at, 2, PAYING)._replace(transaction_number=number) for at in (0, 1)]
        self.commit("of the transaction", self.file(*paid, self.of(2, 1)))
        self.step("commit a group in it", lambda life: life.commit_group_in_transaction(number))
        self.step("end the transaction", lambda life: life.end_transaction(is_commit=is_commit))


def script() -> list[Step]:
    """All that coordinators do, the same every time."""
    made = _Script()
    step, commit, file, of, key = made.step, made.commit, made.file, made.of, made.key
    step("create", lambda life: life.create(KEPT, "kept", 4))
    step("create the doomed", lambda life: life.create(DOOMED, "doomed", 2))
    step("grow", lambda life: life.grow(6))
    step("alter", lambda life: life.alter())
    step("limit", lambda life: life.limit(a=1.5, b=2.0))
    step("register", lambda life: life.register())
    step("allocate", lambda life: life.allocate())
    commit("both", file(of(0, 3, 1), of(1, 2, 1), of(2, 1), of(5, 2)))
    commit("next", second := file(of(0, 2, 1), of(2, 2, 2), of(3, 2), first=1))
    commit("a duplicate", file(of(0, 2, 1, again=True), of(1, 2, 1), of(4, 1)))
    commit("once more", second)
    commit("what the other never had", file(of(0, 2), of(2, 2)))
    commit("what the first owner never had", file(of(0, 1), first=1))
    commit("likewise", file(of(1, 1)))
    orphans = [key(), key(0.02)]
    step("upload an orphan", lambda life: life.put(orphans[0], 99))
    step("upload another", lambda life: life.put(orphans[1], 99))
    step("commit a group", lambda life: life.commit_group(3))
    step("roll", lambda life: life.roll())
    for number in range(BIG_FILES):
        doomed = [
            batch(TopicIdPartition(DOOMED, place % 2), 1, size=20, producer=place, sequence=number)
            for place in range(BIG_BATCHES)
        ]
        commit(f"many batches, {number}", file(*doomed, first=number % 2))
    step("look", lambda life: life.look())
    step("snapshot", lambda life: life.snapshot())
    for number in range(3):
        commit(f"more, {number}", file(*(of(part, 2, 3) for part in range(6)), first=number % 2))
    everything = [ops.DeleteRecords(TopicIdPartition(DOOMED, 0), -1)]
    step("delete many records", lambda life: life.delete_records(everything))
    some = [ops.DeleteRecords(TopicIdPartition(KEPT, part), 5) for part in range(3)]
    step("delete some records", lambda life: life.delete_records(some))
    step("retain", lambda life: life.retain())
    step("allocate again", lambda life: life.allocate())
    step("take stock", lambda life: life.inventory())
    step("snapshot again", lambda life: life.snapshot(), 15.0)
    step("delete the topic", lambda life: life.drop())
    step("sweep", lambda life: life.sweep())
    step("roll again", lambda life: life.roll())
    step("take stock again", lambda life: life.inventory())
    commit("before the expiry", file(of(0, 1, 1), of(1, 1, 9)))
    step("expire", lambda life: life.expire(), 31.0)
    step("snapshot a third time", lambda life: life.snapshot())
    step("clean", lambda life: life.clean(), 2.0)
    for number in range(4):
        step(f"clean when keys are old, {number}", lambda life: life.clean(), 61.0)
    step("scan", lambda life: life.scan(orphans))
    step("start without state", lambda life: life.restart_without_state())
    commit("at last", file(of(0, 1, 1), of(3, 1, 1)))
    everywhere = [ops.DeleteRecords(TopicIdPartition(KEPT, part), -1) for part in range(6)]
    step("delete everything", lambda life: life.delete_records(everywhere))
    for number in range(3):
        step(f"clean at last, {number}", lambda life: life.clean(), 61.0)
    step("commit a group again", lambda life: life.commit_group(5))
    commit("to stay", file(*(of(part, 2, 4) for part in range(6)), of(0, 1, 1)))
    made.transaction(1, is_commit=True)
    step("limit again", lambda life: life.limit(a=None, c=3.0))
    step("snapshot at last", lambda life: life.snapshot())
    step("look at last", lambda life: life.look())
    return made.steps


def transactions() -> list[Step]:
    """One that is committed, and one that is aborted, over two coordinators."""
    made = _Script()
    made.step("create", lambda life: life.create(KEPT, "kept", 4))
    for number, is_commit in ((1, True), (2, False)):
        made.transaction(number, is_commit=is_commit)
    return made.steps


SCRIPTS: Final[Mapping[str, Callable[[], list[Step]]]] = {
    "everything": script,
    "transactions": transactions,
}
