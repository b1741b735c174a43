"""Says which metadata partition coordinates a group or a transactional id, for ever.

Both go by the CRC of their name, modulo the number of metadata partitions. Were that the number of
today, raising it would move every group and transactional id to a coordinator that knows nothing of
it: committed offsets would be gone, and an open transaction would have nobody to end it. So the
first leader of the catalogue writes down the number that it is configured with (`Constant`), and
from then on all brokers go by that, however many metadata partitions are added. New ones take
partitions of topics, and no groups or transactional ids.

Failure cases: the number cannot be written. Where the log refuses it, it is tried again; where the
broker leads no more, the next leader does. Until then every broker goes by its own setting.
"""

import asyncio
import logging
from typing import Final

from metadata.coordinator.pipeline import Pipeline
from metadata.records.transactions import ConstantFixedRecord
from metadata.replica.replica import Replica
from metadata.rules.commit import Decision
from metadata.rules.groups import group_coordinator
from metadata.state.speculative import SpeculativeView
from metadata.transaction_operations import Constant
from wal.clock import Sleep
from wal.errors import CommitFailed

RETRY_S: Final = 1.0

_logger = logging.getLogger(__name__)


class Placement:
    """Where groups and transactional ids are, as this broker's catalogue knows it."""

    def __init__(self, catalogue: Replica, configured: int) -> None:
        """`configured`: how many metadata partitions this broker is configured with."""
        self._catalogue: Final = catalogue
        self._configured: Final = configured

    def __call__(self, name: str) -> int:
        """The metadata partition whose leader coordinates the group or transactional id."""
        return group_coordinator(name, self.coordinators)

    @property
    def coordinators(self) -> int:
        """Over how many metadata partitions they are spread."""
        constants = self._catalogue.image.transactions.constants
        return constants.get(Constant.COORDINATORS, self._configured)


class PlacementFixing:
    """Writes the number down, beside the leader of the catalogue; `run` ends when it is there."""

    def __init__(
        self, pipeline: Pipeline, configured: int, *, sleep: Sleep = asyncio.sleep
    ) -> None:
        self._pipeline = pipeline
        self._configured = configured
        self._sleep = sleep

    async def run(self) -> None:
        """Raises: CommitOutcomeUnknown, NotCoordinator."""
        while True:
            try:
                return await self._pipeline.perform(self._decide)
            except CommitFailed as error:
                _logger.warning("the place of groups is written down later: %s", error)
            await self._sleep(RETRY_S)

    def _decide(self, view: SpeculativeView, now_ms: int) -> Decision[None]:
        if view.transactions.constant(Constant.COORDINATORS) is not None:
            return Decision((), None)
        record = ConstantFixedRecord(name=Constant.COORDINATORS, value=self._configured)
        return Decision((record,), None)
