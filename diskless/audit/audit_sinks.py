"""Where notes of the audit log go: among the broker's other logs, or as JSON lines elsewhere.

A file is written by a thread of its own, so a disk that hangs holds up no client. Notes wait for it
in a queue; those that find it full are counted, and left out. The file is only readable by its
owner, and opened again when somebody has moved it away (logrotate need not say so).
"""

import json
import logging
import os
import queue
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from logging.handlers import QueueHandler, QueueListener, WatchedFileHandler
from typing import Final

import structlog

from diskless.audit.audit_log import Note
from diskless.audit.audit_settings import STANDARD_OUTPUT, AuditSettings
from wal.errors import InvalidSettings

WAITING_MAX: Final = 50_000
"""Notes on their way to the file, of some 300 bytes each."""

_MODE: Final = 0o600


class AuditSink:
    """Takes notes."""

    def __init__(self, handler: "_Waiting | None") -> None:
        """None: among the other logs."""
        self._handler = handler
        self._log = structlog.get_logger("diskless.audit")

    @property
    def left_out(self) -> int:
        """Notes that found the queue full."""
        return 0 if self._handler is None else self._handler.left_out

    def __call__(self, note: Note) -> None:
        if self._handler is None:
            fields = {key: value for key, value in note.items() if key not in ("time", "event")}
            self._log.info(str(note["event"]), audit=True, **fields)
            return
        line = json.dumps(note, ensure_ascii=False, separators=(",", ":"))
        self._handler.handle(
            logging.LogRecord("diskless.audit", logging.INFO, "", 0, line, None, None)
        )


class _Waiting(QueueHandler):
    """Never waits, and never fails."""

    def __init__(self, waiting: "queue.Queue[logging.LogRecord]") -> None:
        super().__init__(waiting)
        self.left_out = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self.left_out += 1


@contextmanager
def audit_sink(settings: AuditSettings) -> Iterator[AuditSink]:
    """Open where the settings say. On leaving everything is written. Raises InvalidSettings."""
    if not settings.path:
        yield AuditSink(None)
        return
    target = _target(settings.path)
    target.setFormatter(logging.Formatter("%(message)s"))
    waiting: queue.Queue[logging.LogRecord] = queue.Queue(WAITING_MAX)
    listener = QueueListener(waiting, target)
    listener.start()
    try:
        yield AuditSink(_Waiting(waiting))
    finally:
        listener.stop()
        target.close()


def _target(path: str) -> logging.Handler:
    if path == STANDARD_OUTPUT:
        return logging.StreamHandler(sys.stdout)
    try:
        return _OwnFile(path, encoding="utf-8")
    except OSError as error:
        raise InvalidSettings(f"audit.log.file={path}: {error}") from error


class _OwnFile(WatchedFileHandler):
    """For its owner alone, also when it is made anew."""

    def _open(self) -> TextIOWrapper:
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT, _MODE)
        return os.fdopen(descriptor, "a", encoding=self.encoding)
