"""The memory that all processes of a broker have, as descriptors that workers are born with."""

import os
from typing import NamedTuple, Self

from diskless.shared import shared_counts
from diskless.shared.chunk_notices import make_notices
from diskless.shared.connection_counts import ConnectionCounts
from diskless.shared.shared_rates import make_rates


class SharedDescriptors(NamedTuple):
    """Made by the head; the lane of worker n is n, and that of the head 0."""

    notices: int
    """See `ChunkNotices`."""
    connections: int
    """See `ConnectionCounts`."""
    names: int
    """See `SharedCounts`."""
    rates: int
    """See `SharedRates`."""

    @classmethod
    def make(cls, workers: int, *, window_count: int) -> Self:
        """`window_count`: of quotas. Raises OSError."""
        lanes = workers + 1
        return cls(
            notices=make_notices(lanes),
            connections=ConnectionCounts.make(workers),
            names=shared_counts.make_counts(lanes),
            rates=make_rates(lanes, window_count),
        )

    def close(self) -> None:
        """The memory is there as long as another process has it."""
        for descriptor in self:
            os.close(descriptor)
