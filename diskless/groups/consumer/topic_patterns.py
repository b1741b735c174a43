"""Matches names against patterns of clients, in the RE2 dialect that Kafka uses for them.

RE2 takes time proportional to the name, whatever the pattern, and memory up to a limit: a client
cannot make the broker work for ever. A pattern is for whole names, as in Kafka: `a` matches only
the topic "a". A `TopicPattern` remembers which names it has looked at, so that a new topic costs
one match; `PatternsInUse` has each pattern once for all that use it. `compiled_pattern` is for
names of other things.

Raises: InvalidRegularExpression (code 128) for what RE2 does not take, look-ahead and references to
groups among it, and for what would become too large.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Any, Final
from weakref import WeakValueDictionary

import re2

from diskless.groups.errors import InvalidRegularExpression
from diskless.loop.long_work import Steps, done_at_once

PATTERN_LENGTH_MAX: Final = 8 << 10
"""Characters."""

_COMPILED_BYTES_MAX: Final = 1 << 20
"""Program and search states of one pattern; `x{1000}` and the like multiply what they repeat."""

_SHOWN_LENGTH_MAX: Final = 100


def compiled_pattern(pattern: str) -> Any:
    """What re2 compiled, to be asked with bytes. Raises: InvalidRegularExpression."""
    if len(pattern) > PATTERN_LENGTH_MAX:
        raise _invalid(pattern, f"longer than {PATTERN_LENGTH_MAX} characters")
    options = re2.Options()
    options.max_mem = _COMPILED_BYTES_MAX
    options.never_capture = True
    options.log_errors = False
    try:
        # Of bytes: for text, the bindings also work out where in it a match begins and ends.
        return re2.compile(pattern.encode(), options)
    except re2.error as error:
        raise _invalid(pattern, _reason(error)) from error
    except UnicodeEncodeError as error:
        raise _invalid(pattern, "not valid Unicode") from error


class TopicPattern:
    """One compiled pattern."""

    __slots__ = ("__weakref__", "_compiled", "_looked_at", "_matched", "pattern")

    def __init__(self, pattern: str) -> None:
        """Raises: InvalidRegularExpression."""
        self._compiled = compiled_pattern(pattern)
        self.pattern = pattern
        self._looked_at: set[str] = set()
        self._matched: set[str] = set()

    def __repr__(self) -> str:
        return f"TopicPattern({self.pattern!r})"

    def matching(self, names: Iterable[str]) -> frozenset[str]:
        """Those of `names` that the pattern matches from end to end."""
        wanted = frozenset(names)
        done_at_once(self.match(wanted))
        return wanted & self._matched

    def match(self, names: AbstractSet[str]) -> Steps[None]:
        """Look at those of `names` that are new, in steps: `matching` is quick then."""
        matches = self._compiled.fullmatch
        for name in names - self._looked_at:
            if matches(name.encode()) is not None:
                self._matched.add(name)
            self._looked_at.add(name)
            yield
        if len(self._looked_at) > 2 * len(names):
            self._looked_at &= names
            self._matched &= names


class PatternsInUse:
    """Compiled patterns, each once for as long as somebody keeps it."""

    def __init__(self) -> None:
        self._compiled: WeakValueDictionary[str, TopicPattern] = WeakValueDictionary()

    def get(self, pattern: str) -> TopicPattern:
        """Raises: InvalidRegularExpression."""
        compiled = self._compiled.get(pattern)
        if compiled is None:
            compiled = self._compiled[pattern] = TopicPattern(pattern)
        return compiled


def _invalid(pattern: str, reason: str) -> InvalidRegularExpression:
    shown = pattern if len(pattern) <= _SHOWN_LENGTH_MAX else f"{pattern[:_SHOWN_LENGTH_MAX]}…"
    return InvalidRegularExpression(f"pattern {shown!r}: {reason}")


def _reason(error: Exception) -> str:
    """RE2's own words, which it gives as bytes."""
    reason = error.args[0] if error.args else ""
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
