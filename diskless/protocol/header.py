"""The frame around every request and response.

    frame    = int32 length, then that many bytes
    request  = api key, api version, correlation id, client id [, tagged fields], body
    response = correlation id [, tagged fields], body

Request header v1 goes with non-flexible versions, v2 (with tagged fields) with flexible ones; the
client id stays a string with a 16-bit length in both. Response header v0 and v1 go along, with one
exception that the caller knows: ApiVersions always answers under v0.
"""

from struct import Struct
from typing import Final

from diskless.protocol.wire import Reader
from wal.wire.fields import NO_TAGS

FRAME_START: Final = Struct(">ihh")
"""Frame length, api key, api version: all that is needed to refuse a frame before its body."""
assert FRAME_START.size == 8

FRAME_LENGTH_BYTES: Final = 4

FRAME_BYTES_MIN: Final = 10
"""Key, version, correlation id and a null client id."""

_CORRELATION_AND_LENGTH: Final = Struct(">ih")
"""Correlation id, and the length of the client id behind it; -1 for null."""

_RESPONSE_START: Final = Struct(">ii")


def read_request_header(reader: Reader, *, flexible: bool) -> tuple[int, str]:
    """Reads what follows key and version: correlation id, client id (empty for null).

    Raises ProtocolError.
    """
    correlation_id, length = reader.unpack(_CORRELATION_AND_LENGTH)
    client_id = reader.text(length) or ""
    if flexible:
        reader.skip_tags()
    return correlation_id, client_id


def response_start(correlation_id: int, body_bytes: int, *, flexible: bool) -> bytes:
    """Frame length and response header for a body of `body_bytes`."""
    if flexible:
        return _RESPONSE_START.pack(body_bytes + 5, correlation_id) + NO_TAGS
    return _RESPONSE_START.pack(body_bytes + 4, correlation_id)
