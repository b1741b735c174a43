"""Who somebody is on the HTTP port, and tokens for those who have a password.

A request is of the one whose token it brings (`Authorization: Bearer …`): one that was granted here
(`issued_tokens`), one of the catalogue (`metadata.access_tokens`, `diskless token create`), or one
of the authorization server (`diskless.sasl.oauth`). Without a token it is
of the one whose certificate the connection showed. With neither it is nobody's.

`POST /v1/oauth/tokens` grants a token for a user's name and password, as the client_credentials
grant of RFC 6749, with name and password in the form or in the Authorization header: Iceberg's REST
clients ask so. It is served where nobody on the way can read along.

Names that begin with `__` are the brokers', and nobody's here.

The audit log has every token that is granted for a password, and every refusal. A request that
brings a good token is no log-in.

Failure case: what is refused is answered in one way for all causes, later and later for the same
address (`diskless.sasl.failure_delay`); the log has the cause, a line a second at most. While as
many as may are held back, a password of that address is not looked at: 429.
"""

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs, unquote_plus

import structlog

from diskless.audit.audit_log import SessionAudit
from diskless.health.http_server import HttpAnswer, HttpRequest
from diskless.listeners.certificate_names import PrincipalRules, subject_text
from diskless.logs import Pace
from diskless.ports import ANONYMOUS, ClientInfo
from diskless.sasl.failure_delay import FailureDelay
from diskless.sasl.mechanisms import AuthenticationFailed
from diskless.sasl.oauth.tokens import TokenCheck
from diskless.sasl.plain import PASSWORD_BYTES_MAX, PasswordCheck
from diskless.web.issued_tokens import PREFIX, IssuedTokens
from metadata import access_tokens
from metadata.access_tokens import AccessTokens
from wal.clock import Clock, Sleep
from wal.errors import DisklessError

HTTP: Final = "HTTP"
"""The name of the port among the listeners."""

_RESERVED: Final = "__"
_JSON: Final = "application/json"

_log = structlog.get_logger(__name__)


class HttpLogins:
    """Those of one broker; on its event loop."""

    def __init__(
        self,
        *,
        passwords: PasswordCheck,
        issued: IssuedTokens,
        tokens: TokenCheck | None,
        stored: Callable[[], AccessTokens],
        certificates: PrincipalRules | None,
        delay: FailureDelay,
        audit: SessionAudit,
        clock: Clock,
        sleep: Sleep,
    ) -> None:
        self._passwords = passwords
        self._issued = issued
        self._tokens = tokens
        self._stored = stored
        self._certificates = certificates
        self._delay = delay
        self._audit = audit
        self._clock = clock
        self._sleep = sleep
        self._failures = Pace()

    async def client(self, request: HttpRequest) -> ClientInfo | None:
        """Who asks; None: nobody who is known."""
        try:
            user = await self._user(request)
        except DisklessError as error:
            await self._failed(request.peer, error)
            return None
        if user is None or user.startswith(_RESERVED):
            return None
        return _client(request.peer, user)

    async def _user(self, request: HttpRequest) -> str | None:
        """Raises AuthenticationFailed, ValueError for a certificate."""
        kind, _, token = request.authorization.partition(" ")
        token = token.strip()
        if request.authorization:
            if kind.lower() != "bearer" or not token:
                raise AuthenticationFailed("an Authorization header without a bearer token")
            return await self._bearer(token)
        if request.certificate is None or self._certificates is None:
            return None
        try:
            return self._certificates.name(subject_text(request.certificate))
        except ValueError as error:
            raise AuthenticationFailed(f"its certificate: {error}") from error

    async def _bearer(self, token: str) -> str:
        if token.startswith((PREFIX, access_tokens.PREFIX)):
            now_ms = self._clock.now_ms()
            user = self._issued.user_of(token) or access_tokens.user_of(
                token, self._stored(), now_ms
            )
            if user is None:
                raise AuthenticationFailed("a token that has ended, or never was one")
            return user
        if self._tokens is None:
            raise AuthenticationFailed("a token, and no authorization server is configured")
        return (await self._tokens.bearer(token)).user

    async def grant(self, request: HttpRequest) -> HttpAnswer:
        """The answer to `POST /v1/oauth/tokens`."""
        try:
            form = parse_qs(request.body.decode("ascii"), max_num_fields=20)
            credentials = _credentials(form, request.authorization)
        except ValueError:
            return _error(HTTPStatus.BAD_REQUEST, "invalid_request")
        if form.get("grant_type") != ["client_credentials"]:
            return _error(HTTPStatus.BAD_REQUEST, "unsupported_grant_type")
        if self._delay.is_at_limit(request.peer):
            return _error(HTTPStatus.TOO_MANY_REQUESTS, "slow_down")
        user = await self._right_one(credentials)
        if user is None:
            await self._failed(
                request.peer, AuthenticationFailed("a wrong password, or an unknown user")
            )
            return _error(HTTPStatus.UNAUTHORIZED, "invalid_client")
        self._delay.succeeded(request.peer)
        self._audit.logged_in(_client(request.peer, user), HTTP, is_again=False)
        answer = {
            "access_token": self._issued.issue(user),
            "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
            "token_type": "bearer",
            "expires_in": self._issued.lifetime_ms // 1_000,
        }
        return HttpAnswer(HTTPStatus.OK, json.dumps(answer).encode(), _JSON)

    async def _right_one(self, credentials: Sequence[tuple[str, str]]) -> str | None:
        """The user of the first pair that is right."""
        for user, password in credentials:
            is_possible = user and password and len(password.encode()) <= PASSWORD_BYTES_MAX
            if is_possible and await self._passwords.is_right(user, password):
                return user
        return None

    async def _failed(self, peer: str, error: DisklessError) -> None:
        self._audit.login_failed(_client(peer, ANONYMOUS), HTTP)
        suppressed = self._failures.take_turn(self._clock.monotonic())
        if suppressed is not None:
            _log.warning(
                "log-in failed",
                mechanism=HTTP,
                host=peer,
                cause=str(error),
                suppressed=suppressed,
            )
        await self._sleep(self._delay.failed(peer))


def _client(peer: str, user: str) -> ClientInfo:
    return ClientInfo(0, "http", peer, user, HTTP)


def _credentials(form: dict[str, list[str]], authorization: str) -> Sequence[tuple[str, str]]:
    """Name and password, of the header where there is one, as they may be meant.

    Raises ValueError.
    """
    kind, _, encoded = authorization.partition(" ")
    if kind.lower() == "basic":
        try:
            text = base64.b64decode(encoded.strip(), validate=True).decode()
        except binascii.Error as error:
            raise ValueError("no Basic credentials") from error
        user, _, password = text.partition(":")
        # RFC 6749 encodes both as in a form, and most clients do not.
        decoded = (unquote_plus(user), unquote_plus(password))
        return list(dict.fromkeys(((user, password), decoded)))
    return [(form.get("client_id", [""])[0], form.get("client_secret", [""])[0])]


def _error(status: HTTPStatus, error: str) -> HttpAnswer:
    content = {"error": error, "error_description": error.replace("_", " ")}
    return HttpAnswer(status, json.dumps(content).encode(), _JSON)
