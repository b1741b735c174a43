"""Remembers since when each object of a log is no longer the last one, as far as its leader knows.

What was the last object a moment ago must not be deleted yet: somebody may be listing the log to
find out whether there is anything behind another object, and would see neither this one, which went
meanwhile, nor those that came meanwhile (metadata/log/object_log.py). Keeps a few moments, not one
for each object. One leader's, in its event loop.
"""

from collections import deque
from typing import Final, NamedTuple

from wal.clock import Clock

_MOMENTS_PER_AGE: Final = 8
"""How finely ages are known; twice as many moments are kept, and a few."""


class _Moment(NamedTuple):
    at: float
    base_offset: int
    """Of the object that was the last one then."""


class SupersededObjects:
    """Tells which objects stopped being the last one `age_s` ago or longer."""

    def __init__(self, age_s: float, *, clock: Clock) -> None:
        self._age_s = age_s
        self._clock = clock
        self._moments: deque[_Moment] = deque()

    def clear(self) -> None:
        """Forget everything: a new term begins."""
        self._moments.clear()

    def took(self, base_offset: int) -> None:
        """The object at `base_offset` is known to be in the store, and the last one."""
        moments = self._moments
        now = self._clock.monotonic()
        # The newest moment moves on as long as it stays near the one before it.
        if len(moments) > 1 and now - moments[-2].at < self._age_s / _MOMENTS_PER_AGE:
            moments.pop()
        moments.append(_Moment(now, base_offset))
        self._drop_old()

    def below_offset(self) -> int:
        """All objects below it were superseded at least `age_s` ago; 0 when there are none."""
        self._drop_old()
        if not self._moments or self._moments[0].at > self._clock.monotonic() - self._age_s:
            return 0
        return self._moments[0].base_offset

    def _drop_old(self) -> None:
        old = self._clock.monotonic() - self._age_s
        while len(self._moments) > 1 and self._moments[1].at <= old:
            self._moments.popleft()
