"""How long a classic group of many members takes to share out many partitions.

Every member is a connection of its own that does what a client library does: it joins (twice, for
its first answer is its member id), the leader assigns, all sync, then all send heartbeats. Timed
are a start from nothing, from the first join to the last assignment, and one member that leaves,
from its request to the last of the others' new assignments.

The configured delays are the broker's `group.initial.rebalance.delay.ms`, which a new group waits
for more members, and the members' heartbeat interval, after which the last one has heard of a
rebalance.
"""

import asyncio
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from bench.tools import load
from bench.tools.broker import BenchBroker, fresh_directory
from bench.tools.raw_client import RawClient, data, text
from bench.tools.report import Report

MEMBERS: Final = 100
PARTITIONS: Final = 1_000
DELAY_MS: Final = 1_000
"""Both of the configured delays."""

GROUP: Final = "bench"

_JOIN, _HEARTBEAT, _LEAVE, _SYNC = 11, 12, 13, 14
_MEMBER_ID_REQUIRED: Final = 79
_REBALANCE_IN_PROGRESS: Final = 27
_SESSION_TIMEOUT_MS: Final = 45_000
_REBALANCE_TIMEOUT_MS: Final = 60_000


class RebalanceFigures(NamedTuple):
    """Seconds."""

    from_nothing_s: float
    one_left_s: float
    broker_cpu_s: float
    """Of both."""


def run_rebalance(report: Report) -> None:
    """MEMBERS members, PARTITIONS partitions."""
    report.step(f"groups: {MEMBERS} members share {PARTITIONS:,} partitions")
    figures = measure_rebalance(members=MEMBERS, partitions=PARTITIONS, delay_ms=DELAY_MS)
    bound_s = 2 * DELAY_MS / 1000 + 1
    slowest = max(figures.from_nothing_s, figures.one_left_s)
    report.add(
        "rebalance_100_s",
        slowest,
        "s",
        bound=f"≤ {bound_s:g}",
        note=f"from nothing {figures.from_nothing_s:.2f}, one leaves {figures.one_left_s:.2f}; "
        f"broker CPU {figures.broker_cpu_s:.2f}",
    )
    report.add("rebalance_100_bound_s", bound_s, "s", note=f"2 × {DELAY_MS / 1000:g} s + 1 s")


def measure_rebalance(*, members: int, partitions: int, delay_ms: int) -> RebalanceFigures:
    settings = {
        "num.partitions": partitions,
        "group.initial.rebalance.delay.ms": delay_ms,
        "max.connections.per.ip": members + 100,
    }
    with fresh_directory() as directory, BenchBroker(directory / "data", settings) as broker:
        load.producer(broker.bootstrap).list_topics(load.TOPIC, timeout=60)
        return asyncio.run(_rebalance(broker, members, partitions, delay_ms / 1000))


