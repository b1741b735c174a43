"""Writes into an answer that was encoded already how long its client has to be quiet.

A quota is known to be exceeded when the answer is there, so the field is overwritten in place. Most
answers begin with it, Produce ends with it. Others do not have it where it could be found: their
clients are not told, and wait all the same.
"""

from dataclasses import fields
from functools import cache

from kio.index import load_response_schema

from diskless.ports import Buffer
from wal.wire.fields import INT32

_PRODUCE = 0
_PRIVATE_FROM = 10_000
"""Keys that are not Kafka's; their answers have no such field."""


def with_throttle_time(
    api_key: int, version: int, reply: list[Buffer], throttle_ms: int, *, flexible: bool
) -> list[Buffer]:
    """Returns `reply`, which says so where it can."""
    told = INT32.pack(throttle_ms)
    if api_key == _PRODUCE:
        *before, last = reply
        # An answer of the flexible versions ends with its tagged fields, of which there are none.
        end = len(last) - (1 if flexible else 0)
        start = end - INT32.size
        return [*before, b"".join((bytes(last[:start]), told, bytes(last[end:])))]
    if not _begins_with_it(api_key, version) or not reply or len(reply[0]) < INT32.size:
        return reply
    return [told + bytes(reply[0])[INT32.size :], *reply[1:]]


@cache
def _begins_with_it(api_key: int, version: int) -> bool:
    if api_key >= _PRIVATE_FROM:
        return False
    return fields(load_response_schema(api_key, version))[0].name == "throttle_time"
