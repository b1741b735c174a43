"""How long a KIP-848 group of many members takes to share out many partitions.

As `bench/groups/rebalance.py`, but here the broker assigns, and members only send heartbeats: each
says what it has when that has changed, and gives up at once what it is told to, and says so. The
configured delay is the heartbeat interval: within one a member hears what to give up, and within
another one somebody else hears that it is free.
"""

import asyncio
import struct
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Final

from bench.groups.rebalance import MEMBERS, PARTITIONS, RebalanceFigures
from bench.tools import load
from bench.tools.broker import BenchBroker, fresh_directory
from bench.tools.raw_client import RawClient, compact_text
from bench.tools.report import Report
from wal.wire.fields import read_uvarint, uvarint

HEARTBEAT_MS: Final = 1_000
DEADLINE_S: Final = 120.0

GROUP: Final = "bench-848"

_HEARTBEAT: Final = 68
_JOINING: Final = 0
_LEAVING: Final = -1
_REBALANCE_TIMEOUT_MS: Final = 60_000


def run_consumer_rebalance(report: Report) -> None:
    """MEMBERS members, PARTITIONS partitions."""
    report.step(f"groups: {MEMBERS} members of a KIP-848 group share {PARTITIONS:,} partitions")
    figures = measure_consumer_rebalance(
        members=MEMBERS, partitions=PARTITIONS, heartbeat_ms=HEARTBEAT_MS
    )
    bound_s = 2 * HEARTBEAT_MS / 1000 + 1
    report.add(
        "rebalance_848_100_s",
        max(figures.from_nothing_s, figures.one_left_s),
        "s",
        bound=f"≤ {bound_s:g}",
        note=f"from nothing {figures.from_nothing_s:.2f}, one leaves {figures.one_left_s:.2f}; "
        f"broker CPU {figures.broker_cpu_s:.2f}",
    )


def measure_consumer_rebalance(
    *, members: int, partitions: int, heartbeat_ms: int
) -> RebalanceFigures:
    settings = {
        "num.partitions": partitions,
        "group.consumer.heartbeat.interval.ms": heartbeat_ms,
        "group.consumer.min.heartbeat.interval.ms": heartbeat_ms,
        "max.connections.per.ip": members + 100,
    }
    with fresh_directory() as directory, BenchBroker(directory / "data", settings) as broker:
        load.producer(broker.bootstrap).list_topics(load.TOPIC, timeout=60)
        return asyncio.run(_rebalance(broker, members, partitions))


