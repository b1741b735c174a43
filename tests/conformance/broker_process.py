"""The broker that a suite runs on: `diskless serve` on a free port of loopback, in a process.

Every suite gets a broker of its own with an empty data directory, so that no suite meets what
another one left behind, and what happened can be read afterwards: build/conformance/SUITE/ has
`broker.log`, `broker.properties` and `data/` until the next run of the suite.
"""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from demo.broker_process import BrokerError, BrokerProcess

__all__ = ["BrokerError", "broker_for"]

SETTINGS: Final[Mapping[str, str]] = {"log.level": "info"}


@contextmanager
def broker_for(work: Path, settings: Mapping[str, str]) -> Iterator[str]:
    """Run a broker below `work` while the block runs; HOST:PORT. `settings` go before our own.

    Raises BrokerError when it does not start, when it ended before its time, and when it does not
    stop cleanly. An error of the block itself goes before these.
    """
    data = work / "data"
    if data.exists():
        shutil.rmtree(data)
    work.mkdir(parents=True, exist_ok=True)
    (work / "broker.log").unlink(missing_ok=True)
    with BrokerProcess(data, work, {**SETTINGS, **settings}) as broker:
        broker.start()
        yield broker.bootstrap
        broker.stop()
