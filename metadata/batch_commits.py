"""The answers to a commit of many batches as columns, from the decision to the producers' answers.

As a sequence it gives the `BatchCommit` asked for.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from metadata.operations import BatchCommit
from wal.columns import Columns, Int64s, tuples
from wal.errors import DisklessError

_COLUMNS: Final = ("base_offset", "log_append_time_ms", "log_start_offset", "is_duplicate")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class BatchCommits(Columns[BatchCommit]):
    """Answers for batches in some order. Never modified.

    Whoever has a sequence of answers asks for its type: `isinstance` with what is a Sequence is
    Python code.
    """

    base_offset: Int64s
    log_append_time_ms: Int64s
    log_start_offset: Int64s
    is_duplicate: npt.NDArray[np.bool_]
    errors: Mapping[int, DisklessError]
    """By position; in their places the columns have -1, -1, -1 and False."""

    def take(self, which: Int64s) -> Self:
        """The answers at these positions, in their order."""
        errors = self.errors
        if errors:
            errors = {
                place: errors[position]
                for place, position in enumerate(which.tolist())
                if position in errors
            }
        return type(self)(errors=errors, **{name: column[which] for name, column in self._columns})

    def without_append_times(self, which: npt.NDArray[np.bool_]) -> Self:
        """The same, where these have no append time."""
        times = self.log_append_time_ms.copy()
        times[which] = -1
        columns: dict[str, Any] = dict(self._columns)
        return type(self)(errors=self.errors, **columns | {"log_append_time_ms": times})

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """The answers of all, one behind the other."""
        errors: dict[int, DisklessError] = {}
        count = 0
        for part in parts:
            errors |= {count + place: error for place, error in part.errors.items()}
            count += len(part)
        columns = {
            name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS
        }
        return cls(errors=errors, **columns)

    @property
    def _columns(self) -> Sequence[tuple[str, Any]]:
        return [(name, getattr(self, name)) for name in _COLUMNS]

    def between(self, start: int, end: int) -> Self:
        """The answers from position `start` to before `end`."""
        errors = self.errors
        if errors:
            errors = {at - start: errors[at] for at in range(start, end) if at in errors}
        cut = {name: column[start:end] for name, column in self._columns}
        return type(self)(errors=errors, **cut)

    def __repr__(self) -> str:
        return repr([*self])

    def __len__(self) -> int:
        return len(self.base_offset)

    def __iter__(self) -> Iterator[BatchCommit]:
        columns = [column.tolist() for _, column in self._columns]
        found = tuples(BatchCommit, *columns, [None] * len(self))
        for place, error in self.errors.items():
            found[place] = BatchCommit(error=error)
        return iter(found)
