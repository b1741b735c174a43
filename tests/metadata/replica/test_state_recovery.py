"""SQLite is a cache: deleted, stale, foreign or damaged, it heals by replay or is reported."""

import asyncio
import random
import sqlite3
from pathlib import Path
from uuid import UUID

import pytest

from metadata.access_tokens import AccessToken, AlterAccessToken
from metadata.acls import AclBinding, PatternType, Permission
from metadata.coordinator.placement import PlacementFixing
from metadata.log.log import MetadataRecordBatch
from metadata.operations import (
    AlterClientQuotas,
    AlterScramCredential,
    FindBatches,
    ListOffsets,
    PlanSegments,
    SetTopicColumns,
)
from metadata.records.groups import CommittedOffset
from metadata.records.segment_identity import segment_key
from metadata.replica.verify import verify_metadata
from metadata.rewrites import PlanRewrites, Rewrite, RewrittenSegment
from metadata.rules.users import decide_alter_access_tokens
from metadata.scram.credentials import ScramCredential
from metadata.sink_operations import CommitSink, SinkShare
from metadata.state.schema import (
    ASSIGNMENTS,
    BROKERS,
    CONSUMER_GROUPS,
    GROUP_OFFSETS,
    LEADERSHIP,
    STATE_TABLES,
    SWEPT,
)
from metadata.table_operations import NO_TABLE, CommitTable, table_prefix
from metadata.transaction_operations import (
    AddToTransaction,
    EndTransaction,
    InitProducer,
    TransactionGroup,
    TransactionPartition,
)
from tests.support.coordinators.coordinator_bench import (
    CoordinatorBench,
    MemoryMetadataLog,
    batch,
    rolled,
    running_coordinator,
)
from tests.support.profiles import seeds
from wal.clock import ManualClock
from wal.coordinates import ObjectKey, Offset, TopicIdPartition
from wal.errors import CorruptLog, CorruptState
from wal.staging.staged_keys import staged_key
from wal.ulid import mint_ulid

STATE = "state.sqlite"


async def filled(bench: CoordinatorBench) -> TopicIdPartition:
    """Something in every table."""
    partition = await bench.partition()
    await bench.topic("configured", 2, segment_bytes="1000")
    for number in range(6):
        await bench.commit(
            batch(partition, 10, producer=4, sequence=10 * number), batch(partition, 5)
        )
    plans = await bench.coordinator.plan_segments(PlanSegments(include_partial=True))
    await bench.coordinator.commit_segments([rolled(plans[0])])
    for number in range(6, 9):
        await bench.commit(batch(partition, 10, producer=4, sequence=10 * number))
    await bench.coordinator.plan_segments(PlanSegments(include_partial=True))
    await bench.commit(batch(partition, 1, producer=4, sequence=90))
    await bench.coordinator.allocate_producer_ids()
    quotas = AlterClientQuotas(entity=(("user", "ann"),), changes={"producer_byte_rate": 5.5})
    assert await bench.coordinator.catalogue.alter_client_quotas([quotas]) == [None]
    rule = AclBinding(2, "t", PatternType.LITERAL, "User:ann", "*", 3, Permission.ALLOW)
    assert await bench.coordinator.catalogue.create_acls([rule]) == [None]
    await fill_tables(bench)
    await fill_transactions(bench)
    await fill_sinks(bench)
    tokens = [AlterAccessToken(AccessToken("1", "ann", b"d", 1, 2), is_revoked=False)]
    altered = decide_alter_access_tokens
    assert await bench.coordinator.pipeline.perform(lambda view, _: altered(view, tokens)) == [None]
    credential = ScramCredential(iterations=4_096, salt=b"1", stored_key=b"2", server_key=b"3")
    user = AlterScramCredential(user="ann", mechanism=2, credential=credential)
    assert await bench.coordinator.catalogue.alter_scram_credentials([user]) == [None]
    return partition


async def fill_sinks(bench: CoordinatorBench) -> None:
    """A sink with a batch, and one whose batch has a share that nobody tells; its driver leaves."""
    coordinator = bench.coordinator
    sink = CommitSink("s", "User:ann", 1, bytes(16), [])
    assert (await coordinator.sinks.commit(sink)).error is None
    elsewhere = batch(TopicIdPartition(UUID(int=77), 0), 1)
    key = staged_key("open", mint_ulid(bench.clock, bench.rng))
    share = SinkShare(1, [bench.file(elsewhere, key=key)])
    decided = asyncio.Event()
    coordinator.sinks.subscribe(lambda _: decided.set())
    committing = asyncio.create_task(
        coordinator.sinks.commit(CommitSink("open", "User:ann", 1, bytes(16), [], [share]))
    )
    await decided.wait()
    committing.cancel()
    await asyncio.wait([committing])


