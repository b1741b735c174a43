"""Clients that ask and do not read, or hardly, and clients that do, one thing at a time.

    python -m bench.limits.deaf_clients HOST:PORT KIND COUNT     until its standard input ends

Plain sockets that are served by nobody's loop. Each of the deaf pipelines thousands of small
requests; "slow readers" take a KiB of their answers a second. As a process of their own they say
"asked" when the broker takes no more of them for a moment, and ask on.
"""

import itertools
import select
import socket
import struct
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Final, Self

from bench.tools.raw_client import batch, check_produced, frame, produce_body, text

KINDS: Final = ("Fetch", "Fetch of data", "Metadata", "Produce", "mixed")
SLOW_READERS: Final = "slow readers"
TOPIC: Final = "t"
NEVER_MS: Final = 2**31 - 1

ANSWERED_WITHIN_S: Final = 10.0
"""Far beyond what an answer takes; whoever is locked out waits for ever."""

_RECEIVE_BUFFER_BYTES: Final = 4 << 10
"""As little as the system takes, so that the broker notices soon that nobody reads."""
_CHUNK_BYTES: Final = 64 << 10


def metadata_request(topic: str = TOPIC) -> bytes:
    return frame(3, 1, struct.pack(">i", 1) + text(topic))


def produce_request(topic: str = TOPIC, partition: int = 0, value: bytes = b"x" * 100) -> bytes:
    return frame(0, 7, produce_body(topic, partition, batch(value)))


def fetch_request(
    offset: int = 0,
    *,
    topic: str = TOPIC,
    partition: int = 0,
    max_wait_ms: int = 0,
    max_bytes: int = 1 << 20,
) -> bytes:
    """Fetch 4 of one partition."""
    body = struct.pack(">iiiib", -1, max_wait_ms, 1, max_bytes, 0)
    body += struct.pack(">i", 1) + text(topic)
    return frame(1, 4, body + struct.pack(">iiqi", 1, partition, offset, max_bytes))


def requests_of(kind: str, partition: int) -> Sequence[bytes]:
    """What a deaf client of this kind asks over and over; all but "Fetch of data" are small.

    "Fetch" is of an empty partition, and waits there for ever.
    """
    produce = produce_request(partition=partition)
    fetch = fetch_request(partition=partition, max_wait_ms=NEVER_MS, max_bytes=50 << 20)
    asked = {
        "Fetch": [fetch],
        "Fetch of data": [fetch],
        "Metadata": [metadata_request()],
        "Produce": [produce],
        "mixed": [metadata_request(), produce, fetch_request(partition=partition)],
    }
    return asked[kind]


class DeafClients:
    """`count` of them; closed at the end of `with`."""

    def __init__(
        self,
        address: tuple[str, int],
        count: int,
        kind: str,
        *,
        source: str = "127.0.0.1",
        partition: int = 0,
        chunks: int = 8,
    ) -> None:
        """Each asks at most `chunks` times 64 KiB of requests."""
        self._address = address
        self._count = count
        self._source = source
        self._asked = b"".join(requests_of(kind, partition))
        self._size = chunks * _CHUNK_BYTES
        self._stack = ExitStack()
        self._sent: Counter[socket.socket] = Counter()
        self.sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        for _ in range(self._count):
            one = self._stack.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
            one.bind((self._source, 0))
            one.connect(self._address)
            one.setblocking(False)
            self.sockets.append(one)
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def ask_on(self, quiet_s: float = 0.2) -> int:
        """Send until the broker takes no more of anybody's requests, or each has sent its part.

        Gives how many bytes were sent since the start.
        """
        whole = self._asked * (_CHUNK_BYTES // len(self._asked) + 2)
        left = dict.fromkeys(self.sockets, self._size)
        while left:
            _, writable, _ = select.select([], list(left), [], quiet_s)
            if not writable:
                break
            for one in writable:
                start = self._sent[one] % len(self._asked)
                try:
                    count = one.send(memoryview(whole)[start : start + _CHUNK_BYTES])
                except ConnectionError:
                    del left[one]
                    continue
                self._sent[one] += count
                left[one] -= count
                if left[one] <= 0:
                    del left[one]
        return sum(self._sent.values())

    def read_slowly(self, count: int = 1024) -> int:
        """Take up to `count` bytes of each client's answers; how many were there."""
        readable, _, _ = select.select(self.sockets, [], [], 0)
        return sum(len(one.recv(count)) for one in readable)

    def closed_by_broker(self) -> int:
        """How many were cut off. Reads what is there to be read of all of them."""
        return sum(map(_is_closed, self.sockets))


class Innocent:
    """A client that asks one thing at a time and reads every answer, within a deadline."""

    def __init__(self, address: tuple[str, int], source: str, partition: int) -> None:
        self._socket = socket.create_connection(
            address, ANSWERED_WITHIN_S, source_address=(source, 0)
        )
        self._partition = partition
        self._offset = 0

    def close(self) -> None:
        self._socket.close()

    def seek(self, offset: int) -> None:
        """Read from there next."""
        self._offset = offset

    def go_round(self, value: bytes) -> None:
        """Metadata, Produce of `value`, and Fetch until it is there."""
        self.metadata()
        self.produce(value)
        self.fetch(value)

    def metadata(self) -> None:
        self._ask(metadata_request())

    def produce(self, value: bytes) -> None:
        answer = self._ask(produce_request(partition=self._partition, value=value))
        if check_produced(answer) != self._offset:
            raise RuntimeError("an offset that is not the next one")

    def fetch(self, value: bytes) -> None:
        """Read what was produced last."""
        fetch = fetch_request(
            self._offset, partition=self._partition, max_wait_ms=1_000, max_bytes=8 << 20
        )
        while value not in self._ask(fetch):
            pass
        self._offset += 1

    def _ask(self, request: bytes) -> bytes:
        """What follows the correlation id of its answer."""
        self._socket.sendall(request)
        (size,) = struct.unpack(">i", self._receive(4))
        return self._receive(size)[4:]

    def _receive(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            part = self._socket.recv(size - len(received))
            if not part:
                raise ConnectionError("the broker closed an innocent client's connection")
            received += part
        return bytes(received)


def fill(
    address: tuple[str, int], partition: int, *, count: int = 8, size: int = 1_000_000
) -> None:
    """Write `count` batches of `size` bytes to a partition that is empty."""
    writer = Innocent(address, "127.0.0.1", partition)
    writer.metadata()
    for _ in range(count):
        writer.produce(bytes(size))
        writer.fetch(b"")
    writer.close()


def _is_closed(one: socket.socket) -> bool:
    try:
        for _ in itertools.count():
            if not one.recv(1 << 20):
                return True
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    raise AssertionError("a count that ends")


def main(bootstrap: str, kind: str, count: int, partition: int) -> None:
    """Ask on until standard input ends."""
    host, _, port = bootstrap.rpartition(":")
    is_slow = kind == SLOW_READERS
    asked = DeafClients(
        (host, int(port)), count, "Fetch of data" if is_slow else kind, partition=partition
    )
    with asked as deaf:
        deaf.ask_on()
        print("asked", flush=True)
        pause_s = 1.0 if is_slow else 0.1
        read: Callable[[], object] = deaf.read_slowly if is_slow else deaf.ask_on
        while not select.select([sys.stdin], [], [], pause_s)[0]:
            read()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
