"""What a pass over the tables did. It has a file of its own because the pass needs PyIceberg."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class TableResult(NamedTuple):
    """What became of one table."""

    topic_name: str
    added: int = 0
    """Data files that the table names since this pass."""
    removed: int = 0
    """Those that it names no more."""
    file_count: int = 0
    new_uuid: str = ""
    """Of a table that was made in this pass."""
    is_committed: bool = False
    """Whether anything was to be committed."""
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesReport:
    """What a pass did."""

    tables: Sequence[TableResult] = ()
    waiting: int = 0
    """Tables whose commit interval is not over."""

    @property
    def failures(self) -> Sequence[TableResult]:
        return [table for table in self.tables if table.failure]
