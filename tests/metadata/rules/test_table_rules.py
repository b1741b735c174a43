"""Tables in the metadata: pointers that are compared and set, and segments that a table holds."""

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.operations import AlterTopicConfigs, DeleteRecords, PlanSegments
from metadata.records.stored_tables import (
    COMMITS_KEPT,
    AppliedCommit,
    pack_commits,
    unpack_commits,
    with_commit,
)
from metadata.records.tables import TableCommittedRecord
from metadata.rules.tables import Hold
from metadata.state import image
from metadata.table_operations import (
    NO_TABLE,
    CommitTable,
    ListSegments,
    ListTables,
    table_prefix,
)
from tests.support.coordinators.applied_state import applied_state
from tests.support.coordinators.coordinator_bench import batch, rolled
from tests.support.coordinators.file_cluster import GRACE_S, Cluster, DeletingStore, running_cluster
from wal.coordinates import ObjectKey, TopicIdPartition
from wal.errors import CorruptState, InvalidRequest, Rejected, UnknownPartition, UnknownTopicId

HOUR_S = 3_600
NOWHERE = UUID(int=99)


def key(topic_id: UUID, number: int) -> ObjectKey:
    return ObjectKey(f"{table_prefix(topic_id)}{number:05d}.metadata.json")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, 1, DeletingStore()) as running:
        yield running


async def table_topic(cluster: Cluster, name: str = "flights") -> TopicIdPartition:
    topic = await cluster.benches[0].topic(name, table_enabled="true")
    return TopicIdPartition(topic.topic_id, 0)


async def commit(
    cluster: Cluster, topic_id: UUID, old: int | None, new: int, applied: int | None = None
) -> tuple[bool, ObjectKey]:
    coordinator = cluster.benches[0].coordinator
    applied = coordinator.replica.applied_offset if applied is None else applied
    request = CommitTable(
        topic_id=topic_id,
        old_location=NO_TABLE if old is None else key(topic_id, old),
        new_location=key(topic_id, new),
        applied={0: applied},
    )
    (answer,) = await coordinator.catalogue.commit_tables([request])
    assert answer.error is None
    return answer.is_committed, answer.location


async def segment(cluster: Cluster, partition: TopicIdPartition) -> ObjectKey:
    bench = cluster.benches[0]
    await bench.commit(batch(partition, 5))
    (plan,) = await bench.coordinator.plan_segments(PlanSegments(include_partial=True))
    await bench.coordinator.commit_segments([rolled(plan)])
    return plan.object_key


async def delete_everything(cluster: Cluster, partition: TopicIdPartition) -> None:
    (deleted,) = await cluster.benches[0].coordinator.delete_records([DeleteRecords(partition, -1)])
    assert deleted.error is None


async def is_deleted(cluster: Cluster, segment: ObjectKey, *, after_s: float) -> bool:
    cluster.clock.advance(after_s)
    await cluster.work()
    return segment in cluster.store.deleted


def given_up(cluster: Cluster) -> dict[Hold, int]:
    """Segments that were deleted although a table may name them."""
    return {why: count for why, count in cluster.workers[0].given_up_deleted.items() if count}


# --- the pointer ---------------------------------------------------------------------------------


async def test_of_two_writers_one_moves_the_pointer(cluster: Cluster) -> None:
    topic_id = (await table_topic(cluster)).topic_id
    assert await commit(cluster, topic_id, None, 1) == (True, key(topic_id, 1))
    assert await commit(cluster, topic_id, None, 2) == (False, key(topic_id, 1))
    assert await commit(cluster, topic_id, 1, 3) == (True, key(topic_id, 3))
    assert await commit(cluster, topic_id, 1, 4) == (False, key(topic_id, 3))


async def test_a_repeated_commit_finds_itself(cluster: Cluster) -> None:
    topic_id = (await table_topic(cluster)).topic_id
    for _ in range(2):
        assert await commit(cluster, topic_id, None, 1) == (True, key(topic_id, 1))
    records = [
        record for record in cluster.logs[0].records() if isinstance(record, TableCommittedRecord)
    ]
    assert len(records) == 1