async def _rebalance(
    broker: BenchBroker, count: int, partitions: int, heartbeat_s: float
) -> RebalanceFigures:
    members = [_Member(await RawClient.connect(broker.bootstrap)) for _ in range(count)]
    cpu_s = broker.cpu_s()
    started = time.perf_counter()
    async with asyncio.TaskGroup() as joining:
        for member in members:
            joining.create_task(member.join(partitions))
    from_nothing_s = time.perf_counter() - started
    _check(members, partitions)

    # Beats are spread over the interval, as those of clients that started at different times.
    async with asyncio.TaskGroup() as beating:
        tasks = [
            beating.create_task(
                member.beat_until_rebalance(number / count * heartbeat_s, heartbeat_s)
            )
            for number, member in enumerate(members)
        ]
        await asyncio.sleep(1.5 * heartbeat_s)
        leaver = members.pop(count // 2)
        tasks.pop(count // 2).cancel()
        started = time.perf_counter()
        await leaver.leave()
        rejoining = [
            beating.create_task(member.rejoin_after(task, partitions))
            for member, task in zip(members, tasks, strict=True)
        ]
        await asyncio.gather(*rejoining)
        one_left_s = time.perf_counter() - started
    _check(members, partitions)
    cpu_s = broker.cpu_s() - cpu_s
    for member in (*members, leaver):
        await member.client.close()
    return RebalanceFigures(from_nothing_s, one_left_s, cpu_s)


def _check(members: Sequence["_Member"], partitions: int) -> None:
    """Everybody is in one generation, and every partition has one owner."""
    if len({member.generation for member in members}) != 1:
        raise RuntimeError("members are in different generations")
    owned = sorted(partition for member in members for partition in member.partitions)
    if owned != list(range(partitions)):
        raise RuntimeError(f"{len(owned)} partitions are assigned, {len(set(owned))} of them once")


class _Member:
    """One consumer of a classic group, as far as the coordinator can tell."""

    def __init__(self, client: RawClient) -> None:
        self.client = client
        self.member_id = ""
        self.generation = -1
        self.partitions: Sequence[int] = ()

    async def join(self, partitions: int) -> None:
        """Join, assign if it is the leader, sync; again if the group has moved on meanwhile."""
        subscription = struct.pack(">hi", 0, 1) + text(load.TOPIC) + struct.pack(">i", -1)
        while True:
            body = (
                text(GROUP)
                + struct.pack(">ii", _SESSION_TIMEOUT_MS, _REBALANCE_TIMEOUT_MS)
                + text(self.member_id)
                + text(None)
                + text("consumer")
                + struct.pack(">i", 1)
                + text("range")
                + data(subscription)
            )
            answer = _Answer(await self.client.send(_JOIN, 5, body))
            error, self.generation = answer.take(">ihi")[1:]
            answer.text()
            leader = answer.text()
            self.member_id = answer.text()
            if error == _MEMBER_ID_REQUIRED:
                continue
            _check_error(error, "JoinGroup")
            others: list[str] = []
            for _ in range(answer.take(">i")[0]):
                others.append(answer.text())
                answer.text()
                answer.data()
            shares = _shares(others, partitions) if leader == self.member_id else {}
            body = self._identity() + struct.pack(">i", len(shares))
            body += b"".join(text(one) + data(share) for one, share in shares.items())
            answer = _Answer(await self.client.send(_SYNC, 3, body))
            error = answer.take(">ih")[1]
            if error == _REBALANCE_IN_PROGRESS:
                continue
            _check_error(error, "SyncGroup")
            self.partitions = _assigned(answer.data())
            return

    async def beat_until_rebalance(self, first_s: float, interval_s: float) -> None:
        await asyncio.sleep(first_s)
        while True:
            body = self._identity()
            answer = _Answer(await self.client.send(_HEARTBEAT, 3, body))
            error = answer.take(">ih")[1]
            if error == _REBALANCE_IN_PROGRESS:
                return
            _check_error(error, "Heartbeat")
            await asyncio.sleep(interval_s)

    async def rejoin_after(self, told: "asyncio.Task[None]", partitions: int) -> None:
        await told
        await self.join(partitions)

    async def leave(self) -> None:
        body = text(GROUP) + text(self.member_id)
        answer = _Answer(await self.client.send(_LEAVE, 1, body))
        _check_error(answer.take(">ih")[1], "LeaveGroup")

    def _identity(self) -> bytes:
        """Group, generation, member, no instance."""
        return text(GROUP) + struct.pack(">i", self.generation) + text(self.member_id) + text(None)


class _Answer:
    """Fields of an answer, one after the other."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._position = 0

    def take(self, layout: str) -> tuple[int, ...]:
        values = struct.unpack_from(layout, self._body, self._position)
        self._position += struct.calcsize(layout)
        return values

    def text(self) -> str:
        return self._bytes(self.take(">h")[0]).decode()

    def data(self) -> bytes:
        return self._bytes(self.take(">i")[0])

    def _bytes(self, length: int) -> bytes:
        start = self._position
        self._position += max(length, 0)
        return self._body[start : self._position]


def _shares(members: Sequence[str], partitions: int) -> Mapping[str, bytes]:
    """The assignment of every member, as the embedded consumer protocol has it."""
    shares = {}
    for number, member_id in enumerate(sorted(members)):
        mine = range(number, partitions, len(members))
        shares[member_id] = (
            struct.pack(">hi", 0, 1)
            + text(load.TOPIC)
            + struct.pack(f">i{len(mine)}i", len(mine), *mine)
            + struct.pack(">i", -1)
        )
    return shares


def _assigned(assignment: bytes) -> Sequence[int]:
    answer = _Answer(assignment)
    answer.take(">hi")
    answer.text()
    (count,) = answer.take(">i")
    return answer.take(f">{count}i")


def _check_error(error: int, what: str) -> None:
    if error:
        raise RuntimeError(f"{what} was answered with error {error}")
