"""A way to a port that can be cut and opened again, as a network does.

with Gate(("127.0.0.1", port)) as gate:     # connect to gate.port
    gate.cut()       # what is connected is lost, who connects is refused
    gate.open()
"""

import socket
import threading
from contextlib import suppress
from typing import Final, Self

from tests.support.ports import own_port

_CHUNK_BYTES: Final = 1 << 16


class Gate:
    """Passes bytes on, both ways, in threads."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.port: Final = own_port()
        self._target = target
        self._listener: socket.socket | None = None
        self._connected: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        for thread in self._threads:
            thread.join()
        for connected in self._connected:
            connected.close()

    def open(self) -> None:
        listener = socket.create_server(("127.0.0.1", self.port))
        self._listener = listener
        self._begin(self._accept, listener)

    def cut(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        with self._lock:
            for connected in self._connected:
                with suppress(OSError):
                    connected.shutdown(socket.SHUT_RDWR)

    def _begin(self, work: object, *arguments: socket.socket) -> None:
        thread = threading.Thread(target=work, args=arguments)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                try:
                    broker = socket.create_connection(self._target)
                except OSError:
                    client.close()
                    continue
                with self._lock:
                    if self._listener is not listener:
                        client.close()
                        broker.close()
                        return
                    self._connected |= {client, broker}
                self._begin(self._pass_on, client, broker)
                self._begin(self._pass_on, broker, client)

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                sink.sendall(data)
        with self._lock:
            for end in (source, sink):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