async def test_answers_older_than_those_of_the_pointer_move_nothing(cluster: Cluster) -> None:
    topic_id = (await table_topic(cluster)).topic_id
    await commit(cluster, topic_id, None, 1, applied=10)
    assert await commit(cluster, topic_id, 1, 2, applied=9) == (False, key(topic_id, 1))
    assert await commit(cluster, topic_id, 1, 2, applied=10) == (True, key(topic_id, 2))


@pytest.mark.parametrize(
    ("location", "error"),
    [
        ("segments/x.metadata.json", InvalidRequest),
        (f"{table_prefix(NOWHERE)}1.metadata.json", InvalidRequest),
        ("tables/../x.metadata.json", InvalidRequest),
    ],
)
async def test_a_pointer_stays_below_its_table(
    cluster: Cluster, location: str, error: type[Exception]
) -> None:
    partition = await table_topic(cluster)
    request = CommitTable(
        topic_id=partition.topic_id,
        old_location=NO_TABLE,
        new_location=ObjectKey(location),
        applied={},
    )
    (answer,) = await cluster.benches[0].coordinator.catalogue.commit_tables([request])
    assert isinstance(answer.error, error)


async def test_only_topics_that_are_tables_have_one(cluster: Cluster) -> None:
    topic = await cluster.benches[0].topic("plain")
    for topic_id, error in ((topic.topic_id, Rejected), (NOWHERE, UnknownTopicId)):
        request = CommitTable(
            topic_id=topic_id, old_location=NO_TABLE, new_location=key(topic_id, 1), applied={}
        )
        (answer,) = await cluster.benches[0].coordinator.catalogue.commit_tables([request])
        assert isinstance(answer.error, error)


async def test_a_job_is_told_settings_pointer_and_live_segments(cluster: Cluster) -> None:
    bench = cluster.benches[0]
    partition = await table_topic(cluster)
    await table_topic(cluster, "weather")
    await bench.topic("plain")
    live = await segment(cluster, partition)
    await commit(cluster, partition.topic_id, None, 1, applied=3)
    cluster.clock.advance(2)
    (table,) = bench.coordinator.catalogue.list_tables(ListTables(topics=("fli*",)))
    assert (table.topic_name, table.namespace, table.partition_count) == ("flights", "topics", 1)
    assert (table.snapshot_retention_ms, table.commit_interval_ms) == (3_600_000, 60_000)
    assert (table.location, table.age_ms) == (key(partition.topic_id, 1), 2_000)
    assert table.applied == {0: 3}
    assert not table.hides_deleted
    asked = [ListSegments(partition, 0), ListSegments(TopicIdPartition(NOWHERE, 0), 0)]
    found, unknown = await bench.coordinator.replica.list_segments(asked)
    assert [(one.object_key, one.base_offset, one.last_offset) for one in found.segments] == [
        (live, 0, 4)
    ]
    assert found.applied_offset == bench.coordinator.replica.applied_offset
    assert found.left_offset == -1
    assert found.log_start_offset == 0
    await bench.coordinator.delete_records([DeleteRecords(partition, 3)])
    (found, _) = await bench.coordinator.replica.list_segments(asked)
    assert (len(found.segments), found.log_start_offset) == (1, 3)
    assert isinstance(unknown.error, UnknownPartition)


async def test_the_table_goes_with_its_topic(cluster: Cluster) -> None:
    partition = await table_topic(cluster)
    await commit(cluster, partition.topic_id, None, 1)
    await cluster.benches[0].coordinator.delete_topics([partition.topic_id])
    assert cluster.benches[0].coordinator.replica.table(partition.topic_id) is None


