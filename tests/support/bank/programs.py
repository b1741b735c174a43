"""How the programs of the bank are told what to do, and how they say what happens.

A program is given one JSON object as its argument. It writes one JSON object a line: what it did,
and when. A line on its standard input is a wish: `rest` until `go`; its end ends the program. What
was written before a program is killed can still be read, so nothing that it said is forgotten.
"""

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from confluent_kafka import KafkaException

TOPIC: Final = "legs"
BALANCES: Final = "balances"
CALL_S: Final = 20.0
"""How long librdkafka may take for one call. What is not done then is asked for again."""
PATIENCE_S: Final = 240.0
"""How long a program tries again before it gives up."""

CLIENT: Final[dict[str, Any]] = {
    # It reports every connection that a dying broker closes. A logger would be called in the middle
    # of a call that a fatal error ends, and the call would end with a SystemError instead.
    "log_level": 0,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    "retry.backoff.ms": 50,
    "socket.timeout.ms": 10_000,
    "topic.metadata.refresh.interval.ms": 1_000,
}
"""Brokers are killed and paused: what does not answer is given up early."""


class Fenced(Exception):
    """The producer may do nothing more: another took its place, or its transaction timed out."""


def say(event: str, **facts: Any) -> None:
    """One line, out at once."""
    print(json.dumps({"event": event, "at": time.monotonic(), **facts}), flush=True)


def call(what: Callable[[], Any]) -> Any:
    """Do it, again while it may be tried again.

    Raises Fenced for what ends the producer, and KafkaException where the transaction has to be
    aborted.
    """
    ends_at = time.monotonic() + PATIENCE_S
    while True:
        try:
            return what()
        except KafkaException as failure:
            error = failure.args[0]
            if error.fatal():
                raise Fenced(error.name()) from failure
            if not error.retriable() or error.txn_requires_abort() or time.monotonic() > ends_at:
                raise


@contextmanager
def gives_up_after(seconds: float, why: str) -> Iterator[None]:
    """The program ends as if it was killed, behind `stuck`, if the body takes longer."""

    def give_up() -> None:
        say("stuck", why=why)
        os._exit(1)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Wishes:
    """What standard input asks for, read in a thread."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="wishes", daemon=True).start()

    def obey(self, pause_s: float = 0.0) -> bool:
        """Pause for so long, and rest if that is wished by then. Returns whether to go on."""
        try:
            wish = self._lines.get(timeout=pause_s)
        except queue.Empty:
            return True
        while wish == "rest":
            say("rests")
            wish = self._lines.get()
        return wish != ""

    def _read(self) -> None:
        for line in sys.stdin:
            self._lines.put(line.strip())
        self._lines.put("")
