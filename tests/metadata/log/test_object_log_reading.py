"""The object metadata log: what was pruned, what listings miss, what is damaged."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import ClassVar

import pytest

from metadata.log.log_object import (
    FORMAT_VERSION,
    HEADER_BYTES,
    MAGIC,
    OBJECT_HEADER,
    OBJECT_HEADER_CRC,
    decode_object,
    encode_object,
)
from metadata.log.object_log import ObjectMetadataLog
from metadata.log.object_log_reader import READ_OBJECTS_MAX
from metadata.log.object_log_settings import ObjectLogSettings
from tests.support.logs.log_bucket import PRUNE_S, SETTINGS, Bucket, key_at, settle
from tests.support.logs.log_contract import NOW_MS, lead, read_all, read_records
from tests.support.stores.racing_listings import RacingListings
from tests.support.stores.stepped_store import Fate
from wal.clock import ManualClock
from wal.coordinates import ObjectKey
from wal.crc import crc32c
from wal.errors import CommitOutcomeUnknown, CorruptLog, NotCoordinator, OutOfBounds, StorageFailed
from wal.stores.memory_store import MemoryStore
from wal.stores.object_store import BytesBody, ObjectStat


@pytest.fixture
async def bucket() -> AsyncIterator[Bucket]:
    opened = Bucket()
    yield opened
    await opened.close()


# --- pruned offsets ------------------------------------------------------------------------------


async def pruned_by_the_next_leader(bucket: Bucket) -> ObjectMetadataLog:
    """Another log leads behind offset 2, and prunes its beginning; returns that log."""
    new, _ = await bucket.leader(b"new")
    for number in range(5):
        await new.append([[b"%d" % number, b"and more"]], NOW_MS)
    bucket.clock.advance(2 * PRUNE_S)
    await new.append([[b"late"]], NOW_MS)
    assert await new.prune(9) == 9
    return new


async def test_a_leader_prunes_nothing_before_it_has_led_for_a_while(bucket: Bucket) -> None:
    old, _ = await bucket.leader(b"old")
    await old.append([[b"a"]], NOW_MS)
    new, _ = await bucket.leader(b"new")
    await new.append([[b"b"]], NOW_MS)
    for _ in range(2):
        assert await new.prune(3) == 0
        bucket.clock.advance(PRUNE_S)
    assert bucket.clock.monotonic() > (old.lease_expires_at or 0)
    assert await new.prune(3) == 3
    assert await bucket.keys() == [key_at(3)]


async def test_what_was_the_last_object_less_than_the_delay_ago_is_not_pruned(
    bucket: Bucket,
) -> None:
    log, _ = await bucket.leader()
    for number in range(1, 60):
        await log.append([[b"%d" % number]], NOW_MS)
        bucket.clock.advance(PRUNE_S / 10)
        start = await log.prune(log.end_offset)
        # It was put eleven appends ago, or a few more: not every moment is kept.
        assert max(0, number - 14) <= start <= max(0, number - 10)
    bucket.clock.advance(2 * PRUNE_S)
    assert await log.prune(log.end_offset) == 59


async def test_a_candidate_does_not_lead_because_a_listing_missed_what_came_and_went(
    bucket: Bucket,
) -> None:
    racing = RacingLog(bucket.clock)
    old = await racing.opened()
    await lead(old)
    candidate = await racing.opened()
    new = await racing.opened()
    await lead(new)
    await new.append([[b"a"]], NOW_MS)
    bucket.clock.advance(2 * PRUNE_S)
    await new.prune(new.end_offset)

    async def go_on_and_prune() -> None:
        bucket.clock.advance(2 * PRUNE_S)
        await new.append([[b"b"]], NOW_MS)
        bucket.clock.advance(2 * PRUNE_S)
        await new.prune(new.end_offset)

    # Neither the last object at its beginning, which is pruned, nor any that came is listed.
    racing.store.meanwhile.append(go_on_and_prune)
    with pytest.raises(CommitOutcomeUnknown, match="longer than the prune delay"):
        await candidate.lead([b"late"], NOW_MS, at_offset=1)
    assert not candidate.is_leading


async def test_a_deposed_leader_does_not_trust_a_put_at_a_pruned_offset(bucket: Bucket) -> None:
    old, _ = await bucket.leader(b"old")
    await old.append([[b"a"]], NOW_MS)
    follower, _ = await bucket.log()
    new = await pruned_by_the_next_leader(bucket)
    expected = await bucket.records()

    # As long as the one object that was there: its chain of offsets would fit the next one's.
    with pytest.raises(CommitOutcomeUnknown, match="deposed"):
        await old.append([[b"lost"]], NOW_MS)
    with pytest.raises(NotCoordinator):
        await old.append([[b"lost"]], NOW_MS)
    assert key_at(2) in await bucket.keys()

    # Whoever comes, whoever was there, and the one who left it: nobody reads it.
    newcomer, _ = await bucket.log()
    for log in (newcomer, follower, old):
        await log.refresh()
        with pytest.raises(OutOfBounds):
            await log.read(2, 100)
        assert log.start_offset == 9
        assert await read_records(log) == expected
    await new.append([[b"more"]], NOW_MS)
    bucket.clock.advance(2 * PRUNE_S)
    assert await new.prune(new.end_offset) == 14
    assert await bucket.keys() == [key_at(14)]


@pytest.mark.parametrize("records", [1, 2, 7])
async def test_a_stray_object_of_any_length_is_never_read(bucket: Bucket, records: int) -> None:
    old, steps = await bucket.leader(b"old")
    await old.append([[b"a"]], NOW_MS)
    steps.puts.extend([Fate.LATE] * SETTINGS.attempts_max)
    with pytest.raises(CommitOutcomeUnknown):
        await old.append([[b"stray"] * records], NOW_MS)
    new, _ = await bucket.leader(b"new")
    await new.append([[b"b"]], NOW_MS)
    bucket.clock.advance(2 * PRUNE_S)
    late_follower, _ = await bucket.log(ObjectLogSettings(cache_bytes=0))
    assert await new.prune(3) == 3
    assert await steps.zombies[0].land()
    assert key_at(2) in await bucket.keys()
    assert await bucket.records() == [[b"b"]]
    # This one knows that there was an object at offset 2, and not yet what it holds.
    with pytest.raises(OutOfBounds):
        await late_follower.read(2, 100)
    assert await read_records(late_follower) == [[b"b"]]


async def test_a_candidate_does_not_lead_at_a_pruned_offset(bucket: Bucket) -> None:
    old, _ = await bucket.leader(b"old")
    await old.append([[b"a"]], NOW_MS)
    candidate, _ = await bucket.log()
    await pruned_by_the_next_leader(bucket)
    with pytest.raises(NotCoordinator):
        await candidate.lead([b"late"], NOW_MS, at_offset=2)
    assert not candidate.is_leading
    assert await candidate.refresh() == 14
    assert await lead(candidate) == 14


async def test_an_own_object_that_was_pruned_between_two_attempts_is_of_unknown_outcome(
    bucket: Bucket,
) -> None:
    old, steps = await bucket.leader(b"old")
    rival, rival_steps = await bucket.log()
    rival_steps.puts.extend([Fate.LATE] * SETTINGS.attempts_max)
    with pytest.raises(CommitOutcomeUnknown):
        await lead(rival, b"rival")

    async def pruned_meanwhile(kind: str, key: str) -> None:
        if kind == "put":
            steps.before_answer = None
            new, _ = await bucket.leader(b"new")
            await new.append([[b"b"]], NOW_MS)
            bucket.clock.advance(2 * PRUNE_S)
            await new.prune(3)
            assert await rival_steps.zombies[0].land()

    steps.before_answer = pruned_meanwhile
    steps.puts.append(Fate.LOST)
    # Its first attempt became part of the log; what it meets now is the rival's stray.
    with pytest.raises(CommitOutcomeUnknown, match="gone on without"):
        await old.append([[b"a"]], NOW_MS)
    assert await bucket.records() == [[b"b"]]


async def test_a_follower_of_a_pruned_log_is_told_so(bucket: Bucket) -> None:
    log, _ = await bucket.leader()
    for number in range(20):
        await log.append([[b"%d" % number]], NOW_MS)
    follower, _ = await bucket.log(ObjectLogSettings(cache_bytes=0))
    behind, _ = await bucket.log()
    bucket.clock.advance(2 * PRUNE_S)
    await log.prune(15)
    with pytest.raises(OutOfBounds, match=r"15 \.\. 21"):
        await follower.read(3, 1 << 20)
    assert follower.start_offset == 15
    assert await read_records(follower) == await read_records(log)
    # Everything that this one knows is gone.
    for number in range(20, 30):
        await log.append([[b"%d" % number]], NOW_MS)
    bucket.clock.advance(2 * PRUNE_S)
    await log.prune(28)
    assert await behind.refresh() == 31
    assert behind.start_offset == 28
    assert await read_records(behind) == await read_records(log)
    assert [batch.base_offset for batch in await behind.read(29, 1 << 20)] == [29, 30]


async def test_pruning_deletes_the_lowest_first_and_goes_on_where_it_failed(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metadata.log.object_log.PRUNE_BATCH", 4)
    log, steps = await bucket.leader()
    for number in range(20):
        await log.append([[b"%d" % number]], NOW_MS)
    bucket.clock.advance(2 * PRUNE_S)
    steps.others.extend([Fate.OK, Fate.OK, Fate.OK, Fate.AWAY])  # list, delete, list, delete
    with pytest.raises(StorageFailed, match="and 3 more"):
        await log.prune(18)
    assert log.start_offset == 4
    steps.others.extend([Fate.OK, Fate.LOST])
    with pytest.raises(StorageFailed):
        await log.prune(18)
    assert (await bucket.keys())[0] == key_at(8)
    assert await log.prune(18) == 18
    assert await bucket.keys() == [key_at(offset) for offset in range(18, 21)]


async def test_an_object_that_will_not_go_stays_out_of_the_log_and_is_tried_again(
    bucket: Bucket,
) -> None:
    class Sticky(MemoryStore):
        stuck: ClassVar[set[ObjectKey]] = {key_at(2), key_at(5)}

        async def delete(self, keys: Sequence[ObjectKey]) -> Sequence[ObjectKey]:
            return await super().delete([key for key in keys if key not in self.stuck])

    store = Sticky(clock=bucket.clock)
    log = await ObjectMetadataLog.open(
        store, 3, clock=bucket.clock, rng=random.Random(1), settings=SETTINGS
    )
    await lead(log)
    for number in range(9):
        await log.append([[b"%d" % number]], NOW_MS)
    bucket.clock.advance(2 * PRUNE_S)
    with pytest.raises(StorageFailed, match=f"2 of 7 objects are not deleted: {key_at(2)}"):
        await log.prune(7)
    assert log.start_offset == 7
    other = await ObjectMetadataLog.open(store, 3, clock=bucket.clock, rng=random.Random(2))
    assert other.start_offset == 7
    assert await read_records(other) == await read_records(log)
    Sticky.stuck = set()
    assert await log.prune(8) == 8
    assert [stat.key async for stat in store.list("")] == [key_at(8), key_at(9)]


async def test_appends_go_on_while_the_log_is_pruned(bucket: Bucket) -> None:
    log, steps = await bucket.leader()
    await log.append([[b"a"]], NOW_MS)
    bucket.clock.advance(2 * PRUNE_S)
    await log.append([[b"proves that it leads"]], NOW_MS)
    steps.held = True
    pruning = asyncio.ensure_future(log.prune(1))
    await settle()
    appending = asyncio.ensure_future(log.append([[b"b"]], NOW_MS))
    await settle()
    by_kind = {waiting.kind: waiting for waiting in steps.waiting}
    by_kind["put"].decide(Fate.OK)
    assert await appending == 3
    steps.held = False
    by_kind["list"].decide(Fate.OK)
    assert await pruning == 1


# --- reading -------------------------------------------------------------------------------------


async def test_a_listing_that_misses_an_object_makes_no_gap(bucket: Bucket) -> None:
    class Racing(MemoryStore):
        missed: ClassVar[list[str]] = []

        async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectStat]:
            missed, self.missed[:] = list(self.missed), []
            async for stat in super().list(prefix, start_after):
                if stat.key not in missed:
                    yield stat

    store = Racing(clock=bucket.clock)
    log = await ObjectMetadataLog.open(store, 3, clock=bucket.clock, rng=random.Random(1))
    follower = await ObjectMetadataLog.open(store, 3, clock=bucket.clock, rng=random.Random(2))
    await lead(log)
    await follower.refresh()
    for number in range(9):
        await log.append([[b"%d" % number]], NOW_MS)
    expected = await read_records(log)
    for missed in ([key_at(1)], [key_at(4)], [key_at(0)], [key_at(3), key_at(4), key_at(7)]):
        Racing.missed[:] = missed
        newcomer = await ObjectMetadataLog.open(store, 3, clock=bucket.clock, rng=random.Random(3))
        assert (await newcomer.read(1, 1))[0].base_offset == 1
        assert await read_records(newcomer) in (expected, expected[1:])
    Racing.missed[:] = [key_at(1)]
    assert await follower.refresh() == 10
    assert await read_records(follower) == expected


class RacingLog:
    """A log on a store whose listings race with its leader."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.store = RacingListings(clock=clock)
        self.seeds = itertools.count()

    async def opened(self, settings: ObjectLogSettings = SETTINGS) -> ObjectMetadataLog:
        rng = random.Random(next(self.seeds))
        return await ObjectMetadataLog.open(
            self.store, 3, clock=self.clock, rng=rng, settings=settings
        )

    def meanwhile_appends(self, log: ObjectMetadataLog, count: int, shows: Iterable[int]) -> None:
        """During the next listing `log` appends, and of that only `shows` is listed."""

        async def append() -> None:
            for _ in range(count):
                await log.append([[b"%d" % log.end_offset]], NOW_MS)

        self.store.meanwhile.append(append)
        self.store.shows |= {key_at(offset) for offset in shows}