async def test_a_state_that_is_opened_again_has_the_pointers(tmp_path: Path) -> None:
    async with applied_state(tmp_path) as state:
        (partition,) = await state.topic(table_enabled="true")
        record = TableCommittedRecord(
            topic_id=partition.topic_id,
            old_location=NO_TABLE,
            new_location=key(partition.topic_id, 1),
            applied={0: 5, 3: 7},
            committed_at_ms=11,
            retention_ms=60_000,
        )
        await state.apply(record)
        with pytest.raises(CorruptState, match="not at"):
            await state.apply(record)
        table = state.image.tables[partition.topic_id]
        assert await state.violations() == []
    async with applied_state(tmp_path) as state:
        assert state.image.tables == {}
    assert table.applied == {0: 5, 3: 7}


# --- segments that a table holds -----------------------------------------------------------------


async def test_a_segment_goes_when_a_commit_without_it_is_old_enough(cluster: Cluster) -> None:
    partition = await table_topic(cluster)
    left = await segment(cluster, partition)
    await commit(cluster, partition.topic_id, None, 1)
    await delete_everything(cluster, partition)
    assert not await is_deleted(cluster, left, after_s=2 * HOUR_S)
    await commit(cluster, partition.topic_id, 1, 2)
    assert not await is_deleted(cluster, left, after_s=HOUR_S - 1)
    assert await is_deleted(cluster, left, after_s=2)
    assert given_up(cluster) == {}


async def test_a_commit_that_had_not_seen_it_leave_frees_nothing(cluster: Cluster) -> None:
    partition = await table_topic(cluster)
    left = await segment(cluster, partition)
    applied = cluster.benches[0].coordinator.replica.applied_offset
    await delete_everything(cluster, partition)
    await commit(cluster, partition.topic_id, None, 1, applied=applied)
    assert not await is_deleted(cluster, left, after_s=2 * HOUR_S)
    await commit(cluster, partition.topic_id, 1, 1)  # no other files, but more is applied
    assert not await is_deleted(cluster, left, after_s=HOUR_S - 1)
    assert await is_deleted(cluster, left, after_s=2)


async def test_later_commits_do_not_put_it_off(cluster: Cluster) -> None:
    partition = await table_topic(cluster)
    left = await segment(cluster, partition)
    await delete_everything(cluster, partition)
    await commit(cluster, partition.topic_id, None, 1)
    for number in range(1, 200):
        cluster.clock.advance(20)
        await commit(cluster, partition.topic_id, number, number + 1)
    assert HOUR_S < 199 * 20
    assert await is_deleted(cluster, left, after_s=0)


