"""Serves Fetch under consumer_byte_rate quotas: api/records/fetch.py, measured and held back.

- A client that has to wait for what it was sent before is answered at once, with nothing and with
  throttle_time_ms: an empty response to a full fetch, as Kafka gives it. A request in a fetch
  session is served all the same, since answering past the session would end it; it is muted then
  like any other, and longer.
- An answer has at most what the quota allows for now, or a window's worth, but at least a whole
  batch. Kafka reads first, and throws away what is too much; a quota below the size of a batch then
  starves its consumer.
- The whole answer counts, when it is there. If it is more than the quota allows, throttle_time_ms
  says for how long the connection is mute, beside the data.
"""

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Final

from diskless.loop.long_work import Steps
from diskless.protocol.wire import Reader, array_count
from diskless.quotas.quotas import QuotaEnforcer
from diskless.server.registry import Api, Deferred, Outcome, Reply, ReplySteps, Request
from wal.wire.fields import INT16, INT32, NO_TAGS

_ALL: Final = 2**31 - 1
_SESSIONS_FROM: Final = 7
_NO_REPLICA_FROM: Final = 15
_LIMITS_BYTES: Final = 3 * 4 + 1
"""Max wait, min bytes, max bytes and isolation level, which stand before the session."""
_NO_SESSION: Final = 0


def throttled(api: Api, quotas: QuotaEnforcer) -> Api:
    """`api`, which is Fetch, under `quotas`."""

    def handle(request: Request) -> Steps[Outcome]:
        until, allowed = quotas.may_fetch(request.client, _ALL)
        if until and not _is_in_session(request):
            request.mute(until)
            return [_nothing(api, request.version, quotas.left_ms(until))]
        if allowed < _ALL:
            request.reserve = _limited(request.reserve, allowed)
        called = api.handler(request)
        outcome = (yield from called) if isinstance(called, Generator) else called
        if isinstance(outcome, Deferred):
            encode = outcome.encode
            return outcome._replace(encode=lambda result: measured(request, encode(result)))
        return outcome

    def measured(request: Request, encoded: Reply | Steps[Reply]) -> ReplySteps:
        reply = (yield from encoded) if isinstance(encoded, Generator) else encoded
        if reply is None:
            return reply
        until = quotas.fetched(request.client, sum(map(len, reply)))
        if not until:
            return reply
        request.mute(until)
        # The throttle time is the first field of the answer, in every version.
        start = INT32.pack(quotas.left_ms(until)) + bytes(reply[0])[INT32.size :]
        return [start, *reply[1:]]

    return replace(api, handler=handle)


def _is_in_session(request: Request) -> bool:
    """Raises ProtocolError."""
    if request.version < _SESSIONS_FROM:
        return False
    reader = Reader([request.body])
    if request.version < _NO_REPLICA_FROM:
        reader.int32()
    reader.pass_over(_LIMITS_BYTES)
    return reader.int32() != _NO_SESSION


def _nothing(api: Api, version: int, throttle_ms: int) -> bytes:
    """A response without topics."""
    fields = [INT32.pack(throttle_ms)]
    if version >= _SESSIONS_FROM:
        fields += (INT16.pack(0), INT32.pack(_NO_SESSION))
    flexible = api.is_flexible(version)
    fields.append(array_count(0, flexible=flexible))
    if flexible:
        fields.append(NO_TAGS)
    return b"".join(fields)


def _limited(reserve: Callable[[int], int], most: int) -> Callable[[int], int]:
    return lambda wanted: reserve(min(wanted, most))
