"""`repeat` calls a function at intervals, for ever: how nearly every worker of a leader runs.

A pause comes first, so that what a new leader has to do does not all begin at once. What fails and
may work later is reported and tried again; each failure in a row doubles the pause, up to a limit.
Any other error ends the worker, and so does cancellation.
"""

import random
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

from wal.clock import Sleep
from wal.errors import DisklessError, OutcomeUnknown, Retriable
from wal.stores.retry import backed_off_s

_DOUBLINGS_MAX: Final = 16


async def repeat(
    once: Callable[[], Awaitable[object]],
    *,
    interval_s: float,
    backoff_max_s: float,
    sleep: Sleep,
    failed: Callable[[DisklessError], None],
    rng: random.Random | None = None,
) -> NoReturn:
    """Sleep and call `once`, again and again; a `backoff_max_s` of 0 never makes pauses longer.

    With `rng`, each pause is jittered. Raises what `once` raises, unless it is Retriable or
    OutcomeUnknown: `failed` logs those.
    """
    failures = 0
    while True:
        if rng is None:
            longest_s = max(backoff_max_s, interval_s)
            pause_s = min(interval_s * 2 ** min(failures, _DOUBLINGS_MAX), longest_s)
        else:
            pause_s = backed_off_s(interval_s, failures, backoff_max_s, rng)
        await sleep(pause_s)
        try:
            await once()
            failures = 0
        except (Retriable, OutcomeUnknown) as error:
            failures += 1
            failed(error)
