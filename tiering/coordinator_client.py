"""The operations that tiering jobs and the Spark source need of a broker, for programs that block.

They call seldom, so each call has a connection of its own (metadata/clients/wire_client.py) to the
first broker that answers. All operations may be repeated: a plan is durable and the same when asked
again, a commit is recognised by its object key, columns by their version, the others only read. So
what went wrong on the way is always worth another attempt, which is the caller's decision;
`repeated` makes it.

Failure cases: CommitFailed (nothing was changed by asking, or no broker answered),
CommitOutcomeUnknown (a commit was sent and no answer came), LoginRefused (a broker does not let us
in; the others know the same users, and are not asked), and what the coordinator says.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from metadata import operations as ops
from metadata.access_tokens import AccessToken, AlterAccessToken
from metadata.clients.sasl_login import log_in
from metadata.clients.wire_client import WireClient, connect_securely
from metadata.messages.access_tokens import ALTER_ACCESS_TOKENS, LIST_ACCESS_TOKENS
from metadata.messages.brokers import (
    COMMIT_REWRITES,
    COMMIT_SEGMENTS,
    OFFER_TOPIC_COLUMNS,
    PLAN_REWRITES,
    PLAN_SEGMENTS,
)
from metadata.messages.codec import Answer, Operation, Request
from metadata.messages.find_batches import FindBatchesMessage
from metadata.messages.readers import READ_EXTENTS, READ_OFFSETS, READ_TOPIC
from metadata.messages.sinks import COMMIT_STAGED, OPEN_SINK
from metadata.messages.tables import COMMIT_TABLES, LIST_SEGMENTS, LIST_TABLES
from metadata.messages.transactions import ABORT_TRANSACTIONS, LIST_TRANSACTIONS
from metadata.rewrites import PlannedRewrites, PlanRewrites, Rewrite, RewriteCommit
from metadata.sink_operations import CommitStaged, OpenedSink, OpenSink, SinkCommit
from metadata.table_operations import (
    CommitTable,
    ListedSegments,
    ListedTables,
    ListSegments,
    ListTables,
    TableCommit,
)
from metadata.transaction_operations import (
    AbortTransaction,
    ListTransactions,
    Transaction,
)
from wal.clock import SystemClock
from wal.errors import CommitFailed, CommitOutcomeUnknown, DisklessError, InvalidSettings, Retriable
from wal.security.client_security import PLAINTEXT, ClientSecurity

CLIENT_ID: Final = "diskless-tier"

ATTEMPTS_MAX: Final = 6
FIRST_PAUSE_S: Final = 0.5
"""Doubled after each attempt: a broker that restarts is back within these fifteen seconds."""

SINK_COMMIT_TIMEOUT_MS: Final = 300_000

_INT32_MAX: Final = 2**31 - 1

_Result = TypeVar("_Result")


class CoordinatorClient:
    """The coordinators, through the first broker of `bootstrap` that answers.

    `bootstrap` is `host:port`, several of them separated by commas. Raises InvalidSettings when it
    is not, and when `security` cannot be used.
    """

    def __init__(self, bootstrap: str, security: ClientSecurity = PLAINTEXT) -> None:
        self._addresses = parse_bootstrap(bootstrap)
        self._connect = connect_securely(security)
        login = security.login
        self._log_in = None if login is None else partial(log_in, login)

    def connect(self) -> None:
        """See whether a broker lets us in. Raises CommitFailed, LoginRefused."""
        self._run(WireClient.connect)

    def plan_segments(self, asked: ops.PlanSegments) -> ops.PlannedSegments:
        """Plans that are not committed yet, after planning what is due."""
        return self._one(PLAN_SEGMENTS, asked)

    def commit_segments(self, segments: Sequence[ops.RolledSegment]) -> Sequence[ops.SegmentCommit]:
        """Offer segments for their batches; the answers match them by position."""
        return self._call(COMMIT_SEGMENTS, segments)

    def plan_rewrites(self, asked: PlanRewrites) -> PlannedRewrites:
        """Rewrites of segments that are not committed yet, after planning what is due."""
        return self._one(PLAN_REWRITES, asked)

    def commit_rewrites(self, rewrites: Sequence[Rewrite]) -> Sequence[RewriteCommit]:
        """Offer segments for those they are made of; the answers match them by position."""
        return self._call(COMMIT_REWRITES, rewrites)

    def read_topic(self, name: str) -> ops.ReadableTopic:
        """Where the records of a topic lie. Raises: UnknownPartition."""
        return self._one(READ_TOPIC, [name])

    def read_offsets(self, asked: Sequence[ops.ListOffsets]) -> Sequence[ops.ListedOffset]:
        """Offsets for timestamps, strictly consistent; an error is in its entry."""
        return self._call(READ_OFFSETS, asked)

    def read_extents(
        self, asked: Sequence[ops.FindBatches], *, extents_max: int
    ) -> Sequence[ops.FoundBatches]:
        """Where committed records lie, from the extent with the asked offset on, up to the last
        stable offset; what of them is aborted is told. An error is in its entry.

        At most `extents_max` of each partition; the byte limits of `asked` are not looked at. The
        broker may be behind, and then give fewer, or none.
        """
        message = FindBatchesMessage(asked, _INT32_MAX, extents_max, isolation=ops.READ_COMMITTED)
        return self._call(READ_EXTENTS, message)

    def list_tables(self, asked: ListTables) -> ListedTables:
        """Topics that are tables, and where their objects lie."""
        return self._one(LIST_TABLES, asked)

    def list_segments(self, asked: Sequence[ListSegments]) -> Sequence[ListedSegments]:
        """Live segments of partitions; the answers match them by position."""
        return self._call(LIST_SEGMENTS, asked)

    def commit_table(self, commit: CommitTable) -> TableCommit:
        """Move the pointer of a table."""
        (answer,) = self._call(COMMIT_TABLES, [commit])
        return answer

    def open_sink(self, asked: OpenSink) -> OpenedSink:
        """Whether a sink may commit to topics, and what its tasks must know of them."""
        return self._one(OPEN_SINK, asked)

    def commit_staged(self, asked: CommitStaged) -> SinkCommit:
        """Commit staged objects as one batch of their sink, or as the repetition that it is.

        A broker reads all of them first, so this may take minutes.
        """
        (answer,) = self._run(
            lambda broker: broker.call(COMMIT_STAGED, asked, timeout_ms=SINK_COMMIT_TIMEOUT_MS)
        )
        if answer.error is not None:
            raise answer.error
        return answer

    def set_topic_columns(
        self, columns: Sequence[ops.SetTopicColumns]
    ) -> Sequence[DisklessError | None]:
        """Offer typed columns; the answers match them by position."""
        return self._call(OFFER_TOPIC_COLUMNS, columns)

    def alter_access_tokens(
        self, requests: Sequence[AlterAccessToken]
    ) -> Sequence[DisklessError | None]:
        """Tokens that come and go; the answers match them by position."""
        return self._call(ALTER_ACCESS_TOKENS, requests)

    def list_access_tokens(self, user: str) -> Sequence[AccessToken]:
        """Those of the user, or of all where it is empty."""
        return self._one(LIST_ACCESS_TOKENS, [user]).tokens

    def list_transactions(self, asked: ListTransactions) -> Sequence[Transaction]:
        """The next transactional ids in the order of their names, or those that are named."""
        return self._one(LIST_TRANSACTIONS, asked).transactions

    def abort_transaction(self, asked: AbortTransaction) -> Transaction:
        """The transaction as it was before; what was open has ended, or soon will have."""
        return self._one(ABORT_TRANSACTIONS, [asked])

    def _one(
        self, operation: Operation[Request, Answer | DisklessError], request: Request
    ) -> Answer:
        """The answer to a request that has one. Raises the error that it may be."""
        (answer,) = self._call(operation, request)
        if isinstance(answer, DisklessError):
            raise answer
        return answer

    def _call(self, operation: Operation[Request, Answer], request: Request) -> Sequence[Answer]:
        return self._run(lambda broker: broker.call(operation, request))

    def _run(self, work: Callable[[WireClient], Coroutine[Any, Any, _Result]]) -> _Result:
        # In a thread, because the caller may have an event loop already: notebooks do.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, self._at_first_broker(work)).result()

    async def _at_first_broker(
        self, work: Callable[[WireClient], Coroutine[Any, Any, _Result]]
    ) -> _Result:
        failures: list[CommitFailed] = []
        for host, port in self._addresses:
            broker = WireClient(
                host,
                port,
                clock=SystemClock(),
                # Nonces of log-ins are seen by everybody.
                rng=random.SystemRandom(),
                client_id=CLIENT_ID,
                connect=self._connect,
                log_in=self._log_in,
            )
            async with broker:
                try:
                    return await work(broker)
                except CommitFailed as error:
                    failures.append(error)
        raise CommitFailed("; ".join(map(str, failures))) from failures[-1]


def repeated(ask: Callable[[], _Result], sleep: Callable[[float], None]) -> _Result:
    """What `ask` returns, asked again while that may help. Raises what it does the last time."""
    pause_s = FIRST_PAUSE_S
    for _ in range(ATTEMPTS_MAX - 1):
        try:
            return ask()
        except (Retriable, CommitOutcomeUnknown):
            sleep(pause_s)
            pause_s *= 2
    return ask()


def parse_bootstrap(bootstrap: str) -> list[tuple[str, int]]:
    """The addresses in `host:port[,host:port…]`. Raises InvalidSettings."""
    addresses = []
    for address in bootstrap.split(","):
        host, separator, port = address.strip().rpartition(":")
        if not separator or not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise InvalidSettings(f"bootstrap address {address!r}: must be host:port")
        addresses.append((host.removeprefix("[").removesuffix("]"), int(port)))
    return addresses
