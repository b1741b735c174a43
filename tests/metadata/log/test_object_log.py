"""The object metadata log: the contract on three stores, and what a shared store can do to it."""

import asyncio
import gc
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from metadata.log.log_object import HEADER_BYTES
from metadata.log.object_log import APPENDS_UNDER_WAY_MAX, ObjectMetadataLog
from metadata.log.object_log_settings import ObjectLogSettings
from tests.support.logs.log_bucket import LEASE_S, PREFIX, PRUNE_S, SETTINGS, Bucket, key_at, settle
from tests.support.logs.log_contract import FIRST, NOW_MS, MetadataLogContract, lead, read_records
from tests.support.stores.faulty_s3 import Fault, FaultyS3
from tests.support.stores.stepped_store import Fate
from wal import errors
from wal.clock import ManualClock, SystemClock
from wal.coordinates import ObjectKey
from wal.records.record_batch import iterate_headers, verify_crc
from wal.settings import explain, section_from
from wal.stores.file_store import FileStore
from wal.stores.memory_store import MemoryStore
from wal.stores.object_store import BytesBody, ObjectBody, ObjectStore
from wal.stores.s3_settings import S3Settings
from wal.stores.s3_store import S3Store


@pytest.fixture(params=["memory", "file", pytest.param("s3-on-moto", marks=pytest.mark.moto)])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[ObjectStore]:
    clock, rng = SystemClock(), random.Random()
    opened: ObjectStore
    if request.param == "memory":
        opened = MemoryStore(clock=clock)
    elif request.param == "file":
        tmp_path: Path = request.getfixturevalue("tmp_path")
        opened = FileStore(tmp_path / "store", clock=clock, rng=rng, sync=False)
    else:
        opened = S3Store(
            request.getfixturevalue("moto_bucket"),
            "a prefix/of ours",
            endpoint_url=request.getfixturevalue("moto_endpoint"),
            clock=clock,
            rng=rng,
            settings=S3Settings(list_page=3),
        )
    async with opened:
        yield opened


class ObjectStorage:
    """A log in one object store."""

    batch_max_bytes = SETTINGS.batch_max_bytes

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._clock = ManualClock()

    def let_leases_end(self) -> None:
        self._clock.advance(2 * PRUNE_S)

    async def open(self) -> ObjectMetadataLog:
        return await ObjectMetadataLog.open(
            self._store, 3, clock=self._clock, rng=random.Random(), settings=SETTINGS
        )


class TestObjectLogContract(MetadataLogContract):
    @pytest.fixture
    def storage(self, store: ObjectStore) -> ObjectStorage:
        return ObjectStorage(store)


@pytest.fixture
async def bucket() -> AsyncIterator[Bucket]:
    opened = Bucket()
    yield opened
    await opened.close()


# --- one object per append -----------------------------------------------------------------------


async def test_an_append_is_one_object_named_by_its_first_offset(bucket: Bucket) -> None:
    log, steps = await bucket.leader()
    await log.append([[b"a", b"b"], [b"c"], [b"d"]], NOW_MS)
    await log.append([[b"e"]], NOW_MS)
    assert await bucket.keys() == [key_at(0), key_at(1), key_at(5)]
    assert steps.count("put") == 3


async def test_the_stored_bytes_are_kafka_batches(bucket: Bucket) -> None:
    log, _ = await bucket.leader()
    await log.append([[b"a", b"b"], [b"c"]], NOW_MS)
    body = (await bucket.data(1))[HEADER_BYTES:]
    headers = list(iterate_headers(body))
    assert [(header.base_offset, header.record_count) for _, header in headers] == [(1, 2), (3, 1)]
    for position, header in headers:
        verify_crc(body[position : position + header.length_bytes])
    assert b"".join(await log.read_encoded(1, 1 << 20)) == body


