"""TLS between a socket and a protocol: bytes, memory, and how it ends. On both event loops."""

import asyncio
import random
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from diskless.listeners.lingering import Lingering
from diskless.listeners.tls_stream import HELLO_BYTES_MAX, UNKNOWN_BYTES, Scratch, TlsStream
from diskless.server.unread import unacknowledged_bytes
from tests.support.brokers.server_tests import on_both_loops
from tests.support.loops.until import until
from tests.support.security.certificates import Certificates
from wal.clock import SystemClock
from wal.security.pem_files import read_key_store
from wal.security.secret import Secret
from wal.security.tls_contexts import server_context

MIB = 1 << 20
DEADLINE_S = 60


class Upper(asyncio.BufferedProtocol):
    """Who speaks through the stream: notes what it is told."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.buffer = bytearray(5_000)
        self.told: list[str] = []
        self.is_blocked = False
        self.lost = asyncio.get_running_loop().create_future()
        self.pauses_at: int | None = None
        self.stream: TlsStream

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, TlsStream)
        self.stream = transport
        self.told.append("made")

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self.buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self.buffer[:nbytes]
        if self.pauses_at is not None and len(self.received) >= self.pauses_at:
            self.stream.pause_reading()

    def eof_received(self) -> bool:
        self.told.append("eof")
        return False

    def pause_writing(self) -> None:
        self.is_blocked = True

    def resume_writing(self) -> None:
        self.is_blocked = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append("lost")
        self.lost.set_result(None)


@pytest.fixture(scope="session")
def server(certificates: Certificates) -> ssl.SSLContext:
    now_ms = SystemClock().now_ms()
    keys = read_key_store(Path(certificates.server), Secret(), "keys", now_ms)
    return server_context(keys, Path(certificates.authority).read_text(), "requested")


@asynccontextmanager
async def streams(
    server: ssl.SSLContext, certificates: Certificates
) -> AsyncIterator[tuple[Upper, asyncio.StreamReader, asyncio.StreamWriter]]:
    """The protocol at one end, begun, and a client's stream at the other."""
    loop = asyncio.get_running_loop()
    made: asyncio.Future[Upper] = loop.create_future()

    def accept() -> TlsStream:
        upper = Upper()
        stream = TlsStream(server, upper, Scratch())

        def secured(done: asyncio.Future[None]) -> None:
            stream.begin()
            made.set_result(upper)

        stream.secured.add_done_callback(secured)
        return stream

    listener = await loop.create_server(accept, "127.0.0.1", 0)
    async with asyncio.timeout(DEADLINE_S), listener:
        host, port = listener.sockets[0].getsockname()
        # A client of uvloop forgets what it was not ready to read when the connection ends.
        reader, writer = await asyncio.open_connection(
            host, port, ssl=certificates.context(), server_hostname="localhost", limit=64 * MIB
        )
        upper = await made
        yield upper, reader, writer
        writer.transport.abort()
        await upper.lost


@on_both_loops
async def test_bytes_arrive_in_their_order_both_ways(
    server: ssl.SSLContext, certificates: Certificates
) -> None:
    rng = random.Random(1)
    sent = rng.randbytes(3 * MIB)
    async with streams(server, certificates) as (upper, reader, writer):
        writer.write(sent)
        position = 0
        while position < len(sent):
            sizes = [rng.choice([0, 1, 7, 300, 20_000, 150_000]) for _ in range(rng.randint(1, 9))]
            pieces = []
            for size in sizes:
                pieces.append(memoryview(sent)[position : position + size])
                position += size
            upper.stream.writelines(pieces)
            await asyncio.sleep(0)
        assert await reader.readexactly(len(sent)) == sent
        await until(lambda: len(upper.received) >= len(sent))
        assert upper.received == sent


@on_both_loops
async def test_what_a_client_does_not_read_is_counted_and_held_once(
    server: ssl.SSLContext, certificates: Certificates
) -> None:
    answer = random.Random(2).randbytes(32 * MIB)
    async with streams(server, certificates) as (upper, reader, writer):
        writer.transport.pause_reading()
        upper.stream.write(answer)
        assert upper.is_blocked
        await until(lambda: upper.stream.get_write_buffer_size() < len(answer))
        size = 0
        while size != upper.stream.get_write_buffer_size():
            size = upper.stream.get_write_buffer_size()
            await asyncio.sleep(0.05)
        assert size > 16 * MIB, "more than the system takes for a socket is not sent yet"
        assert upper.stream._outgoing.pending == 0
        assert upper.stream._socket is not None
        assert upper.stream._socket.get_write_buffer_size() < 256 << 10, "little is encrypted"
        assert upper.is_blocked
        writer.transport.resume_reading()
        assert await reader.readexactly(len(answer)) == answer
        await until(lambda: not upper.is_blocked)
        assert upper.stream.get_write_buffer_size() == 0