async def fill_tables(bench: CoordinatorBench) -> None:
    """A typed topic that is a table, whose only segment was replaced by a compaction."""
    coordinator = bench.coordinator
    topic = await bench.topic(
        "lake",
        cleanup_policy="compact",
        table_enabled="true",
        value_schema_format="json",
        value_schema="{}",
    )
    asked = PlanSegments(include_partial=True, topics=["lake"])
    partition = TopicIdPartition(topic.topic_id, 0)
    await bench.commit(batch(partition, 10))
    (schemas,) = coordinator.topic_schemas(asked)
    columns = SetTopicColumns(topic.topic_id, 1, schemas.basis, b"columns")
    assert await coordinator.catalogue.set_topic_columns([columns]) == [None]
    await coordinator.commit_segments(
        [rolled(plan) for plan in await coordinator.plan_segments(asked)]
    )
    location = ObjectKey(f"{table_prefix(topic.topic_id)}metadata/1.metadata.json")
    table = CommitTable(
        topic_id=topic.topic_id, old_location=NO_TABLE, new_location=location, applied={0: 1}
    )
    assert (await coordinator.catalogue.commit_tables([table]))[0].is_committed
    (plan,) = await coordinator.plan_rewrites(PlanRewrites())
    key = segment_key("lake", partition, 0, 9, plan.generation)
    made = RewrittenSegment(Offset(0), Offset(9), key, 300, 9, 4, 6, 1_000)
    rewrite = Rewrite(partition=partition, generation=plan.generation, segments=[made])
    assert (await coordinator.commit_rewrites([rewrite]))[0].error is None


async def fill_transactions(bench: CoordinatorBench) -> None:
    """An aborted transaction, and an open one with data and offsets."""
    await PlacementFixing(bench.coordinator.pipeline, 1).run()
    transactions = bench.coordinator.transactions
    partition = await bench.partition("paid")
    asked = InitProducer("pay", 60_000, 40)
    assert await transactions.init_producer(asked) == (40, 0, None)
    for number in (1, 2):
        added = AddToTransaction(
            "pay", 40, 0, [TransactionPartition(partition, 0)], [TransactionGroup("g", 0)]
        )
        assert await transactions.add_to_transaction(added) == (number, None)
        sent = batch(partition, 2, producer=40, sequence=2 * (number - 1))
        (answer,) = await bench.commit(sent._replace(transaction_number=number))
        assert answer.error is None
        offset = CommittedOffset(partition, number, 1_000)
        await transactions.commit_offsets("g", 40, 0, number, [offset])
        if number == 1:
            ended = await transactions.end_transaction(EndTransaction("pay", 40, 0, False))
            assert ended.is_completed


def set_aside(directory: Path) -> int:
    """How many states were set aside there."""
    return sum(1 for path in directory.iterdir() if path.name.startswith(f"{STATE}.bad-"))


async def test_every_table_is_filled_by_the_example(tmp_path: Path) -> None:
    async with running_coordinator(tmp_path, MemoryMetadataLog()) as bench:
        await filled(bench)
    database = sqlite3.connect(tmp_path / STATE)
    others = {ASSIGNMENTS, LEADERSHIP, BROKERS, SWEPT, CONSUMER_GROUPS, GROUP_OFFSETS}
    for table in set(STATE_TABLES) - others:
        assert database.execute(f"SELECT count(*) FROM {table.name}").fetchone()[0], table.name
    database.close()


async def test_replay_without_sqlite_gives_the_same_state_hash(tmp_path: Path) -> None:
    log = MemoryMetadataLog()
    async with running_coordinator(tmp_path, log) as bench:
        partition = await filled(bench)
        state_hash = bench.coordinator.replica.state_hash
        found = await bench.find(partition, 0)
    (tmp_path / STATE).unlink()
    async with running_coordinator(tmp_path, log) as bench:
        assert bench.coordinator.replica.state_hash == state_hash
        assert await bench.find(partition, 0) == found


async def test_a_stale_state_catches_up(tmp_path: Path) -> None:
    log = MemoryMetadataLog()
    async with running_coordinator(tmp_path, log) as bench:
        partition = await filled(bench)
    stale = (tmp_path / STATE).read_bytes()
    async with running_coordinator(tmp_path, log) as bench:
        await bench.commit(batch(partition, 3))
        state_hash = bench.coordinator.replica.state_hash
    (tmp_path / STATE).write_bytes(stale)
    async with running_coordinator(tmp_path, log) as bench:
        assert bench.coordinator.replica.state_hash == state_hash
    assert set_aside(tmp_path) == 0


