"""A way to a port that can be cut, held and opened again, as a network does.

with Gate(("127.0.0.1", port)) as gate:     # connect to gate.port
    gate.cut()       # what is connected is lost, who connects is refused
    gate.open()
    gate.reset(lambda: rng.random() < 0.5)  # half of what is connected is lost at once
    gate.hold()      # nothing comes through, in either direction, and nobody is told
    gate.let_go()    # what was sent meanwhile comes late, however late
"""

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Self

from tests.support.ports import own_port

_CHUNK_BYTES: Final = 1 << 16
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER: what is not sent is dropped, and the other end sees a reset."""


class _Line:
    """A connection, both ways."""

    def __init__(self, client: socket.socket, target: socket.socket) -> None:
        self.ends: Final = (client, target)
        self.passes: Final = threading.Event()
        """Not while it is held."""
        self.passes.set()
        self.directions = 2
        """That still pass something on."""

    def lose(self) -> None:
        """Both ends see that it is lost, when what was held has come through."""
        for end in self.ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """Both ends see a reset, at once."""
        for end in self.ends:
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                # Wakes who reads here without a word to the other end.
                end.shutdown(socket.SHUT_RD)


class Gate:
    """Passes bytes on, both ways, in threads."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.port: Final = own_port()
        self._target = target
        self._listener: socket.socket | None = None
        self._lines: dict[_Line, None] = {}
        """In the order in which they were connected."""
        self._is_held = False
        """Whether who connects is held too."""
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def is_open(self) -> bool:
        return self._listener is not None

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.let_go()
        self.cut()
        for thread in [*self._threads]:
            thread.join()

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
            for line in self._lines:
                line.lose()

    def reset(self, which: Callable[[], bool] = lambda: True) -> None:
        """What is connected is lost, if `which` says so; who connects is let in."""
        with self._lock:
            for line in self._lines:
                if which():
                    line.reset()

    def hold(self, which: Callable[[], bool] | None = None) -> None:
        """Hold what is connected, if `which` says so; without it who connects meanwhile, too."""
        with self._lock:
            self._is_held = which is None
            for line in self._lines:
                if which is None or which():
                    line.passes.clear()

    def let_go(self) -> None:
        with self._lock:
            self._is_held = False
            for line in self._lines:
                line.passes.set()

    def _begin(self, work: Callable[..., None], *arguments: object) -> None:
        def run() -> None:
            work(*arguments)
            with self._lock:
                self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=run)
        with self._lock:
            # It ends behind this, so what is in the set has been started.
            thread.start()
            self._threads.add(thread)

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                try:
                    target = socket.create_connection(self._target)
                except OSError:
                    client.close()
                    continue
                with self._lock:
                    if self._listener is not listener:
                        client.close()
                        target.close()
                        return
                    line = _Line(client, target)
                    self._lines[line] = None
                    if self._is_held:
                        line.passes.clear()
                self._begin(self._pass_on, line, client, target)
                self._begin(self._pass_on, line, target, client)

    def _pass_on(self, line: _Line, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                line.passes.wait()
                sink.sendall(data)
        line.passes.wait()
        with self._lock:
            line.directions -= 1
            is_last = line.directions == 0
            if is_last:
                self._lines.pop(line)
        if is_last:
            for end in line.ends:
                end.close()
        elif source.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8) != _RESET:
            line.lose()
