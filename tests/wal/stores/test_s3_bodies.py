"""Bodies on their way to S3: fragments, readers, TLS."""

import asyncio
import ipaddress
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import uvloop
from botocore.exceptions import SSLError
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.stores.opened_s3 import KEY, s3_store
from wal.stores.object_store import Buffer, BytesBody
from wal.stores.s3_protocol import (
    PIECE_BYTES,
    BodyReader,
    Failure,
    client_configuration,
    failure_of,
    pieces,
)
from wal.stores.s3_settings import S3Settings


class OverwritingBody:
    """Gives all its fragments in the same memory."""

    _FRAGMENT_BYTES = 3 * PIECE_BYTES + 1

    def __init__(self) -> None:
        self.content = b"".join(bytes([number]) * self._FRAGMENT_BYTES for number in range(20))
        self.length_bytes = len(self.content)

    def fragments(self) -> Iterator[Buffer]:
        memory = bytearray(self._FRAGMENT_BYTES)
        for number in range(20):
            memory[:] = bytes([number]) * self._FRAGMENT_BYTES
            yield memoryview(memory)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 127.0.0.1, signed by itself, with its key in the same file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "certificate.pem"
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    path.write_bytes(
        signed.public_bytes(pem) + key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    )
    return path


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_fragment_is_sent_before_the_next_one_overwrites_it(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    tls: bool,
    certificate: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
    body = OverwritingBody()
    received = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        checksum = re.search(rb"(?i)x-amz-checksum-crc32c: (.*)\r\n", head)
        assert checksum is not None
        while len(received) < body.length_bytes:
            received.extend(await reader.read(64 << 10))
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nx-amz-checksum-crc32c: %s\r\n\r\n"
        writer.write(answer % checksum.group(1))
        await writer.drain()
        writer.close()

    async def put() -> None:
        context = None
        if tls:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(certificate)
        # A small receive buffer keeps most of a fragment with the sender.
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.bind(("127.0.0.1", 0))
        server = await asyncio.start_server(serve, sock=listener, ssl=context)
        async with server:
            endpoint = f"{'https' if tls else 'http'}://127.0.0.1:{listener.getsockname()[1]}"
            settings = S3Settings(payload_signed=False)
            async with s3_store("bucket", endpoint, settings) as store:
                await store.put(KEY, body)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(put())
    is_what_was_put = received == body.content  # pytest would print megabytes
    assert is_what_was_put


def test_a_tls_error_may_come_after_the_request_and_a_bad_certificate_does_not() -> None:
    def failed_with(inner: Exception) -> Failure:
        error = SSLError(endpoint_url="https://s3.test/", error=inner)
        error.__context__ = inner
        return failure_of(error)

    assert failed_with(ssl.SSLEOFError("EOF occurred")) is Failure.MAYBE_APPLIED
    assert failed_with(ssl.SSLCertVerificationError("expired")) is Failure.NOT_APPLIED


def test_only_tls_and_who_asks_for_it_go_without_a_signed_body() -> None:
    def signed(endpoint_url: str | None, settings: S3Settings) -> bool:
        s3 = client_configuration(settings, endpoint_url=endpoint_url)["s3"]
        return bool(s3["payload_signing_enabled"])

    assert not signed(None, S3Settings())
    assert not signed("https://minio.example:9000", S3Settings())
    assert signed("http://127.0.0.1:9000", S3Settings())
    assert not signed("http://127.0.0.1:9000", S3Settings(payload_signed=False))


def test_a_body_reader_gives_the_body_however_it_is_read() -> None:
    body = BytesBody(b"ab" * 100_000, b"", b"c", memoryview(b"d" * PIECE_BYTES))
    whole = b"".join(bytes(fragment) for fragment in body.fragments())
    assert b"".join(pieces(body)) == whole
    assert {len(piece) for piece in list(pieces(body))[:-1]} == {PIECE_BYTES}
    for step in (1000, PIECE_BYTES, 10 * PIECE_BYTES):
        reader = BodyReader(body)
        assert len(reader) == len(whole)
        assert reader.seek(0, 2) == len(whole)
        assert reader.read() == b""
        assert reader.seek(0) == 0
        read = bytearray()
        while piece := reader.read(step):
            read += piece
            assert reader.tell() == len(read)
        assert read == whole
    with pytest.raises(ValueError, match="cannot seek"):
        reader.seek(5)
    assert BodyReader(body).continues_with(whole)
    assert not BodyReader(body).continues_with(whole[:-1] + b"!")
    assert not BodyReader(body).continues_with(whole + b"!")