async def test_a_sound_state_ahead_of_its_log_is_refused(tmp_path: Path) -> None:
    """The log lost its tail: what it held was acknowledged, and its offsets were given out."""
    log = MemoryMetadataLog()
    async with running_coordinator(tmp_path, log) as bench:
        await filled(bench)
        state_hash = bench.coordinator.replica.state_hash
    for kept in (0, 3, len(log.batches) - 1):
        shorter = MemoryMetadataLog()
        shorter.batches = log.batches[:kept]
        with pytest.raises(ExceptionGroup) as refused:
            async with running_coordinator(tmp_path, shorter):
                pass
        assert refused.group_contains(CorruptState, match="lost records that were acknowledged")
    async with running_coordinator(tmp_path, log) as bench:
        assert bench.coordinator.replica.state_hash == state_hash
    assert set_aside(tmp_path) == 0


async def test_a_state_of_another_log_is_set_aside(tmp_path: Path) -> None:
    """Whether that log is shorter or longer, and whether or not it began at the same time."""
    log = MemoryMetadataLog()
    async with running_coordinator(tmp_path, log) as bench:
        await filled(bench)
    later = ManualClock()
    later.advance(1)
    for number, (clock, topics) in enumerate([(later, 2), (later, 40), (ManualClock(), 40)]):
        other = MemoryMetadataLog()
        async with running_coordinator(
            tmp_path / f"other-{number}", other, seed=9 + number, clock=clock
        ) as bench:
            for name in range(topics):
                await bench.topic(str(name))
            state_hash = bench.coordinator.replica.state_hash
        async with running_coordinator(tmp_path, other, seed=9) as bench:
            assert bench.coordinator.replica.state_hash == state_hash
        assert set_aside(tmp_path) == number + 1


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM applied",
        "UPDATE applied SET state_version = 0",
        "UPDATE applied SET next_offset = next_offset - 1",
        "UPDATE batches SET byte_offset = byte_offset + 1",
        "DELETE FROM producer_states",
        "UPDATE partitions SET high_watermark = high_watermark + 1",
        "DROP TABLE segments",
        "UPDATE topics SET name = 'other' WHERE name = 'flights'",
    ],
)
async def test_a_state_that_does_not_fit_is_set_aside_and_rebuilt(
    tmp_path: Path, damage: str
) -> None:
    log = MemoryMetadataLog()
    async with running_coordinator(tmp_path, log) as bench:
        await filled(bench)
        state_hash = bench.coordinator.replica.state_hash
    database = sqlite3.connect(tmp_path / STATE)
    database.execute(damage)
    database.commit()
    database.close()
    async with running_coordinator(tmp_path, log) as bench:
        assert bench.coordinator.replica.state_hash == state_hash
    assert (tmp_path / f"{STATE}.bad-1").exists()


async def test_a_truncated_or_empty_file_is_rebuilt(tmp_path: Path) -> None:
    log = MemoryMetadataLog()
    async with running_coordinator(tmp_path, log) as bench:
        await filled(bench)
        state_hash = bench.coordinator.replica.state_hash
    whole = (tmp_path / STATE).read_bytes()
    for length in (0, 10, 5000, len(whole) - 4096):
        (tmp_path / STATE).write_bytes(whole[:length])
        async with running_coordinator(tmp_path, log) as bench:
            assert bench.coordinator.replica.state_hash == state_hash, length


@pytest.mark.parametrize("seed", seeds(15))
async def test_a_flipped_bit_heals_or_makes_no_difference(tmp_path: Path, seed: int) -> None:
    log = MemoryMetadataLog()
    async with running_coordinator(tmp_path, log) as bench:
        partition = await filled(bench)
        state_hash = bench.coordinator.replica.state_hash
        found = await bench.find(partition, 0)
    damaged = bytearray((tmp_path / STATE).read_bytes())
    rng = random.Random(seed)
    position = rng.randrange(len(damaged))
    damaged[position] ^= 1 << rng.randrange(8)
    (tmp_path / STATE).write_bytes(damaged)
    async with running_coordinator(tmp_path, log) as bench:
        assert bench.coordinator.replica.state_hash == state_hash
        assert await bench.find(partition, 0) == found
        await bench.commit(batch(partition, 2))
        state_hash = bench.coordinator.replica.state_hash
    (tmp_path / STATE).unlink()
    async with running_coordinator(tmp_path, log) as bench:
        assert bench.coordinator.replica.state_hash == state_hash


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE batches SET byte_offset = byte_offset + 1 WHERE partition = ?",
        "UPDATE partitions SET log_start_offset = 1 WHERE id = ?",
        "DELETE FROM batches WHERE partition = ?",
    ],
)
async def test_a_row_damaged_while_it_serves_is_an_error_of_its_partition(
    tmp_path: Path, damage: str
) -> None:
    async with running_coordinator(tmp_path, MemoryMetadataLog()) as bench:
        partition = await bench.partition()
        other = await bench.partition("weather")
        await bench.commit(batch(partition, 3), batch(other, 3))
        database = sqlite3.connect(tmp_path / STATE)
        identity = bench.coordinator.replica.partition_id(partition)
        database.execute(damage, (identity,))
        database.commit()
        database.close()
        answers = await bench.coordinator.replica.find_batches(
            [FindBatches(partition, 0, 1000), FindBatches(other, 0, 1000)], max_bytes=10_000
        )
        assert isinstance(answers[0].error, CorruptState)
        assert not answers[0].extents
        (listed,) = await bench.coordinator.list_offsets([ListOffsets(partition, 0)])
        assert isinstance(listed.error, CorruptState) or listed.extent is None
        assert answers[1].error is None
        assert len(answers[1].extents) == 1


