"""Makes listeners of the configuration, and says in one line what does not go together.

    plans = plan_listeners(settings)                  # before anything is opened
    listeners = open_listeners(plans, keys, stack)    # each has its address, none listens yet

`listeners` says where to listen, `advertised.listeners` what others are told of it, and
`listener.security.protocol.map` what is spoken there. A client is only ever told addresses of the
listener that it asked through, of this broker and of the others: a client outside a private network
cannot use an address inside. Brokers reach each other through the inter-broker listener; while a
running cluster moves from one to another, through the first of several that both have.
"""

import ipaddress
import socket
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final, NamedTuple

from diskless.addresses import bound_socket
from diskless.listeners.endpoints import (
    EVERYWHERE,
    Endpoint,
    parse_endpoints,
    shown_address,
)
from diskless.listeners.listener_settings import (
    ADVERTISED_LISTENERS,
    INTER_BROKER_NAME,
    LISTENERS,
    PROTOCOL_MAP,
    ListenerSettings,
)
from diskless.listeners.tls_keys import TlsKeys
from wal.errors import InvalidSettings
from wal.security.security_protocol import SecurityProtocol


class PlannedListener(NamedTuple):
    """A listener as the configuration has it."""

    bind: Endpoint
    protocol: SecurityProtocol
    advertised: Endpoint | None
    """None: where it comes to listen."""
    inter_broker_rank: int | None
    """Its place in inter.broker.listener.name; None where that does not name it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A listener that has its address."""

    name: str
    protocol: SecurityProtocol
    address: tuple[str, int]
    """Host and port that it listens on."""
    socket: socket.socket | None
    """Bound; refuses connections until a server listens on it. None: another process has it."""
    advertised: Endpoint
    inter_broker_rank: int | None
    """Its place in inter.broker.listener.name, the first is 0; None where that does not name it."""
    tls: TlsKeys | None = None
    """What its handshakes use; None: it has none."""

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return ipaddress.ip_address(self.address[0]).is_loopback

    @property
    def is_asking_who(self) -> bool:
        """Whether nobody gets through who has not said, and shown, who it is."""
        return self.protocol.is_sasl or (self.tls is not None and self.tls.is_client_authenticated)


def plan_listeners(settings: ListenerSettings) -> Sequence[PlannedListener]:
    """One or more, in the order of `listeners`. Raises InvalidSettings."""
    binds = parse_endpoints(settings.listeners, LISTENERS)
    if not binds:
        raise InvalidSettings(
            f"{LISTENERS} is empty: write one, such as PLAINTEXT://127.0.0.1:9092"
        )
    _check_ports(binds)
    protocols = _protocols(settings.protocol_map)
    advertised = {
        endpoint.listener: endpoint
        for endpoint in parse_endpoints(settings.advertised, ADVERTISED_LISTENERS)
    }
    names = [endpoint.listener for endpoint in binds]
    for name, endpoint in advertised.items():
        if name not in names:
            raise InvalidSettings(
                f"{ADVERTISED_LISTENERS}: {LISTENERS} has no {name}, but {', '.join(names)}"
            )
        if endpoint.host in EVERYWHERE or not endpoint.port:
            raise InvalidSettings(
                f"{ADVERTISED_LISTENERS}: nobody can connect to {endpoint}; write the name or "
                "address under which others reach it, and its port"
            )
    ranks = {
        name: rank for rank, name in enumerate(_inter_broker(settings.inter_broker_name, names))
    }
    planned = []
    for bind in binds:
        protocol = protocols.get(bind.listener)
        if protocol is None:
            raise InvalidSettings(
                f"{PROTOCOL_MAP}: says nothing of {bind.listener}; add {bind.listener}:PROTOCOL, "
                f"one of {', '.join(SecurityProtocol)}"
            )
        told = advertised.get(bind.listener)
        if told is None and bind.host in EVERYWHERE:
            raise InvalidSettings(
                f"{ADVERTISED_LISTENERS}: nobody can connect to {bind}; add "
                f"{bind.listener}://NAME:{bind.port or 'PORT'} with the name or address under "
                "which others reach it"
            )
        planned.append(PlannedListener(bind, protocol, told, ranks.get(bind.listener)))
    return planned


