"""A proxy that makes an S3 server as slow as one in another building, in a process of its own.

    python -m bench.tools.slow_s3 UPSTREAM_URL DELAYS    prints its URL, serves until it is killed

`DELAYS` is the JSON of a `Delays`. An answer comes no sooner than its delay after the last byte of
the request; what the server behind takes itself is part of that delay, not added to it. Bodies pass
at the given rate per connection, in both directions. An outlier is a PUT whose answer comes later.

Bytes go from socket to socket through a pipe, in the kernel (Linux only): a byte costs less here
than in the clients and servers that are measured, and `SlowS3.cpu_s` tells what it costs. There is
one thread per connection, and one connection to the server for each client's.

Requests have a Content-Length, as those of all AWS SDKs; answers may be chunked. The proxy answers
`Expect: 100-continue` by itself. Signatures stay valid: no header is changed.

Each line that the process reads from standard input is answered with the JSON of a `Passed`.
"""

import fcntl
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple, Self
from urllib.parse import urlsplit

import psutil

_PIECE_BYTES: Final = 256 << 10
_HEAD_BYTES_MAX: Final = 64 << 10
_F_SETPIPE_SZ: Final = 1031
_NO_BODY: Final = frozenset({204, 304})


class Delays(NamedTuple):
    """What S3 in the same region is like."""

    put_ms: float = 30
    first_byte_ms: float = 15
    """Of every other request."""
    bytes_per_s: float = 80e6
    """Of one connection; 0: as fast as it goes."""
    outlier_share: float = 0
    """Of the PUTs."""
    outlier_ms: float = 0
    """What an outlier takes instead of `put_ms`."""


class Passed(NamedTuple):
    """What went through so far."""

    requests: Mapping[str, int]
    """By method."""
    sent_bytes: int
    """Bodies of requests."""
    received_bytes: int
    """Bodies of answers."""


class SlowS3:
    """The proxy's process, while this is entered."""

    def __init__(self, upstream: str, delays: Delays) -> None:
        self._command = [sys.executable, "-m", "bench.tools.slow_s3", upstream, json.dumps(delays)]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.endpoint = self._answer()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def cpu_s(self) -> float:
        """Processor time that it has used."""
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    def passed(self) -> Passed:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return Passed(*json.loads(self._answer()))

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise RuntimeError("the slow S3 proxy has ended")
        return line


class _Counters:
    """Shared by the connections. What a client has seen the end of is counted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: dict[str, int] = {}
        self._bytes = {"sent": 0, "received": 0}

    def count(self, method: str) -> None:
        with self._lock:
            self._requests[method] = self._requests.get(method, 0) + 1

    def count_bytes(self, direction: str, size: int) -> None:
        with self._lock:
            self._bytes[direction] += size

    def passed(self) -> Passed:
        with self._lock:
            return Passed(dict(self._requests), self._bytes["sent"], self._bytes["received"])


class _Head(NamedTuple):
    """A request's or an answer's first line and headers."""

    raw: bytes

    @property
    def first_line(self) -> str:
        return self.raw.split(b"\r\n", 1)[0].decode("latin-1")

    def field(self, name: str) -> str:
        """A header's value, empty when there is none."""
        wanted = name.lower().encode()
        for line in self.raw.split(b"\r\n")[1:]:
            key, _, value = line.partition(b":")
            if key.lower() == wanted:
                return value.strip().decode("latin-1")
        return ""


class _Body:
    """Bytes that pass at a rate, from now on."""

    def __init__(self, direction: str, bytes_per_s: float, counters: _Counters) -> None:
        self._direction = direction
        self._bytes_per_s = bytes_per_s
        self._counters = counters
        self._started = time.monotonic()
        self._passed = 0

    def count(self, size: int) -> None:
        """Wait until these bytes may pass too."""
        self._counters.count_bytes(self._direction, size)
        self._passed += size
        if self._bytes_per_s:
            _sleep_until(self._started + self._passed / self._bytes_per_s)


