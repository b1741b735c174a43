"""The keys of one TLS listener: read from their files, and read again when these change.

A new connection is offered what was read last. Files are looked at every `LOOK_INTERVAL_S` seconds
and when the process is told to (SIGHUP), so certificates are replaced without a restart, and nobody
is cut off by it.

Invariants: all that one connection uses was read together; a broker starts with keys that can be
used, or not at all.

Failure case: files that cannot be used, half written or expired ones among them, leave what was
read before in use. The log and `diskless_tls_reloads_total` say so, each time that it is tried.
"""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from diskless.listeners.certificate_names import PrincipalRules
from diskless.listeners.tls_settings import (
    CLIENT_AUTHENTICATION,
    KEYSTORE,
    KEYSTORE_TYPE,
    MAPPING_RULES,
    TRUSTSTORE,
    TRUSTSTORE_TYPE,
    TlsSettings,
)
from wal.clock import Clock, Sleep
from wal.errors import InvalidSettings
from wal.security.pem_files import read_key_store, read_trust_store, refuse_type
from wal.security.tls_contexts import client_context, server_context

LOOK_INTERVAL_S: Final = 60.0

_log = structlog.get_logger(__name__)


class _Loaded(NamedTuple):
    """What was made of the files at one moment."""

    content: tuple[bytes, str | None]
    server: ssl.SSLContext
    client: ssl.SSLContext
    expires_at_ms: int


class TlsKeys:
    """The keys that a listener uses now."""

    def __init__(self, listener: str, settings: TlsSettings, clock: Clock) -> None:
        """Raises InvalidSettings."""
        self.listener: Final = listener
        self._settings = settings
        self._clock = clock
        self._loaded = self._load()
        self.principals: Final = PrincipalRules(settings.mapping_rules, MAPPING_RULES)
        self.reloads = 0
        """How often other files than before were put in use."""
        self.failed_reloads = 0

    @property
    def server(self) -> ssl.SSLContext:
        """For who connects to the listener."""
        return self._loaded.server

    @property
    def client(self) -> ssl.SSLContext:
        """For this broker, when it connects to the listener of this name of others."""
        return self._loaded.client

    @property
    def is_client_authenticated(self) -> bool:
        """Whether nobody connects without a certificate that is trusted."""
        return self._settings.client_auth == "required"

    def expires_in_s(self) -> float:
        """Until the first of its certificates ends; negative when it has."""
        return (self._loaded.expires_at_ms - self._clock.now_ms()) / 1000

    def reload(self) -> None:
        """Use what is in the files now, if that can be used."""
        try:
            loaded = self._load()
        except InvalidSettings as error:
            self.failed_reloads += 1
            _log.error(
                "keys cannot be used, the ones before stay in use",
                listener=self.listener,
                error=str(error),
            )
            return
        if loaded.content != self._loaded.content:
            self._loaded = loaded
            self.reloads += 1
            _log.info("keys replaced", listener=self.listener, valid_s=int(self.expires_in_s()))

    def _load(self) -> _Loaded:
        settings = self._settings
        refuse_type(settings.keystore_type, KEYSTORE_TYPE)
        refuse_type(settings.truststore_type, TRUSTSTORE_TYPE)
        if not settings.keystore:
            raise InvalidSettings(
                f"{KEYSTORE} is empty, and {self.listener} needs a key: write "
                f"listener.name.{self.listener.lower()}.{KEYSTORE}=FILE"
            )
        if settings.client_auth != "none" and not settings.truststore:
            raise InvalidSettings(
                f"{CLIENT_AUTHENTICATION}={settings.client_auth}, and {TRUSTSTORE} is empty: "
                "write the file with the certificates that those of clients are checked against"
            )
        keys = read_key_store(
            Path(settings.keystore), settings.key_password, KEYSTORE, self._clock.now_ms()
        )
        trusted = None
        if settings.truststore:
            trusted = read_trust_store(Path(settings.truststore), TRUSTSTORE)
        return _Loaded(
            (keys.content, trusted),
            server_context(keys, trusted, settings.client_auth),
            client_context(trusted, keys, checks_host=settings.endpoint_identification == "https"),
            keys.expires_at_ms,
        )


class KeyWatch:
    """Reloads the keys of all listeners of a broker, until it is cancelled."""

    def __init__(self, keys: Sequence[TlsKeys], *, sleep: Sleep = asyncio.sleep) -> None:
        self.keys: Final = keys
        self._sleep = sleep
        self._listeners: list[Callable[[], None]] = []

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever the files were looked at."""
        self._listeners.append(listener)

    async def run(self) -> None:
        while True:
            await self._sleep(LOOK_INTERVAL_S)
            await self.reload()

    async def reload(self) -> None:
        """Look at all files now; they may be on a slow disk."""
        for keys in self.keys:
            await asyncio.to_thread(keys.reload)
        for listener in self._listeners:
            listener()
