"""What reads bytes of strangers is tested for a time, not for a number of examples.

`@fuzzed(strategy, share=0.2)` draws for that share of FUZZ_SECONDS, in rounds of a thousand
examples: 60 s in `make test`, ten minutes in `make test-all`. Every round has a seed of its own, so
that the later ones look elsewhere. A quick run begins with the same round each time, an exhaustive
one anywhere. The shares of all tests make one.
"""

import itertools
import os
import random
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from hypothesis import given, seed, settings
from hypothesis.strategies import SearchStrategy

from tests.support.exhaustive import IS_EXHAUSTIVE
from tests.support.timeless_hypothesis import TIMELESS

FUZZ_SECONDS: Final = float(os.environ.get("FUZZ_SECONDS", "600" if IS_EXHAUSTIVE else "60"))
ROUND_EXAMPLES: Final = 1_000


def fuzzed(
    strategy: SearchStrategy[Any], *, share: float, clock: Callable[[], float] = time.monotonic
) -> Callable[[Callable[[Any], None]], Callable[[], None]]:
    """Makes a test of a property of whatever the strategy draws; at least one round is drawn."""

    def decorate(holds: Callable[[Any], None]) -> Callable[[], None]:
        drawn = settings(
            max_examples=ROUND_EXAMPLES,
            derandomize=False,
            database=None,
            deadline=None,
            suppress_health_check=TIMELESS,
        )(given(strategy)(holds))

        def fuzz() -> None:
            end = clock() + share * FUZZ_SECONDS
            for number in _rounds():
                seed(number)(drawn)()
                if clock() >= end:
                    return

        # The argument of the property is no fixture, so its signature is not taken over.
        fuzz.__name__, fuzz.__doc__, fuzz.__module__ = (
            holds.__name__,
            holds.__doc__,
            holds.__module__,
        )
        vars(fuzz)["draws_for_a_time"] = True
        return fuzz

    return decorate


def _rounds() -> Iterator[int]:
    return itertools.count(random.SystemRandom().getrandbits(32) if IS_EXHAUSTIVE else 0)