async def test_a_hole_in_each_of_two_listings_is_not_where_the_log_begins(bucket: Bucket) -> None:
    racing = RacingLog(bucket.clock)
    log = await racing.opened()
    await lead(log)
    await log.append([[b"1"]], NOW_MS)
    racing.meanwhile_appends(log, 8, shows={6, 7, 8, 9})
    newcomer = await racing.opened()
    racing.meanwhile_appends(log, 5, shows={13, 14})
    assert await read_records(newcomer) == await read_records(log)
    assert newcomer.start_offset == 0


async def test_a_listing_that_misses_the_beginning_of_a_new_log_makes_no_beginning(
    bucket: Bucket,
) -> None:
    racing = RacingLog(bucket.clock)
    log = await racing.opened()

    async def begin() -> None:
        await lead(log)
        for number in range(3):
            await log.append([[b"%d" % number]], NOW_MS)

    racing.store.meanwhile.append(begin)
    racing.store.shows = {key_at(2), key_at(3)}
    newcomer = await racing.opened()
    assert newcomer.start_offset == 0
    assert await read_records(newcomer) == await read_records(log)


async def test_a_log_that_went_on_and_was_pruned_during_a_listing_has_not_lost_its_end(
    bucket: Bucket,
) -> None:
    racing = RacingLog(bucket.clock)
    log = await racing.opened()
    await lead(log)
    for number in range(4):
        await log.append([[b"%d" % number]], NOW_MS)
    follower = await racing.opened(ObjectLogSettings(cache_bytes=0))

    async def go_on_and_half_prune() -> None:
        await log.append([[b"newest"]], NOW_MS)
        await racing.store.delete([key_at(1), key_at(3), key_at(4)])

    await racing.store.delete([key_at(0)])  # so that the follower has to list
    racing.store.meanwhile.append(go_on_and_half_prune)
    with pytest.raises(OutOfBounds):
        await follower.read(0, 1)
    assert follower.start_offset == 5
    assert follower.end_offset == 6


