"""Subscriptions by a pattern of topic names, in the RE2 dialect that Kafka has for them.

RE2 takes time proportional to the name, whatever the pattern, and memory up to a limit: a client
cannot make the broker work for ever. A pattern is for whole names, as in Kafka: `a` matches only
the topic "a". Whoever compiles a pattern should keep the `TopicPattern`.

Raises: InvalidRegularExpression (code 128) for what RE2 does not take, look-ahead and references to
groups among it, and for what would become too large.
"""

from collections.abc import Iterable
from typing import Final

import re2

from diskless.groups.errors import InvalidRegularExpression

PATTERN_LENGTH_MAX: Final = 8 << 10
"""Characters."""

_COMPILED_BYTES_MAX: Final = 1 << 20
"""Program and search states of one pattern; `x{1000}` and the like multiply what they repeat."""

_SHOWN_LENGTH_MAX: Final = 100


class TopicPattern:
    """One compiled pattern."""

    __slots__ = ("_compiled", "pattern")

    def __init__(self, pattern: str) -> None:
        """Raises: InvalidRegularExpression."""
        if len(pattern) > PATTERN_LENGTH_MAX:
            raise _invalid(pattern, f"longer than {PATTERN_LENGTH_MAX} characters")
        options = re2.Options()
        options.max_mem = _COMPILED_BYTES_MAX
        options.never_capture = True
        options.log_errors = False
        try:
            # Of bytes: for text, the bindings also work out where in it a match begins and ends.
            self._compiled = re2.compile(pattern.encode(), options)
        except re2.error as error:
            raise _invalid(pattern, _reason(error)) from error
        except UnicodeEncodeError as error:
            raise _invalid(pattern, "not valid Unicode") from error
        self.pattern = pattern

    def __repr__(self) -> str:
        return f"TopicPattern({self.pattern!r})"

    def matching(self, names: Iterable[str]) -> frozenset[str]:
        """Those of `names` that the pattern matches from end to end."""
        matches = self._compiled.fullmatch
        return frozenset(name for name in names if matches(name.encode()) is not None)


def _invalid(pattern: str, reason: str) -> InvalidRegularExpression:
    shown = pattern if len(pattern) <= _SHOWN_LENGTH_MAX else f"{pattern[:_SHOWN_LENGTH_MAX]}…"
    return InvalidRegularExpression(f"topic pattern {shown!r}: {reason}")


def _reason(error: Exception) -> str:
    """RE2's own words, which it gives as bytes."""
    reason = error.args[0] if error.args else ""
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
