"""How a client connects: from a file of properties, by the names that Kafka's clients have for it.

    security.protocol=SSL
    ssl.ca.location=/etc/diskless/ca.pem              (or Kafka's ssl.truststore.location)
    ssl.certificate.location=/etc/diskless/me.pem     (or ssl.keystore.location, with the key in it)
    ssl.key.location=/etc/diskless/me.key
    ssl.key.password=…

With SASL_PLAINTEXT and SASL_SSL it also says who logs in (wal/security/client_login.py).

A file that is written for another client does: keys that are not about security are passed over.
Files of certificates are PEM. Whoever is not trusted is not connected to, and the name of its
certificate must be the host's, unless `ssl.endpoint.identification.algorithm` is `none` or empty.
A line that ends with a backslash goes on in the next one where it is `sasl.jaas.config`, which
people break so; elsewhere a backslash is one, as a password may end with it.

Failure cases: InvalidSettings, in one line that names the file and the key, for a key about
security that is not known here, for a file of keys that cannot be used, and for secrets in a file
that others may read.
"""

import os
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from wal.errors import InvalidSettings
from wal.security.client_login import (
    JAAS,
    LOGIN_KEYS,
    LOGIN_SECRETS,
    ClientLogin,
    SaslMechanism,
    read_login,
)
from wal.security.pem_files import refuse_type
from wal.security.secret import Secret, refuse_readable
from wal.security.security_protocol import SecurityProtocol
from wal.security.tls_contexts import client_context
from wal.security.token_source import TokenSource

_ABOUT_SECURITY: Final = ("security.", "ssl.", "sasl.", "enable.ssl.")
_AUTHORITIES: Final = ("ssl.ca.location", "ssl.truststore.location")
_CERTIFICATES: Final = ("ssl.certificate.location", "ssl.keystore.location")
_KEY: Final = "ssl.key.location"
_PASSWORD: Final = "ssl.key.password"
_TYPES: Final = ("ssl.truststore.type", "ssl.keystore.type")
_HOST: Final = "ssl.endpoint.identification.algorithm"
_PROTOCOL: Final = "security.protocol"
_KNOWN: Final = frozenset(
    {*_AUTHORITIES, *_CERTIFICATES, _KEY, _PASSWORD, *_TYPES, _HOST, _PROTOCOL, *LOGIN_KEYS}
)
_SECRETS: Final = frozenset({_PASSWORD, *LOGIN_SECRETS})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSecurity:
    """What a client brings to a connection; by default nothing, in plain text."""

    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    authorities: str = ""
    """PEM file; empty: whom the machine trusts."""
    certificate: str = ""
    """PEM file, with the key in it unless `key` is another."""
    key: str = ""
    key_password: Secret = Secret()
    checks_host: bool = True
    login: ClientLogin | None = None
    """As whom it logs in; None: the protocol has no log-in."""

    def context(self) -> ssl.SSLContext | None:
        """What TLS needs; None: there is none. Raises InvalidSettings."""
        if not self.protocol.is_tls:
            return None
        context = client_context(None, None, checks_host=self.checks_host)
        try:
            if self.authorities:
                context = client_context(
                    Path(self.authorities).read_text(), None, checks_host=self.checks_host
                )
        except (OSError, ValueError) as error:
            raise _unusable(_AUTHORITIES[0], self.authorities, error) from error
        try:
            if self.certificate:
                context.load_cert_chain(
                    self.certificate, self.key or None, password=self.key_password.reveal
                )
        except (OSError, ValueError) as error:
            raise _unusable(_CERTIFICATES[0], self.certificate, error) from error
        return context

    def kafka_python(self) -> Mapping[str, Any]:
        """The same as arguments of a client of kafka-python. Raises InvalidSettings."""
        options = {"security_protocol": self.protocol.value, "ssl_context": self.context()}
        login = self.login
        if login is None:
            return options
        if login.tokens is not None:
            provider = _token_provider(login.tokens)
            how = {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": provider}
            return {**options, **how}
        user = login.user
        if login.mechanism is not SaslMechanism.PLAIN:
            # RFC 5802 writes these two otherwise, and kafka-python leaves that to its caller.
            user = user.replace("=", "=3D").replace(",", "=2C")
        return {
            **options,
            "sasl_mechanism": login.mechanism.value,
            "sasl_plain_username": user,
            "sasl_plain_password": login.password.reveal(),
        }


PLAINTEXT: Final = ClientSecurity()


def read_client_security(path: Path) -> ClientSecurity:
    """Raises InvalidSettings."""
    values = dict(_read(path))
    unknown = sorted(key for key in values if key.startswith(_ABOUT_SECURITY) and key not in _KNOWN)
    if unknown:
        raise InvalidSettings(
            f"{path}: {unknown[0]} is not known here; known are {', '.join(sorted(_KNOWN))}"
        )
    for key in _TYPES:
        refuse_type(values.get(key, "PEM"), key)
    protocol = _protocol(values.get(_PROTOCOL, "PLAINTEXT"), path)
    security = ClientSecurity(
        protocol=protocol,
        authorities=_first(values, _AUTHORITIES),
        certificate=_first(values, _CERTIFICATES),
        key=values.get(_KEY, ""),
        key_password=Secret(values.get(_PASSWORD, "")),
        checks_host=values.get(_HOST, "https").lower() not in ("", "none"),
        login=read_login(values, path) if protocol.is_sasl else None,
    )
    security.context()
    return security


def _token_provider(tokens: TokenSource) -> Any:
    """As kafka-python asks for tokens."""
    # Here alone: it takes a quarter of a second, and few clients need it.
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Provider(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return tokens.token()

    return Provider()


def _read(path: Path) -> Iterator[tuple[str, str]]:
    try:
        with path.open(encoding="utf-8") as file:
            status = os.fstat(file.fileno())
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"properties {path}: {error}") from error
    rest = iter(enumerate(map(str.strip, lines), start=1))
    for number, line in rest:
        if not line or line.startswith(("#", "!")):
            continue
        key, separator, value = line.partition("=")
        if not separator:
            # The line is not repeated: it may be a secret.
            raise InvalidSettings(f"{path}, line {number}: this is not key=value")
        if key.strip() in _SECRETS:
            refuse_readable(status, path, key.strip())
        while key.strip() == JAAS and value.endswith("\\"):
            value = value[:-1] + next(rest, (number, ""))[1]
        yield key.strip(), value.strip()


def _protocol(text: str, path: Path) -> SecurityProtocol:
    if text.upper() in [*SecurityProtocol]:
        return SecurityProtocol(text.upper())
    raise InvalidSettings(
        f"{path}: {_PROTOCOL}={text}: must be one of {', '.join(SecurityProtocol)}"
    )


def _first(values: Mapping[str, str], keys: tuple[str, ...]) -> str:
    return next((values[key] for key in keys if key in values), "")


def _unusable(key: str, file: str, error: Exception) -> InvalidSettings:
    reason = error.reason if isinstance(error, ssl.SSLError) and error.reason else error
    return InvalidSettings(f"{key}: {file} cannot be used: {reason}")
