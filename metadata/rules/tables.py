"""Decides about tables: their pointers, and which stored segments a table may still name.

**The pointer.** A commit that names another location than the present one as the old one changes
nothing and is told where the pointer is: somebody else was first. So is a commit that was made of
answers which are older than those of the present pointer: it would name segments that are gone. A
repeated commit finds its own location and succeeds.

**The table as an owner of segments.** A segment that left the live ones, by DeleteRecords,
retention or a swap, left them at an offset X of its coordinator's metadata log. Every snapshot of
the table that was committed before somebody had applied X may name its object. A segment is *held*,
which is not deleted, until a commit that applied more than X is older than the table's
`table.snapshot.retention.ms`: whoever reads a snapshot from before has had that long. It is not
held, although a snapshot may name it, when

- the topic is gone, or its table is switched off: nobody will commit that table any more. Who knows
  the place of its metadata reads snapshots that name objects which are not there;
- `table.owner.max.ms` is over since it left: the job that writes tables is dead or far behind, and
  what was deleted for a reason must not stay for ever. The table then names an object that is not
  there, until the job runs again.

Segments that go so are *given up*: each is counted, and a warning names one of them.

What one broker knows of the catalogue may be old. Then a segment is held for longer, never less,
but for a table that was switched on a moment ago.
"""

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Final

from metadata.operations import TopicDescription
from metadata.records.records import MetadataRecord
from metadata.records.stored_tables import AppliedCommit, StoredTable, with_commit
from metadata.records.tables import TableCommittedRecord
from metadata.rules.commit import Decision
from metadata.state.speculative import SpeculativeView
from metadata.table_operations import (
    NO_TABLE,
    CommitTable,
    TableCommit,
    TableDescription,
    table_prefix,
)
from wal.coordinates import ObjectKey
from wal.errors import InvalidRequest, Rejected, UnknownTopicId
from wal.stores.object_store import check_object_key

TABLE_ENABLED_CONFIG: Final = "table.enabled"
TABLE_NAMESPACE_CONFIG: Final = "table.namespace"
TABLE_RETENTION_CONFIG: Final = "table.snapshot.retention.ms"
TABLE_INTERVAL_CONFIG: Final = "table.commit.interval.ms"
TABLE_HIDES_CONFIG: Final = "table.hide.deleted"

TABLE_NAMESPACE_DEFAULT: Final = "topics"
TABLE_RETENTION_MS_DEFAULT: Final = 3_600_000
TABLE_INTERVAL_MS_DEFAULT: Final = 60_000


class Hold(Enum):
    """Whether a table is an owner of a segment that is not live any more."""

    NONE = auto()
    HELD = auto()
    OVERDUE = auto()
    """It is given up, as those below are: no commit of its table came in time."""
    SWITCHED_OFF = auto()
    TOPIC_DELETED = auto()


GIVEN_UP: Final = (Hold.OVERDUE, Hold.SWITCHED_OFF, Hold.TOPIC_DELETED)


def has_table(configs: Mapping[str, str]) -> bool:
    """Whether a topic that set `configs` is a table."""
    return configs.get(TABLE_ENABLED_CONFIG) == "true"


def namespace_of(configs: Mapping[str, str]) -> str:
    """The namespace of the table of a topic that set `configs`."""
    return configs.get(TABLE_NAMESPACE_CONFIG) or TABLE_NAMESPACE_DEFAULT


def retention_ms_of(configs: Mapping[str, str]) -> int:
    """How long a superseded snapshot stays readable."""
    return _number(configs, TABLE_RETENTION_CONFIG, TABLE_RETENTION_MS_DEFAULT)


def described(topic: TopicDescription, table: StoredTable | None, now_ms: int) -> TableDescription:
    """What a tiering job is told of the table of `topic`."""
    configs = topic.configs
    return TableDescription(
        topic_id=topic.topic_id,
        topic_name=topic.name,
        namespace=namespace_of(configs),
        partition_count=topic.partition_count,
        snapshot_retention_ms=retention_ms_of(configs),
        commit_interval_ms=_number(configs, TABLE_INTERVAL_CONFIG, TABLE_INTERVAL_MS_DEFAULT),
        hides_deleted=configs.get(TABLE_HIDES_CONFIG) == "true",
        location=NO_TABLE if table is None else table.location,
        age_ms=-1 if table is None else max(now_ms - table.committed_at_ms, 0),
        applied={} if table is None else table.applied,
    )


