"""Where the keys of an authorization server come from: an https URL, or a file.

The place is configured once and for all. Nothing that a client sends is followed: not the `jku` or
`x5u` of a token, no redirect, no proxy of the environment. An answer has FETCH_MAX_S in all, and
KEY_SET_BYTES_MAX; it is not inflated.

What is fetched blocks, so it is called in a thread.

Failure cases: InvalidSettings for a place that is neither, by name; KeysUnavailable for one that
gives no key set now.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import urllib3

from diskless.sasl.oauth.oauth_settings import JWKS_URL, TRUSTSTORE, OAuthSettings
from wal.clock import Clock
from wal.errors import InvalidSettings, Retriable
from wal.security.pem_files import read_trust_store
from wal.security.tls_contexts import client_context

FETCH_MAX_S: Final = 5.0
KEY_SET_BYTES_MAX: Final = 1 << 20
_PIECE_BYTES: Final = 64 << 10

Fetch = Callable[[], bytes]


class KeysUnavailable(Retriable):
    """The keys of the authorization server cannot be had now, or are none."""


def key_source(settings: OAuthSettings, clock: Clock) -> Fetch:
    """What reads the place that is configured. Raises InvalidSettings."""
    url = settings.jwks_url
    try:
        parts = urlsplit(url)
        has_secret = parts.username is not None or parts.password is not None
        has_port = parts.port is None or parts.port > 0
    except ValueError as error:
        raise InvalidSettings(f"{JWKS_URL}: this is no URL: {error}") from error
    if has_secret:
        raise InvalidSettings(f"{JWKS_URL}: a URL is seen by many, and this one has a password")
    if parts.scheme == "https" and parts.hostname and has_port:
        trusted = None
        if settings.truststore:
            trusted = read_trust_store(Path(settings.truststore), TRUSTSTORE)
        context = client_context(trusted, None, checks_host=True)
        # One connection for each fetch: an hour lies between them.
        return lambda: _fetched(url, urllib3.PoolManager(1, ssl_context=context), clock)
    if parts.scheme == "file" and parts.path and parts.netloc in ("", "localhost"):
        path = Path(unquote(parts.path))
        return lambda: _read(path)
    raise InvalidSettings(
        f"{JWKS_URL}={url}: write https://HOST/PATH, or file:PATH; over plain http anybody on the "
        "way could put keys of their own into the answer"
    )


def _fetched(url: str, pool: urllib3.PoolManager, clock: Clock) -> bytes:
    ends_at = clock.monotonic() + FETCH_MAX_S
    with pool:
        try:
            response = pool.request(
                "GET",
                url,
                headers={"Accept": "application/json", "Accept-Encoding": "identity"},
                retries=False,
                redirect=False,
                preload_content=False,
                decode_content=False,
                timeout=urllib3.Timeout(total=FETCH_MAX_S),
            )
            if response.status != 200:
                raise KeysUnavailable(f"{url}: status {response.status}")
            content = b""
            while piece := response.read1(_PIECE_BYTES):
                content += piece
                _check_size(url, len(content))
                if clock.monotonic() > ends_at:
                    raise KeysUnavailable(f"{url}: more than {FETCH_MAX_S:.0f} s for an answer")
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise KeysUnavailable(f"{url}: {error}") from error
    return content


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(KEY_SET_BYTES_MAX + 1)
    except OSError as error:
        raise KeysUnavailable(f"{path}: {error.strerror or error}") from error
    _check_size(str(path), len(content))
    return content


def _check_size(place: str, length: int) -> None:
    if length > KEY_SET_BYTES_MAX:
        raise KeysUnavailable(f"{place}: more than {KEY_SET_BYTES_MAX} bytes of keys")