async def test_a_look_that_fails_half_way_leaves_the_index_as_it_was(bucket: Bucket) -> None:
    log, _ = await bucket.leader()
    for number in range(4):
        await log.append([[b"%d" % number]], NOW_MS)
    follower, steps = await bucket.log(ObjectLogSettings(cache_bytes=0))
    await bucket.store.delete([key_at(0), key_at(2)])
    # The object is gone; list, last one, first and second; is the one between them there?
    steps.others.extend([Fate.OK, Fate.OK, Fate.OK, Fate.OK, Fate.OK, Fate.AWAY])
    with pytest.raises(StorageFailed):
        await follower.read(0, 1)
    assert follower.start_offset == 0
    with pytest.raises(OutOfBounds):
        await follower.read(0, 1)
    assert follower.start_offset == 3


async def test_a_hole_is_where_the_log_begins(bucket: Bucket) -> None:
    log, _ = await bucket.leader()
    for number in range(9):
        await log.append([[b"%d" % number]], NOW_MS)
    follower, _ = await bucket.log(ObjectLogSettings(cache_bytes=0))
    await bucket.store.delete([key_at(4)])
    for reader in (follower, (await bucket.log())[0]):
        with pytest.raises(OutOfBounds):
            await reader.read(0, 1 << 20)
        assert reader.start_offset == 5
        assert [batch.base_offset for batch in await reader.read(5, 1 << 20)] == list(range(5, 10))