def _check_ports(binds: Sequence[Endpoint]) -> None:
    seen: dict[tuple[str, int], Endpoint] = {}
    for bind in binds:
        other = seen.setdefault((bind.host, bind.port), bind)
        if bind.port and other is not bind:
            raise InvalidSettings(
                f"{LISTENERS}: {other.listener} and {bind.listener} have the same address; each "
                "needs its own port"
            )


def _protocols(text: str) -> Mapping[str, SecurityProtocol]:
    protocols: dict[str, SecurityProtocol] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, separator, protocol = entry.partition(":")
        name, protocol = name.strip().upper(), protocol.strip().upper()
        if not name or not separator:
            raise InvalidSettings(f"{PROTOCOL_MAP}: {entry!r} is not NAME:PROTOCOL")
        if protocol not in set(SecurityProtocol):
            raise InvalidSettings(
                f"{PROTOCOL_MAP}: {entry!r} is no protocol; write one of "
                f"{', '.join(SecurityProtocol)}"
            )
        if name in protocols:
            raise InvalidSettings(f"{PROTOCOL_MAP}: {name} is there twice")
        protocols[name] = SecurityProtocol(protocol)
    return protocols


_USUAL_INTER_BROKER: Final = "PLAINTEXT"


def _inter_broker(configured: str, names: Sequence[str]) -> Sequence[str]:
    wanted = [name.strip().upper() for name in configured.split(",") if name.strip()]
    if not wanted:
        wanted = [names[0] if len(names) == 1 else _USUAL_INTER_BROKER]
    for name in wanted:
        if name not in names or wanted.count(name) > 1:
            raise InvalidSettings(
                f"{INTER_BROKER_NAME}={configured}: write which listener other brokers reach this "
                f"one through, one of {', '.join(names)}; two, the one to come after the one that "
                "is, only while a cluster moves"
            )
    return wanted


def open_listeners(
    planned: Sequence[PlannedListener], keys: Sequence[TlsKeys], stack: AsyncExitStack
) -> Sequence[Listener]:
    """Give each its address; `stack` closes the sockets. Raises InvalidSettings."""
    opened = []
    keys_of = {one.listener: one for one in keys}
    for plan in planned:
        bound = bind_listener(plan.bind.host, plan.bind.port)
        stack.callback(bound.close)
        opened.append(_listener(plan, bound.getsockname()[:2], bound, keys_of))
    return opened


def listeners_elsewhere(
    planned: Sequence[PlannedListener],
    addresses: Sequence[tuple[str, int]],
    keys: Sequence[TlsKeys],
) -> Sequence[Listener]:
    """Those of another process, which accepts for this one; `addresses` are in their order."""
    keys_of = {one.listener: one for one in keys}
    return [
        _listener(plan, address, None, keys_of)
        for plan, address in zip(planned, addresses, strict=True)
    ]


def _listener(
    plan: PlannedListener,
    address: tuple[str, int],
    bound: socket.socket | None,
    keys_of: Mapping[str, TlsKeys],
) -> Listener:
    return Listener(
        name=plan.bind.listener,
        protocol=plan.protocol,
        address=address,
        socket=bound,
        advertised=plan.advertised or Endpoint(plan.bind.listener, *address),
        inter_broker_rank=plan.inter_broker_rank,
        tls=keys_of.get(plan.bind.listener),
    )


def bind_listener(host: str, port: int) -> socket.socket:
    """A socket that has its address and refuses connections until a server listens on it.

    So a broker knows where it is reached before it can answer anybody; `port` 0 takes a free one.
    Raises InvalidSettings when the address cannot be had.
    """
    try:
        return bound_socket(host, port, prefers_ipv4=True)
    except OSError as error:
        raise InvalidSettings(
            f"cannot listen on {shown_address(host, port)}: {error.strerror or error}"
        ) from error
