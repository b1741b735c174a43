"""PLAIN: a name and a password, checked against the user's SCRAM credential.

A check costs the PBKDF2 of that credential, milliseconds, so it runs in a thread, two at a time.
What was found right is remembered for five minutes: under an HMAC of the password with a key of
this process, and together with the credential it was checked against. A user whose password is
changed, or who is removed, has another credential or none, and what was remembered is of no use.
A wrong password is never remembered, and costs as much for a user that there is not.

Source: RFC 4616.
"""

import functools
import hmac
import random
from collections import OrderedDict
from typing import Final

from diskless.sasl.mechanisms import AuthenticationFailed, Step
from diskless.sasl.scram_users import FoundCredential, ScramUsers
from metadata.scram.credentials import is_password_of
from wal.clock import Clock
from wal.worker_threads import RunInThread

REMEMBERED_S: Final = 300.0
REMEMBERED_MAX: Final = 10_000
PASSWORD_BYTES_MAX: Final = 1_024
_KEY_BYTES: Final = 32


class PasswordCheck:
    """Checks passwords of users; one for all listeners of a broker."""

    def __init__(
        self, users: ScramUsers, *, run: RunInThread, clock: Clock, rng: random.Random
    ) -> None:
        """`rng` is one that nobody can predict."""
        self._users = users
        self._run = run
        self._clock = clock
        self._key = rng.randbytes(_KEY_BYTES)
        self._right: OrderedDict[tuple[str, FoundCredential, bytes], float] = OrderedDict()
        """Until when each is known to be right."""

    async def is_right(self, user: str, password: str) -> bool:
        """Whether it is the password of the user, as far as this broker's catalogue goes."""
        found = self._users.password_credential(user)
        digest = hmac.digest(self._key, password.encode(), "sha256")
        key = (user, found, digest)
        now = self._clock.monotonic()
        if self._right.get(key, now) > now:
            return True
        is_right = await self._run(
            functools.partial(is_password_of, found.mechanism, found.credential, password)
        )
        if not is_right or not found.is_known:
            return False
        self._right[key] = self._clock.monotonic() + REMEMBERED_S
        self._right.move_to_end(key)
        if len(self._right) > REMEMBERED_MAX:
            self._right.popitem(last=False)
        return True


class PlainExchange:
    """PLAIN: one token."""

    def __init__(self, check: PasswordCheck) -> None:
        self._check = check
        self._is_over = False

    async def step(self, token: bytes) -> Step:
        """See Exchange."""
        if self._is_over:
            raise AuthenticationFailed("a second token")
        self._is_over = True
        try:
            authorization_id, user, password = token.decode("utf-8").split("\0")
        except ValueError as error:
            raise AuthenticationFailed("no PLAIN token") from error
        if authorization_id not in ("", user):
            raise AuthenticationFailed("nobody may act as somebody else")
        if not user or not password or len(password.encode()) > PASSWORD_BYTES_MAX:
            raise AuthenticationFailed("no name, no password, or one that is too long")
        if not await self._check.is_right(user, password):
            raise AuthenticationFailed("a wrong password, or an unknown user")
        return Step(b"", user)
