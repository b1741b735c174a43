"""Finds batches of many partitions: a run of each coordinator's at a time, then what is newer.

Requests share `max_bytes` in their order, since who asks first is served first; so entries of one
coordinator that follow each other are one look-up, and the budget goes from run to run. What the
replicas here may not have read yet, whoever leads is asked.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence

from metadata import operations as ops
from metadata.messages.find_batches import FindBatchesMessage
from wal.coordinates import TopicIdPartition
from wal.errors import CommitOutcomeUnknown, NotCoordinator, Retriable

_logger = logging.getLogger(__name__)


async def found_in_runs(
    message: FindBatchesMessage,
    coordinator_of: Callable[[TopicIdPartition], int],
    find: Callable[[int, FindBatchesMessage], Awaitable[Sequence[ops.FoundBatches]]],
) -> Sequence[ops.FoundBatches]:
    """Asks `find` about each run of requests of one coordinator, with what is left to give."""
    requests = message.requests
    coordinators = [coordinator_of(request.partition) for request in requests]
    found: list[ops.FoundBatches] = []
    max_bytes, at_least_one = message.max_bytes, message.at_least_one
    start = 0
    while start < len(requests):
        coordinator = coordinators[start]
        end = start + 1
        while end < len(requests) and coordinators[end] == coordinator:
            end += 1
        run = message._replace(
            requests=requests[start:end], max_bytes=max_bytes, at_least_one=at_least_one
        )
        some = await find(coordinator, run)
        max_bytes -= taken_bytes(run.requests, some)
        at_least_one = at_least_one and not any(answer.extents for answer in some)
        found += some
        start = end
    return found


def taken_bytes(requests: Sequence[ops.FindBatches], answers: Sequence[ops.FoundBatches]) -> int:
    """Returns how much of a shared byte budget these answers use up.

    Of the extent that holds the asked offset only what follows counts. A segment counts as much as
    its partition's limit allows: the reader cuts what it needs out of it, so one old segment must
    not starve the partitions behind it.
    """
    return sum(
        min(extent.bytes_from(request.offset), max(request.max_bytes, 0))
        for request, answer in zip(requests, answers, strict=True)
        for extent in answer.extents
    )


async def with_what_is_newer(
    message: FindBatchesMessage,
    found: Sequence[ops.FoundBatches],
    ask: Callable[[FindBatchesMessage], Awaitable[Sequence[ops.FoundBatches]]],
) -> Sequence[ops.FoundBatches]:
    """Returns `found`, and what `ask` says of what a replica has perhaps not read yet.

    When nobody can be asked, it is as `found` has it.
    """
    behind = [
        position
        for position, (request, answer) in enumerate(zip(message.requests, found, strict=True))
        if isinstance(answer.error, NotCoordinator)
        or (answer.error is None and request.offset > answer.high_watermark)
    ]
    if not behind:
        return found
    answers = list(found)
    asked = message._replace(
        requests=[message.requests[position] for position in behind],
        at_least_one=message.at_least_one and not any(answer.extents for answer in found),
    )
    try:
        newer = await ask(asked)
    except (Retriable, CommitOutcomeUnknown) as error:
        _logger.info("nobody to ask what is newer than this replica: %s", error)
        return answers
    for position, answer in zip(behind, newer, strict=True):
        if not isinstance(answer.error, NotCoordinator | CommitOutcomeUnknown):
            answers[position] = answer
    return answers
