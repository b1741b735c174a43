"""Holds the APIs that this broker serves, and defines what a handler is.

A handler is a plain function of a Request. It decodes at once, then says when the answer comes:

- a `Reply`: now;
- an awaitable of one: the connection runs it as a task;
- a `Deferred`: something to await that makes a result, and a function that encodes the result. When
  it awaits a future (as Produce does), no task is made: the future calls back.

Whatever walks something whose length a client decides is written as steps
(`diskless.loop.long_work`): the handler itself, and the function that encodes. A handler in steps
returns the outcome.

What a handler raises: ProtocolError or MustClose closes the connection quietly, as Kafka does with
requests it cannot parse or answer; anything else is a bug, is logged with its traceback, and closes
it as well.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

from diskless.loop.early_end import EarlyEnd
from diskless.loop.long_work import Steps
from diskless.ports import AT_ONCE, Buffer, ClientInfo
from diskless.protocol.wire import Reader
from diskless.sasl.login import Login
from wal.chunks.buffer import FragmentChain
from wal.errors import DisklessError


class MustClose(DisklessError):
    """A request that went wrong and has no answer to say so in: closing is the only signal."""


Reply = list[Buffer] | None
"""The body of a response as buffers to be written back to back; None: nothing is sent."""
ReplySteps = Steps[Reply]
"""An answer that is made in steps. Python evaluates the annotations of an inner function whenever
it is defined, which is once a request in the handlers; the subscript would take 5 µs each time."""


@dataclass(slots=True, kw_only=True)
class Request:
    """One request, as a handler gets it."""

    version: int
    client: ClientInfo
    body: bytes
    """What follows the header; empty for an API that reads from the frame."""
    wake: EarlyEnd
    """Set when another answer waits behind this one."""
    reserve: Callable[[int], int]
    """To be called with how many bytes are about to be read for the answer; gives how many may be,
    which is less where many answers are under way, but always enough to go on with."""
    mute: Callable[[float], None]
    """To be called with a time of the monotonic clock until which nothing more of this connection
    is read or begun; answers go out all the same. The latest time counts."""
    login: Login | None = None
    """Of a connection whose client must log in."""
    read_turn: AbstractAsyncContextManager[None] = AT_ONCE
    """The turn in which a handler reads for the answer (`diskless.loop.read_turns`); one that
    `reads_frame` only writes."""
    batch_count: int = 0
    """Set by a handler that hands on batches: memory is kept for each until the answer leaves."""
    changes: int = 0
    """Set by a handler that changes metadata: how many topics, rules, users and such."""
    changed_partitions: int = 0
    """Likewise: how many partitions come or go."""
    frame: FragmentChain | None = None
    """The whole received frame without its length, for an API that `reads_frame`; valid until the
    handler returns, or its steps do (not until its answer comes)."""
    reader: Reader | None = None
    """Stands at the body in `frame`."""


class Deferred(NamedTuple):
    """`encode` of what `awaitable` gives is the reply, `refuse` of a DisklessError it raises."""

    awaitable: Awaitable[Any]
    encode: Callable[[Any], Reply | ReplySteps]
    refuse: Callable[[DisklessError], Reply | ReplySteps] | None


Outcome = Reply | Awaitable[Reply | ReplySteps] | Deferred

Handler = Callable[[Request], Outcome | Steps[Outcome]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One API as this broker serves it."""

    key: int
    name: str
    versions: range
    """Those that are served."""
    flexible_from: int | None
    """The first version with compact lengths and tagged fields; None: none has them."""
    handler: Handler
    advertised_min_version: int | None = None
    """What ApiVersions says where it differs from what is served."""
    is_advertised: bool = True
    reads_frame: bool = False
    """Reads from the received fragments instead of a copy; may be as large as a frame can be."""
    starts_in_turn: bool = False
    """Begins only when its answer is the next one to be sent and the client reads: for answers
    that are large, or that wait for something. It is cancelled when the client goes."""
    answers_any_version: bool = False
    """A version above the served ones reaches the handler as well (ApiVersions)."""

    @property
    def min_version(self) -> int:
        return self.versions[0]

    @property
    def max_version(self) -> int:
        return self.versions[-1]

    def is_flexible(self, version: int) -> bool:
        return self.flexible_from is not None and version >= self.flexible_from

    @property
    def has_flexible_response_header(self) -> bool:
        """ApiVersions answers under header v0 whatever its version, so that anyone can read it."""
        return not self.answers_any_version


class ApiRegistry:
    """The APIs by key."""

    def __init__(self, apis: Sequence[Api] = ()) -> None:
        self._apis: dict[int, Api] = {}
        for api in apis:
            self.add(api)

    def add(self, api: Api) -> None:
        """Raises ValueError when the key is taken."""
        if api.key in self._apis:
            raise ValueError(f"{api.name} and {self._apis[api.key].name} share key {api.key}")
        self._apis[api.key] = api

    def find(self, key: int) -> Api | None:
        return self._apis.get(key)

    def __len__(self) -> int:
        return len(self._apis)

    def __iter__(self) -> Iterator[Api]:
        """By ascending key."""
        return iter(sorted(self._apis.values(), key=lambda api: api.key))
