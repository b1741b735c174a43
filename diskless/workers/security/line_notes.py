"""Where a worker's notes for the audit log go: to the head, which writes all of them.

What is noted is in the socket before the worker goes on, so a worker that is killed takes no note
with it. How often the same is noted is limited here, and again in the head for all workers
together (`AuditLog.forwarded`).

A client can have notes made that are all of different things: it is refused a thousand names a
second. They cost the head time, which all workers share; so each kind of note may have
NOTE_BYTES_PER_S_MAX. What is more is left out and counted, like what finds the queue of the audit
log full; and nobody who is refused keeps a log-in out of the log.
"""

import json
from collections import Counter
from collections.abc import Callable
from typing import Final

from diskless.audit.audit_log import Note
from diskless.workers.line import NOTE, frame
from wal.clock import Clock

NOTE_BYTES_PER_S_MAX: Final = 512 << 10
"""Of each kind, of a worker: some 1,500 notes."""


class LineNotes:
    """A sink."""

    def __init__(self, send: Callable[[bytes], None], clock: Clock) -> None:
        """`send` sends to the head."""
        self._send = send
        self._clock = clock
        self._second = 0
        self._sent_bytes: Counter[str] = Counter()
        """In this second, by kind."""
        self.left_out = 0
        """Notes that were too many."""

    def __call__(self, note: Note) -> None:
        second = int(self._clock.monotonic())
        if second != self._second:
            self._second = second
            self._sent_bytes.clear()
        content = json.dumps(note).encode()
        kind = str(note["event"])
        if self._sent_bytes[kind] + len(content) > NOTE_BYTES_PER_S_MAX:
            self.left_out += 1
            return
        self._sent_bytes[kind] += len(content)
        self._send(frame(NOTE, content))


def decode_note(content: bytes) -> Note:
    note: Note = json.loads(content)
    return note
