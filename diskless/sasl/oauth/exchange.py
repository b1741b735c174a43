"""OAUTHBEARER: one message with a token, and a second one if the token is refused.

    n,a=USER,^Aauth=Bearer TOKEN^A…^A^A     the client's; `a=` may be left out
    (empty)                                 it is logged in
    {"status":"invalid_token"}              it is not; the client answers ^A, and has failed

What is between `auth` and the end are extensions (KIP-342): keys and values that are well formed,
and that nothing here asks for. Every refused token has the same answer; why is in the log.

Source: RFC 7628, RFC 5801 for the first part, KIP-255 and KIP-768.
"""

import re
from collections.abc import Awaitable, Callable
from typing import Final

from diskless.sasl.mechanisms import AuthenticationFailed, Step
from diskless.sasl.oauth.tokens import TOKEN_BYTES_MAX, Bearer

INVALID_TOKEN: Final = b'{"status":"invalid_token"}'

_EXTENSIONS_BYTES_MAX: Final = 8 << 10
_FIRST: Final = re.compile(
    r"[ny],(?:a=(?P<user>[^,\x00\x01]+))?,\x01(?P<pairs>(?:[^\x01]+\x01)+)\x01"
)
_PAIR: Final = re.compile(r"(?P<key>[A-Za-z]+)=(?P<value>[\x20-\x7e\t\r\n]*)")
_BEARER: Final = re.compile(r"bearer +(?P<token>[-\w.~+/]+=*) *", re.IGNORECASE | re.ASCII)


class OAuthBearerExchange:
    """One log-in: one token, or two messages to be refused."""

    def __init__(self, bearer: Callable[[str], Awaitable[Bearer]]) -> None:
        """`bearer` tells whose a token is; TokenCheck's."""
        self._bearer = bearer
        self._is_over = False
        self._refusal: AuthenticationFailed | None = None

    async def step(self, token: bytes) -> Step:
        """See Exchange."""
        if self._refusal is not None:
            raise self._refusal
        if self._is_over:
            raise AuthenticationFailed("a second token")
        self._is_over = True
        authorization_id, text = parse_first(token)
        try:
            bearer = await self._bearer(text)
            if authorization_id not in ("", bearer.user):
                raise AuthenticationFailed("nobody may act as somebody else")
        except AuthenticationFailed as refusal:
            self._refusal = refusal
            return Step(INVALID_TOKEN, refusal=refusal)
        return Step(b"", bearer.user, bearer.ends_at_ms)


def parse_first(message: bytes) -> tuple[str, str]:
    """Who the client wants to act as, if it says so, and its token. Raises AuthenticationFailed."""
    if len(message) > TOKEN_BYTES_MAX + _EXTENSIONS_BYTES_MAX:
        raise AuthenticationFailed(f"an OAUTHBEARER message of {len(message)} bytes")
    try:
        match = _FIRST.fullmatch(message.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise AuthenticationFailed("no OAUTHBEARER message") from error
    if match is None:
        raise AuthenticationFailed("no OAUTHBEARER message")
    values: dict[str, str] = {}
    for text in match["pairs"].split("\x01")[:-1]:
        pair = _PAIR.fullmatch(text)
        if pair is None or pair["key"] in values:
            raise AuthenticationFailed("a malformed extension, or one that comes twice")
        values[pair["key"]] = pair["value"]
    bearer = _BEARER.fullmatch(values.get("auth", ""))
    if bearer is None:
        raise AuthenticationFailed("no bearer token")
    # RFC 5801 writes these two otherwise in a name.
    user = (match["user"] or "").replace("=2C", ",").replace("=3D", "=")
    return user, bearer["token"]