async def test_a_log_whose_end_is_gone_is_not_believed(bucket: Bucket) -> None:
    log, _ = await bucket.leader()
    for number in range(3):
        await log.append([[b"%d" % number]], NOW_MS)
    follower, _ = await bucket.log(ObjectLogSettings(cache_bytes=0))
    await bucket.store.delete([key_at(3)])
    with pytest.raises(CorruptLog, match="ended at 4 before"):
        await follower.read(3, 100)
    await bucket.store.delete([key_at(offset) for offset in range(3)])
    with pytest.raises(CorruptLog, match="ended at 4 before"):
        await follower.read(2, 100)


async def test_an_object_that_follows_nothing_is_not_believed(bucket: Bucket) -> None:
    log, _ = await bucket.leader()
    await log.append([[b"a", b"b"]], NOW_MS)
    for offset, previous in ((2, bytes(16)), (3, b"someone else's id")):
        made = encode_object(
            3, offset, [[b"x"]], NOW_MS, put_id=bytes(16), previous_put_id=previous[:16]
        )
        await bucket.store.put(key_at(offset), BytesBody(made.data))
        with pytest.raises(CorruptLog, match="does not follow"):
            await log.refresh()
        await bucket.store.delete([key_at(offset)])


async def test_what_was_just_read_or_written_costs_no_request(bucket: Bucket) -> None:
    log, steps = await bucket.leader()
    follower, follower_steps = await bucket.log()
    await log.append([[b"a"]], NOW_MS)
    await follower.refresh()
    made = len(steps.made), len(follower_steps.made)
    assert await read_records(log) == await read_records(follower)
    assert (len(steps.made), len(follower_steps.made)) == made


