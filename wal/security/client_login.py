"""Reads from the properties of Kafka's clients as whom a client logs in.

    sasl.mechanism=SCRAM-SHA-512              (or librdkafka's sasl.mechanisms)
    sasl.username=ann
    sasl.password=…

or, in place of the last two, Kafka's

    sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\
        username="ann" password="…";

with `plain.PlainLoginModule` for PLAIN. With OAUTHBEARER it is a token (`token_source`):

    sasl.oauthbearer.token.endpoint.url=https://…      (or file:PATH, and nothing below)
    sasl.oauthbearer.client.id=…                       (or Kafka's client.credentials.client.id)
    sasl.oauthbearer.client.secret=…                   (or Kafka's client.credentials.client.secret)
    sasl.oauthbearer.scope=…
    https.ca.location=…                                for an endpoint with a certificate of its own

with id, secret and scope also in the options of `oauthbearer.OAuthBearerLoginModule`. Of a JAAS
configuration the three modules and these options are read, with Java's escapes; no class is loaded.

Failure cases: InvalidSettings, in one line that names the file and the key and repeats no value of
a key that holds a password.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from wal.errors import InvalidSettings
from wal.security.secret import Secret
from wal.security.token_source import TokenSource

JAAS: Final = "sasl.jaas.config"
PASSWORD: Final = "sasl.password"
_MECHANISMS: Final = ("sasl.mechanism", "sasl.mechanisms")
_USER: Final = "sasl.username"
_TOKENS: Final = "sasl.oauthbearer."
_TOKEN_URL: Final = f"{_TOKENS}token.endpoint.url"
_SCOPE: Final = f"{_TOKENS}scope"
_ENCODED: Final = f"{_TOKENS}header.urlencode"
_CLIENT_IDS: Final = (f"{_TOKENS}client.id", f"{_TOKENS}client.credentials.client.id")
_CLIENT_SECRETS: Final = (f"{_TOKENS}client.secret", f"{_TOKENS}client.credentials.client.secret")
_AUTHORITIES: Final = "https.ca.location"
_PASSED_OVER: Final = (f"{_TOKENS}method", "sasl.login.callback.handler.class")
"""Those that say of other clients how they do what is done here in the one way that there is."""
LOGIN_KEYS: Final = frozenset(
    {*_MECHANISMS, _USER, PASSWORD, JAAS, _TOKEN_URL, _SCOPE, _ENCODED}
    | {*_CLIENT_IDS, *_CLIENT_SECRETS, *_PASSED_OVER}
)
LOGIN_SECRETS: Final = frozenset({PASSWORD, JAAS, *_CLIENT_SECRETS})

_MODULES: Final = "org.apache.kafka.common.security."
_PLAIN_MODULE: Final = f"{_MODULES}plain.PlainLoginModule"
_SCRAM_MODULE: Final = f"{_MODULES}scram.ScramLoginModule"
_OAUTH_MODULE: Final = f"{_MODULES}oauthbearer.OAuthBearerLoginModule"

_VALUE: Final = r"""(?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[^\s"';=]+)"""
_JAAS: Final = re.compile(
    rf"\s*(?P<module>[\w.$]+)\s+(?:required|requisite|sufficient|optional)"
    rf"(?P<options>(?:\s+[\w.-]+\s*=\s*{_VALUE})*)\s*;\s*",
    re.IGNORECASE | re.DOTALL,
)
_OPTION: Final = re.compile(rf"(?P<key>[\w.-]+)\s*=\s*(?P<value>{_VALUE})", re.DOTALL)
_PROPERTY_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_LETTERS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class SaslMechanism(StrEnum):
    """How a client proves who it is."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLogin:
    """As whom a client logs in."""

    mechanism: SaslMechanism
    user: str
    password: Secret
    source: str
    """Where this was read: whoever is refused is told to look there."""
    tokens: TokenSource | None = None
    """With OAUTHBEARER, in place of user and password."""


def read_login(values: Mapping[str, str], path: Path) -> ClientLogin:
    """What the properties in `path` say of SASL. Raises InvalidSettings."""
    mechanism = _mechanism(values, path)
    if mechanism is SaslMechanism.OAUTHBEARER:
        return _by_token(values, path)
    user, password = values.get(_USER, ""), values.get(PASSWORD, "")
    if JAAS in values:
        if user or password:
            raise InvalidSettings(f"{path}: {JAAS} and {_USER} say both who logs in; leave one out")
        module = _PLAIN_MODULE if mechanism is SaslMechanism.PLAIN else _SCRAM_MODULE
        example = f'for {mechanism} write {module} required username="…" password="…";'
        options = _jaas(values[JAAS], module, example, path)
        user, password = options.get("username", ""), options.get("password", "")
    if not user or not password:
        raise InvalidSettings(f"{path}: write {_USER} and {PASSWORD}, or both into {JAAS}")
    if "\0" in user + password:
        raise InvalidSettings(f"{path}: names and passwords have no zero byte")
    return ClientLogin(mechanism=mechanism, user=user, password=Secret(password), source=str(path))


def _by_token(values: Mapping[str, str], path: Path) -> ClientLogin:
    example = f'write {_OAUTH_MODULE} required clientId="…" clientSecret="…";'
    options = _jaas(values[JAAS], _OAUTH_MODULE, example, path) if JAAS in values else {}
    url = values.get(_TOKEN_URL, "")
    if not url:
        raise InvalidSettings(f"{path}: write {_TOKEN_URL}, https://HOST/PATH or file:PATH")
    client_id = _first(values, _CLIENT_IDS) or options.get("clientId", "")
    secret = _first(values, _CLIENT_SECRETS) or options.get("clientSecret", "")
    tokens = TokenSource(
        url,
        client_id=client_id,
        client_secret=Secret(secret),
        scope=values.get(_SCOPE, "") or options.get("scope", ""),
        is_encoded=values.get(_ENCODED, "false").lower() == "true",
        authorities=values.get(_AUTHORITIES, ""),
        what=f"{path}: {_TOKEN_URL}",
    )
    return ClientLogin(
        mechanism=SaslMechanism.OAUTHBEARER,
        user=client_id or "a token",
        password=Secret(),
        source=str(path),
        tokens=tokens,
    )


def _first(values: Mapping[str, str], keys: Sequence[str]) -> str:
    return next((values[key] for key in keys if key in values), "")


def _mechanism(values: Mapping[str, str], path: Path) -> SaslMechanism:
    text = next((values[key] for key in _MECHANISMS if key in values), "")
    if text.upper() in [*SaslMechanism]:
        return SaslMechanism(text.upper())
    raise InvalidSettings(
        f"{path}: {_MECHANISMS[0]}={text}: must be one of {', '.join(SaslMechanism)}"
    )


def _jaas(text: str, module: str, example: str, path: Path) -> Mapping[str, str]:
    """The options of the module."""
    match = _JAAS.fullmatch(_PROPERTY_ESCAPE.sub(_unescaped, text))
    if match is None or match["module"] != module:
        raise InvalidSettings(f"{path}: {JAAS}: {example}")
    return {
        option["key"]: _unquoted(option["value"]) for option in _OPTION.finditer(match["options"])
    }


def _unescaped(match: re.Match[str]) -> str:
    letter: str = match[1]
    return chr(int(letter[1:], 16)) if len(letter) > 1 else _LETTERS.get(letter, letter)


def _unquoted(value: str) -> str:
    if value[0] not in "\"'":
        return value
    return _ESCAPE.sub(_unescaped, value[1:-1])
