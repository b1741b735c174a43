"""How long random tests search: a little in every run, or for as long as somebody wants to wait.

`quick` is the profile of `make test`. It draws the same examples in every run, so a test turns red
because of a change and never by chance. `exhaustive` (`make test-all`, TEST_PROFILE=exhaustive)
draws others in every run, four times as many, and loops over five times the seeds.

A test says what it needs compared with others: `examples(0.5)` draws half as many as usual, because
each takes long. A loop over seeds says how many a quick run needs: `seeds(40)`. For a hunt,
EXAMPLES sets what a share of one comes to, and SEEDS how many seeds every loop takes at least.
"""

import os
from collections.abc import Collection
from typing import Final

from hypothesis import HealthCheck, settings

from tests.support.exhaustive import IS_EXHAUSTIVE
from tests.support.timeless_hypothesis import TIMELESS

NAME: Final = "exhaustive" if IS_EXHAUSTIVE else "quick"
EXAMPLES: Final = int(os.environ.get("EXAMPLES", "200" if IS_EXHAUSTIVE else "50"))
SEEDS_MIN: Final = int(os.environ.get("SEEDS", "0"))
SEED_FACTOR: Final = 5 if IS_EXHAUSTIVE else 1

# No database: no run depends on an earlier one, and what an example finds gets a test of its own.
settings.register_profile(
    NAME,
    max_examples=EXAMPLES,
    derandomize=not IS_EXHAUSTIVE,
    database=None,
    deadline=None,
    suppress_health_check=TIMELESS,
)
settings.load_profile(NAME)


def examples(
    share: float = 1.0, *, steps: int | None = None, allow: Collection[HealthCheck] = ()
) -> settings:
    """Settings with this share of the profile's examples, by which a test is decorated.

    A state machine takes up to `steps` steps in each. `allow` names the health checks that the test
    fails on purpose.
    """
    return settings(
        max_examples=max(1, round(share * EXAMPLES)),
        stateful_step_count=steps or settings.default.stateful_step_count,
        suppress_health_check=(*TIMELESS, *allow),
    )


def seeds(count: int) -> range:
    """The seeds of a loop: the first `count` in a quick run."""
    return range(max(count * SEED_FACTOR, SEEDS_MIN))


def pytest_report_header() -> str:
    return f"random tests: {NAME}, {EXAMPLES} examples"
