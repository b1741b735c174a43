"""The garbage collector of a test process leaves alone what was collected to run.

The tests, the modules that they test and the libraries below them are two million objects that live
until the end: a full collection walks them for most of a second, a third of the processor time of
collecting the tests, and as long once more for every broker that a test starts. So the collector
begins when the tests do, and with what they make. What collecting them has left as garbage stays
with them: 20 MB that to look for takes 0.8 s of each test process.
"""

import gc

import pytest

_THRESHOLDS = (10_000, 5, 10)

gc.disable()


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput") and config.getoption("numprocesses", None):
        gc.enable()  # its workers collect the tests


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    gc.enable()


def pytest_unconfigure() -> None:
    gc.enable()
