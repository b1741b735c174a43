"""Parses HOST:PORT, as settings and options have it, and binds sockets to it."""

import socket

from wal.errors import InvalidSettings


def parse_address(text: str, name: str) -> tuple[str, int]:
    """(host, port) of `HOST:PORT`. Raises InvalidSettings naming `name`."""
    host, separator, port = text.rpartition(":")
    if not separator or not host or not port.isdecimal() or int(port) > 65_535:
        raise InvalidSettings(f"{name}={text!r}: must be HOST:PORT")
    return host.strip("[]"), int(port)


def bound_socket(host: str, port: int, *, prefers_ipv4: bool = False) -> socket.socket:
    """A socket that has this address and refuses connections until it listens.

    Port 0 takes a free one. Where a name has several addresses, it is the system's first, or an
    IPv4 one. Raises: OSError.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    chosen = min(found, key=lambda one: one[0]) if prefers_ipv4 else found[0]
    family, kind, protocol, _, address = chosen
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setblocking(False)
        bound.bind(address)
    except BaseException:
        bound.close()
        raise
    return bound
