"""Whether a token is good, and whose it is.

A token is a JWT (RFC 7519), signed by a key of the authorization server (`token_keys`). It is good
when its signature is right, it is of the expected issuer and for the expected audience, its time
has come and is not over, give or take the clock skew, and it names a user. How it is checked is
said by the key: of the token only its key's name and one of that key's algorithms count. A token
that brings a key along is refused; URLs in it are not followed.

A name that begins with `__` is refused: those are the brokers'.

Signatures take a tenth of a millisecond and more, and a token is as long as its sender likes, up to
TOKEN_BYTES_MAX; so a token is looked at in a thread.

Failure case: AuthenticationFailed, with a cause for the log.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import jwt

from diskless.sasl.mechanisms import AuthenticationFailed
from diskless.sasl.oauth.oauth_settings import AUDIENCE, ISSUER, JWKS_URL, OAuthSettings
from diskless.sasl.oauth.token_keys import ALGORITHMS, TokenKey, TokenKeys
from wal.clock import Clock
from wal.errors import InvalidSettings
from wal.worker_threads import RunInThread

TOKEN_BYTES_MAX: Final = 32 << 10
USER_LENGTH_MAX: Final = 255
_RESERVED: Final = "__"
_KEYS_IN_TOKENS: Final = frozenset({"jwk", "x5c"})


class Bearer(NamedTuple):
    """Who a token stands for."""

    user: str
    ends_at_ms: int
    """By the wall clock."""


class TokenCheck:
    """Checks tokens of one authorization server; one for a broker."""

    def __init__(
        self, settings: OAuthSettings, keys: TokenKeys, *, run: RunInThread, clock: Clock
    ) -> None:
        """Raises InvalidSettings."""
        self._audience = [one.strip() for one in settings.audience.split(",") if one.strip()]
        for value, key in ((settings.issuer, ISSUER), (self._audience, AUDIENCE)):
            if not value:
                raise InvalidSettings(
                    f"{JWKS_URL} is set and {key} is empty: a token that was made for somebody "
                    f"else would do; write {key}=…"
                )
        self._settings = settings
        self._keys = keys
        self._run = run
        self._clock = clock

    async def bearer(self, token: str) -> Bearer:
        """Raises AuthenticationFailed."""
        if len(token) > TOKEN_BYTES_MAX:
            raise AuthenticationFailed(f"a token of {len(token)} bytes")
        key_id, algorithm = await self._run(functools.partial(_signed_by, token))
        key = await self._keys.find(key_id, algorithm)
        if key is None:
            raise AuthenticationFailed(f"no key {key_id[:80]!r} for {algorithm} is known")
        claims = await self._run(functools.partial(self._claims, token, algorithm, key))
        ends_at_s = self._end(claims)
        self._check_scopes(claims.get(self._settings.scope_claim))
        return Bearer(self._user(claims), int(ends_at_s * 1000))

    def _claims(self, token: str, algorithm: str, key: TokenKey) -> Mapping[str, Any]:
        try:
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key.key,
                algorithms=[algorithm],
                audience=self._audience,
                issuer=self._settings.issuer,
                # Times are checked below, by this broker's clock; the user by the claim it is in.
                options={
                    "require": ["exp", "iss", "aud"],
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                    "verify_sub": False,
                    "verify_jti": False,
                },
            )
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            raise AuthenticationFailed(f"a bad token: {error}") from error
        return claims

    def _end(self, claims: Mapping[str, Any]) -> float:
        now_s, skew_s = self._clock.now_ms() / 1000, self._settings.clock_skew_s
        for claim in ("nbf", "iat"):
            if claim in claims and _seconds(claims, claim) > now_s + skew_s:
                raise AuthenticationFailed(f"a token before its time: {claim}={claims[claim]}")
        ends_at_s = _seconds(claims, "exp")
        if ends_at_s + skew_s <= now_s:
            raise AuthenticationFailed(f"a token that has ended: exp={claims['exp']}")
        # One that has ended by our clock alone is good until the skew is over.
        return ends_at_s if ends_at_s > now_s else ends_at_s + skew_s

    def _check_scopes(self, scopes: Any) -> None:
        """As Kafka does: there may be none, but what there is makes sense."""
        if scopes is None or isinstance(scopes, str):
            return
        if not isinstance(scopes, list) or not all(
            isinstance(scope, str) and scope.strip() for scope in scopes
        ):
            raise AuthenticationFailed("scopes that are no texts")
        if len(set(scopes)) != len(scopes):
            raise AuthenticationFailed("a scope that comes twice")

    def _user(self, claims: Mapping[str, Any]) -> str:
        claim = self._settings.user_claim
        user = claims.get(claim)
        if not isinstance(user, str) or not user.strip() or not user.isprintable():
            raise AuthenticationFailed(f"no name of a user in {claim}")
        if len(user) > USER_LENGTH_MAX or user.startswith(_RESERVED):
            raise AuthenticationFailed(f"a name in {claim} that no user can have")
        return user


def _signed_by(token: str) -> tuple[str, str]:
    """The name of the key, empty for none, and the algorithm. Raises AuthenticationFailed."""
    try:
        if token.count(".") != 2:
            raise AuthenticationFailed("a token that is not signed, or is encrypted")
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
        raise AuthenticationFailed(f"no token: {error}") from error
    if _KEYS_IN_TOKENS & header.keys():
        raise AuthenticationFailed("a token that brings a key along")
    algorithm = header.get("alg")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise AuthenticationFailed("a token that is not signed by the key of a pair")
    key_id = header.get("kid", "")
    if not isinstance(key_id, str):
        raise AuthenticationFailed("a key whose name is no text")
    return key_id, algorithm


def _seconds(claims: Mapping[str, Any], claim: str) -> float:
    value = claims[claim]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise AuthenticationFailed(f"{claim} is no time")
    if not 0 < value < 2**43:
        raise AuthenticationFailed(f"{claim} is no time")
    return float(value)
