"""The four operations that a tiering job needs of a broker, for a driver that blocks.

Used by the job's driver alone, two calls a round, so each has a connection of its own
(metadata/clients/wire_client.py) to the first broker that answers. Both operations may be repeated:
a plan is durable and the same when asked again, a commit is recognised by its object key. So what
went wrong on the way is always worth another attempt, which is the caller's decision.

Failure cases: CommitFailed (nothing was changed by asking, or no broker answered),
CommitOutcomeUnknown (a commit was sent and no answer came), and what the coordinator says.
"""

import asyncio
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from metadata.clients.wire_client import WireClient
from metadata.messages.brokers import (
    COMMIT_REWRITES,
    COMMIT_SEGMENTS,
    PLAN_REWRITES,
    PLAN_SEGMENTS,
)
from metadata.messages.codec import Answer, Operation, Request
from metadata.operations import PlannedSegments, PlanSegments, RolledSegment, SegmentCommit
from metadata.rewrites import PlannedRewrites, PlanRewrites, Rewrite, RewriteCommit
from wal.clock import SystemClock
from wal.errors import CommitFailed, DisklessError, InvalidSettings

CLIENT_ID: Final = "diskless-tier"


class CoordinatorClient:
    """The coordinators, through the first broker of `bootstrap` that answers.

    `bootstrap` is `host:port`, several of them separated by commas. Raises InvalidSettings when it
    is not.
    """

    def __init__(self, bootstrap: str) -> None:
        self._addresses = parse_bootstrap(bootstrap)

    def plan_segments(self, asked: PlanSegments) -> PlannedSegments:
        """Plans that are not committed yet, after planning what is due."""
        (planned,) = self._call(PLAN_SEGMENTS, asked)
        if isinstance(planned, DisklessError):
            raise planned
        return planned

    def commit_segments(self, segments: Sequence[RolledSegment]) -> Sequence[SegmentCommit]:
        """Offer segments for their batches; the answers match them by position."""
        return self._call(COMMIT_SEGMENTS, segments)

    def plan_rewrites(self, asked: PlanRewrites) -> PlannedRewrites:
        """Rewrites of segments that are not committed yet, after planning what is due."""
        (planned,) = self._call(PLAN_REWRITES, asked)
        if isinstance(planned, DisklessError):
            raise planned
        return planned

    def commit_rewrites(self, rewrites: Sequence[Rewrite]) -> Sequence[RewriteCommit]:
        """Offer segments for those they are made of; the answers match them by position."""
        return self._call(COMMIT_REWRITES, rewrites)

    def _call(self, operation: Operation[Request, Answer], request: Request) -> Sequence[Answer]:
        # In a thread, because the caller may have an event loop already: notebooks do.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, self._answers(operation, request)).result()

    async def _answers(
        self, operation: Operation[Request, Answer], request: Request
    ) -> Sequence[Answer]:
        failures = []
        for host, port in self._addresses:
            broker = WireClient(
                host, port, clock=SystemClock(), rng=random.Random(), client_id=CLIENT_ID
            )
            async with broker:
                try:
                    return await broker.call(operation, request)
                except CommitFailed as error:
                    failures.append(str(error))
        raise CommitFailed("; ".join(failures))


def parse_bootstrap(bootstrap: str) -> list[tuple[str, int]]:
    """The addresses in `host:port[,host:port…]`. Raises InvalidSettings."""
    addresses = []
    for address in bootstrap.split(","):
        host, separator, port = address.strip().rpartition(":")
        if not separator or not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise InvalidSettings(f"bootstrap address {address!r}: must be host:port")
        addresses.append((host.removeprefix("[").removesuffix("]"), int(port)))
    return addresses
