"""Keys and certificates of tests, made by trustme, as the files that listeners and clients take."""

import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import trustme

BEFORE: Final = datetime(2000, 1, 1, tzinfo=UTC)
LONG_AGO: Final = datetime(2020, 1, 1, tzinfo=UTC)


class Certificates:
    """One authority, and what it signs, below a directory."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
        self.authority: Final = str(directory / "ca.pem")
        """The trust store."""
        self._authority.cert_pem.write_to_path(self.authority)
        self.server: Final = self.signed("server", "localhost", "127.0.0.1")

    def signed(
        self,
        name: str,
        *hosts: str,
        common_name: str | None = None,
        expires_at: datetime | None = None,
    ) -> str:
        """A key store for `hosts`; a name replaces the one it had."""
        path = self._directory / f"{name}.pem"
        made = self._authority.issue_cert(
            *(hosts or ("localhost",)),
            common_name=common_name or name,
            organization_unit_name="tests",
            not_before=BEFORE,
            not_after=expires_at,
            key_type=trustme.KeyType.ECDSA,
        )
        fresh = path.with_suffix(".new")
        fresh.touch(mode=0o600)
        made.private_key_and_cert_chain_pem.write_to_path(fresh)
        fresh.rename(path)
        return str(path)

    def listener(self, **settings: str) -> Mapping[str, str]:
        """Settings of a broker whose listeners have the server's key; `_` stands for `.`."""
        keys = {"ssl.keystore.location": self.server, "ssl.truststore.location": self.authority}
        return keys | {key.replace("_", "."): value for key, value in settings.items()}

    def context(self, keys: str | None = None) -> ssl.SSLContext:
        """What a client needs; `keys`: its own key store."""
        context = ssl.create_default_context(cafile=self.authority)
        if keys is not None:
            context.load_cert_chain(keys)
        return context