@on_both_loops
async def test_a_client_that_is_not_read_from_cannot_send(
    server: ssl.SSLContext, certificates: Certificates
) -> None:
    sent = random.Random(3).randbytes(32 * MIB)
    async with streams(server, certificates) as (upper, _, writer):
        upper.pauses_at = 100_000
        writer.write(sent)
        await until(lambda: not upper.stream.is_reading())
        await asyncio.sleep(0.05)
        assert len(upper.received) < 200_000
        assert upper.stream._incoming.pending < 600_000
        upper.pauses_at = None
        upper.stream.resume_reading()
        await until(lambda: len(upper.received) == len(sent))
        assert upper.received == sent


@on_both_loops
async def test_what_was_written_is_sent_before_the_end(
    server: ssl.SSLContext, certificates: Certificates
) -> None:
    answer = random.Random(4).randbytes(8 * MIB)
    async with streams(server, certificates) as (upper, reader, _):
        upper.stream.write(answer)
        upper.stream.close()
        upper.stream.write(b"too late")
        assert await reader.read(-1) == answer
        await upper.lost
        assert upper.told == ["made", "lost"]


@on_both_loops
async def test_a_client_that_says_goodbye_or_breaks_off_is_lost_once(
    server: ssl.SSLContext, certificates: Certificates
) -> None:
    async with streams(server, certificates) as (upper, _, writer):
        writer.close()
        await upper.lost
        assert upper.told == ["made", "eof", "lost"]
    async with streams(server, certificates) as (upper, _, writer):
        writer.transport.abort()
        await upper.lost
        assert upper.told[-1] == "lost"


@on_both_loops
async def test_bytes_that_are_no_tls_end_the_connection(
    server: ssl.SSLContext, certificates: Certificates
) -> None:
    async with streams(server, certificates) as (upper, _, _):
        upper.stream.get_buffer(-1)[:9] = b"plaintext"
        upper.stream.buffer_updated(9)
        await upper.lost
        assert upper.told == ["made", "lost"]
        assert not upper.received


@on_both_loops
async def test_who_has_more_on_its_way_reads_the_last_answer_and_that_it_was_the_last(
    server: ssl.SSLContext, certificates: Certificates
) -> None:
    lingering = Lingering(SystemClock(), outstanding_bytes=unacknowledged_bytes, unsent_max_s=30)
    upper = Upper()
    upper.pauses_at = 1

    def talk(address: tuple[str, int]) -> tuple[bytes, bytes]:
        with (
            socket.create_connection(address, timeout=DEADLINE_S) as plain,
            certificates.context().wrap_socket(
                plain, server_hostname="localhost", suppress_ragged_eofs=False
            ) as client,
        ):
            client.sendall(bytes(200_000))
            return client.recv(100), client.recv(100)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        talking = asyncio.create_task(asyncio.to_thread(talk, listener.getsockname()))
        end, _ = await asyncio.to_thread(listener.accept)
    async with asyncio.timeout(DEADLINE_S):
        stream = TlsStream(server, upper, Scratch(), lingering.close)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: stream, end)
        await stream.secured
        stream.begin()
        await until(lambda: not stream.is_reading())
        stream.write(b"the last answer")
        stream.close()
        assert len(lingering) == 1
        assert await talking == (b"the last answer", b"")
        await upper.lost
        await until(lambda: not len(lingering))


def hello_of(size_bytes: int, first_record_bytes: int) -> bytes:
    """The beginning of a ClientHello that says how long it is."""
    message = b"\x01" + size_bytes.to_bytes(3) + b"\x03\x03" + bytes(100)
    first, rest = message[:first_record_bytes], message[first_record_bytes:]
    return b"".join(b"\x16\x03\x01" + len(one).to_bytes(2) + one for one in (first, rest))


@pytest.mark.parametrize("piece", [1, 1_000])
@pytest.mark.parametrize(
    ("size_bytes", "first_record_bytes", "is_refused"),
    [(HELLO_BYTES_MAX, 50, False), (HELLO_BYTES_MAX + 1, 50, True), (HELLO_BYTES_MAX, 2, True)],
)
async def test_no_room_is_made_for_a_first_message_that_says_it_is_long(
    server: ssl.SSLContext, size_bytes: int, first_record_bytes: int, is_refused: bool, piece: int
) -> None:
    stream = TlsStream(server, Upper(), Scratch())
    sent = hello_of(size_bytes, first_record_bytes)
    for start in range(0, len(sent), piece):
        part = sent[start : start + piece]
        stream.get_buffer(-1)[: len(part)] = part
        stream.buffer_updated(len(part))
    assert stream.secured.done() == is_refused
    if is_refused:
        assert "ClientHello" in str(stream.secured.exception())


async def test_little_is_received_at_once_while_it_is_unknown_who_the_client_is(
    server: ssl.SSLContext, certificates: Certificates
) -> None:
    async with streams(server, certificates) as (upper, _, _):
        stream = TlsStream(server, upper, Scratch())
        assert len(stream.get_buffer(-1)) == UNKNOWN_BYTES, "it shakes hands"
        assert len(upper.stream.get_buffer(-1)) > UNKNOWN_BYTES
