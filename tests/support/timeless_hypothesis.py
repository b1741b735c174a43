"""Property tests take the time they take: none fails because the machine is slow.

Hypothesis has two limits of real time, 200 ms for an example (`deadline`) and some seconds for what
makes the examples (`too_slow`). The profiles (`tests/support/profiles.py`) have neither, nor has
`@examples`. `@settings` of a test may bring one back, with a list of its own for
`suppress_health_check`; such a test is not collected.
"""

from typing import Any

import pytest
from hypothesis import HealthCheck, settings

TIMELESS = (HealthCheck.too_slow,)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    timed = [item.nodeid for item in items if is_timed(_settings_of(item))]
    if timed:
        raise pytest.UsageError(
            "these need deadline=None and HealthCheck.too_slow suppressed: " + ", ".join(timed)
        )


def is_timed(own: settings | None) -> bool:
    """Whether a test with these settings can fail because it is slow."""
    return own is not None and (
        own.deadline is not None or not {*TIMELESS} <= {*own.suppress_health_check}
    )


def _settings_of(item: pytest.Item) -> settings | None:
    """Those of the test, or of its state machine, if it has any."""
    test: Any = getattr(item, "obj", None)
    own = getattr(test, "_hypothesis_internal_use_settings", None)
    if own is None:
        own = getattr(getattr(item, "cls", None), "settings", None)
    return own if isinstance(own, settings) else None
