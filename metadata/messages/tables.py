"""Operations about tables as bytes: API keys 10050 to 10052 between brokers, 10040 to 10042 of a
tiering job.

    between brokers                   of a tiering job
    10050 ListTablesHere              10040 ListTables
    10051 ListSegmentsHere            10041 ListSegments
    10052 CommitTablesHere            10042 CommitTables

Laid out like those of metadata/messages/brokers.py; docs/coordinator-api.md has the fields. Those
of a job have the bytes of those between brokers under keys of their own: a job may ask any broker,
and that one asks the others.
"""

import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from metadata import table_operations as ops
from metadata.messages.codec import Address, Operation
from metadata.messages.shapes import (
    ERROR,
    alone,
    by_partition,
    in_order,
    listed,
    or_error,
    partitioned,
    single,
)
from wal.errors import DisklessError
from wal.wire.layouts import fields_of, layout

_LISTED_TABLES: Final = fields_of(ops.ListedTables)


async def _list_tables(coordinator: Any, asked: ops.ListTables) -> Sequence[ops.ListedTables]:
    return [ops.ListedTables(coordinator.catalogue.list_tables(asked))]


LIST_TABLES_HERE: Final[Operation[ops.ListTables, ops.ListedTables | DisklessError]] = Operation(
    key=10_050,
    name="CoordinatorListTablesHere",
    address=Address.CATALOGUE,
    request=single(fields_of(ops.ListTables)),
    answers=alone(or_error(_LISTED_TABLES, _LISTED_TABLES.write(ops.ListedTables(())))),
    at=_list_tables,
    changes_state=False,
)

LIST_SEGMENTS_HERE: Final[Operation[Sequence[ops.ListSegments], ops.ListedSegments]] = Operation(
    key=10_051,
    name="CoordinatorListSegmentsHere",
    address=Address.BY_PARTITION,
    request=partitioned(ops.ListSegments, struct.Struct(">q")),
    answers=by_partition(
        fields_of(
            ops.ListedSegments,
            "error",
            "coordinator",
            "applied_offset",
            "left_offset",
            "log_start_offset",
            "segments",
            error=ERROR,
        )
    ),
    at=lambda coordinator, requests: coordinator.replica.list_segments(requests),
    failed=lambda error: ops.ListedSegments(error=error),
    changes_state=False,
)

COMMIT_TABLES_HERE: Final[Operation[Sequence[ops.CommitTable], ops.TableCommit]] = Operation(
    key=10_052,
    name="CoordinatorCommitTablesHere",
    address=Address.CATALOGUE,
    request=listed(layout(ops.CommitTable)),
    answers=in_order(layout(ops.TableCommit, "error", "is_committed", "location", error=ERROR)),
    at=lambda coordinator, requests: coordinator.catalogue.commit_tables(requests),
    failed=lambda error: ops.TableCommit(error=error),
)

LIST_TABLES: Final = replace(LIST_TABLES_HERE, key=10_040, name="ListTables")
LIST_SEGMENTS: Final = replace(LIST_SEGMENTS_HERE, key=10_041, name="ListSegments")
COMMIT_TABLES: Final = replace(COMMIT_TABLES_HERE, key=10_042, name="CommitTables")

TABLES_OF_A_TIERING_JOB: Final[Sequence[Operation[Any, Any]]] = (
    LIST_TABLES,
    LIST_SEGMENTS,
    COMMIT_TABLES,
)
TABLES_BETWEEN_BROKERS: Final[Sequence[Operation[Any, Any]]] = (
    LIST_TABLES_HERE,
    LIST_SEGMENTS_HERE,
    COMMIT_TABLES_HERE,
)
