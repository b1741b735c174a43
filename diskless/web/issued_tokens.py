"""Short-lived tokens for the HTTP port, which a broker gives for a password.

    dsk_PAYLOAD.MAC      base64url; the payload is JSON: [user, end in ms since the epoch]

The MAC is HMAC-SHA-256, by a key that follows from the cluster's secret, over the payload and what
is stored of the user's password. So every broker of the cluster takes a token, nothing has to be
kept, and it is worth nothing once the password is changed or the user removed, within
`diskless.metadata.follow.interval.ms`.

Failure case: whatever is no good token is nobody's.
"""

import base64
import hmac
import json
from collections.abc import Callable, Sequence
from typing import Final

from diskless.sasl.scram_users import ScramUsers
from wal.clock import Clock

PREFIX: Final = "dsk_"
LENGTH_MAX: Final = 2_048
_MAC_TEXT: Final = 43


class IssuedTokens:
    """Gives tokens, and tells whose they are; no I/O."""

    def __init__(
        self,
        users: ScramUsers,
        keys: Callable[[], Sequence[bytes]],
        *,
        lifetime_ms: int,
        clock: Clock,
    ) -> None:
        """`keys`: those that count now, the one to issue by first."""
        self._users = users
        self._keys = keys
        self._clock = clock
        self.lifetime_ms: Final = lifetime_ms

    def issue(self, user: str) -> str:
        """A token of a user whose password was right."""
        content = json.dumps([user, self._clock.now_ms() + self.lifetime_ms]).encode()
        payload = _text(content)
        return f"{PREFIX}{payload}.{_text(self._mac(self._keys()[0], user, payload))}"

    def user_of(self, token: str) -> str | None:
        """Whose it is; None: nobody's, or it has ended."""
        payload, _, mac = token.removeprefix(PREFIX).partition(".")
        if not token.startswith(PREFIX) or len(token) > LENGTH_MAX or len(mac) != _MAC_TEXT:
            return None
        try:
            user, ends_at_ms = json.loads(base64.urlsafe_b64decode(payload + "=="))
            given = mac.encode("ascii")
        except (ValueError, TypeError, RecursionError):
            return None
        if not isinstance(user, str) or type(ends_at_ms) is not int:
            return None
        if not self._users.password_credential(user).is_known:
            return None
        is_right = [
            hmac.compare_digest(_text(self._mac(key, user, payload)).encode(), given)
            for key in self._keys()
        ]
        return user if any(is_right) and ends_at_ms > self._clock.now_ms() else None

    def _mac(self, key: bytes, user: str, payload: str) -> bytes:
        credential = self._users.password_credential(user).credential
        stored = credential.salt + credential.stored_key + credential.server_key
        return hmac.digest(key, payload.encode() + b"." + stored, "sha256")


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")
