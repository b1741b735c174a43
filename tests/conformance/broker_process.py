"""The broker that a suite runs on: `diskless serve` on a free port of loopback, in a process.

Every suite gets a broker of its own with an empty data directory, so that no suite meets what
another one left behind, and what happened can be read afterwards: build/conformance/SUITE/ has
`broker.log`, `broker.properties` and `data/` until the next run of the suite.
"""

import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from demo.broker_process import BrokerError, BrokerProcess
from tests.conformance.security import SaslSsl

__all__ = ["BrokerError", "broker_for", "logged_errors"]

SETTINGS: Final[Mapping[str, str]] = {"log.level": "info"}

_ERROR: Final = re.compile(r"\[(?:error|critical) *\] *(?P<what>.*)")
_COLOUR: Final = re.compile(r"\x1b\[[\d;]*m")


@contextmanager
def broker_for(
    work: Path, settings: Mapping[str, str], security: SaslSsl | None = None, workers: int = 1
) -> Iterator[str]:
    """Run a broker below `work` while the block runs; HOST:PORT. `settings` go before our own.

    With `security`, clients have to connect as it says. All of its `workers` have connections.

    Raises BrokerError when it does not start, when it ended before its time, and when it does not
    stop cleanly. An error of the block itself goes before these.
    """
    data = work / "data"
    if data.exists():
        shutil.rmtree(data)
    work.mkdir(parents=True, exist_ok=True)
    (work / "broker.log").unlink(missing_ok=True)
    processes = {"broker.workers": str(workers), "broker.workers.active.min": str(workers)}
    secure = {} if security is None else security.broker_settings()
    with BrokerProcess(data, work, {**SETTINGS, **processes, **settings, **secure}) as broker:
        broker.start()
        if security is not None:
            security.open_to_suite(broker.bootstrap)
        yield broker.bootstrap
        broker.stop()


def logged_errors(work: Path) -> list[str]:
    """What the brokers of a suite have logged as errors, without the tracebacks.

    A client that is cut off connects again and goes on, so its tests may well pass meanwhile.
    """
    return [
        f"{log.relative_to(work)}: {found['what'].strip()}"
        for log in sorted(work.rglob("broker.log"))
        for line in _COLOUR.sub("", log.read_text(encoding="utf-8", errors="replace")).splitlines()
        if (found := _ERROR.search(line)) is not None
    ]
