"""What the routes of the HTTP port ask before they answer: who is it, and may they.

The HTTP server has a thread and an event loop of its own; users, tokens and rules live on the
broker's loop. So each question is carried there, and its answer back; a broker whose loop does not
turn answers 503 after ANSWER_MAX_S. What is asked: nothing on a port that asks nobody (there is no
gate then), and never anything for `/livez` and `/readyz`.

A gate is closed until the broker has its catalogue: GateClosed, which is 503.

Rights are Kafka's: DESCRIBE on a topic to see its table, READ to load it, DESCRIBE on the cluster
for metrics. What is refused is noted in the audit log, what is only left out of a list is not.
"""

import asyncio
from collections.abc import Collection, Coroutine
from typing import Any, Final, NamedTuple, TypeVar

from diskless.audit.audit_log import Audit
from diskless.authorization import CLUSTER_NAME, AclOperation, Authorizer, ResourceType
from diskless.health.http_server import HttpAnswer, HttpRequest
from diskless.ports import ClientInfo
from diskless.web.http_logins import HttpLogins
from wal.errors import Retriable

ANSWER_MAX_S: Final = 20.0

_Result = TypeVar("_Result")


class GateClosed(Retriable):
    """Nobody can be told now whether they may: the broker starts, stops or does not turn."""


class _Open(NamedTuple):
    loop: asyncio.AbstractEventLoop
    logins: HttpLogins
    authorizer: Authorizer
    audit: Audit


class HttpGate:
    """Asked in the thread of the HTTP server."""

    def __init__(self, *, grants: bool) -> None:
        """`grants`: whether passwords may be sent to this port."""
        self.grants: Final = grants
        self._open: _Open | None = None

    def open(self, logins: HttpLogins, authorizer: Authorizer, audit: Audit) -> None:
        """Called on the broker's loop."""
        self._open = _Open(asyncio.get_running_loop(), logins, authorizer, audit)

    def close(self) -> None:
        self._open = None

    async def client(self, request: HttpRequest) -> ClientInfo | None:
        """Who asks; None: nobody who is known. Raises GateClosed."""
        return await self._asked(self._opened().logins.client(request))

    async def grant(self, request: HttpRequest) -> HttpAnswer:
        """The answer to who wants a token for a password. Raises GateClosed."""
        return await self._asked(self._opened().logins.grant(request))

    async def hidden(
        self, client: ClientInfo, operation: AclOperation, topics: Collection[str]
    ) -> Collection[str]:
        """Those of `topics` to which the client may not do it. Raises GateClosed."""
        return await self._asked(self._denied(client, operation, ResourceType.TOPIC, topics))

    async def refused(self, client: ClientInfo, operation: AclOperation, topic: str) -> bool:
        """Whether the client may not do it; noted. Raises GateClosed."""
        denied = await self.hidden(client, operation, (topic,))
        if denied:
            await self._asked(self._note(client, operation, ResourceType.TOPIC, denied))
        return bool(denied)

    async def refused_cluster(self, client: ClientInfo, operation: AclOperation) -> bool:
        """The same of the cluster. Raises GateClosed."""
        kind, names = ResourceType.CLUSTER, (CLUSTER_NAME,)
        denied = await self._asked(self._denied(client, operation, kind, names))
        if denied:
            await self._asked(self._note(client, operation, kind, denied))
        return bool(denied)

    async def _denied(
        self,
        client: ClientInfo,
        operation: AclOperation,
        kind: ResourceType,
        names: Collection[str],
    ) -> Collection[str]:
        return frozenset(self._opened().authorizer.denied(client, operation, kind, names))

    async def _note(
        self,
        client: ClientInfo,
        operation: AclOperation,
        kind: ResourceType,
        names: Collection[str],
    ) -> None:
        self._opened().audit.refused(client, operation, kind, names)

    def _opened(self) -> _Open:
        opened = self._open
        if opened is None:
            raise GateClosed("the broker starts or stops")
        return opened

    async def _asked(self, question: Coroutine[Any, Any, _Result]) -> _Result:
        try:
            asked = asyncio.run_coroutine_threadsafe(question, self._opened().loop)
        except (RuntimeError, GateClosed) as error:
            question.close()
            raise GateClosed("the broker stops") from error
        try:
            async with asyncio.timeout(ANSWER_MAX_S):
                return await asyncio.wrap_future(asked)
        except TimeoutError as error:
            raise GateClosed("the broker does not answer in time") from error
