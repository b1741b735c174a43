"""Parses and prints HOST:PORT, as settings and options have it."""

from wal.errors import InvalidSettings


def parse_address(text: str, name: str) -> tuple[str, int]:
    """(host, port) of `HOST:PORT`. Raises InvalidSettings naming `name`."""
    host, separator, port = text.rpartition(":")
    if not separator or not host or not port.isdecimal() or int(port) > 65_535:
        raise InvalidSettings(f"{name}={text!r}: must be HOST:PORT")
    return host.strip("[]"), int(port)
