"""Says which metadata partition coordinates a group or a transactional id, for ever.

Both go by the CRC of their name, modulo the number of metadata partitions. Were that the number of
today, raising it would move every group and transactional id to a coordinator that knows nothing of
it: committed offsets would be gone, and an open transaction would have nobody to end it. So the
first leader of the catalogue writes down the number that it is configured with (`Constant`), and
from then on all brokers go by that, however many metadata partitions are added. New ones take
partitions of topics, and no groups or transactional ids.

Failure cases: the number cannot be written, because the broker leads no more or the log fails; the
next leader tries again, and until then every broker goes by its own setting.
"""

from typing import Final

from metadata.coordinator.pipeline import Pipeline
from metadata.records.transactions import ConstantFixedRecord
from metadata.replica.replica import Replica
from metadata.rules.commit import Decision
from metadata.rules.groups import group_coordinator
from metadata.state.speculative import SpeculativeView
from metadata.transaction_operations import Constant


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

    def __init__(self, pipeline: Pipeline, configured: int) -> None:
        self._pipeline = pipeline
        self._configured = configured

    async def run(self) -> None:
        """Raises: CommitFailed, CommitOutcomeUnknown, NotCoordinator."""
        await self._pipeline.perform(self._decide)

    def _decide(self, view: SpeculativeView, now_ms: int) -> Decision[None]:
        if view.transactions.constant(Constant.COORDINATORS) is not None:
            return Decision((), None)
        record = ConstantFixedRecord(name=Constant.COORDINATORS, value=self._configured)
        return Decision((record,), None)
