"""Reads and writes `NAME://host:port`: an address under the name of the listener it belongs to.

The syntax is Kafka's: `listeners` and `advertised.listeners` are lists of it, and so is what a
broker tells the others about itself. Names are without case, as in Kafka, and kept in capitals.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from wal.errors import InvalidSettings

_ENDPOINT: Final = re.compile(r"([A-Za-z0-9_-]+)://(\[[0-9A-Fa-f:.%]*\]|[^\[\]/:]*):([0-9]{1,5})")
_PORT_MAX: Final = 65_535

EVERYWHERE: Final = frozenset({"", "0.0.0.0", "::"})
"""Hosts to listen on that nobody can be told to connect to."""


class Endpoint(NamedTuple):
    """Where something is reached through the listener of this name."""

    listener: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.listener}://{shown_address(self.host, self.port)}"


def shown_address(host: str, port: int) -> str:
    """HOST:PORT, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_endpoints(text: str, key: str) -> Sequence[Endpoint]:
    """The entries of a list, at most one of each listener. Raises InvalidSettings naming `key`."""
    found: dict[str, Endpoint] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        match = _ENDPOINT.fullmatch(entry)
        if match is None or int(match[3]) > _PORT_MAX:
            raise InvalidSettings(f"{key}: {entry!r} is not NAME://host:port")
        name = match[1].upper()
        if name in found:
            raise InvalidSettings(f"{key}: {name} is there twice; each listener needs its own name")
        found[name] = Endpoint(name, match[2].strip("[]"), int(match[3]))
    return tuple(found.values())


def format_endpoints(endpoints: Iterable[Endpoint]) -> str:
    """What `parse_endpoints` reads."""
    return ",".join(map(str, endpoints))
