"""What the head does for the security of all workers together.

It counts failed log-ins by address, so that whoever guesses passwords waits as long as at a broker
of one process, whichever workers its connections reach; and it writes the notes of the audit log.
What a worker says is believed, for it is this broker, as far as it can be (`cannot_be`). What it
says of a client it has found out by itself, from the socket and from a log-in; nothing of it is
what a client has written, but for the client id.
"""

import struct
from collections.abc import Mapping
from typing import Final

from diskless.audit.audit_log import AuditLog
from diskless.authorization import BROKER_USER
from diskless.listeners.listeners import Listener
from diskless.ports import ANONYMOUS
from diskless.sasl.failure_delay import FailureDelay
from diskless.workers import line
from diskless.workers.doors import Note
from diskless.workers.security.line_notes import decode_note

_ID: Final = struct.Struct(">Q")
_DELAY: Final = struct.Struct(">Qd")


def encode_failure(ask_id: int, address: str) -> bytes:
    return _ID.pack(ask_id) + address.encode()


def decode_delay(content: memoryview) -> tuple[int, float]:
    """Which failure is meant, and for how many seconds its answer is held back."""
    ask_id, delay_s = _DELAY.unpack(content)
    return ask_id, delay_s


def cannot_be(note: Note, listeners: Mapping[str, Listener]) -> str | None:
    """Why there can be no client as a worker has named one; None: there can.

    A worker lets nobody through who has not logged in where that is asked; should it ever, the head
    does not.
    """
    listener = listeners.get(note.listener)
    if listener is None:
        return "a listener that there is not"
    if not note.user or (note.user == ANONYMOUS and listener.is_asking_who):
        return "nobody, through a listener that asks"
    is_between_brokers = listener.protocol.is_sasl and listener.inter_broker_rank is not None
    if note.user == BROKER_USER and not is_between_brokers:
        return "a broker, through a listener for clients"
    return None


class HeadSecurity:
    """On the event loop of the head."""

    def __init__(self, audit: AuditLog, delay: FailureDelay) -> None:
        self._audit: Final = audit
        self._delay: Final = delay

    def answer(self, kind: int, content: memoryview) -> bytes | None:
        """What a worker is sent in return for a message; None: nothing."""
        if kind == line.NOTE:
            self._audit.forwarded(decode_note(bytes(content)))
        elif kind == line.LOGGED_IN:
            self._delay.succeeded(str(content, "utf-8"))
        elif kind == line.LOGIN_FAILED:
            (ask_id,) = _ID.unpack_from(content)
            delay_s = self._delay.failed(str(content[_ID.size :], "utf-8"))
            return line.frame(line.DELAY, _DELAY.pack(ask_id, delay_s))
        return None
