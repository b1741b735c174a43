"""Notes who came, what clients changed, and what they were refused.

Each note is a mapping with these keys, always all of them:

    time        ISO 8601, UTC
    event       "login", "logout", "changed", "refused"
    principal   User:NAME; of a log-in that failed User:ANONYMOUS, who is proved to be nobody
    host        the client's address
    listener    the name of the listener that it came through
    client_id   as the client gave it
    connection  a number that is the connection's own while the broker runs, in all its processes
    request     the correlation id of the request; 0 where there is none
    mechanism   of a log-in, as SCRAM-SHA-512; TLS: by certificate; else empty
    operation   changed: the API, as CreateTopics; refused: what was asked for, as WRITE;
                login: "login", or "reauthenticate" on a connection that had logged in before
    resource    as topic:orders, group:billing, cluster; user:ann, or a rule, where that was changed
    result      "ok", "denied"; of a log-in "failed"
    count       how many such there were since the last note of the principal and the resource

A change is noted when it is durable, each one. Refusals can be many: of a principal and a resource
the first one is noted at once, then one a second with the number of those that were left out in
between. So are log-ins, by principal, address and mechanism, and their ends; and offsets that are
committed by who is no member of the group. What is only left out of an answer, as topics from the
list of all, is not a refusal. Names that one request asks about beyond `NAMES_MAX` are one note
together.

Where a broker is several processes, each notes what it does itself; one of them writes, and gets
the notes of the others (`forwarded`).

Nothing here waits or fails: where a note goes is a sink's business (`audit_sinks`). What is counted
(`refusals`) is counted always.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Final, Protocol

from diskless.authorization import AclOperation, ResourceType
from diskless.logs import Pace
from diskless.ports import ClientInfo
from wal.clock import Clock

NAMES_MAX: Final = 20
PACES_MAX: Final = 10_000
"""Principals and resources whose refusals are counted between two notes; the oldest are forgotten
first, so one of them is noted more often then."""

_USER: Final = "User:"

Note = Mapping[str, str | int]
Sink = Callable[[Note], None]


class Audit(Protocol):
    """What the API handlers tell."""

    def refused(
        self,
        client: ClientInfo,
        operation: AclOperation,
        resource_type: ResourceType,
        names: Collection[str],
    ) -> None:
        """`client` asked to do it, and may not."""
        ...

    def changed(
        self, client: ClientInfo, api: str, resource: str, *, is_often: bool = False
    ) -> None:
        """`client` has changed something; `is_often`: as clients may do all the time."""
        ...


class SessionAudit(Protocol):
    """What the server tells."""

    def logged_in(self, client: ClientInfo, mechanism: str, *, is_again: bool) -> None:
        """A client has proved who it is."""
        ...

    def login_failed(self, client: ClientInfo, mechanism: str) -> None:
        """A client has not."""
        ...

    def logged_out(self, client: ClientInfo) -> None:
        """The connection of a client that had logged in has ended."""
        ...


class Unnoted:
    """Nobody listens."""

    def logged_in(self, client: ClientInfo, mechanism: str, *, is_again: bool) -> None:
        pass

    def login_failed(self, client: ClientInfo, mechanism: str) -> None:
        pass

    def logged_out(self, client: ClientInfo) -> None:
        pass

    def refused(
        self,
        client: ClientInfo,
        operation: AclOperation,
        resource_type: ResourceType,
        names: Collection[str],
    ) -> None:
        pass

    def changed(
        self, client: ClientInfo, api: str, resource: str, *, is_often: bool = False
    ) -> None:
        pass


UNNOTED: Final = Unnoted()


class AuditLog:
    """An `Audit` and a `SessionAudit`, into a sink."""

    def __init__(self, sink: Sink, clock: Clock) -> None:
        self._sink = sink
        self._clock = clock
        self._paces: dict[tuple[str, str, str], Pace] = {}
        self.refusals: Counter[tuple[str, str]] = Counter()
        """By operation and kind of resource."""

    def refused(
        self,
        client: ClientInfo,
        operation: AclOperation,
        resource_type: ResourceType,
        names: Collection[str],
    ) -> None:
        self.refusals[operation.name, resource_type.name] += len(names)
        for name in islice(names, NAMES_MAX):
            self._refused(client, operation, resource_text(resource_type, name), 1)
        more = len(names) - NAMES_MAX
        if more > 0:
            self._refused(client, operation, f"{resource_type.name.lower()}: others", more)

    def changed(
        self, client: ClientInfo, api: str, resource: str, *, is_often: bool = False
    ) -> None:
        count = self._turn(("changed", client.user, resource), 1) if is_often else 1
        if count:
            self._note("changed", client, api, resource, "ok", count)

    def logged_in(self, client: ClientInfo, mechanism: str, *, is_again: bool) -> None:
        operation = "reauthenticate" if is_again else "login"
        self._session("login", client, operation, "ok", mechanism)

    def login_failed(self, client: ClientInfo, mechanism: str) -> None:
        self._session("login", client, "login", "failed", mechanism)

    def logged_out(self, client: ClientInfo) -> None:
        self._session("logout", client, "logout", "ok", "")

    def rebuilt(self, user: str, cluster: str) -> None:
        """Somebody at this machine has made the metadata of a cluster anew."""
        self._note("changed", ClientInfo(0, "", "", user), "Rebuild", f"cluster:{cluster}", "ok", 1)

    def forwarded(self, note: Note) -> None:
        """Another process of the broker has noted it; what it noted too often is left out here.

        Pace and words are those of a note of this process, so that who is refused by several is
        noted as who is refused by one.
        """
        event, user = str(note["event"]), str(note["principal"]).removeprefix(_USER)
        if event == "changed":
            self._sink(note)
            return
        about = str(note["resource"])
        if event != "refused":
            about = _about_session(
                str(note["operation"]),
                str(note["result"]),
                str(note["mechanism"]),
                str(note["host"]),
            )
        count = self._turn((event, user, about), int(note["count"]))
        if count:
            self._sink({**note, "count": count})

    def _session(
        self, event: str, client: ClientInfo, operation: str, result: str, mechanism: str
    ) -> None:
        about = _about_session(operation, result, mechanism, client.host)
        count = self._turn((event, client.user, about), 1)
        if count:
            self._note(event, client, operation, "", result, count, mechanism)

    def _refused(
        self, client: ClientInfo, operation: AclOperation, resource: str, count: int
    ) -> None:
        count = self._turn(("refused", client.user, resource), count)
        if count:
            self._note("refused", client, operation.name, resource, "denied", count)

    def _turn(self, key: tuple[str, str, str], count: int) -> int:
        """How many a note now stands for; 0: there is none now."""
        pace = self._paces.get(key)
        if pace is None:
            if len(self._paces) >= PACES_MAX:
                del self._paces[next(iter(self._paces))]
            pace = self._paces[key] = Pace()
        left_out = pace.take_turn(self._clock.monotonic(), count)
        return 0 if left_out is None else left_out + count

    def _note(
        self,
        event: str,
        client: ClientInfo,
        operation: str,
        resource: str,
        result: str,
        count: int,
        mechanism: str = "",
    ) -> None:
        now = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
        self._sink(
            {
                "time": now.isoformat(timespec="milliseconds"),
                "event": event,
                "principal": f"{_USER}{client.user}",
                "host": client.host,
                "listener": client.listener,
                "client_id": client.client_id,
                "connection": client.connection_id,
                "request": client.request_id,
                "mechanism": mechanism,
                "operation": operation,
                "resource": resource,
                "result": result,
                "count": count,
            }
        )


def _about_session(operation: str, result: str, mechanism: str, host: str) -> str:
    """What log-ins have in common that are noted together."""
    return f"{operation} {result} {mechanism} {host}"


def resource_text(resource_type: ResourceType, name: str) -> str:
    """A resource as notes name it."""
    kind = resource_type.name.lower()
    return kind if resource_type == ResourceType.CLUSTER else f"{kind}:{name}"