def decide_commit_tables(
    view: SpeculativeView, requests: Sequence[CommitTable], now_ms: int
) -> Decision[Sequence[TableCommit]]:
    """Each pointer that is where its request says moves. An entry may have an error."""
    records: list[MetadataRecord] = []
    answers: list[TableCommit] = []
    for request in requests:
        topic = view.topic_by_id(request.topic_id)
        if topic is None:
            error = UnknownTopicId(f"no topic has the id {request.topic_id}")
            answers.append(TableCommit(error=error))
            continue
        problem = _problem_of(request, topic)
        if problem is not None:
            answers.append(TableCommit(error=problem))
            continue
        table = view.table(request.topic_id)
        location = NO_TABLE if table is None else table.location
        if table is not None and location == request.new_location != request.old_location:
            answers.append(TableCommit(True, location))
            continue
        if location != request.old_location or _is_older(request, table):
            answers.append(TableCommit(False, location))
            continue
        record = TableCommittedRecord(
            topic_id=request.topic_id,
            old_location=request.old_location,
            new_location=request.new_location,
            applied=dict(request.applied),
            committed_at_ms=max(now_ms, 0 if table is None else table.committed_at_ms),
            retention_ms=retention_ms_of(topic.configs),
        )
        records.append(record)
        commits = () if table is None else table.commits
        commit = AppliedCommit(record.committed_at_ms, record.applied)
        kept = with_commit(commits, commit, record.retention_ms)
        view.put_table(request.topic_id, StoredTable(record.new_location, kept))
        answers.append(TableCommit(True, record.new_location))
    return Decision(records, answers)


def hold_of(
    configs: Mapping[str, str] | None,
    table: StoredTable | None,
    *,
    coordinator_id: int,
    left_offset: int | None,
    left_ms: int,
    now_ms: int,
    owner_max_ms: int,
) -> Hold:
    """Whether the table of a topic that set `configs` (None: it is gone) holds a segment.

    The segment left the live ones at `left_offset` of the metadata log of `coordinator_id`, which
    was at `left_ms`; None when it did so with its topic. `table` is the pointer, also one that went
    with the topic.
    """
    if configs is None or left_offset is None:
        return Hold.NONE if table is None else Hold.TOPIC_DELETED
    is_on = has_table(configs)
    if table is None and not is_on:
        return Hold.NONE
    superseded_ms = now_ms - retention_ms_of(configs)
    for commit in () if table is None else table.commits:
        applied = commit.applied.get(coordinator_id, 0)
        if applied > left_offset:
            if commit.committed_at_ms <= superseded_ms:
                return Hold.NONE
            break
    if not is_on:
        return Hold.SWITCHED_OFF
    return Hold.OVERDUE if now_ms - left_ms >= owner_max_ms else Hold.HELD


def _is_older(request: CommitTable, table: StoredTable | None) -> bool:
    """Whether the answers that the request was made of are older than those of the pointer."""
    before = {} if table is None else table.applied
    return any(request.applied.get(at, 0) < offset for at, offset in before.items())


def _problem_of(request: CommitTable, topic: TopicDescription) -> InvalidRequest | Rejected | None:
    if not has_table(topic.configs):
        return Rejected(f"{topic.name} is no table: {TABLE_ENABLED_CONFIG} is not set")
    key: ObjectKey = request.new_location
    try:
        check_object_key(key)
    except Rejected as error:
        return InvalidRequest(str(error))
    if not key.startswith(table_prefix(request.topic_id)) or not key.endswith(".metadata.json"):
        return InvalidRequest(f"{key!r} is no metadata file of the table of {topic.name}")
    if any(offset < 0 for offset in request.applied.values()):
        return InvalidRequest(f"applied offsets {dict(request.applied)}")
    return None


def _number(configs: Mapping[str, str], name: str, default: int) -> int:
    """Values were validated when the topic was created; what was not is as if it were not set."""
    text = configs.get(name, "")
    return int(text) if text.isdecimal() else default
