"""One request to several coordinators: everybody gets a share, the answers come in one order.

The client in this process splits by coordinator, the routed client by who leads it.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from metadata.messages.codec import Answer, Operation, Request
from wal.batch_extents import BatchExtents
from wal.coordinates import TopicIdPartition
from wal.errors import CommitOutcomeUnknown

Key = TypeVar("Key")


async def in_shares(
    operation: Operation[Request, Answer],
    request: Request,
    keys: Sequence[Key],
    ask: Callable[[Key, Request], Coroutine[Any, Any, Sequence[Answer]]],
) -> Sequence[Answer]:
    """Ask about the entries of each key, all at once; answers in the order of entries.

    `keys` match the entries of `request` by position. Raises as `in_parallel`.
    """
    places: dict[Key, list[int]] = {}
    for position, key in enumerate(keys):
        places.setdefault(key, []).append(position)
    if len(places) == 1:
        (key,) = places
        return await ask(key, request)
    entries = operation.request.entries(request)
    answered = await in_parallel(
        [
            ask(key, operation.request.share(request, taken(entries, positions)))
            for key, positions in places.items()
        ]
    )
    answers: dict[int, Answer] = {}
    for positions, some in zip(places.values(), answered, strict=True):
        answers.update(zip(positions, some, strict=True))
    return [answers[position] for position in range(len(keys))]


def taken(entries: Sequence[Any], positions: Sequence[int]) -> Sequence[Any]:
    """The entries at these positions, columns as columns."""
    if isinstance(entries, BatchExtents):
        return entries.take(positions)
    return [entries[position] for position in positions]


def partitions_of(entries: Sequence[Any]) -> Sequence[TopicIdPartition]:
    """Returns the partition that each entry is about."""
    if isinstance(entries, BatchExtents):
        return entries.each_partition
    return [entry.partition for entry in entries]


async def in_parallel(calls: Sequence[Coroutine[Any, Any, Answer]]) -> Sequence[Answer]:
    """All answers, once every call has ended; else the error that says least about what happened.

    An unknown outcome goes before a definite failure: who is told "did not happen" would be wrong.
    """
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if errors:
        raise min(errors, key=lambda error: not isinstance(error, CommitOutcomeUnknown))
    return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
