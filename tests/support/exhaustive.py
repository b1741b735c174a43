"""What only `make test-all` runs: tests marked `exhaustive`, when TEST_PROFILE is `exhaustive`.

Such a test is one more product of things that the other tests have each at least once: the same
case on another log, another codec through another client to an older broker.
"""

import os
from typing import Final

import pytest

IS_EXHAUSTIVE: Final = os.environ.get("TEST_PROFILE") == "exhaustive"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if IS_EXHAUSTIVE:
        return
    left_out = [item for item in items if item.get_closest_marker("exhaustive")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("exhaustive")]
