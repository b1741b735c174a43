"""The name and the password of a client, from the properties that Kafka's clients have for them.

    sasl.mechanism=SCRAM-SHA-512              (or librdkafka's sasl.mechanisms)
    sasl.username=ann
    sasl.password=…

or, in place of the last two, Kafka's

    sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\
        username="ann" password="…";

with `plain.PlainLoginModule` for PLAIN. Of a JAAS configuration the two modules and their two
options are read, with Java's escapes; no class is loaded.

Failure cases: InvalidSettings, in one line that names the file and the key and repeats no value of
a key that holds a password.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from wal.errors import InvalidSettings
from wal.security.secret import Secret

JAAS: Final = "sasl.jaas.config"
PASSWORD: Final = "sasl.password"
_MECHANISMS: Final = ("sasl.mechanism", "sasl.mechanisms")
_USER: Final = "sasl.username"
LOGIN_KEYS: Final = frozenset({*_MECHANISMS, _USER, PASSWORD, JAAS})
LOGIN_SECRETS: Final = frozenset({PASSWORD, JAAS})

_MODULES: Final = "org.apache.kafka.common.security."
_PLAIN_MODULE: Final = f"{_MODULES}plain.PlainLoginModule"
_SCRAM_MODULE: Final = f"{_MODULES}scram.ScramLoginModule"

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLogin:
    """As whom a client logs in."""

    mechanism: SaslMechanism
    user: str
    password: Secret
    source: str
    """Where this was read: whoever is refused is told to look there."""


def read_login(values: Mapping[str, str], path: Path) -> ClientLogin:
    """What the properties in `path` say of SASL. Raises InvalidSettings."""
    mechanism = _mechanism(values, path)
    user, password = values.get(_USER, ""), values.get(PASSWORD, "")
    if JAAS in values:
        if user or password:
            raise InvalidSettings(f"{path}: {JAAS} and {_USER} say both who logs in; leave one out")
        user, password = _jaas(values[JAAS], mechanism, path)
    if not user or not password:
        raise InvalidSettings(f"{path}: write {_USER} and {PASSWORD}, or both into {JAAS}")
    if "\0" in user + password:
        raise InvalidSettings(f"{path}: names and passwords have no zero byte")
    return ClientLogin(mechanism=mechanism, user=user, password=Secret(password), source=str(path))


def _mechanism(values: Mapping[str, str], path: Path) -> SaslMechanism:
    text = next((values[key] for key in _MECHANISMS if key in values), "")
    if text.upper() in [*SaslMechanism]:
        return SaslMechanism(text.upper())
    raise InvalidSettings(
        f"{path}: {_MECHANISMS[0]}={text}: must be one of {', '.join(SaslMechanism)}"
    )


def _jaas(text: str, mechanism: SaslMechanism, path: Path) -> tuple[str, str]:
    wanted = _PLAIN_MODULE if mechanism is SaslMechanism.PLAIN else _SCRAM_MODULE
    match = _JAAS.fullmatch(_PROPERTY_ESCAPE.sub(_unescaped, text))
    if match is None or match["module"] != wanted:
        raise InvalidSettings(
            f'{path}: {JAAS}: for {mechanism} write {wanted} required username="…" password="…";'
        )
    options = {
        option["key"]: _unquoted(option["value"]) for option in _OPTION.finditer(match["options"])
    }
    return options.get("username", ""), options.get("password", "")


def _unescaped(match: re.Match[str]) -> str:
    letter: str = match[1]
    return chr(int(letter[1:], 16)) if len(letter) > 1 else _LETTERS.get(letter, letter)


def _unquoted(value: str) -> str:
    if value[0] not in "\"'":
        return value
    return _ESCAPE.sub(_unescaped, value[1:-1])