async def test_the_cache_has_a_limit(bucket: Bucket) -> None:
    log, _ = await bucket.leader()
    for number in range(10):
        await log.append([[b"%d" % number, bytes(1000)]], NOW_MS)
    follower, steps = await bucket.log(ObjectLogSettings(cache_bytes=3000))
    assert len(await read_all(follower)) == 11
    steps.made.clear()
    await follower.read(19, 1)
    assert steps.count("get") == 0
    await follower.read(1, 1)
    assert steps.count("get") == 1


async def test_a_replay_fetches_objects_side_by_side(bucket: Bucket) -> None:
    log, _ = await bucket.leader()
    for number in range(2 * READ_OBJECTS_MAX):
        await log.append([[b"%d" % number]], NOW_MS)
    follower, steps = await bucket.log(ObjectLogSettings(cache_bytes=0))
    steps.held = True
    reading = asyncio.ensure_future(follower.read(0, 1 << 20))
    await settle()
    # And the header behind them, which vouches for the last.
    assert len(steps.waiting) == READ_OBJECTS_MAX + 1
    for waiting in list(steps.waiting):
        waiting.decide(Fate.OK)
    assert len(await reading) == READ_OBJECTS_MAX


async def test_a_store_that_is_away_fails_reads_and_not_the_log(bucket: Bucket) -> None:
    log, _ = await bucket.leader()
    await log.append([[b"a"]], NOW_MS)
    follower, steps = await bucket.log(ObjectLogSettings(cache_bytes=0))
    for call in (follower.refresh, lambda: follower.read(0, 1)):
        steps.others.append(Fate.AWAY)
        with pytest.raises(StorageFailed):
            await call()
    assert await follower.refresh() == 2
    assert await follower.verify() == 2


# --- damage --------------------------------------------------------------------------------------