async def test_partitions_do_not_see_each_other_nor_names_that_are_not_theirs(
    bucket: Bucket,
) -> None:
    log, _ = await bucket.leader()
    for key in (f"{PREFIX}7", f"{PREFIX}{'9' * 20}", f"{key_at(1)}.bak", "meta/31/log/" + "0" * 20):
        await bucket.store.put(ObjectKey(key), BytesBody(b"foreign"))
    assert await log.refresh() == 1
    assert await log.append([[b"a"]], NOW_MS) == 1
    assert await bucket.records() == [FIRST, [b"a"]]
    bucket.clock.advance(2 * PRUNE_S)
    assert await log.prune(2) == 1
    assert len(await bucket.keys()) == 5


async def test_too_much_under_way_is_refused(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _ = await bucket.leader()
    appends = [
        asyncio.ensure_future(log.append([[b"%d" % number]], NOW_MS))
        for number in range(APPENDS_UNDER_WAY_MAX + 1)
    ]
    outcomes = await asyncio.gather(*appends, return_exceptions=True)
    assert outcomes[:-1] == list(range(1, APPENDS_UNDER_WAY_MAX + 1))
    assert isinstance(outcomes[-1], errors.Overloaded)
    monkeypatch.setattr("metadata.log.object_log.APPEND_BYTES_MAX", 100)
    with pytest.raises(errors.Overloaded):
        await log.append([[bytes(60)], [bytes(60)]], NOW_MS)
    assert await log.append([[b"again"]], NOW_MS) == APPENDS_UNDER_WAY_MAX + 1


async def test_an_append_of_nothing_is_a_mistake_and_changes_nothing(bucket: Bucket) -> None:
    log, _ = await bucket.leader()
    nothing: list[list[list[bytes]]] = [[], [[]]]
    for batches in nothing:
        with pytest.raises(ValueError, match="at least one"):
            await log.append(batches, NOW_MS)
    assert await log.append([[b"a"]], NOW_MS) == 1


def test_the_limits_are_settings_with_bounds() -> None:
    key = "diskless.coordinator.lease.ms"
    assert section_from(ObjectLogSettings, {key: "2000"}).lease_ms == 2000
    with pytest.raises(errors.InvalidSettings, match=key):
        section_from(ObjectLogSettings, {key: "1"})
    assert all(why for _, _, why in explain(ObjectLogSettings))


# --- a put whose answer is lost ------------------------------------------------------------------


async def test_a_log_that_has_not_led_appends_and_prunes_nothing(bucket: Bucket) -> None:
    await bucket.leader()
    log, steps = await bucket.log()
    assert log.lease_expires_at is None
    with pytest.raises(errors.NotCoordinator, match="has not led"):
        await log.append([[b"a"]], NOW_MS)
    with pytest.raises(errors.NotCoordinator, match="has not led"):
        await log.prune(1)
    assert steps.count("put") == steps.count("delete") == 0


@pytest.mark.parametrize("fates", [[Fate.LOST], [Fate.LOST] * 3, [Fate.LATE, Fate.AWAY, Fate.OK]])
async def test_a_lost_answer_is_found_out_by_putting_the_same_again(
    bucket: Bucket, fates: list[Fate]
) -> None:
    log, steps = await bucket.leader()
    steps.puts.extend(fates)
    assert await log.append([[b"a"]], NOW_MS) == 1
    assert not steps.puts
    for zombie in steps.zombies:
        await zombie.land()
    assert await log.append([[b"b"]], NOW_MS) == 2
    assert await bucket.records() == [FIRST, [b"a"], [b"b"]]


async def test_an_object_that_the_store_calls_foreign_is_compared(bucket: Bucket) -> None:
    log, _ = await bucket.leader()

    class Suspicious(MemoryStore):
        async def put(self, key: ObjectKey, body: ObjectBody) -> None:
            await super().put(key, body)
            raise errors.ObjectExists(key)

    suspicious = Suspicious(clock=bucket.clock)
    log = await ObjectMetadataLog.open(suspicious, 3, clock=bucket.clock, rng=random.Random(1))
    assert await lead(log) == 0
    assert await log.append([[b"a"]], NOW_MS) == 1
    assert await read_records(log) == [FIRST, [b"a"]]
    await log.close()


async def test_a_put_that_did_not_happen_fails_and_the_leader_goes_on(bucket: Bucket) -> None:
    log, steps = await bucket.leader()
    steps.puts.extend([Fate.AWAY, Fate.AWAY])
    for _ in range(2):
        with pytest.raises(errors.CommitFailed):
            await log.append([[b"lost"]], NOW_MS)
    assert log.is_leading
    assert await log.append([[b"other"]], NOW_MS) == 1
    assert await bucket.records() == [FIRST, [b"other"]]


@pytest.mark.parametrize("lands", ["before the next leader", "after it", "never"])
async def test_an_append_of_unknown_outcome_ends_the_term_and_the_next_leader_decides_it(
    bucket: Bucket, lands: str
) -> None:
    log, steps = await bucket.leader()
    steps.puts.extend([Fate.LATE] * SETTINGS.attempts_max)
    with pytest.raises(errors.CommitOutcomeUnknown, match="attempts"):
        await log.append([[b"a"]], NOW_MS)
    assert len(bucket.slept) == SETTINGS.attempts_max - 1
    assert log.lease_expires_at is None
    with pytest.raises(errors.NotCoordinator, match="CommitOutcomeUnknown"):
        await log.append([[b"b"]], NOW_MS)
    with pytest.raises(errors.NotCoordinator):
        await log.prune(1)

    zombie = steps.zombies[0]
    if lands == "before the next leader":
        assert await zombie.land()
        with pytest.raises(errors.NotCoordinator):
            await log.lead([b"again"], NOW_MS, at_offset=1)
        assert await log.peek()
        assert await log.refresh() == 2
        assert not await log.peek()
        expected = [FIRST, [b"a"], [b"again"]]
    else:
        expected = [FIRST, [b"again"]]
    assert await log.lead([b"again"], NOW_MS, at_offset=log.end_offset) == len(expected) - 1
    if lands == "after it":
        for zombie in steps.zombies:
            assert not await zombie.land()
    assert await log.append([[b"c"]], NOW_MS) == len(expected)
    assert await bucket.records() == [*expected, [b"c"]]


async def test_leading_may_have_an_unknown_outcome_too(bucket: Bucket) -> None:
    log, steps = await bucket.log()
    steps.puts.extend([Fate.LATE] * SETTINGS.attempts_max)
    with pytest.raises(errors.CommitOutcomeUnknown):
        await lead(log)
    with pytest.raises(errors.NotCoordinator):
        await log.append([[b"a"]], NOW_MS)
    assert await steps.zombies[0].land()
    assert await lead(log, b"second attempt") == 1
    assert await log.append([[b"a"]], NOW_MS) == 2
    assert await bucket.records() == [FIRST, [b"second attempt"], [b"a"]]

    steps.puts.append(Fate.AWAY)
    with pytest.raises(errors.CommitFailed):
        await lead(log)
    with pytest.raises(errors.NotCoordinator):
        await log.append([[b"b"]], NOW_MS)


async def test_a_cancelled_append_is_finished_before_the_log_is_closed(bucket: Bucket) -> None:
    log, steps = await bucket.leader()
    steps.held = True
    append = asyncio.ensure_future(log.append([[b"a"]], NOW_MS))
    await settle()
    append.cancel()
    closing = asyncio.ensure_future(log.close())
    await settle()
    assert append.cancelled()
    assert not closing.done()
    steps.waiting[0].decide(Fate.OK)
    await closing
    assert await bucket.records() == [FIRST, [b"a"]]


async def test_a_cancelled_append_that_fails_later_is_not_an_unhandled_error(
    bucket: Bucket,
) -> None:
    log, steps = await bucket.leader()
    unhandled: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    steps.held = True
    append = asyncio.create_task(log.append([[b"a"]], NOW_MS))
    await settle()
    append.cancel()
    await settle()
    steps.waiting[0].decide(Fate.AWAY)
    await log.close()
    del append
    gc.collect()
    assert unhandled == []


async def test_a_put_that_is_torn_down_leaves_a_log_that_does_not_lead(bucket: Bucket) -> None:
    log, steps = await bucket.leader()
    steps.held = True
    append = asyncio.ensure_future(log.append([[b"a"]], NOW_MS))
    await settle()
    (task,) = [task for task in asyncio.all_tasks() if task.get_name() == "metadata-log-3"]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await append
    assert not log.is_leading


# --- two leaders ---------------------------------------------------------------------------------


async def test_a_deposed_leader_acknowledges_nothing_and_can_come_back(bucket: Bucket) -> None:
    old, _ = await bucket.leader(b"old")
    await old.append([[b"a"]], NOW_MS)
    new, _ = await bucket.leader(b"new")
    bucket.clock.advance(2 * PRUNE_S)
    with pytest.raises(errors.NotCoordinator, match="another writer"):
        await old.append([[b"lost"]], NOW_MS)
    assert old.lease_expires_at is None
    for call in (old.append([[b"lost"]], NOW_MS), old.prune(1), lead_at(old, 2)):
        with pytest.raises(errors.NotCoordinator):
            await call
    await new.append([[b"b"]], NOW_MS)
    assert await old.refresh() == 4
    assert await old.lead([b"old again"], NOW_MS, at_offset=4) == 4
    assert await old.append([[b"c"]], NOW_MS) == 5
    with pytest.raises(errors.NotCoordinator):
        await new.append([[b"lost"]], NOW_MS)
    expected = [[b"old"], [b"a"], [b"new"], [b"b"], [b"old again"], [b"c"]]
    assert await bucket.records() == expected
    await new.refresh()
    assert await read_records(new) == expected


async def lead_at(log: ObjectMetadataLog, offset: int) -> int:
    return await log.lead([b"leads"], NOW_MS, at_offset=offset)


async def test_a_leader_that_sees_another_in_the_log_knows_that_it_was_deposed(
    bucket: Bucket,
) -> None:
    old, steps = await bucket.leader(b"old")
    await bucket.leader(b"new")
    puts = steps.count("put")
    assert await old.refresh() == 2
    assert old.lease_expires_at is None
    with pytest.raises(errors.NotCoordinator, match="another writer"):
        await old.append([[b"lost"]], NOW_MS)
    assert steps.count("put") == puts


async def test_of_candidates_that_lead_at_once_one_does(bucket: Bucket) -> None:
    logs = [(await bucket.log())[0] for _ in range(5)]
    outcomes = await asyncio.gather(
        *(log.lead([b"%d" % number], NOW_MS, at_offset=0) for number, log in enumerate(logs)),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes].count(errors.NotCoordinator) == 4
    (winner,) = [number for number, outcome in enumerate(outcomes) if outcome == 0]
    assert [log.is_leading for log in logs].count(True) == 1
    assert await bucket.records() == [[b"%d" % winner]]


# --- the lease -----------------------------------------------------------------------------------


async def test_the_lease_runs_from_the_start_of_the_last_successful_append(bucket: Bucket) -> None:
    log, steps = await bucket.leader()
    assert log.lease_expires_at == LEASE_S
    bucket.clock.advance(3)

    async def slow(kind: str, key: str) -> None:
        bucket.clock.advance(1)

    steps.before_answer = slow
    await log.append([[b"a"]], NOW_MS)
    assert bucket.clock.monotonic() == 4
    assert log.lease_expires_at == 3 + LEASE_S
    steps.puts.append(Fate.AWAY)
    with pytest.raises(errors.CommitFailed):
        await log.append([[b"b"]], NOW_MS)
    assert log.lease_expires_at == 3 + LEASE_S


async def test_a_put_within_the_prune_delay_costs_no_listing_and_a_late_one_one(
    bucket: Bucket,
) -> None:
    log, steps = await bucket.leader()
    lists = steps.count("list")
    await log.append([[b"a"]], NOW_MS)
    assert steps.count("list") == lists
    bucket.clock.advance(PRUNE_S)
    await log.append([[b"b"]], NOW_MS)
    assert steps.count("list") == lists + 1
    assert log.lease_expires_at == PRUNE_S + LEASE_S


async def test_a_leader_whose_late_put_cannot_be_checked_stops_leading(bucket: Bucket) -> None:
    log, steps = await bucket.leader()
    bucket.clock.advance(PRUNE_S)
    steps.others.extend([Fate.AWAY])
    assert await log.append([[b"a"]], NOW_MS) == 1
    bucket.clock.advance(2 * PRUNE_S)
    steps.others.extend([Fate.AWAY] * SETTINGS.attempts_max)
    with pytest.raises(errors.CommitOutcomeUnknown):
        await log.append([[b"b"]], NOW_MS)
    assert log.lease_expires_at is None
    await log.refresh()
    assert await read_records(log) == [FIRST, [b"a"], [b"b"]]


async def test_an_append_that_was_in_the_log_before_another_led_is_of_unknown_outcome(
    bucket: Bucket,
) -> None:
    old, steps = await bucket.leader(b"old")

    async def depose_meanwhile(kind: str, key: str) -> None:
        if kind == "put":
            steps.before_answer = None
            bucket.clock.advance(2 * PRUNE_S)
            await bucket.leader(b"new")

    steps.before_answer = depose_meanwhile
    with pytest.raises(errors.CommitOutcomeUnknown, match="deposed"):
        await old.append([[b"a"]], NOW_MS)
    with pytest.raises(errors.NotCoordinator):
        await old.append([[b"b"]], NOW_MS)
    assert await bucket.records() == [[b"old"], [b"a"], [b"new"]]


# --- S3 that loses, refuses and slows down -------------------------------------------------------

FAST_S3 = S3Settings(retry_first_delay_ms=1, retry_delay_max_ms=5, attempts_max=3)


@pytest.fixture
async def s3_logs(
    faulty_s3: FaultyS3, moto_bucket: str
) -> AsyncIterator[tuple[ObjectMetadataLog, ObjectMetadataLog]]:
    """Two logs on one bucket, both through the faulty proxy."""
    clock = SystemClock()

    def store() -> S3Store:
        return S3Store(
            moto_bucket,
            endpoint_url=faulty_s3.url,
            clock=clock,
            rng=random.Random(),
            settings=FAST_S3,
        )

    settings = ObjectLogSettings(retry_first_delay_ms=1, retry_delay_max_ms=5, attempts_max=3)
    async with store() as first_store, store() as second_store:
        logs = [
            await ObjectMetadataLog.open(
                opened, 3, clock=clock, rng=random.Random(), settings=settings
            )
            for opened in (first_store, second_store)
        ]
        yield logs[0], logs[1]
        for log in logs:
            await log.close()


async def test_s3_loses_answers_of_appends_and_each_is_there_once(
    s3_logs: tuple[ObjectMetadataLog, ObjectMetadataLog], faulty_s3: FaultyS3
) -> None:
    log, follower = s3_logs
    faulty_s3.add(Fault("lose_response", method="PUT", key_prefix=PREFIX, nth=1, count=1))
    faulty_s3.add(Fault("lose_response", method="PUT", key_prefix=PREFIX, nth=3, count=4))
    await lead(log)
    for number in range(4):
        assert await log.append([[b"%d" % number]], NOW_MS) == 1 + number
    assert faulty_s3.hits("lose_response") == 5
    await follower.refresh()
    assert await read_records(follower) == [FIRST, *([b"%d" % number] for number in range(4))]


@pytest.mark.parametrize(
    ("status", "code"),
    [(409, "ConditionalRequestConflict"), (503, "SlowDown"), (500, "InternalError")],
)
async def test_s3_refuses_appends_for_a_while(
    s3_logs: tuple[ObjectMetadataLog, ObjectMetadataLog],
    faulty_s3: FaultyS3,
    status: int,
    code: str,
) -> None:
    log, follower = s3_logs
    await lead(log)
    faulty_s3.add(
        Fault("status", method="PUT", key_prefix=PREFIX, count=2, status=status, code=code)
    )
    assert await log.append([[b"a"]], NOW_MS) == 1
    faulty_s3.add(
        Fault("status", method="PUT", key_prefix=PREFIX, count=None, status=status, code=code)
    )
    with pytest.raises((errors.CommitFailed, errors.CommitOutcomeUnknown)):
        await log.append([[b"b"]], NOW_MS)
    faulty_s3.clear()
    if not log.is_leading:
        assert await lead(log) == 2
    end = await log.append([[b"c"]], NOW_MS) + 1
    assert await follower.refresh() == end
    records = await read_records(follower)
    assert records[:2] == [FIRST, [b"a"]]
    assert records[-1] == [b"c"]
    assert [b"b"] not in records


async def test_an_append_that_s3_applied_and_answered_with_503_is_not_called_a_failure(
    s3_logs: tuple[ObjectMetadataLog, ObjectMetadataLog], faulty_s3: FaultyS3
) -> None:
    log, follower = s3_logs
    await lead(log)
    faulty_s3.add(Fault("status_after", "PUT", PREFIX, count=None))
    assert await log.append([[b"a"]], NOW_MS) == 1
    faulty_s3.clear()
    assert await log.append([[b"b"]], NOW_MS) == 2
    await follower.refresh()
    assert await read_records(follower) == [FIRST, [b"a"], [b"b"]]


async def test_a_storm_of_503_does_not_depose_a_leader_that_gets_through_in_time(
    s3_logs: tuple[ObjectMetadataLog, ObjectMetadataLog], faulty_s3: FaultyS3
) -> None:
    log, _ = s3_logs
    await lead(log)
    storm = faulty_s3.add(
        Fault("status", "PUT", PREFIX, count=2 * FAST_S3.attempts_max, code="SlowDown")
    )
    assert await log.append([[b"a"]], NOW_MS) == 1
    assert storm.hits == 2 * FAST_S3.attempts_max
    assert log.is_leading


async def test_s3_answers_a_deposed_leader_with_412(
    s3_logs: tuple[ObjectMetadataLog, ObjectMetadataLog], faulty_s3: FaultyS3
) -> None:
    old, new = s3_logs
    await lead(old)
    await lead(new)
    await new.append([[b"b"]], NOW_MS)
    faulty_s3.add(Fault("lose_response", method="PUT", key_prefix=PREFIX))
    with pytest.raises(errors.NotCoordinator):
        await old.append([[b"lost"]], NOW_MS)
    assert await old.refresh() == 3
    assert await read_records(old) == [FIRST, FIRST, [b"b"]]


async def test_s3_is_away_for_so_long_that_nobody_knows(
    s3_logs: tuple[ObjectMetadataLog, ObjectMetadataLog], faulty_s3: FaultyS3
) -> None:
    log, follower = s3_logs
    await lead(log)
    faulty_s3.add(Fault("lose_response", method="PUT", key_prefix=PREFIX, count=1))
    faulty_s3.add(Fault("drop", count=None))
    with pytest.raises(errors.CommitOutcomeUnknown):
        await log.append([[b"a"]], NOW_MS)
    with pytest.raises(errors.StorageFailed):
        await log.refresh()
    faulty_s3.clear()
    with pytest.raises(errors.NotCoordinator):
        await log.append([[b"b"]], NOW_MS)
    assert await lead(log) == 2
    await follower.refresh()
    assert await read_records(follower) == [FIRST, [b"a"], FIRST]
