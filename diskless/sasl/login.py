"""The log-in of one connection: requests in, answers out, no socket.

    new ──SaslHandshake──> chosen ──SaslAuthenticate, once or twice──> done ──SaslHandshake──> …

Before it is done, nothing but ApiVersions, SaslHandshake and SaslAuthenticate is served or even
received (`check`), no request longer than `sasl.server.max.receive.size`, and no more of them than
REQUESTS_MAX. It has LOGIN_MAX_S in all, from when it is heard (`begin`). A client that fails is
told so, in one text for all causes, after a delay by its address (`diskless.sasl.failure_delay`),
and has failed for good: the connection is closed. A mechanism may tell it in a message of its own
first; that counts as the failure, whatever the client does next.

Re-authentication (KIP-368): with `connections.max.reauth.ms`, and where a token ends, a session
has a lifetime that the client is told. When it is over, only another log-in is served. It may not
change who the client is, nor the mechanism. A session whose proof does not count any more (a secret
of the brokers that was rotated away) is over in the same way.

Invariants: who a client is comes from here alone; one token is looked at at a time (`is_busy`), and
nothing else of the connection meanwhile; a cancelled step leaves the log-in failed.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

import structlog

from diskless.logs import Pace
from diskless.protocol.wire import ProtocolError
from diskless.sasl.failure_delay import Delays
from diskless.sasl.mechanisms import AuthenticationFailed, Exchange, Mechanism, Step
from wal.clock import Clock, Sleep
from wal.errors import DisklessError

LOGIN_MAX_S: Final = 10.0
REQUESTS_MAX: Final = 20
"""Of one log-in; clients need three to six."""

API_VERSIONS: Final = 18
SASL_HANDSHAKE: Final = 17
SASL_AUTHENTICATE: Final = 36
_BEFORE: Final = frozenset({API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE})

FAILED_TEXT: Final = "Authentication failed: invalid credentials"
"""All that a client is told."""

_log = structlog.get_logger(__name__)


class _State(Enum):
    NEW = auto()
    CHOSEN = auto()
    DONE = auto()
    FAILED = auto()


class LoginError(Enum):
    """What a request is answered with, in place of what it asked for."""

    UNSUPPORTED_MECHANISM = auto()
    ILLEGAL_STATE = auto()
    FAILED = auto()


class Handshaken(NamedTuple):
    """The answer to SaslHandshake."""

    mechanisms: Sequence[str]
    error: LoginError | None = None


class Authenticated(NamedTuple):
    """The answer to SaslAuthenticate."""

    token: bytes = b""
    lifetime_ms: int = 0
    """Until the client must log in again; 0: never, or it is not logged in yet."""
    error: LoginError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginRules:
    """What all log-ins on one listener have in common."""

    mechanisms: Mapping[str, Mechanism]
    max_reauth_ms: int
    lasting: Collection[str] = ()
    """Users for whom `max_reauth_ms` does not count."""
    receive_max_bytes: int
    delay: Delays
    clock: Clock
    sleep: Sleep
    ended: Callable[[str, str], None] = lambda mechanism, result: None
    """Told of each attempt, for the metrics: `success` or `failure`."""
    failures: Pace

    def login(
        self,
        host: str,
        done: Callable[[str | None], None],
        failed: Callable[[], None] = lambda: None,
        held_back: Callable[[float], None] = lambda seconds: None,
    ) -> "Login":
        """The log-in of a connection of `host`.

        `done` is told the user's name, each time, or None: when that is answered there is nothing
        left but to close the connection. `failed` is called once, as soon as that is certain, and
        `held_back` with the seconds until it is answered.
        """
        return Login(self, host, done, failed, held_back)


class Login:
    """One connection's; see the module."""

    def __init__(
        self,
        rules: LoginRules,
        host: str,
        done: Callable[[str | None], None],
        failed: Callable[[], None],
        held_back: Callable[[float], None],
    ) -> None:
        self._rules = rules
        self._host = host
        self._done = done
        self._note_failure = failed
        self._held_back = held_back
        self._is_refused = False
        """Whether the mechanism has told the client that it failed."""
        self._state = _State.NEW
        self._began_at = rules.clock.monotonic()
        self._requests = 0
        """Until it was done."""
        self._mechanism = ""
        self._exchange: Exchange | None = None
        self._expires_at: float | None = None
        """By the monotonic clock; None: never."""
        self._is_over: Callable[[], bool] = lambda: False
        """Whether what the client has proven does not count any more."""
        self.user: str | None = None
        """None: nobody yet."""
        self.is_busy = False
        """Whether a token is being looked at."""

    @property
    def mechanism(self) -> str:
        """What the client has chosen; empty: nothing yet."""
        return self._mechanism

    def begin(self, delay_s: float) -> None:
        """The connection is made, and read from after `delay_s`, if that is positive.

        Until then the client waited for its turn, which is no time of its own.
        """
        self._began_at = self._rules.clock.monotonic() + max(delay_s, 0.0)

    def is_overdue(self, now: float) -> bool:
        """Whether the client should have logged in by now."""
        return self.user is None and now - self._began_at > LOGIN_MAX_S

    def check(self, api_key: int, length: int) -> None:
        """Refuse a request by the first bytes of its frame. Raises ProtocolError."""
        if self._state is _State.DONE and not self._is_expired():
            return
        if self._state is _State.FAILED:
            raise ProtocolError("a request after a failed log-in")
        if api_key not in _BEFORE:
            raise ProtocolError(f"API key {api_key} of a client that is not logged in")
        if length > self._rules.receive_max_bytes:
            raise ProtocolError(f"{length} bytes of a client that is not logged in")
        if self.user is None:
            self._requests += 1
            if self._requests > REQUESTS_MAX:
                raise ProtocolError(f"more than {REQUESTS_MAX} requests before a log-in")

    def handshake(self, mechanism: str) -> Handshaken:
        """Begin to log in, for the first time or again."""
        served = tuple(self._rules.mechanisms)
        again = self._state is _State.DONE
        if self._state is not _State.NEW and not (again and self._expires_at is not None):
            if not again:
                self._give_up()
            return Handshaken(served, LoginError.ILLEGAL_STATE)
        if mechanism not in self._rules.mechanisms:
            self._give_up()
            return Handshaken(served, LoginError.UNSUPPORTED_MECHANISM)
        if again and mechanism != self._mechanism:
            self._give_up()
            return Handshaken(served, LoginError.ILLEGAL_STATE)
        self._state = _State.CHOSEN
        self._mechanism = mechanism
        self._exchange = self._rules.mechanisms[mechanism]()
        return Handshaken(served)

    async def authenticate(self, token: bytes) -> Authenticated:
        """Take the next token of the client."""
        exchange = self._exchange
        if self._state is not _State.CHOSEN or exchange is None or self.is_busy:
            if self._state is not _State.DONE:
                self._give_up()
            return Authenticated(error=LoginError.ILLEGAL_STATE)
        self.is_busy = True
        self._state = _State.FAILED  # until the token was right
        try:
            try:
                step = await exchange.step(token)
                if step.refusal is not None:
                    self._is_refused = True
                    self._note_failure()
                    await self._failed(step.refusal)
                if step.user is None:
                    self._state = _State.CHOSEN
                    return Authenticated(step.token)
                return self._logged_in(step.user, step)
            except DisklessError as error:
                is_new = not self._is_refused
                self._give_up()
                if is_new:
                    await self._failed(error)
                return Authenticated(error=LoginError.FAILED)
        finally:
            self.is_busy = False

    def _logged_in(self, user: str, step: Step) -> Authenticated:
        """Raises AuthenticationFailed."""
        rules = self._rules
        if self.user is not None and user != self.user:
            raise AuthenticationFailed("somebody else than before on this connection")
        limited = rules.max_reauth_ms and user not in rules.lasting
        lifetimes = [rules.max_reauth_ms] if limited else []
        if step.ends_at_ms is not None:
            lifetimes.append(step.ends_at_ms - rules.clock.now_ms())
        lifetime_ms = min(lifetimes, default=0)
        if lifetimes and lifetime_ms <= 0:
            raise AuthenticationFailed("a token that has ended")
        self._expires_at = rules.clock.monotonic() + lifetime_ms / 1000 if lifetimes else None
        self._is_over = step.is_over
        self._exchange = None
        self._state = _State.DONE
        self.user = user
        rules.delay.succeeded(self._host)
        rules.ended(self._mechanism, "success")
        self._done(user)
        return Authenticated(step.token, lifetime_ms)

    def _give_up(self) -> None:
        self._state = _State.FAILED
        if not self._is_refused:
            self._note_failure()
        self._done(None)

    async def _failed(self, error: DisklessError) -> None:
        rules = self._rules
        rules.ended(self._mechanism, "failure")
        suppressed = rules.failures.take_turn(rules.clock.monotonic())
        if suppressed is not None:
            _log.warning(
                "log-in failed",
                mechanism=self._mechanism,
                host=self._host,
                cause=str(error),
                suppressed=suppressed,
            )
        delay_s = await rules.delay.hold_back(self._host)
        self._held_back(delay_s)
        await rules.sleep(delay_s)

    def _is_expired(self) -> bool:
        if self._is_over():
            return True
        return self._expires_at is not None and self._rules.clock.monotonic() > self._expires_at