async def test_a_log_that_contradicts_itself_is_not_healed(tmp_path: Path) -> None:
    log = MemoryMetadataLog()
    async with running_coordinator(tmp_path, log) as bench:
        await filled(bench)
    (tmp_path / STATE).unlink()
    twice = log.batches[-2]
    log.batches.append(
        MetadataRecordBatch(log.end_offset, twice.timestamp_ms, log.batches[5].records)
    )
    with pytest.RaisesGroup(CorruptState):
        async with running_coordinator(tmp_path, log):
            pass
    log.batches[-1] = MetadataRecordBatch(
        log.batches[-1].base_offset, twice.timestamp_ms, (b"garbage",)
    )
    with pytest.RaisesGroup(CorruptLog):
        async with running_coordinator(tmp_path, log):
            pass


async def test_a_record_that_this_release_does_not_read_is_named_by_its_offset(
    tmp_path: Path,
) -> None:
    log = MemoryMetadataLog()
    async with running_coordinator(tmp_path, log) as bench:
        await filled(bench)
    records = (log.batches[-1].records[0], bytes.fromhex("01 66 00"))  # FileCommitted, version 0
    log.batches.append(MetadataRecordBatch(log.end_offset, log.batches[-1].timestamp_ms, records))
    problem = f"record at offset {log.end_offset - 1}: .*api key 102, version 0"
    for _ in range(2):
        with pytest.RaisesGroup(pytest.RaisesExc(CorruptLog, match=problem)):
            async with running_coordinator(tmp_path, log):
                pass
    assert not set_aside(tmp_path)


class TestVerify:
    async def test_nothing_is_wrong_with_a_sound_state(self, tmp_path: Path) -> None:
        log = MemoryMetadataLog()
        async with running_coordinator(tmp_path, log) as bench:
            await filled(bench)
        report = await verify_metadata(tmp_path, log)
        assert report.violations == []
        assert report.records == log.end_offset
        assert report.partitions == 5
        assert {live.object_format for live in report.live_objects} == {1, 2}

    async def test_a_damaged_state_is_reported_and_a_missing_one_claims_nothing(
        self, tmp_path: Path
    ) -> None:
        log = MemoryMetadataLog()
        async with running_coordinator(tmp_path, log) as bench:
            await filled(bench)
        database = sqlite3.connect(tmp_path / STATE)
        database.execute("UPDATE files SET live_rows = live_rows + 1")
        database.commit()
        database.close()
        (violation,) = (await verify_metadata(tmp_path, log)).violations
        assert "checksum" in violation.problem
        (tmp_path / STATE).unlink()
        assert (await verify_metadata(tmp_path, log)).violations == []

    async def test_a_state_of_another_log_is_reported(self, tmp_path: Path) -> None:
        log, other = MemoryMetadataLog(), MemoryMetadataLog()
        for seed, directory in ((1, tmp_path / "a"), (2, tmp_path / "b")):
            async with running_coordinator(
                directory, log if seed == 1 else other, seed=seed
            ) as bench:
                await filled(bench)
        (violation,) = (await verify_metadata(tmp_path / "a", other)).violations
        assert "state hash" in violation.problem

    async def test_a_log_with_damaged_records_is_reported(self, tmp_path: Path) -> None:
        log = MemoryMetadataLog()
        async with running_coordinator(tmp_path, log) as bench:
            await filled(bench)
        log.batches[4] = log.batches[4]._replace(records=(b"garbage",))
        subjects = {found.subject for found in (await verify_metadata(tmp_path, log)).violations}
        assert "metadata log" in subjects
