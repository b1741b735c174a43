"""What a SASL mechanism is to a log-in: an exchange of tokens, which ends in a user or in failure.

    exchange = mechanism()              # one for each log-in
    step = await exchange.step(token)   # a token of the client, until a step has a user

An exchange decides how many steps it has and refuses one more. Whatever is wrong with a token, or
with who sent it, is one AuthenticationFailed, whose text is for the log and never for the client.
"""

import random
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from diskless.sasl.scram_users import ScramUsers
from metadata.scram.credentials import ScramMechanism
from metadata.scram.server import ScramServer
from metadata.scram.text import InvalidScramMessage
from wal.errors import Rejected

_NONCE_BYTES: Final = 24


class AuthenticationFailed(Rejected):
    """A client is not who it says it is, or says nothing that makes sense."""


def _never() -> bool:
    return False


class Step(NamedTuple):
    """The answer to a token of the client."""

    token: bytes
    user: str | None = None
    """Who the client is; None: the exchange goes on."""
    ends_at_ms: int | None = None
    """Until when its proof is good, by the wall clock; None: for ever."""
    is_over: Callable[[], bool] = _never
    """Whether what was proven does not count any more."""
    refusal: AuthenticationFailed | None = None
    """The client has failed, and is told why in `token`. It has one more turn, in which it is told
    that it failed; many clients go away instead."""


class Exchange(Protocol):
    """One log-in by one mechanism."""

    async def step(self, token: bytes) -> Step:
        """Raises AuthenticationFailed."""
        ...


Mechanism = Callable[[], Exchange]


class ScramExchange:
    """SCRAM: two tokens, two HMACs."""

    def __init__(self, mechanism: ScramMechanism, users: ScramUsers, rng: random.Random) -> None:
        """`rng` is one that nobody can predict."""
        self._users = users
        self._server = ScramServer(
            mechanism,
            lambda user: users.credential(mechanism, user),
            rng.randbytes(_NONCE_BYTES).hex(),
        )

    async def step(self, token: bytes) -> Step:
        """See Exchange."""
        server = self._server
        try:
            if not server.has_begun:
                return Step(server.first(token))
            answer, user = server.final(token)
        except InvalidScramMessage as error:
            raise AuthenticationFailed(str(error)) from error
        credential = server.credential
        return Step(answer, user, is_over=lambda: self._users.is_over(user, credential))
