"""Runs a sweep of the bucket for ever: one pass in each interval of the orphan scan."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from metadata.metadata_settings import CoordinatorSettings
from metadata.workers.periodic import repeat
from wal.clock import Sleep

BACKOFF_MAX_S: Final = 300.0

_logger = logging.getLogger(__name__)


class BucketSweep:
    """The worker of one prefix."""

    def __init__(
        self,
        prefix: str,
        sweep_once: Callable[[], Awaitable[None]],
        *,
        settings: CoordinatorSettings,
        rng: random.Random,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`sweep_once` is a pass over everything below `prefix`."""
        self._prefix = prefix
        self._sweep_once = sweep_once
        self._settings = settings
        self._rng = rng
        self._sleep = sleep

    async def run(self) -> None:
        """Sweep until cancelled."""
        await repeat(
            self._sweep_once,
            interval_s=self._settings.orphan_scan_interval_ms / 1000,
            backoff_max_s=BACKOFF_MAX_S,
            sleep=self._sleep,
            failed=partial(_logger.warning, "sweeping %s: %s", self._prefix),
            rng=self._rng,
        )
