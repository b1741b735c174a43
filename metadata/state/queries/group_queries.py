"""Reads committed group state from SQLite: offsets, stored groups, offsets to expire.

Read by the group's coordinator when it comes to lead, and by whatever lets offsets expire; while it
leads, it answers from its own memory. Every row that is read is checked.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from sqlalchemy import (
    Connection,
    Integer,
    LargeBinary,
    Select,
    and_,
    column,
    literal_column,
    select,
    tuple_,
    values,
)

from metadata.records.groups import NO_EXPIRY, CommittedOffset
from metadata.state.schema import COMMIT_PERIOD_MS, CONSUMER_GROUPS, GROUP_OFFSETS
from metadata.state.state import checked_row
from wal.coordinates import TopicIdPartition

PARTITIONS_PER_READ: Final = 250
"""A statement has two parameters for each; SQLite's own bound is 999 at the lowest."""

_GROUPS: Final = CONSUMER_GROUPS.table.c
_OFFSETS: Final = GROUP_OFFSETS.table.c


class StoredGroup(NamedTuple):
    """A group there is anything of. `state` is empty when it only has offsets."""

    id: int
    """Its place in `stored_groups`: grows with every new group."""
    group_id: str
    kind: int
    state: bytes
    updated_ms: int


class ExpiryCursor(NamedTuple):
    """Where `expired_offsets` goes on; an opaque value."""

    has_expiry: bool
    time: int
    group_key: int
    partition: int
    topic_id: bytes


class AgedOffset(NamedTuple):
    """An offset that may expire; whether it does depends on what its group is doing."""

    cursor: ExpiryCursor
    group_id: str
    offset: CommittedOffset


def group_offsets(
    connection: Connection, group_id: str, partitions: Sequence[TopicIdPartition] | None = None
) -> Mapping[TopicIdPartition, CommittedOffset]:
    """Returns what the group has committed of `partitions`, or of all; absent: nothing.

    Topics that were deleted are included: the caller knows which there are.
    """
    group = connection.execute(select(_GROUPS.id).where(_GROUPS.group_id == group_id)).scalar()
    if group is None:
        return {}
    of_group = select(GROUP_OFFSETS.table).where(_OFFSETS.group_key == group)
    found: dict[TopicIdPartition, CommittedOffset] = {}
    for statement in [of_group] if partitions is None else _some_of(of_group, partitions):
        for row in connection.execute(statement):
            offset = _offset(checked_row(GROUP_OFFSETS, row))
            found[offset.partition] = offset
    return found


def _some_of(
    of_group: Select[Any], partitions: Sequence[TopicIdPartition]
) -> Iterator[Select[Any]]:
    """Look-ups by the whole key, so that they cost what is asked for and not what there is."""
    for start in range(0, len(partitions), PARTITIONS_PER_READ):
        some = partitions[start : start + PARTITIONS_PER_READ]
        rows = [(one.partition, one.topic_id.bytes) for one in some]
        # SQLite looks up row values with IN by reading the whole group, and a join by its key.
        asked = values(column("partition", Integer), column("topic_id", LargeBinary)).data(rows)
        asked_for = asked.cte("asked")
        yield of_group.join_from(
            asked_for,
            GROUP_OFFSETS.table,
            and_(
                _OFFSETS.partition == asked_for.c.partition,
                _OFFSETS.topic_id == asked_for.c.topic_id,
            ),
        )


def stored_group(connection: Connection, group_id: str) -> StoredGroup | None:
    """One group; None: nothing is known of it."""
    statement = select(CONSUMER_GROUPS.table).where(_GROUPS.group_id == group_id)
    row = connection.execute(statement).one_or_none()
    return None if row is None else _group(row)


def stored_groups(connection: Connection, after: int, limit: int) -> Sequence[StoredGroup]:
    """Up to `limit` groups whose `id` is above `after`, in that order."""
    statement = (
        select(CONSUMER_GROUPS.table).where(_GROUPS.id > after).order_by(_GROUPS.id).limit(limit)
    )
    return [_group(row) for row in connection.execute(statement)]


def aged_offsets(
    connection: Connection,
    *,
    before_ms: int,
    now_ms: int,
    after: ExpiryCursor | None,
    limit: int,
) -> Sequence[AgedOffset]:
    """Up to `limit` offsets that may expire, behind `after`.

    Those that were committed before `before_ms`, roughly the oldest first; then those whose client
    set a time for them that has come by `now_ms`. O(limit), and what lies within one period.
    """
    found: list[AgedOffset] = []
    if after is None or not after.has_expiry:
        silent = and_(
            _OFFSETS.expire_ms == NO_EXPIRY,
            _OFFSETS.commit_period <= before_ms // COMMIT_PERIOD_MS,
            _OFFSETS.commit_ms < before_ms,
        )
        found += _aged(connection, _behind("commit_period", after).where(silent), False, limit)
        after = None
    if len(found) < limit:
        # Not a parameter: word for word the condition of the partial index.
        due = and_(_OFFSETS.expire_ms >= literal_column("0"), _OFFSETS.expire_ms <= now_ms)
        statement = _behind("expire_ms", after).where(due)
        found += _aged(connection, statement, True, limit - len(found))
    return found


def _behind(time: str, after: ExpiryCursor | None) -> Select[Any]:
    """Rows in the order of the index on `time`."""
    order = (_OFFSETS[time], _OFFSETS.group_key, _OFFSETS.partition, _OFFSETS.topic_id)
    statement = (
        select(GROUP_OFFSETS.table, _GROUPS.group_id)
        .join_from(GROUP_OFFSETS.table, CONSUMER_GROUPS.table, _GROUPS.id == _OFFSETS.group_key)
        .order_by(*order)
    )
    if after is None:
        return statement
    return statement.where(tuple_(*order) > tuple_(*after[1:]))


def _aged(
    connection: Connection, statement: Select[Any], has_expiry: bool, limit: int
) -> list[AgedOffset]:
    found = []
    for *row_values, group_id in connection.execute(statement.limit(limit)):
        row = checked_row(GROUP_OFFSETS, row_values)
        offset = _offset(row)
        group_key, partition, period, *_ = row
        time = offset.expire_ms if has_expiry else period
        cursor = ExpiryCursor(
            has_expiry, time, group_key, partition, offset.partition.topic_id.bytes
        )
        found.append(AgedOffset(cursor, group_id, offset))
    return found


def _group(row: Any) -> StoredGroup:
    group_key, kind, updated_ms, group_id, state, _ = checked_row(CONSUMER_GROUPS, row)
    return StoredGroup(group_key, group_id, kind, state, updated_ms)


def _offset(row: tuple[Any, ...]) -> CommittedOffset:
    _, partition, _, value, leader_epoch, commit_ms, expire_ms, topic_id, metadata, _ = row
    return CommittedOffset(
        partition=TopicIdPartition(UUID(bytes=topic_id), partition),
        offset=value,
        commit_ms=commit_ms,
        leader_epoch=leader_epoch,
        metadata=metadata,
        expire_ms=expire_ms,
    )
