"""Asks a schema registry, through the HTTP interface of Confluent's, which others serve too.

The tiering job alone does; a registry is a setting of the job, so that no client can make a broker
ask an address of its choice. Nothing is believed to be small or quick: an answer has at most 1 MiB
and comes within 5 seconds, redirects are not followed, and a schema with references to others is
not read. What was answered is kept, because a schema never changes under its id. A registry that
cannot be reached is not asked again by the same object: a thousand topics do not wait a thousand
times.

Failure cases: RegistryUnavailable when there is no answer, or none of a registry's; SchemaError
when the schema is one that gives no columns here.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import quote

import urllib3

from tiering.types.shapes import SchemaError
from wal.clock import Clock
from wal.errors import InvalidSettings, Retriable
from wal.security.secret import read_private

TIMEOUT_S: Final = 5.0
ANSWER_BYTES_MAX: Final = 1 << 20
REGISTRY_URL: Final = "DISKLESS_SCHEMA_REGISTRY_URL"
REGISTRY_AUTH: Final = "DISKLESS_SCHEMA_REGISTRY_AUTH"
VERSIONS_MAX: Final = 1_000
"""Of a subject; a topic's columns follow each of them once."""

_AVRO_TYPE: Final = "AVRO"


class RegistryUnavailable(Retriable):
    """The registry does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrySettings:
    """Where the registry is; a secret is not shown."""

    url: str
    user: str = ""
    password: str = ""

    def __repr__(self) -> str:
        return f"RegistrySettings(url={self.url!r}, user={self.user!r})"

    def __post_init__(self) -> None:
        parsed = urllib3.util.parse_url(self.url)
        if parsed.scheme not in ("http", "https") or not parsed.host or parsed.auth:
            raise InvalidSettings(
                "schema.registry.url must be http://host[:port][/path] or https://…, without "
                "credentials in it"
            )


def registry_settings(
    url: str | None, auth: str | None, environment: Mapping[str, str]
) -> RegistrySettings | None:
    """What is given, else what the environment says; None without a registry.

    `auth` is `file:PATH`, of a file that others cannot read; in the environment it may be
    `user:password` itself. Raises: InvalidSettings.
    """
    url = url or environment.get(REGISTRY_URL, "")
    if not url:
        return None
    if auth and not auth.startswith("file:"):
        raise InvalidSettings("the schema registry's credentials: others see them; give file:PATH")
    auth = auth or environment.get(REGISTRY_AUTH, "")
    if auth.startswith("file:"):
        path = Path(auth.removeprefix("file:"))
        auth = read_private(path, "the schema registry's credentials").decode().strip()
    user, _, password = auth.partition(":")
    return RegistrySettings(url=url, user=user, password=password)


class RegisteredSchema(NamedTuple):
    """One version of a subject."""

    version: int
    schema_id: int
    format: str
    """`avro` or `json`; another name for what has no columns here."""
    text: str


class Registry(Protocol):
    """What a job asks a registry."""

    def schema(self, schema_id: int) -> str | None: ...

    def versions(self, subject: str) -> Sequence[int]: ...

    def registered(self, subject: str, version: int) -> RegisteredSchema: ...


class HttpRegistry:
    """A registry over HTTP."""

    def __init__(self, settings: RegistrySettings, clock: Clock) -> None:
        self._clock = clock
        self._url = settings.url.rstrip("/")
        headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if settings.user:
            headers |= urllib3.make_headers(basic_auth=f"{settings.user}:{settings.password}")
        self._pool = urllib3.PoolManager(
            headers=headers,
            timeout=urllib3.Timeout(total=TIMEOUT_S),
            retries=False,
        )
        self._schemas: dict[int, str | None] = {}
        self._away = ""

    def schema(self, schema_id: int) -> str | None:
        """The text of an Avro schema; None when there is none of this id.

        Raises: RegistryUnavailable.
        """
        if schema_id not in self._schemas:
            found = self._get(f"/schemas/ids/{schema_id}")
            text = None
            if found is not None and _format_of(found) == "avro":
                try:
                    text = _text_of(found)
                except SchemaError:
                    # As good as none: the id never stands for another schema.
                    text = None
            self._schemas[schema_id] = text
        return self._schemas[schema_id]

    def versions(self, subject: str) -> Sequence[int]:
        """Those of a subject, ascending; empty when there is no such subject."""
        found = self._get(f"/subjects/{quote(subject, safe='')}/versions")
        if found is None:
            return ()
        if not isinstance(found, list) or not all(isinstance(one, int) for one in found):
            raise RegistryUnavailable(f"the versions of {subject} are no list of numbers")
        return sorted(found)[-VERSIONS_MAX:]

    def registered(self, subject: str, version: int) -> RegisteredSchema:
        """Raises: RegistryUnavailable; SchemaError when it has references."""
        found = self._get(f"/subjects/{quote(subject, safe='')}/versions/{version}")
        if not isinstance(found, dict) or not isinstance(found.get("id"), int):
            raise RegistryUnavailable(f"there is no version {version} of {subject}")
        return RegisteredSchema(version, found["id"], _format_of(found), _text_of(found))

    def _get(self, path: str) -> Any:
        """The answer as JSON; None for 404."""
        if self._away:
            raise RegistryUnavailable(self._away)
        try:
            answer = self._pool.request(
                "GET", f"{self._url}{path}", redirect=False, preload_content=False
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            self._away = f"schema registry: {error}"
            raise RegistryUnavailable(self._away) from error
        try:
            body = self._body(answer)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise RegistryUnavailable(f"schema registry: {error}") from error
        finally:
            answer.close()
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise RegistryUnavailable(f"schema registry: status {answer.status} for {path}")
        if len(body) > ANSWER_BYTES_MAX:
            raise RegistryUnavailable(
                f"schema registry: more than {ANSWER_BYTES_MAX} bytes for {path}"
            )
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise RegistryUnavailable(f"schema registry: no JSON for {path}") from error

    def _body(self, answer: urllib3.BaseHTTPResponse) -> bytes:
        """One byte more than there may be, at most. A server that drips gets no more time."""
        deadline = self._clock.monotonic() + TIMEOUT_S
        body = b""
        while len(body) <= ANSWER_BYTES_MAX:
            piece = answer.read1(ANSWER_BYTES_MAX + 1 - len(body), decode_content=True)
            if not piece:
                break
            body += piece
            if self._clock.monotonic() > deadline:
                self._away = f"schema registry: no answer within {TIMEOUT_S:g} s"
                raise RegistryUnavailable(self._away)
        return body


def _format_of(found: Any) -> str:
    kind = found.get("schemaType", _AVRO_TYPE) if isinstance(found, dict) else ""
    return str(kind).lower()


def _text_of(found: Any) -> str:
    text = found.get("schema")
    if not isinstance(text, str):
        raise RegistryUnavailable("schema registry: an answer without a schema")
    if found.get("references"):
        raise SchemaError("the schema", "has references to others in the registry")
    return text
