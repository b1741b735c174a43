"""Random histories with transactions: what `rebuild_cluster` plays, and these.

Transactional producers write to one or two partitions at a time and end what they wrote when it is
answered, or die and leave it open; how transactions ended is noted now and then.
"""

import random
from contextlib import suppress
from dataclasses import dataclass, field

from metadata.workers.notes_sweep import NotesSweep
from tests.support.rebuild.rebuild_cluster import SETTINGS, Cluster, Sent
from tests.support.rebuild.rebuild_history import rolled
from wal.chunks.kept_notes import KeptNotes, NotedEnd, encode_kept_notes, notes_key
from wal.coordinates import TopicIdPartition
from wal.errors import ObjectStoreUnavailable
from wal.stores.object_store import BytesBody
from wal.ulid import mint_ulid

PRODUCERS = 3


@dataclass(slots=True, eq=False)
class Transactional:
    """A transactional producer."""

    id: int
    broker: int
    number: int = 1
    sequences: dict[TopicIdPartition, int] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)
    """Of the open transaction."""


class TransactionalCluster(Cluster):
    """A cluster some of whose producers are transactional."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.dice = random.Random(seed + 1)
        """Of its own, so that the rest of a history is as it would be."""
        self.outcomes: dict[tuple[int, int], bool] = {}
        """By producer and number how a transaction ended."""
        self.noted: set[tuple[int, int]] = set()
        self._to_note: dict[TopicIdPartition, list[NotedEnd]] = {}
        self.transactional = [self._new_transactional() for _ in range(PRODUCERS)]

    def _new_transactional(self) -> Transactional:
        self._next_id += 1
        return Transactional(self._next_id, self.dice.randrange(len(self.brokers)))

    async def _step(self) -> None:
        producer = self.dice.choice(self.transactional)
        chance = self.dice.random()
        if chance < 0.5:
            self._write(producer)
        elif chance < 0.9:
            self._end(producer)
        elif chance < 0.92:
            # Nobody ends what it has begun.
            self.transactional.remove(producer)
            self.transactional.append(self._new_transactional())
        elif chance < 0.97:
            await self.note_ends()
        await super()._step()

    def _write(self, producer: Transactional) -> None:
        partition = self.dice.choice(list(self.partitions))
        count = self.dice.randint(1, 4)
        sequence = producer.sequences.get(partition, 0)
        producer.sequences[partition] = sequence + count
        self._crc += 1
        sent = Sent(
            partition=partition, record_count=count, crc=self._crc,
            timestamp_ms=self.clock.now_ms(), producer=producer.id, sequence=sequence,
            transaction=producer.number,
        )  # fmt: skip
        producer.sent.append(sent)
        self._open(producer.broker, sent)

    def _end(self, producer: Transactional) -> None:
        """Commit when all of it was appended; else abort, under a new id from then on."""
        places = {sent.partition for sent in producer.sent} & self.partitions.keys()
        if not places:
            return
        appended = {placed.extent.crc for place in places for placed in self.partitions[place].log}
        is_whole = all(sent.crc in appended for sent in producer.sent)
        is_commit = is_whole and self.dice.random() < 0.7
        if not is_whole and self.dice.random() < 0.7:
            return  # it waits
        self.outcomes[producer.id, producer.number] = is_commit
        for place in sorted(places):
            truth = self.partitions[place]
            truth.end(producer.id, producer.number, is_commit=is_commit, now_ms=self.clock.now_ms())
            self._to_note.setdefault(place, []).append(truth.ends[-1])
        producer.sent = []
        producer.number += 1
        if not is_whole:
            self.transactional.remove(producer)
            self.transactional.append(self._new_transactional())

    async def note_ends(self) -> None:
        """The leaders note what has ended."""
        ends, self._to_note = self._to_note, {}
        if not ends:
            return
        key = notes_key(mint_ulid(self.clock, self.dice))
        with suppress(ObjectStoreUnavailable):
            await self.world.store.put(key, BytesBody(encode_kept_notes(KeptNotes(ends=ends))))
            for noted in ends.values():
                self.noted.update((end.marker.producer_id, end.number) for end in noted)

    def roll(self) -> None:
        """Batches below the last stable offset become a segment."""
        partition = self.rng.choice(list(self.partitions))
        truth = self.partitions[partition]
        wanted = [
            placed
            for placed in truth.live
            if truth.rolled_end <= placed.base_offset
            and placed.next_offset <= truth.last_stable_offset
        ]
        wanted = wanted[: self.rng.randint(1, 8)]
        if not wanted:
            return
        truth.rolled_end = wanted[-1].next_offset
        segment = rolled(wanted, self.names[partition.topic_id], self.clock.now_ms())
        self.segments[segment.object_key] = segment
        self._drain()

    def _rolled_end(self, partition: TopicIdPartition) -> int | None:
        truth = self.partitions.get(partition)
        return None if truth is None else max(truth.rolled_end, truth.log_start)

    async def sweep(self) -> None:
        sweep = NotesSweep(
            self.world.store,
            topics=self._known_topic,
            log_began_ms=lambda: 0,
            steady_ms=self.clock.now_ms,
            rolled_end=self._rolled_end,
            settings=SETTINGS,
            rng=self._keeper_rng,
        )
        with suppress(ObjectStoreUnavailable):
            await sweep.sweep_once(everything=self._keeper_rng.random() < 0.5)
