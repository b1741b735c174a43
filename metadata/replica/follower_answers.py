"""What a replica may answer that may not have read the whole log.

An offset or a partition that it has not heard of may be there all the same, and its leader knows.
"""

from metadata import operations as ops
from wal.errors import NotCoordinator, OffsetOutOfRange, UnknownPartition


def as_a_follower(request: ops.FindBatches, answer: ops.FoundBatches) -> ops.FoundBatches:
    """Nothing is out of range beyond the end, and no partition is unknown."""
    if isinstance(answer.error, UnknownPartition):
        return ops.FoundBatches(
            error=NotCoordinator(f"{request.partition} is not known here, ask its coordinator")
        )
    if isinstance(answer.error, OffsetOutOfRange) and request.offset > answer.high_watermark:
        return answer._replace(error=None)
    return answer
