"""Asks a running broker what the `diskless token` commands want."""

import random
from collections.abc import Sequence

from metadata.access_tokens import AccessToken, AlterAccessToken, new_token
from tiering.coordinator_client import CoordinatorClient
from wal.clock import Clock
from wal.security.client_security import ClientSecurity


class TokenClient:
    """Tokens of one cluster. Raises what a broker says, CommitFailed, LoginRefused."""

    def __init__(self, bootstrap: str, security: ClientSecurity) -> None:
        self._brokers = CoordinatorClient(bootstrap, security)

    def create(self, user: str, lifetime_ms: int, clock: Clock, rng: random.Random) -> str:
        """The token, which nobody can be told again."""
        now_ms = clock.now_ms()
        text, token = new_token(user, rng, now_ms=now_ms, ends_at_ms=now_ms + lifetime_ms)
        self._alter([AlterAccessToken(token, is_revoked=False)])
        return text

    def tokens(self, user: str = "") -> Sequence[AccessToken]:
        """Those of the user, or of all."""
        return self._brokers.list_access_tokens(user)

    def revoke(self, tokens: Sequence[AccessToken]) -> None:
        self._alter([AlterAccessToken(token, is_revoked=True) for token in tokens])

    def _alter(self, requests: Sequence[AlterAccessToken]) -> None:
        for error in self._brokers.alter_access_tokens(requests):
            if error is not None:
                raise error
