"""Structured logs on standard error: `event key=value`, or one JSON object a line.

Standard output belongs to what a command was asked for, such as the `ready` line of `serve`.
"""

import logging
import sys
from typing import Final

import structlog

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

_PACE_INTERVAL_S: Final = 1.0


def configure_logs(*, log_format: str, level: str) -> None:
    """Set up structlog for this process; the standard library's loggers go through the same."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: structlog.typing.Processor
    if log_format == "json":
        shared.append(structlog.processors.format_exc_info)
        renderer = structlog.processors.JSONRenderer()
    else:
        # Plain tracebacks: the pretty ones print local variables, which hold clients' records.
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(_LEVELS[level], logging.WARNING))


class Pace:
    """Lets one line a second of its kind through, and counts those that are left out."""

    __slots__ = ("_next_at", "_suppressed")

    def __init__(self) -> None:
        self._next_at: float | None = None
        self._suppressed = 0

    def take_turn(self, now: float, stands_for: int = 1) -> int | None:
        """Returns how many lines before this were left out; None when this one is too.

        A line that is left out counts as `stands_for` lines.
        """
        if self._next_at is not None and now < self._next_at:
            self._suppressed += stands_for
            return None
        suppressed, self._suppressed = self._suppressed, 0
        self._next_at = now + _PACE_INTERVAL_S
        return suppressed