async def test_without_a_commit_it_goes_at_the_bound_with_a_warning_and_is_counted(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    partition = await table_topic(cluster)
    left = await segment(cluster, partition)
    await delete_everything(cluster, partition)
    assert not await is_deleted(cluster, left, after_s=24 * HOUR_S - 1)
    assert not caplog.records
    assert await is_deleted(cluster, left, after_s=2)
    assert given_up(cluster) == {Hold.OVERDUE: 1}
    (warning,) = caplog.messages
    assert "1 segments are deleted although snapshots of tables may name them" in warning
    assert "table.owner.max.ms" in warning
    assert left in warning


@pytest.mark.parametrize("how", ["topic deleted", "switched off", "never a table"])
async def test_without_a_table_it_goes_after_the_grace(cluster: Cluster, how: str) -> None:
    bench = cluster.benches[0]
    enabled = "false" if how == "never a table" else "true"
    topic = await bench.topic(table_enabled=enabled)
    partition = TopicIdPartition(topic.topic_id, 0)
    left = await segment(cluster, partition)
    await delete_everything(cluster, partition)
    if how != "never a table":
        assert not await is_deleted(cluster, left, after_s=GRACE_S)
    if how == "topic deleted":
        await bench.coordinator.delete_topics([topic.topic_id])
    if how == "switched off":
        change = AlterTopicConfigs(topic_id=topic.topic_id, before=topic.configs, configs={})
        await bench.coordinator.catalogue.alter_topic_configs([change])
    assert await is_deleted(cluster, left, after_s=GRACE_S)
    assert given_up(cluster) == {}


@pytest.mark.parametrize(
    ("how", "why", "reason"),
    [
        ("switched off", Hold.SWITCHED_OFF, "the table of their topic is switched off"),
        ("topic deleted", Hold.TOPIC_DELETED, "their topic is deleted"),
    ],
)
async def test_what_a_table_that_ends_may_name_goes_with_a_warning_and_is_counted(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, how: str, why: Hold, reason: str
) -> None:
    bench = cluster.benches[0]
    topic = await bench.topic(table_enabled="true")
    partition = TopicIdPartition(topic.topic_id, 0)
    superseded = await segment(cluster, partition)
    await commit(cluster, partition.topic_id, None, 1)
    await delete_everything(cluster, partition)
    await commit(cluster, partition.topic_id, 1, 2)
    assert await is_deleted(cluster, superseded, after_s=HOUR_S + 1)
    left = await segment(cluster, partition)
    await delete_everything(cluster, partition)
    assert not await is_deleted(cluster, left, after_s=2 * HOUR_S)
    live = await segment(cluster, partition)
    if how == "topic deleted":
        await bench.coordinator.delete_topics([topic.topic_id])
    else:
        change = AlterTopicConfigs(topic_id=topic.topic_id, before=topic.configs, configs={})
        await bench.coordinator.catalogue.alter_topic_configs([change])
    assert not caplog.records
    assert await is_deleted(cluster, left, after_s=GRACE_S + 1)
    assert (live in cluster.store.deleted) == (how == "topic deleted")
    assert given_up(cluster) == {why: 2 if how == "topic deleted" else 1}
    (warning,) = caplog.messages
    assert reason in warning
    assert min(left, live) in warning


async def test_of_tables_that_went_with_their_topics_the_last_are_remembered(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image, "GONE_TABLES_MAX", 2)
    replica = cluster.benches[0].coordinator.replica
    gone = []
    for number in range(3):
        topic_id = (await table_topic(cluster, f"flights-{number}")).topic_id
        await commit(cluster, topic_id, None, 1)
        await commit(cluster, topic_id, 1, 2)
        await cluster.benches[0].coordinator.delete_topics([topic_id])
        gone.append(topic_id)
    assert replica.gone_table(gone[0]) is None
    for topic_id in gone[1:]:
        table = replica.gone_table(topic_id)
        assert table is not None
        assert (table.location, len(table.commits)) == (key(topic_id, 2), 1)


async def test_its_row_goes_with_its_object(cluster: Cluster) -> None:
    partition = await table_topic(cluster)
    await segment(cluster, partition)
    await delete_everything(cluster, partition)
    asked = [ListSegments(partition, 0)]
    (listed,) = await cluster.benches[0].coordinator.replica.list_segments(asked)
    assert listed.segments == []
    assert 0 <= listed.left_offset < listed.applied_offset
    await is_deleted(cluster, NO_TABLE, after_s=25 * HOUR_S)
    (listed,) = await cluster.benches[0].coordinator.replica.list_segments(asked)
    assert listed.left_offset == -1


# --- what is kept of commits ---------------------------------------------------------------------


@given(st.lists(st.integers(0, 3_000), max_size=300))
def test_kept_commits_are_few_and_free_what_all_would_hardly_later(gaps: list[int]) -> None:
    retention_ms = 64_000
    kept: tuple[AppliedCommit, ...] = ()
    every: list[AppliedCommit] = []
    now_ms = 0
    for applied, gap in enumerate(gaps, 1):
        now_ms += gap
        commit_now = AppliedCommit(now_ms, {0: applied})
        every.append(commit_now)
        kept = tuple(with_commit(kept, commit_now, retention_ms))
        assert kept[-1] == commit_now
        assert len(kept) <= 2 * COMMITS_KEPT + 3
        for left in range(applied):
            exact = next(at for at, of in every if of[0] > left)
            late = next(at for at, of in kept if of[0] > left)
            assert late >= exact or late <= now_ms - retention_ms
            assert late - exact <= retention_ms // COMMITS_KEPT or late <= now_ms - retention_ms
    if kept:
        assert unpack_commits(pack_commits(kept)) == kept
