"""What every coordinator promises to its clients, as one suite of named cases.

    class TestSomeCoordinators(CoordinatorConformance):
        @pytest.fixture
        async def bench(self): ...          # a ConformanceBench, in whatever state it may be

`test_coordinator_conformance.py` beside this runs it on every metadata log and through every
client. docs/conformance-coordinator.md lists the cases, and where they differ from those of the
implementation that they were compared with.

Cases take a cluster as others left it: they make topics of their own and look at nothing else.
Those of `conformance_shared_log` are for logs that two brokers can have open at the same time.
"""

from tests.metadata.coordinator.conformance_commit import (
    CoalescingCases,
    CommitCases,
    FilesTogetherCases,
)
from tests.metadata.coordinator.conformance_deletion import (
    DeleteRecordsCases,
    FileCases,
    RetentionCases,
)
from tests.metadata.coordinator.conformance_durability import DurabilityCases
from tests.metadata.coordinator.conformance_find import FindCases
from tests.metadata.coordinator.conformance_idempotence import IdempotenceCases
from tests.metadata.coordinator.conformance_offsets import ListOffsetsCases, TierCases
from tests.metadata.coordinator.conformance_topics import TopicCases


class CoordinatorConformance(
    CommitCases,
    CoalescingCases,
    FilesTogetherCases,
    IdempotenceCases,
    FindCases,
    TopicCases,
    DeleteRecordsCases,
    RetentionCases,
    FileCases,
    ListOffsetsCases,
    TierCases,
    DurabilityCases,
):
    """All cases."""