class _Connection:
    """One client's connection, and ours to the server for it."""

    def __init__(
        self,
        client: socket.socket,
        server: socket.socket,
        delays: Delays,
        counters: _Counters,
        rng: random.Random,
    ) -> None:
        self._client = client
        self._server = server
        self._delays = delays
        self._counters = counters
        self._rng = rng
        self._ahead = {client: b"", server: b""}

    def serve(self) -> None:
        with self._client, self._server, suppress(OSError), _pipe() as pipe:
            while request := self._read_head(self._client):
                self._exchange(request, pipe)

    def _exchange(self, request: _Head, pipe: tuple[int, int]) -> None:
        method = request.first_line.split(" ", 1)[0]
        if request.field("expect").lower() == "100-continue":
            self._client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._server.sendall(request.raw)
        self._counters.count(method)
        sent = _Body("sent", self._delays.bytes_per_s, self._counters)
        length = int(request.field("content-length") or 0)
        self._pass_on(self._client, self._server, length, sent, pipe)
        answer_at = time.monotonic() + self._delay_s(method)
        answer = self._read_head(self._server)
        # A server that was told to expect a 100 sends its own, which the client has already.
        while answer is not None and answer.first_line.split(" ")[1] == "100":
            answer = self._read_head(self._server)
        if answer is None:
            raise ConnectionResetError("the server closed the connection")
        _sleep_until(answer_at)
        self._client.sendall(answer.raw)
        received = _Body("received", self._delays.bytes_per_s, self._counters)
        status = int(answer.first_line.split(" ")[1])
        if method != "HEAD" and status not in _NO_BODY:
            self._pass_answer(answer, received, pipe)

    def _delay_s(self, method: str) -> float:
        delays = self._delays
        if method != "PUT":
            return delays.first_byte_ms / 1_000
        is_outlier = self._rng.random() < delays.outlier_share
        return (delays.outlier_ms if is_outlier else delays.put_ms) / 1_000

    def _pass_answer(self, answer: _Head, body: _Body, pipe: tuple[int, int]) -> None:
        source, target = self._server, self._client
        if answer.field("transfer-encoding").lower() != "chunked":
            self._pass_on(source, target, int(answer.field("content-length")), body, pipe)
            return
        size = -1
        while size != 0:
            line = self._read_line(source)
            target.sendall(line)
            size = int(line.split(b";")[0], 16)
            self._pass_on(source, target, size, body, pipe)
            target.sendall(self._read_line(source))

    def _pass_on(
        self,
        source: socket.socket,
        target: socket.socket,
        length: int,
        body: _Body,
        pipe: tuple[int, int],
    ) -> None:
        ahead, self._ahead[source] = self._ahead[source][:length], self._ahead[source][length:]
        if ahead:
            body.count(len(ahead))
            target.sendall(ahead)
        left = length - len(ahead)
        into, out_of = pipe[1], pipe[0]
        while left:
            size = os.splice(source.fileno(), into, min(left, _PIECE_BYTES))
            if not size:
                raise ConnectionResetError("closed within a body")
            body.count(size)
            left -= size
            while size:
                size -= os.splice(out_of, target.fileno(), size)

    def _read_head(self, source: socket.socket) -> _Head | None:
        """None at the end of the connection."""
        data = self._ahead[source]
        while (end := data.find(b"\r\n\r\n")) < 0:
            more = source.recv(_HEAD_BYTES_MAX)
            if not more:
                return None
            data += more
        self._ahead[source] = data[end + 4 :]
        return _Head(data[: end + 4])

    def _read_line(self, source: socket.socket) -> bytes:
        data = self._ahead[source]
        while (end := data.find(b"\r\n")) < 0:
            more = source.recv(_HEAD_BYTES_MAX)
            if not more:
                raise ConnectionResetError("closed within a line")
            data += more
        self._ahead[source] = data[end + 2 :]
        return data[: end + 2]


@contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    fcntl.fcntl(write, _F_SETPIPE_SZ, _PIECE_BYTES)
    try:
        yield read, write
    finally:
        os.close(read)
        os.close(write)


def _sleep_until(at: float) -> None:
    time.sleep(max(0.0, at - time.monotonic()))


def serve(upstream: str, delays: Delays) -> None:
    address = urlsplit(upstream)
    counters = _Counters()
    rng = random.Random(1)

    def tell() -> None:
        for _ in sys.stdin:
            print(json.dumps(counters.passed()), flush=True)

    threading.Thread(target=tell, daemon=True).start()
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        while True:
            client, _ = listener.accept()
            server = socket.create_connection((address.hostname, address.port))
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = _Connection(client, server, delays, counters, rng)
            threading.Thread(target=connection.serve, daemon=True).start()


if __name__ == "__main__":
    serve(sys.argv[1], Delays(*json.loads(sys.argv[2])))