async def _rebalance(broker: BenchBroker, count: int, partitions: int) -> RebalanceFigures:
    group = _Group(partitions)
    members = [_Member(group, await RawClient.connect(broker.bootstrap)) for _ in range(count)]
    cpu_s = broker.cpu_s()
    async with asyncio.TaskGroup() as beating:
        started = time.perf_counter()
        group.expect(members)
        tasks = [beating.create_task(member.live()) for member in members]
        async with asyncio.timeout(DEADLINE_S):
            await group.is_balanced.wait()
        from_nothing_s = time.perf_counter() - started

        leaver, stopped = members.pop(count // 2), tasks.pop(count // 2)
        stopped.cancel()
        await asyncio.wait([stopped])
        started = time.perf_counter()
        group.expect(members)
        await leaver.leave()
        async with asyncio.timeout(DEADLINE_S):
            await group.is_balanced.wait()
        one_left_s = time.perf_counter() - started
        for task in tasks:
            task.cancel()
    cpu_s = broker.cpu_s() - cpu_s
    for member in (*members, leaver):
        await member.client.close()
    return RebalanceFigures(from_nothing_s, one_left_s, cpu_s)


class _Group:
    """What all members have together."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._members: Sequence[_Member] = ()
        self.is_balanced = asyncio.Event()
        self.owners: Counter[int] = Counter()
        """By partition; never more than one."""

    def expect(self, members: "Sequence[_Member]") -> None:
        """Wait until these have all partitions, in equal shares."""
        self._members = list(members)
        self.is_balanced.clear()

    def look(self) -> None:
        if any(count > 1 for count in self.owners.values()):
            raise RuntimeError("a partition has two owners")
        if len(self.owners) < self._partitions:
            return
        sizes = [len(member.owned) for member in self._members]
        if sum(sizes) == self._partitions and max(sizes) - min(sizes) <= 1:
            self.is_balanced.set()


class _Member:
    """One consumer, as far as the coordinator can tell."""

    def __init__(self, group: _Group, client: RawClient) -> None:
        self.client = client
        self.owned: frozenset[int] = frozenset()
        self._group = group
        self._member_id = str(uuid.uuid4())
        self._epoch = _JOINING
        self._topic_id = bytes(16)
        self._said: frozenset[int] | None = None
        """What the coordinator was told that it has."""

    async def live(self) -> None:
        """Join and send heartbeats until cancelled."""
        while True:
            interval_s = await self._beat()
            if self.owned == self._said:
                await asyncio.sleep(interval_s)

    async def leave(self) -> None:
        self._epoch = _LEAVING
        for partition in self.owned:
            del self._group.owners[partition]
        self.owned = frozenset()
        await self._beat()

    async def _beat(self) -> float:
        """One heartbeat, and what follows from its answer; in how many seconds the next is due."""
        is_joining = self._epoch == _JOINING
        answer = await self.client.send(_HEARTBEAT, 1, self._request(is_joining))
        reader = _Reader(answer)
        reader.varint()  # tags of the header
        _, error = reader.take(">ih")
        if error:
            raise RuntimeError(f"ConsumerGroupHeartbeat was answered with error {error}")
        reader.skip_text()
        reader.skip_text()
        epoch, interval_ms = reader.take(">ii")
        if self._epoch != _LEAVING:
            self._epoch = epoch
            if reader.take(">b")[0] > 0:
                self._have(reader)
        return interval_ms / 1000

    def _request(self, is_joining: bool) -> bytes:
        parts = [
            b"\0",
            compact_text(GROUP),
            compact_text(self._member_id),
            struct.pack(">i", self._epoch),
            compact_text(None) * 2,
            struct.pack(">i", _REBALANCE_TIMEOUT_MS if is_joining else -1),
            uvarint(2) + compact_text(load.TOPIC) if is_joining else uvarint(0),
            compact_text(None) * 2,
        ]
        if self.owned == self._said and not is_joining:
            parts.append(uvarint(0))
        elif not self.owned:
            parts.append(uvarint(1))
        else:
            indexes = struct.pack(f">{len(self.owned)}i", *self.owned)
            parts += [uvarint(2), self._topic_id, uvarint(len(self.owned) + 1), indexes, b"\0"]
        self._said = self.owned
        return b"".join((*parts, b"\0"))

    def _have(self, reader: "_Reader") -> None:
        """Take what it was assigned, let go of what it was not."""
        assigned: frozenset[int] = frozenset()
        if reader.varint() > 1:
            self._topic_id = reader.bytes(16)
            count = reader.varint() - 1
            assigned = frozenset(reader.take(f">{count}i"))
        for partition in self.owned - assigned:
            del self._group.owners[partition]
        for partition in assigned - self.owned:
            self._group.owners[partition] += 1
        self.owned = assigned
        self._group.look()


class _Reader:
    """Fields of an answer, one after the other."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._position = 0

    def take(self, layout: str) -> tuple[int, ...]:
        values = struct.unpack_from(layout, self._body, self._position)
        self._position += struct.calcsize(layout)
        return values

    def varint(self) -> int:
        return read_uvarint(self._byte)

    def _byte(self) -> int:
        return self.bytes(1)[0]

    def bytes(self, count: int) -> bytes:
        start = self._position
        self._position += count
        return self._body[start : self._position]

    def skip_text(self) -> None:
        length = self.varint() - 1
        self._position += max(length, 0)
