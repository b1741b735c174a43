"""Decides which inputs of a compaction are written anew, and which of them together.

An input that loses nothing, and has no tombstone to be marked, stays as it is. What is left of the
others may be little, so neighbours are joined up to `target_bytes`, as a cleaner of Kafka joins
segments. A clean neighbour joins in where it is small; a large one is not copied for that.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from metadata.rewrites import RewriteInput, RewritePlan
from tiering.compaction.losses import Loss

_NOTHING = Loss()


class Output(NamedTuple):
    """Inputs of a plan, one behind the other, that become one segment."""

    first: int
    last: int
    """Positions among the plan's inputs."""


def outputs_of(plan: RewritePlan, losses: Mapping[int, Loss]) -> Sequence[Output]:
    """`losses` by position among the plan's inputs; inputs that are in no output stay."""
    found: list[Output] = []
    group: list[int] = []
    group_bytes = 0
    for position, segment in enumerate(plan.inputs):
        loss = losses.get(position, _NOTHING)
        left_bytes = _left_bytes(segment, loss)
        is_large = loss == _NOTHING and left_bytes * 2 > plan.target_bytes
        if group and (is_large or group_bytes + left_bytes > plan.target_bytes):
            found += _output(group, losses)
            group, group_bytes = [], 0
        if not is_large:
            group.append(position)
            group_bytes += left_bytes
    return found + _output(group, losses)


def _output(group: Sequence[int], losses: Mapping[int, Loss]) -> list[Output]:
    changed = [position for position in group if losses.get(position, _NOTHING) != _NOTHING]
    return [Output(group[0], group[-1])] if changed else []


def _left_bytes(segment: RewriteInput, loss: Loss) -> int:
    """About how large it is without what it loses."""
    kept = max(segment.record_count - loss.removed, 0)
    return segment.object_bytes * kept // max(segment.record_count, 1)