async def damaged_log(bucket: Bucket) -> list[list[bytes]]:
    log, _ = await bucket.leader()
    for number in range(4):
        await log.append([[b"%d" % number, b"value"], [b"another"]], NOW_MS)
    return await read_records(log)


async def assert_damage_is_found(bucket: Bucket, offset: int, data: bytes) -> None:
    """Whether the damage is there before the log is opened or comes later."""
    follower, _ = await bucket.log(ObjectLogSettings(cache_bytes=0))
    intact = await bucket.data(offset)
    await bucket.replace(offset, data)
    with pytest.raises(CorruptLog, match=key_at(offset)):
        await follower.verify()
    with pytest.raises(CorruptLog, match=key_at(offset)):
        await (await bucket.log())[0].verify()
    await bucket.replace(offset, intact)
    assert await follower.verify() == 13


@pytest.mark.parametrize("offset", [0, 4, 10])
async def test_a_flipped_bit_anywhere_is_found(bucket: Bucket, offset: int) -> None:
    await damaged_log(bucket)
    intact = await bucket.data(offset)
    rng = random.Random(offset)
    for position in range(len(intact)):
        data = bytearray(intact)
        data[position] ^= 1 << rng.randrange(8)
        await assert_damage_is_found(bucket, offset, bytes(data))


@pytest.mark.parametrize("offset", [0, 4, 10])
async def test_an_object_that_is_torn_or_too_long_is_found(bucket: Bucket, offset: int) -> None:
    await damaged_log(bucket)
    intact = await bucket.data(offset)
    for length in range(len(intact)):
        await assert_damage_is_found(bucket, offset, intact[:length])
    await assert_damage_is_found(bucket, offset, intact + b"\0")
    await assert_damage_is_found(bucket, offset, intact + intact)


async def test_an_object_under_the_key_of_another_is_found(bucket: Bucket) -> None:
    await damaged_log(bucket)
    await assert_damage_is_found(bucket, 4, await bucket.data(7))
    other = await ObjectMetadataLog.open(bucket.store, 30, clock=bucket.clock, rng=random.Random(1))
    await lead(other)
    stored = await bucket.store.get(ObjectKey("meta/30/log/" + "0" * 20))
    await assert_damage_is_found(bucket, 0, stored)


async def test_batches_that_do_not_fit_their_header_are_found(bucket: Bucket) -> None:
    """The CRCs are right: whoever wrote it was wrong."""
    await damaged_log(bucket)
    intact = decode_object(3, key_at(4), await bucket.data(4))
    body = intact.data[HEADER_BYTES:]
    first = body[: intact.batches[0].end - HEADER_BYTES]
    no_metadata = bytearray(body)
    no_metadata[len(first) - 1] = 2  # the record says that it has a header
    no_metadata[17:21] = crc32c(memoryview(no_metadata)[21 : len(first)]).to_bytes(4, "big")
    for wrong in (
        {"next_offset": 8},
        {"next_offset": 4},
        {"batch_count": 1},
        {"batch_count": 0},
        {"body": first},
        {"body": body + first},
        {"body": b""},
        {"body": body[len(first) :] + first},
        {"body": body + bytes(61)},
        {"body": bytes(no_metadata)},
        {"magic": b"DLSMETAX"},
        {"version": 2},
    ):
        changed_body = bytes(wrong.pop("body", body))
        magic, version = wrong.pop("magic", MAGIC), wrong.pop("version", FORMAT_VERSION)
        header = intact.header._replace(
            body_bytes=len(changed_body), body_crc=crc32c(changed_body), **wrong
        )
        front = OBJECT_HEADER.pack(magic, version, HEADER_BYTES, 3, *header)
        data = front + OBJECT_HEADER_CRC.pack(crc32c(front)) + changed_body
        await assert_damage_is_found(bucket, 4, data)


async def test_a_damaged_object_in_the_way_of_an_append_is_an_unknown_outcome(
    bucket: Bucket,
) -> None:
    log, _ = await bucket.leader()
    await bucket.store.put(key_at(1), BytesBody(b"what is this"))
    with pytest.raises(CommitOutcomeUnknown, match=key_at(1)):
        await log.append([[b"a"]], NOW_MS)
    assert not log.is_leading
    with pytest.raises(CorruptLog, match=key_at(1)):
        await log.refresh()
