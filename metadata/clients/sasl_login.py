"""How a client logs in on a new connection: SaslHandshake, then one or two SaslAuthenticate.

    log_in(login, address, ask, rng)      # ask: a request of these keys, to its answer
    log_in_by_salt(mechanism, user, password_of, …)     # the salt says which password is meant

It knows neither sockets nor frames. With SCRAM the broker must prove that it knows the password as
well, before anything else is sent to it. PBKDF2 runs in a thread.

The time after which a broker wants another log-in (KIP-368) is not looked at: a program that logs
in here has a connection for each call. A log-in says when it should be made anew on another
connection (IsStale); only that of a broker ever says so.

Failure cases: LoginRefused, in a line that says what was refused and where that was written;
CommitFailed for an answer that makes no sense, and what `ask` raises.

Source: https://kafka.apache.org/protocol, SaslHandshake version 1, SaslAuthenticate version 2;
RFC 4616 for PLAIN.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol

from metadata.scram.client import ScramClient
from metadata.scram.credentials import ScramMechanism
from metadata.scram.text import InvalidScramMessage, read_server_first
from wal.errors import CommitFailed, Rejected
from wal.security.client_login import ClientLogin, SaslMechanism
from wal.security.token_source import TokenSource, TokenUnavailable
from wal.wire.fields import INT16, NO_TAGS, FieldReader, compact_bytes

SASL_HANDSHAKE: Final = 17
SASL_AUTHENTICATE: Final = 36

_HANDSHAKE_VERSION: Final = 1
_AUTHENTICATE_VERSION: Final = 2
_UNSUPPORTED_MECHANISM: Final = 33
_ILLEGAL_STATE: Final = 34
_NONCE_BYTES: Final = 24
_SCRAM: Final = {mechanism.sasl_name: mechanism for mechanism in ScramMechanism}


class LoginRefused(Rejected):
    """A broker does not let this client in, or is not the one that it says it is."""


class Ask(Protocol):
    """Sends a request and gives its answer."""

    async def __call__(self, key: int, version: int, rest: bytes, /) -> bytes:
        """`rest` follows the client id; the answer is what follows the correlation id."""
        ...


IsStale = Callable[[], bool]
"""Whether the connection should be replaced by one with another log-in."""

PasswordOf = Callable[[bytes], Awaitable[str]]
"""The password that a salt stands for. Raises LoginRefused."""


class LogIn(Protocol):
    """`log_in` as somebody. Raises LoginRefused, CommitFailed."""

    async def __call__(self, address: str, ask: Ask, rng: random.Random, /) -> IsStale: ...


class _Who(NamedTuple):
    """Who logs in, and where that is written."""

    mechanism: str
    user: str
    source: str


async def log_in(login: ClientLogin, address: str, ask: Ask, rng: random.Random) -> IsStale:
    """Raises LoginRefused, CommitFailed."""
    who = _Who(login.mechanism, login.user, login.source)
    password = login.password.reveal()
    if login.tokens is not None:
        await _by_token(who, login.tokens, address, ask)
    elif login.mechanism is SaslMechanism.PLAIN:
        await _handshake(who, address, ask)
        await _authenticate(who, address, ask, f"\0{who.user}\0{password}".encode())
    else:

        async def always_that(_: bytes) -> str:
            return password

        await _scram(who, always_that, address, ask, rng)
    return _never


async def log_in_by_salt(
    mechanism: ScramMechanism,
    user: str,
    password_of: PasswordOf,
    source: str,
    address: str,
    ask: Ask,
    rng: random.Random,
) -> bytes:
    """A SCRAM log-in of a user with several passwords, each with its salt. Returns that salt.

    Raises LoginRefused, CommitFailed, and what `password_of` raises.
    """
    return await _scram(_Who(mechanism.sasl_name, user, source), password_of, address, ask, rng)


def _never() -> bool:
    return False


async def _scram(
    who: _Who, password_of: PasswordOf, address: str, ask: Ask, rng: random.Random
) -> bytes:
    await _handshake(who, address, ask)
    nonce = rng.randbytes(_NONCE_BYTES).hex()
    challenge = await _authenticate(who, address, ask, ScramClient.opening(who.user, nonce))
    try:
        salt = read_server_first(challenge).salt
        exchange = ScramClient(_SCRAM[who.mechanism], who.user, await password_of(salt), nonce)
        proof = await asyncio.to_thread(exchange.final, challenge)
        exchange.verify(await _authenticate(who, address, ask, proof))
    except InvalidScramMessage as error:
        raise LoginRefused(
            f"{address} does not prove that it knows the password of {who.user} in "
            f"{who.source}: {error}"
        ) from error
    return salt


async def _by_token(who: _Who, tokens: TokenSource, address: str, ask: Ask) -> None:
    try:
        token = await asyncio.to_thread(tokens.token)
    except TokenUnavailable as error:
        raise LoginRefused(f"no token to log in with at {address}: {error}") from error
    await _handshake(who, address, ask)
    message = f"n,,\x01auth=Bearer {token}\x01\x01".encode()
    if await _authenticate(who, address, ask, message):
        # What it says of a refused token; the error itself comes when that was taken note of.
        await _authenticate(who, address, ask, b"\x01")
        raise LoginRefused(f"{address} refused the token of {who.user}; see {who.source}")


async def _handshake(login: _Who, address: str, ask: Ask) -> None:
    name = login.mechanism.encode()
    answer = await ask(SASL_HANDSHAKE, _HANDSHAKE_VERSION, INT16.pack(len(name)) + name)
    reader = FieldReader(answer, f"{address}: the answer to SaslHandshake", CommitFailed)
    code = reader.int16()
    served = [_string(reader) for _ in range(reader.int32())]
    if code == _UNSUPPORTED_MECHANISM:
        raise LoginRefused(
            f"{address} does not take {login.mechanism}, but {', '.join(served)}; write "
            f"sasl.mechanism={served[0] if served else '…'} in {login.source}"
        )
    if code == _ILLEGAL_STATE:
        raise LoginRefused(
            f"{address} has no log-in on that listener; write security.protocol=SSL or PLAINTEXT "
            f"in {login.source}, or another port"
        )
    if code:
        raise CommitFailed(f"{address}: error {code} of SaslHandshake")


async def _authenticate(login: _Who, address: str, ask: Ask, token: bytes) -> bytes:
    """The broker's token."""
    rest = b"".join((NO_TAGS, compact_bytes(token), NO_TAGS))
    answer = await ask(SASL_AUTHENTICATE, _AUTHENTICATE_VERSION, rest)
    reader = FieldReader(answer, f"{address}: the answer to SaslAuthenticate", CommitFailed)
    reader.skip_tags()
    code, message = reader.int16(), reader.nullable_string()
    if code:
        hint = "the name and the password in {}, and `diskless user list`"
        if login.mechanism == SaslMechanism.OAUTHBEARER:
            hint = "issuer, audience and time of the token that {} names, and the broker's log"
        raise LoginRefused(
            f"{address} refused {login.user} by {login.mechanism}: {message or f'error {code}'}; "
            f"see {hint.format(login.source)}"
        )
    return reader.compact_bytes()


def _string(reader: FieldReader) -> str:
    return reader.raw(max(reader.int16(), 0)).decode(errors="replace")
