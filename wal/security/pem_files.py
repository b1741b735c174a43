"""Reads the files of TLS: a private key with its certificates, and certificates that are trusted.

A key store is a PEM file that holds a private key, encrypted or not, its certificate, and the
certificates that lead to the root; a trust store is one with certificates. These are Kafka's stores
of type PEM. Files are read as a whole, and what is made of them is made of these bytes.

Failure cases: InvalidSettings, with the setting and the file in it and in one line, for a file that
is not there, that others may read, that is a Java key store (with the command that converts it),
that has no certificate, and for a certificate whose time is over or has not come.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509

from wal.errors import InvalidSettings
from wal.security.secret import Secret, read_private

PEM: Final = "PEM"
_JKS_MAGIC: Final = b"\xfe\xed\xfe\xed"
_DER_SEQUENCE: Final = b"\x30"
"""What a PKCS#12 file begins with."""


class KeyStore(NamedTuple):
    """A private key with its certificates, as they are in a file."""

    path: Path
    what: str
    """The setting that names it."""
    password: Secret
    content: bytes
    certificates: Sequence[x509.Certificate]
    """The key's own first."""

    @property
    def expires_at_ms(self) -> int:
        """When the first of its certificates ends."""
        return min(_milliseconds(one.not_valid_after_utc) for one in self.certificates)


def read_key_store(path: Path, password: Secret, what: str, now_ms: int) -> KeyStore:
    """Raises InvalidSettings."""
    content = read_private(path, what)
    _refuse_java(
        content,
        what,
        f"keytool -importkeystore -srckeystore {path} -destkeystore {path}.p12 "
        f"-deststoretype PKCS12, then openssl pkcs12 -in {path}.p12 -out {path}.pem",
    )
    certificates = _certificates(content, path, what)
    if b"PRIVATE KEY-----" not in content:
        raise InvalidSettings(f"{what}: {path} has no private key")
    for certificate in certificates:
        _refuse_out_of_time(certificate, path, what, now_ms)
    return KeyStore(path, what, password, content, certificates)


def read_trust_store(path: Path, what: str) -> str:
    """The certificates, as text. Raises InvalidSettings."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidSettings(f"{what}: cannot read {path}: {error.strerror or error}") from error
    _refuse_java(content, what, f"keytool -list -rfc -keystore {path} > {path}.pem")
    _certificates(content, path, what)
    return content.decode("ascii", "replace")


def refuse_type(kind: str, what: str) -> None:
    """Raises InvalidSettings for another type of store than PEM."""
    if kind.upper() != PEM:
        raise InvalidSettings(
            f"{what}={kind}: stores are PEM files; keytool and openssl convert others, write: "
            "keytool -importkeystore -srckeystore STORE -destkeystore STORE.p12 "
            "-deststoretype PKCS12, then openssl pkcs12 -in STORE.p12 -out STORE.pem"
        )


def _refuse_java(content: bytes, what: str, command: str) -> None:
    if content.startswith((_JKS_MAGIC, _DER_SEQUENCE)):
        raise InvalidSettings(f"{what}: this is no PEM file; convert it: {command}")


def _certificates(content: bytes, path: Path, what: str) -> Sequence[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise InvalidSettings(f"{what}: {path} has no certificate in PEM: {error}") from error


def _refuse_out_of_time(certificate: x509.Certificate, path: Path, what: str, now_ms: int) -> None:
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    name = certificate.subject.rfc4514_string() or "a certificate"
    if _milliseconds(ends) <= now_ms:
        raise InvalidSettings(f"{what}: in {path}, {name} has expired at {ends:%Y-%m-%d %H:%M} UTC")
    if _milliseconds(begins) > now_ms:
        raise InvalidSettings(
            f"{what}: in {path}, {name} is valid only from {begins:%Y-%m-%d %H:%M} UTC; "
            "look at the clock of this machine"
        )


def _milliseconds(moment: datetime) -> int:
    return int(moment.astimezone(UTC).timestamp() * 1000)
