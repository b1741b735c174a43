"""Access tokens as values: what is stored of one, and what is made and checked of it.

    dskt_ID_SECRET      ID: 16 hexadecimal digits; SECRET: 43 letters of base64url, 32 random bytes

Stored is the SHA-256 of the secret, which needs no salt: nobody guesses 32 bytes. Who makes a token
keeps it and sends the digest; no broker ever sees the token until it is used.
"""

import base64
import hashlib
import hmac
import random
import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from wal.wire.layouts import CompactBytes

PREFIX: Final = "dskt_"
_ID_BYTES: Final = 8
_SECRET_BYTES: Final = 32
_TEXT: Final = re.compile(rf"{PREFIX}(?P<id>[0-9a-f]{{16}})_(?P<secret>[\w-]{{43}})", re.ASCII)


class AccessToken(NamedTuple):
    """What is stored of a token."""

    token_id: str
    user: str
    digest: CompactBytes
    made_at_ms: int
    ends_at_ms: int


AccessTokens = Mapping[str, AccessToken]
"""By id."""


class AlterAccessToken(NamedTuple):
    """A token to be taken in or, where `is_revoked`, to go: then only its id counts."""

    token: AccessToken
    is_revoked: bool


class ListedTokens(NamedTuple):
    """Those of a user, or of all."""

    tokens: Sequence[AccessToken] = ()


def new_token(
    user: str, rng: random.Random, *, now_ms: int, ends_at_ms: int
) -> tuple[str, AccessToken]:
    """A token, and what is stored of it; `rng` is one that nobody can predict."""
    token_id = rng.randbytes(_ID_BYTES).hex()
    secret = base64.urlsafe_b64encode(rng.randbytes(_SECRET_BYTES)).rstrip(b"=").decode("ascii")
    stored = AccessToken(token_id, user, _digest(secret), now_ms, ends_at_ms)
    return f"{PREFIX}{token_id}_{secret}", stored


def user_of(text: str, known: AccessTokens, now_ms: int) -> str | None:
    """Whose token it is; None: nobody's, or it has ended."""
    match = _TEXT.fullmatch(text)
    stored = None if match is None else known.get(match["id"])
    if match is None or stored is None or stored.ends_at_ms <= now_ms:
        return None
    return stored.user if hmac.compare_digest(stored.digest, _digest(match["secret"])) else None


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("ascii")).digest()
