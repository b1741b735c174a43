"""Keys of a listener: what is refused at start, and what happens when files change."""

import base64
import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from diskless.listeners.tls_keys import LOOK_INTERVAL_S, KeyWatch, TlsKeys
from diskless.listeners.tls_settings import TlsSettings
from tests.support.security.certificates import LONG_AGO, Certificates
from wal.clock import ManualClock, SystemClock
from wal.errors import InvalidSettings
from wal.security.secret import Secret


def keys_of(keystore: str, **more: object) -> TlsKeys:
    return TlsKeys("OUTSIDE", TlsSettings(keystore=keystore, **more), SystemClock())  # type: ignore[arg-type]


def private_file(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    path.chmod(0o600)
    return str(path)


def test_keys_that_cannot_be_used_are_refused_in_a_line(
    tmp_path: Path, certificates: Certificates
) -> None:
    good = Path(certificates.server).read_bytes()
    other = Path(certificates.signed("other")).read_bytes()
    end = b"-----END EC PRIVATE KEY-----\n"
    key, chain = good.split(end)
    other_key = other.split(end)[0]
    mixed = private_file(tmp_path / "mixed.pem", other_key + end + chain)
    no_key = private_file(tmp_path / "nokey.pem", chain)
    no_certificate = private_file(tmp_path / "nochain.pem", key + end)
    garbage = private_file(
        tmp_path / "garbage.pem",
        b"-----BEGIN EC PRIVATE KEY-----\n" + base64.b64encode(b"x" * 99) + b"\n" + end + chain,
    )
    java = private_file(tmp_path / "store.jks", b"\xfe\xed\xfe\xed\0\0\0\2")
    pkcs12 = private_file(tmp_path / "store.p12", b"\x30\x82\x01\x02")
    readable = private_file(tmp_path / "readable.pem", good)
    Path(readable).chmod(0o644)
    early = ManualClock(now_ms=0)
    cases = [
        (lambda: keys_of(""), "listener.name.outside.ssl.keystore.location=FILE"),
        (lambda: keys_of(str(tmp_path / "gone")), "cannot read"),
        (lambda: keys_of(mixed), "does not belong to the first certificate"),
        (lambda: keys_of(no_key), "has no private key"),
        (lambda: keys_of(no_certificate), "has no certificate in PEM"),
        (lambda: keys_of(garbage), "cannot be used"),
        (lambda: keys_of(java), "keytool -importkeystore"),
        (lambda: keys_of(pkcs12), "openssl pkcs12 -in"),
        (lambda: keys_of(good, keystore_type="JKS"), "keytool -importkeystore"),  # type: ignore[arg-type]
        (lambda: keys_of(readable), "chmod 600"),
        (lambda: keys_of(certificates.signed("late", expires_at=LONG_AGO)), "has expired at 2020"),
        (lambda: TlsKeys("X", TlsSettings(keystore=certificates.server), early), "valid only from"),
        (lambda: keys_of(certificates.server, client_auth="required"), "ssl.truststore.location"),
        (lambda: keys_of(certificates.server, truststore=java), "keytool -list -rfc"),
        (lambda: keys_of(certificates.server, truststore=no_certificate), "has no certificate"),
        (lambda: keys_of(certificates.server, mapping_rules="RULE"), "ssl.principal.mapping.rules"),
    ]
    for make, told in cases:
        with pytest.raises(InvalidSettings) as refused:
            make()
        assert told in str(refused.value)
        assert "\n" not in str(refused.value)


def test_a_key_may_be_encrypted(tmp_path: Path, certificates: Certificates) -> None:
    content = Path(certificates.server).read_bytes()
    chain = content[content.index(b"-----BEGIN CERT") :]
    encrypted = load_pem_private_key(content, None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"open sesame")
    )
    file = private_file(tmp_path / "encrypted.pem", encrypted + chain)
    assert keys_of(file, key_password=Secret("open sesame")).server
    for wrong in (Secret(), Secret("open barley")):
        with pytest.raises(InvalidSettings, match="password") as refused:
            keys_of(file, key_password=wrong)
        assert "barley" not in str(refused.value)


async def test_other_files_are_used_from_the_next_look_on(
    tmp_path: Path, certificates: Certificates
) -> None:
    file = tmp_path / "server.pem"
    os.replace(certificates.signed("first"), file)
    keys = keys_of(str(file))
    slept: list[float] = []
    changes = [
        (lambda: None, 0, 0, True),
        (lambda: os.replace(certificates.signed("next"), file), 1, 0, False),
        (lambda: private_file(file, b"half a k"), 1, 1, True),
        (lambda: None, 1, 2, True),
        (lambda: os.replace(certificates.signed("last"), file), 2, 2, False),
    ]

    class EndOfTest(Exception):
        pass

    before = keys.server

    async def sleep(seconds: float) -> None:
        nonlocal before
        if slept:
            _, reloads, failed, is_same = changes[len(slept) - 1]
            assert (keys.reloads, keys.failed_reloads) == (reloads, failed)
            assert (keys.server is before) == is_same
            before = keys.server
        if len(slept) == len(changes):
            raise EndOfTest
        changes[len(slept)][0]()
        slept.append(seconds)

    with pytest.raises(EndOfTest):
        await KeyWatch([keys], sleep=sleep).run()
    assert set(slept) == {LOOK_INTERVAL_S}
    assert keys.expires_in_s() > 0
