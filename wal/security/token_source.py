"""Where a client has its tokens from: a file, or the token endpoint of an authorization server.

A file is read anew for each log-in, so whoever writes tokens there may replace it. An endpoint is
asked by the grant `client_credentials` (RFC 6749, section 4.4), with id and secret in the
Authorization header, over https, or over http on this machine; a token is used until four fifths of
its time are over.

What is fetched blocks, for FETCH_MAX_S a wait: call it in a thread. No redirect is followed, so the
secret goes to the host that is written down and to no other.

Failure case: TokenUnavailable, in one line that names the endpoint, and neither secret nor token.
"""

import base64
import ipaddress
import json
import threading
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote_plus, unquote, urlencode, urlsplit

import urllib3

from wal.clock import Clock, SystemClock
from wal.errors import InvalidSettings, Rejected
from wal.security.secret import Secret, read_private
from wal.security.tls_contexts import client_context

FETCH_MAX_S: Final = 10.0
ANSWER_BYTES_MAX: Final = 64 << 10
_USED_FOR: Final = 0.8


class TokenUnavailable(Rejected):
    """There is no token to log in with."""


class TokenSource:
    """Tokens of one client; may be asked by several threads."""

    def __init__(
        self,
        url: str,
        *,
        client_id: str = "",
        client_secret: Secret = Secret(),
        scope: str = "",
        is_encoded: bool = False,
        authorities: str = "",
        what: str,
        clock: Clock | None = None,
    ) -> None:
        """`is_encoded`: whether id and secret are encoded as in a form before they are put in the
        header, as RFC 6749 has it; most servers and Kafka's clients do without.

        `authorities`: PEM file, empty for whom the machine trusts; `what` names the setting.

        Raises InvalidSettings.
        """
        self._client = (client_id, client_secret)
        self._scope = scope
        self._is_encoded = is_encoded
        self._what = what
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._known = Secret()
        self._good_until = 0.0
        self._file: Path | None = None
        self._url = url
        self._pool: urllib3.PoolManager | None = None
        try:
            parts = urlsplit(url)
            host = parts.hostname or ""
            has_secret = parts.username is not None or parts.password is not None
        except ValueError as error:
            raise InvalidSettings(f"{what}: this is no URL: {error}") from error
        if parts.scheme == "file" and parts.path and parts.netloc in ("", "localhost"):
            self._file = Path(unquote(parts.path))
            return
        if has_secret:
            raise InvalidSettings(f"{what}: a URL is seen by many, and this one has a password")
        if not host or not (parts.scheme == "https" or (parts.scheme == "http" and _is_here(host))):
            raise InvalidSettings(
                f"{what}={url}: write https://HOST/PATH, or file:PATH; http sends the secret for "
                "everybody to read, so it is for this machine alone"
            )
        if not client_id or not client_secret:
            raise InvalidSettings(f"{what}={url}: write id and secret of the client as well")
        trusted = None
        if authorities:
            try:
                trusted = Path(authorities).read_text()
            except (OSError, ValueError) as error:
                raise InvalidSettings(f"{what}: {authorities} cannot be used: {error}") from error
        context = client_context(trusted, None, checks_host=True)
        self._pool = urllib3.PoolManager(1, ssl_context=context)

    def token(self) -> str:
        """One that is good. Raises TokenUnavailable."""
        if self._file is not None:
            try:
                return read_private(self._file, self._what).decode("ascii").strip()
            except (InvalidSettings, UnicodeDecodeError) as error:
                raise TokenUnavailable(str(error)) from error
        with self._lock:
            if not self._known or self._clock.monotonic() >= self._good_until:
                self._known, lives_s = self._fetched()
                self._good_until = self._clock.monotonic() + lives_s * _USED_FOR
            return self._known.reveal()

    def _fetched(self) -> tuple[Secret, float]:
        assert self._pool is not None
        client_id, secret = self._client
        encode = quote_plus if self._is_encoded else str
        text = f"{encode(client_id)}:{encode(secret.reveal())}"
        form = {"grant_type": "client_credentials", "scope": self._scope}
        try:
            response = self._pool.request(
                "POST",
                self._url,
                body=urlencode({key: value for key, value in form.items() if value}),
                headers={
                    "Authorization": "Basic " + base64.b64encode(text.encode()).decode(),
                    "Content-Type": "application/x-www-form-urlencoded",
                    "Accept": "application/json",
                    "Accept-Encoding": "identity",
                },
                retries=False,
                redirect=False,
                preload_content=False,
                decode_content=False,
                timeout=urllib3.Timeout(total=FETCH_MAX_S),
            )
            content = response.read(ANSWER_BYTES_MAX + 1)
            status = response.status
            response.close()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise TokenUnavailable(f"{self._url}: {error}") from error
        if status != 200 or len(content) > ANSWER_BYTES_MAX:
            raise TokenUnavailable(f"{self._url} gives {self._client[0]} no token: status {status}")
        return self._read(content)

    def _read(self, content: bytes) -> tuple[Secret, float]:
        try:
            answer: Any = json.loads(content)
            token, lives_s = answer["access_token"], float(answer.get("expires_in", 0))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise TokenUnavailable(f"{self._url}: an answer without access_token") from error
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise TokenUnavailable(f"{self._url}: an access_token that is none")
        return Secret(token), lives_s


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
