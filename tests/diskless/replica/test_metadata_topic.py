"""The metadata log as a topic: bounds, limits, times, damage, and a follower that is behind."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from diskless.ports import ListOffsetsResult
from diskless.replica.metadata_topic import READ_BYTES_MAX, LogPartition, LogRead, MetadataTopic
from metadata.log.local_log import LocalMetadataLog
from metadata.log.log import MetadataLog, MetadataRecordBatch
from metadata.log.log_batch import decode_batch
from metadata.log.log_object import log_key
from metadata.log.object_log import ObjectMetadataLog
from metadata.operations import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    METADATA_TOPIC,
    METADATA_TOPIC_ID,
    FoundBatches,
)
from metadata.records.records import decode_record, encode_record
from metadata.records.users import ScramCredentialSetRecord
from metadata.scram.credentials import ScramCredential
from tests.support.brokers.replica_setting import AppliedSoFar, Logged
from wal.clock import ManualClock
from wal.coordinates import TopicIdPartition
from wal.errors import CorruptLog, NotCoordinator, OffsetOutOfRange
from wal.stores.file_store import FileStore
from wal.stores.object_store import ObjectStore

NOW_MS = 1_704_067_200_000
LONG_AFTER = 3_600.0
"""Seconds after which no lease of an earlier leader holds up pruning."""
P0 = LogPartition(0)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[ObjectStore]:
    store = FileStore(tmp_path / "store", clock=ManualClock(), rng=random.Random(1), sync=False)
    async with store:
        yield store


@pytest.fixture(params=["local", "object"])
async def logged(
    request: pytest.FixtureRequest, tmp_path: Path, store: ObjectStore
) -> AsyncIterator[Logged]:
    """A partition with ten batches of one to four records, every two at the same time."""
    log: MetadataLog
    if request.param == "local":
        log = await LocalMetadataLog.open(tmp_path / "log", rng=random.Random(2))
    else:
        log = await ObjectMetadataLog.open(store, 0, clock=ManualClock(), rng=random.Random(2))
    await fill(log)
    logged = Logged(log, AppliedSoFar())
    logged.apply()
    yield logged
    await log.close()


async def fill(log: MetadataLog, first: int = 0, count: int = 10) -> None:
    for number in range(first, first + count):
        records = [b"%d/%d" % (number, index) * 10 for index in range(1 + number % 4)]
        timestamp_ms = NOW_MS + 1_000 * (number // 2)
        if number == 0:
            await log.lead(records, timestamp_ms, at_offset=0)
        else:
            await log.append([records], timestamp_ms)


async def stored(log: MetadataLog) -> Sequence[MetadataRecordBatch]:
    batches = list(await log.read(log.start_offset, 1 << 20))
    while batches[-1].next_offset < log.end_offset:
        batches += await log.read(batches[-1].next_offset, 1 << 20)
    return batches


async def read(
    topic: MetadataTopic,
    offset: int,
    *,
    max_bytes: int = 1 << 20,
    own_max_bytes: int = 1 << 20,
    at_least_one: bool = True,
) -> list[MetadataRecordBatch]:
    (result,) = await topic.read(
        [LogRead(P0, offset, own_max_bytes)], max_bytes=max_bytes, at_least_one=at_least_one
    )
    assert result.error is None
    assert result.size_bytes == sum(map(len, result.records))
    return [decode_batch(bytes(record)) for record in result.records]


def test_its_id_is_none_that_a_topic_can_get() -> None:
    description = MetadataTopic([]).description
    assert (description.name, description.topic_id) == (METADATA_TOPIC, METADATA_TOPIC_ID)
    # Topic ids are of version 4, wherever they are minted.
    assert METADATA_TOPIC_ID.version == 8


async def test_what_is_read_is_what_the_log_holds(logged: Logged) -> None:
    topic = MetadataTopic([logged])
    batches = await stored(logged.log)
    assert topic.description.partition_count == 1
    for offset in range(logged.log.end_offset):
        rest = [batch for batch in batches if batch.next_offset > offset]
        assert await read(topic, offset) == rest
    assert await read(topic, logged.log.end_offset) == []


async def test_what_is_not_applied_yet_is_not_served(logged: Logged) -> None:
    topic = MetadataTopic([logged])
    batches = await stored(logged.log)
    for applied in range(len(batches)):
        logged.apply(batches[applied].base_offset)
        assert await read(topic, 0) == batches[:applied]
        assert await topic.find(P0, 0) == FoundBatches(0, batches[applied].base_offset)
        # Known, and on its way: a reader there waits, it is not told that it is wrong.
        assert (await topic.find(P0, logged.log.end_offset)).error is None


async def test_limits_are_kept_but_the_first_batch_comes_in_any_case(logged: Logged) -> None:
    topic = MetadataTopic([logged])
    batches = await stored(logged.log)
    sizes = [len(data) for data in await logged.log.read_encoded(0, 1 << 20)]
    for limits in ({"max_bytes": 0}, {"own_max_bytes": 0}, {"max_bytes": -5}):
        assert await read(topic, 0, **limits) == batches[:1]
        assert await read(topic, 0, **limits, at_least_one=False) == []
    for count in range(1, len(batches)):
        size = sum(sizes[:count])
        for limits in ({"max_bytes": size}, {"own_max_bytes": size}):
            found = await read(topic, 0, **limits)
            assert found == batches[: len(found)]
            # The object log counts the headers of its objects as well.
            assert 1 <= len(found) <= count
            assert found == await read(topic, 0, **limits, at_least_one=False)
            if isinstance(logged.log, LocalMetadataLog):
                assert len(found) == count
        assert len(await read(topic, 0, max_bytes=size - 1, at_least_one=False)) < count


@pytest.mark.parametrize("logged", ["local"], indirect=True)
async def test_one_limit_is_shared_by_all_partitions(logged: Logged) -> None:
    topic = MetadataTopic([logged, logged])
    sizes = [len(data) for data in await logged.log.read_encoded(0, 1 << 20)]
    reads = [LogRead(P0, 0, sum(sizes[:2])), LogRead(LogPartition(1), 0, 1 << 20)]
    for left, batches in ((0, 0), (sizes[0] - 1, 0), (sizes[0], 1), (1 << 19, len(sizes))):
        results = await topic.read(reads, max_bytes=sum(sizes[:2]) + left, at_least_one=True)
        assert [len(result.records) for result in results] == [2, batches]


async def test_one_answer_never_holds_up_the_log_for_long(tmp_path: Path) -> None:
    log = await LocalMetadataLog.open(tmp_path / "log", rng=random.Random(1))
    try:
        for _ in range(12):
            await log.append([[bytes(READ_BYTES_MAX // 8)]], NOW_MS)
        logged = Logged(log, AppliedSoFar())
        logged.apply()
        assert len(await read(MetadataTopic([logged]), 0, max_bytes=1 << 30)) == 7
    finally:
        await log.close()


async def test_an_offset_out_of_range_is_told_the_real_bounds(logged: Logged) -> None:
    topic = MetadataTopic([logged])
    end = logged.log.end_offset
    for offset in (-1, end + 1, 2**62):
        found = await topic.find(P0, offset)
        assert isinstance(found.error, OffsetOutOfRange)
        assert (found.log_start_offset, found.high_watermark) == (0, end)


async def test_below_a_pruned_start_is_out_of_range(store: ObjectStore) -> None:
    clock = ManualClock()
    log = await ObjectMetadataLog.open(store, 0, clock=clock, rng=random.Random(2))
    try:
        await fill(log)
        logged = Logged(log, AppliedSoFar())
        logged.apply()
        topic = MetadataTopic([logged])
        clock.advance(LONG_AFTER)
        start = await log.prune(8)
        assert start > 0
        found = await topic.find(P0, start - 1)
        assert isinstance(found.error, OffsetOutOfRange)
        assert found.log_start_offset == start
        # As it would go if the pruning came between finding and reading.
        (result,) = await topic.read(
            [LogRead(P0, start - 1, 1 << 20)], max_bytes=1 << 20, at_least_one=True
        )
        assert isinstance(result.error, OffsetOutOfRange)
        assert (await read(topic, start))[0].base_offset == start
        assert (await topic.list_offset(P0, EARLIEST_TIMESTAMP)).offset == start
        assert (await topic.list_offset(P0, 0)).offset == start
    finally:
        await log.close()


async def test_a_follower_looks_again_before_it_says_out_of_range(store: ObjectStore) -> None:
    leader = await ObjectMetadataLog.open(store, 0, clock=ManualClock(), rng=random.Random(1))
    follower = await ObjectMetadataLog.open(store, 0, clock=ManualClock(), rng=random.Random(2))
    try:
        logged = Logged(follower, AppliedSoFar())
        topic = MetadataTopic([logged])
        await fill(leader)
        # The client has read all of it from the leader; here nothing of it is applied yet.
        assert await topic.find(P0, leader.end_offset) == FoundBatches(0, 0)
        assert await read(topic, 0) == []
        logged.apply()
        assert await read(topic, 0) == await stored(leader)
        beyond = await topic.find(P0, leader.end_offset + 1)
        assert isinstance(beyond.error, OffsetOutOfRange)
        assert beyond.high_watermark == leader.end_offset
    finally:
        await leader.close()
        await follower.close()


async def test_damage_is_an_error_of_its_partition_alone(store: ObjectStore) -> None:
    logs = [
        await ObjectMetadataLog.open(store, index, clock=ManualClock(), rng=random.Random(index))
        for index in (0, 1)
    ]
    for log in logs:
        await fill(log)
    # Opened anew, so that nothing of it is in memory.
    damaged = await ObjectMetadataLog.open(store, 0, clock=ManualClock(), rng=random.Random(3))
    assert isinstance(store, FileStore)
    path = Path(store.url.removeprefix("file://")) / log_key(0, 1)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    partitions = [Logged(log, AppliedSoFar()) for log in (damaged, logs[1])]
    for partition in partitions:
        partition.apply()
    topic = MetadataTopic(partitions)
    try:
        bad, good = await topic.read(
            [LogRead(P0, 1, 1 << 20), LogRead(LogPartition(1), 1, 1 << 20)],
            max_bytes=1 << 20,
            at_least_one=True,
        )
        assert isinstance(bad.error, CorruptLog)
        assert bad.records == ()
        assert good.error is None
        assert decode_batch(bytes(good.records[0])).base_offset == 1
        listed = await topic.list_offset(P0, NOW_MS)
        assert isinstance(listed.error, CorruptLog)
    finally:
        for log in (*logs, damaged):
            await log.close()


async def test_a_log_that_is_closed_is_an_error_to_try_again_later(logged: Logged) -> None:
    topic = MetadataTopic([logged])
    end = logged.log.end_offset
    await logged.log.close()
    assert isinstance((await topic.find(P0, end + 1)).error, NotCoordinator)
    (result,) = await topic.read([LogRead(P0, 0, 1)], max_bytes=1, at_least_one=True)
    assert isinstance(result.error, NotCoordinator)
    assert isinstance((await topic.list_offset(P0, NOW_MS)).error, NotCoordinator)


async def test_offsets_by_time_are_those_of_the_first_record_at_or_after_it(
    logged: Logged,
) -> None:
    topic = MetadataTopic([logged])
    batches = await stored(logged.log)
    for applied in (*(batch.base_offset for batch in batches), logged.log.end_offset):
        logged.apply(applied)
        visible = [batch for batch in batches if batch.next_offset <= applied]
        for timestamp in range(NOW_MS - 500, NOW_MS + 6_000, 500):
            expected = next(
                (
                    ListOffsetsResult(None, batch.base_offset, batch.timestamp_ms)
                    for batch in visible
                    if batch.timestamp_ms >= timestamp
                ),
                ListOffsetsResult(),
            )
            assert await topic.list_offset(P0, timestamp) == expected
        assert await topic.list_offset(P0, LATEST_TIMESTAMP) == (None, applied, -1)
        for earliest in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
            assert await topic.list_offset(P0, earliest) == (None, 0, -1)
        assert await topic.list_offset(P0, LATEST_TIERED_TIMESTAMP) == (None, -1, -1)
        newest = max((batch.timestamp_ms for batch in visible), default=-1)
        first = next((b.base_offset for b in visible if b.timestamp_ms == newest), -1)
        assert await topic.list_offset(P0, MAX_TIMESTAMP) == (None, first, newest)


async def test_who_waits_is_told_which_partition_moved(logged: Logged) -> None:
    other = Logged(logged.log, AppliedSoFar())
    topic = MetadataTopic([logged, other])
    told: list[TopicIdPartition] = []
    topic.subscribe(told.extend)
    other.apply()
    logged.apply()
    assert told == [
        TopicIdPartition(METADATA_TOPIC_ID, 1),
        TopicIdPartition(METADATA_TOPIC_ID, 0),
    ]


async def test_reads_beside_appends_see_whole_batches(logged: Logged) -> None:
    topic = MetadataTopic([logged])

    async def append() -> None:
        for number in range(10, 40):
            await fill(logged.log, number, 1)
            logged.apply()

    async def consume() -> list[MetadataRecordBatch]:
        found: list[MetadataRecordBatch] = []
        offset = 0
        while offset < 100:
            batches = await read(topic, offset, max_bytes=300)
            found += batches
            offset = found[-1].next_offset
            await asyncio.sleep(0)
        return found

    assert sum(1 + number % 4 for number in range(40)) == 100
    async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
        tasks.create_task(append())
        consumed = tasks.create_task(consume())
    assert consumed.result() == await stored(logged.log)


async def test_readers_are_not_shown_what_is_stored_of_passwords(logged: Logged) -> None:
    secrets = [b"salt-of-ann", b"stored-key-of-ann", b"server-key-of-ann"]
    record = encode_record(
        ScramCredentialSetRecord(
            user="ann",
            mechanism=1,
            credential=ScramCredential(
                iterations=4_096, salt=secrets[0], stored_key=secrets[1], server_key=secrets[2]
            ),
        )
    )
    offset = logged.log.end_offset
    await logged.log.append([[b"before", bytes(record), b"behind"]], NOW_MS + 10_000)
    logged.apply()
    topic = MetadataTopic([logged])
    (result,) = await topic.read(
        [LogRead(P0, offset, 1 << 20)], max_bytes=1 << 20, at_least_one=True
    )
    data = b"".join(map(bytes, result.records))
    assert not [secret for secret in secrets if secret in data]
    (stored_batch,) = await logged.log.read_encoded(offset, 0)
    assert len(data) == len(stored_batch)
    shown = decode_batch(data)
    assert shown.records[0] == b"before"
    assert shown.records[2] == b"behind"
    seen = decode_record(shown.records[1])
    assert isinstance(seen, ScramCredentialSetRecord)
    assert (seen.user, seen.credential.iterations) == ("ann", 4_096)
    assert seen.credential.stored_key == bytes(len(secrets[1]))
