"""A socket that speaks just enough Kafka to be sent records, and throws them away.

The limit that `produce` is compared with: librdkafka, the loopback device and an event loop that
does nothing but receive and acknowledge. Every Produce request is read to its end and answered with
base offset 0; nothing of it is looked at beyond the header, the topic name and the partition. Each
answer comes ANSWER_MS after the request: what a broker would take that does all of a request beside
all others, and nothing else.

    python -m bench.speed.sink TOPIC PARTITIONS ANSWER_MS

prints its port, then serves until it is killed.
"""

import asyncio
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import uvloop

RECEIVE_BYTES = 128 << 10
HEAD_BYTES = 256
"""As much of a frame as is kept: enough for header, topic name and partition."""

_API_VERSIONS = ((0, 0, 7), (1, 4, 11), (3, 0, 4), (18, 0, 3), (22, 0, 1))


class Sink(asyncio.BufferedProtocol):
    """One connection; every byte goes into one reused buffer."""

    def __init__(self, topic: bytes, partitions: int, port: int, answer_s: float) -> None:
        self._topic = topic
        self._partitions = partitions
        self._port = port
        self._answer_s = answer_s
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._head = bytearray()
        self._left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        position = 0
        while position < nbytes:
            if self._left == 0 and len(self._head) < 4:
                take = min(4 - len(self._head), nbytes - position)
                self._head += self._buffer[position : position + take]
                position += take
                if len(self._head) == 4:
                    self._left = struct.unpack(">i", self._head)[0]
                continue
            take = min(self._left, nbytes - position)
            wanted = min(take, HEAD_BYTES - len(self._head))
            if wanted > 0:
                self._head += self._buffer[position : position + wanted]
            position += take
            self._left -= take
            if self._left == 0:
                is_produce, answer = self.answer_to(bytes(self._head[4:]))
                self._head.clear()
                if is_produce and self._answer_s:
                    # Timers of one length fire in the order in which they were set.
                    loop = asyncio.get_running_loop()
                    loop.call_later(self._answer_s, self.write, answer)
                else:
                    self.write(answer)

    def write(self, answer: bytes) -> None:
        self._transport.write(answer)

    def answer_to(self, request: bytes) -> tuple[bool, bytes]:
        """Whether a frame that begins so is a Produce; the whole frame of its answer."""
        api_key, version, correlation_id, client_id_length = struct.unpack_from(">hhih", request)
        body = request[10 + max(client_id_length, 0) :]
        if api_key == 18:
            answer = self._api_versions()
        elif api_key == 3:
            answer = self._metadata()
        elif api_key == 22:
            answer = struct.pack(">ihqh", 0, 0, 1, 0)
        elif api_key == 0:
            answer = _produce_answer(body)
        else:
            raise ValueError(f"the sink was asked for API {api_key} version {version}")
        return api_key == 0, struct.pack(">ii", len(answer) + 4, correlation_id) + answer

    def _api_versions(self) -> bytes:
        """Version 3, the first one librdkafka tries."""
        keys = b"".join(struct.pack(">hhhB", *row, 0) for row in _API_VERSIONS)
        return struct.pack(">hB", 0, len(_API_VERSIONS) + 1) + keys + struct.pack(">iB", 0, 0)

    def _metadata(self) -> bytes:
        """Version 4: one broker, one topic."""
        host = b"127.0.0.1"
        broker = struct.pack(">iih", 1, 0, len(host)) + host + struct.pack(">ih", self._port, -1)
        partitions = b"".join(
            struct.pack(">hii", 0, index, 0) + struct.pack(">iiii", 1, 0, 1, 0)
            for index in range(self._partitions)
        )
        topic = (
            struct.pack(">ihh", 1, 0, len(self._topic))
            + self._topic
            + struct.pack(">bi", 0, self._partitions)
            + partitions
        )
        return struct.pack(">i", 0) + broker + struct.pack(">hi", -1, 0) + topic


def _produce_answer(body: bytes) -> bytes:
    """Version 7: no error, base offset 0, for the one partition that librdkafka sends at a time."""
    (transactional_id_length,) = struct.unpack_from(">h", body)
    position = 2 + max(transactional_id_length, 0) + 2 + 4 + 4
    (name_length,) = struct.unpack_from(">h", body, position)
    name = body[position : position + 2 + name_length]
    (partition,) = struct.unpack_from(">i", body, position + 2 + name_length + 4)
    return struct.pack(">i", 1) + name + struct.pack(">iihqqqi", 1, partition, 0, 0, -1, 0, 0)


@contextmanager
def sink(topic: str, partitions: int, *, answer_ms: float = 0) -> Iterator[str]:
    """The address of a sink that runs in a process of its own while this is entered."""
    with _process("bench.speed.sink", topic, str(partitions), str(answer_ms)) as address:
        yield address


@contextmanager
def durable_sink(topic: str, partitions: int, directory: Path) -> Iterator[str]:
    """The same with bench/speed/durable_sink.py, whose files are in `directory`."""
    names = [topic, str(partitions), str(directory)]
    with _process("bench.speed.durable_sink", *names) as address:
        yield address


@contextmanager
def _process(module: str, *arguments: str) -> Iterator[str]:
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


async def listen(connection: Callable[[int], Sink]) -> None:
    """Print the port, then serve; `connection` makes each connection's sink, given the port."""
    port = 0
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: connection(port), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    print(port, flush=True)
    await server.serve_forever()


async def serve(topic: str, partitions: int, answer_s: float) -> None:
    await listen(lambda port: Sink(topic.encode(), partitions, port, answer_s))


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]) / 1_000))
