"""What it costs to receive over TLS, by the size of the client's TLS records.

`read_cost(pieces, total_bytes)` has a client write pieces of these sizes in turn, each of which is
a TLS record, and gives processor seconds for a GiB of what a broker's side of the connection
(`diskless.listeners.tls_stream`) hands on. The client's own work, sockets and the kernel are not in
it, so it tells what no setting of a broker changes: Java fills records of 16 KiB, librdkafka makes
one of each piece of a request, which are a header and a value for every record of an uncompressed
batch.
"""

import asyncio
import ssl
import time
from collections.abc import Sequence
from typing import Final

import trustme

from diskless.listeners.tls_stream import SCRATCH_BYTES, Scratch, TlsStream

__all__ = ["LIBRDKAFKA_PIECES", "WHOLE_RECORDS", "read_cost"]

WHOLE_RECORDS: Final = (16 << 10,)
LIBRDKAFKA_PIECES: Final = (70, 1 << 10)
"""Of records of 1 KiB."""
_HOST: Final = "localhost"


class _Reader(asyncio.BufferedProtocol):
    """Takes what it is given, and counts it."""

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(SCRATCH_BYTES))
        self.received_bytes = 0

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received_bytes += nbytes


class _Wire(asyncio.Transport):
    """The socket's transport of the broker's side: what is written is for the client."""

    def __init__(self, client: ssl.MemoryBIO) -> None:
        super().__init__()
        self._client = client

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._client.write(data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


async def read_cost(pieces: Sequence[int], total_bytes: int) -> float:
    """See above. Raises: ssl.SSLError."""
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    at_broker = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(_HOST, key_type=trustme.KeyType.ECDSA).configure_cert(at_broker)
    at_client = ssl.create_default_context()
    authority.configure_trust(at_client)

    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = at_client.wrap_bio(incoming, outgoing, server_hostname=_HOST)
    reader, scratch = _Reader(), Scratch()
    stream = TlsStream(at_broker, reader, scratch)
    stream.connection_made(_Wire(incoming))

    def deliver() -> float:
        """What the client has written; processor seconds of the broker's side."""
        used_s = 0.0
        while outgoing.pending:
            sent = outgoing.read(SCRATCH_BYTES)
            stream.get_buffer(-1)[: len(sent)] = sent
            begun_at = time.process_time()
            stream.buffer_updated(len(sent))
            used_s += time.process_time() - begun_at
        return used_s

    while not stream.secured.done():
        try:
            client.do_handshake()
        except ssl.SSLWantReadError:
            pass
        deliver()
    stream.begin()
    await asyncio.sleep(0)  # it reads on in a turn of its own

    values = [bytes(size) for size in pieces]
    used_s = 0.0
    while reader.received_bytes < total_bytes:
        while outgoing.pending < SCRATCH_BYTES:
            for value in values:
                client.write(value)
        used_s += deliver()
    return used_s / reader.received_bytes * (1 << 30)
