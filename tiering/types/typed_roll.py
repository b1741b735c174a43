"""Rolls a plan with the typed columns that are in it.

What the tasks of a job call. The libraries that typed columns need are an extra of this package; a
plan without such columns needs none of them.

Failure cases: those of `tiering.roll.roll`, RegistryUnavailable, and InvalidSettings naming the
library that is missing where the task runs.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from metadata.operations import SegmentPlan
from tiering.roll import Rolled, roll
from tiering.types.registry import HttpRegistry, RegistrySettings
from wal.clock import Clock
from wal.errors import InvalidSettings
from wal.stores.blocking_store import BlockingStore


def roll_as_planned(
    plan: SegmentPlan, store: BlockingStore, registry: RegistrySettings | None, clock: Clock
) -> Rolled:
    """Write the segment of `plan`, or find it written."""
    if not plan.columns:
        return roll(plan, store)
    with libraries_of_types():
        from tiering.types.typed_rows import TypedRows
    typed = TypedRows(plan.columns, HttpRegistry(registry, clock) if registry else None)
    rolled = roll(plan, store, typed=typed)
    return rolled._replace(untyped_count=typed.error_count)


@contextmanager
def libraries_of_types() -> Iterator[None]:
    """For the import of what needs them. Raises InvalidSettings: one is missing here."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in ("duckdb", "polars"):
            raise
        raise InvalidSettings(
            f"typed columns need {error.name} where tasks run: pip install 'diskless[types]'"
        ) from error
