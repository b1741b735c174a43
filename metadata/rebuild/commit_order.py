"""In which order the pieces of all partitions are committed, and which of them together.

An object is one commit, so its pieces come together, each when it is what its partition needs next.
Where no order does this for all objects (there were several coordinators, and each has an order of
its own), the batches of one object that come too early are committed from a copy.

Pure functions; called by metadata/rebuild/log_builder.py.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from metadata.rebuild.facts import ObjectFacts
from metadata.rebuild.layout import PartitionLayout, Piece, WalPiece
from wal.coordinates import ObjectKey, TopicIdPartition


@dataclass(slots=True, eq=False)
class CommitStep:
    """Something that is committed at once: pieces of one object, or one piece of another kind."""

    order: str
    """The object's ULID; what belongs to no object comes first."""
    pieces: list[tuple[TopicIdPartition, Piece]]
    source: ObjectFacts | None = None
    is_copy: bool = False
    at_head: int = 0
    """How many of the pieces are what their partition needs next."""


def in_commit_order(layouts: Sequence[PartitionLayout]) -> Iterator[CommitStep]:
    """All pieces of the layouts, each partition's in its order."""
    steps, queues = _steps(layouts)
    ready: deque[CommitStep] = deque()
    remaining = set(steps)

    def now_first(partition: TopicIdPartition) -> None:
        if queues[partition]:
            step = queues[partition][0]
            step.at_head += 1
            if step.at_head == len(step.pieces):
                ready.append(step)

    for partition in queues:
        now_first(partition)
    while remaining:
        if not ready:
            ready.append(_untie(remaining, queues))
        step = ready.popleft()
        remaining.discard(step)
        yield step
        for partition, _ in step.pieces:
            assert queues[partition].popleft() is step
        for partition, _ in step.pieces:
            now_first(partition)


def _steps(
    layouts: Sequence[PartitionLayout],
) -> tuple[Sequence[CommitStep], dict[TopicIdPartition, deque[CommitStep]]]:
    by_object: dict[ObjectKey, CommitStep] = {}
    steps: list[CommitStep] = []
    queues: dict[TopicIdPartition, deque[CommitStep]] = {}
    for layout in layouts:
        queue = queues[layout.partition] = deque()
        own: set[ObjectKey] = set()
        for piece in layout.pieces:
            if not isinstance(piece, WalPiece):
                step = CommitStep("", [(layout.partition, piece)])
                steps.append(step)
            elif piece.source.object_key in own:
                # One commit has consecutive offsets of a partition; this one had not.
                step = CommitStep(
                    piece.source.ulid, [(layout.partition, piece)], piece.source, is_copy=True
                )
                steps.append(step)
            else:
                own.add(piece.source.object_key)
                known = by_object.get(piece.source.object_key)
                if known is None:
                    known = CommitStep(piece.source.ulid, [], piece.source)
                    by_object[piece.source.object_key] = known
                    steps.append(known)
                known.pieces.append((layout.partition, piece))
                step = known
            queue.append(step)
    return steps, queues


def _untie(
    remaining: set[CommitStep], queues: Mapping[TopicIdPartition, deque[CommitStep]]
) -> CommitStep:
    """Nothing can be next: let one object's batches that come too early come from a copy."""
    step = min((item for item in remaining if item.at_head), key=lambda item: item.order)
    assert step.source is not None, "what has one piece is ready when that is at the head"
    late = [entry for entry in step.pieces if queues[entry[0]][0] is not step]
    step.pieces = [entry for entry in step.pieces if queues[entry[0]][0] is step]
    copy = CommitStep(step.order, late, step.source, is_copy=True)
    remaining.add(copy)
    for partition, _ in late:
        queue = queues[partition]
        queue[queue.index(step)] = copy
    return step
