"""Fetches at the replica manager: waiting, waking, limits, and the metadata topic beside others."""

import asyncio

import pytest

from diskless.loop.early_end import EarlyEnd
from diskless.ports import FetchResult, ListOffsetsPartition
from metadata.operations import METADATA_TOPIC, METADATA_TOPIC_ID
from tests.support.brokers.replica_setting import (
    CLIENT,
    NOW_MS,
    P0,
    P1,
    P2,
    SOON_S,
    TOPIC,
    Setting,
    at,
    at_log,
    done,
    until,
)
from wal.coordinates import ObjectKey
from wal.errors import (
    CorruptObject,
    FencedLeaderEpoch,
    InvalidRequest,
    InvalidTopic,
    ObjectNotFound,
    OffsetOutOfRange,
    UnknownLeaderEpoch,
    UnknownPartition,
    UnknownTopicId,
)

# Fetch


async def test_what_is_there_is_answered_without_waiting(setting: Setting) -> None:
    setting.coordinator.add(P0)
    setting.coordinator.add(P0)
    (result,) = await setting.fetch(at(0, 1))
    assert result == FetchResult(None, 2, 0, [b"wal/0/1"], 2)
    assert setting.coordinator.looked == 1


async def test_a_fetch_at_the_end_waits_for_a_commit_to_its_partition(setting: Setting) -> None:
    task = setting.fetch(at(0), at(1))
    await setting.until_parked()
    setting.commit(P2)
    assert setting.parked == 1
    setting.commit(P1)
    async with asyncio.timeout(SOON_S):
        results = await task
    assert [list(result.records) for result in results] == [[], [b"wal/1/0"]]
    assert setting.coordinator.looked == 2


async def test_a_commit_during_the_look_is_not_missed(setting: Setting) -> None:
    """The answer of the look is old when it comes; nothing else is committed afterwards."""
    setting.coordinator.on_look = lambda: setting.commit(P0)
    async with asyncio.timeout(SOON_S):
        (result,) = await setting.fetch(at(0))
    assert list(result.records) == [b"wal/0/0"]


async def test_min_bytes_are_collected_over_several_commits(setting: Setting) -> None:
    task = setting.fetch(at(0), at(1), min_bytes=250)
    await setting.until_parked()
    for partition in (P0, P1):
        looked = setting.coordinator.looked
        setting.commit(partition)
        await until(lambda: setting.coordinator.looked > looked)  # noqa: B023 - awaited here
        await setting.until_parked()
        assert not task.done()
    setting.commit(P0)
    async with asyncio.timeout(SOON_S):
        results = await task
    assert [len(result.records) for result in results] == [2, 1]


async def test_at_its_deadline_a_fetch_answers_with_what_there_is(setting: Setting) -> None:
    setting.coordinator.add(P1)
    async with asyncio.timeout(SOON_S):
        results = await setting.fetch(at(0), at(1), min_bytes=10_000, max_wait_ms=20)
    assert [list(result.records) for result in results] == [[], [b"wal/1/0"]]
    assert setting.manager.fetcher.purgatory.statistics().expired == 1


async def test_a_fetch_that_may_not_wait_does_not(setting: Setting) -> None:
    (result,) = await setting.fetch(at(0), max_wait_ms=0)
    assert (result.error, result.high_watermark, list(result.records)) == (None, 0, [])
    assert setting.manager.fetcher.purgatory.statistics().completed == 0


async def test_somebody_waiting_behind_it_ends_a_fetch_early(setting: Setting) -> None:
    wake = EarlyEnd()
    task = setting.fetch(at(0), wake=wake)
    await setting.until_parked()
    wake.set()
    async with asyncio.timeout(SOON_S):
        (result,) = await task
    assert (result.error, list(result.records)) == (None, [])
    already = EarlyEnd()
    already.set()
    assert (await setting.fetch(at(0), wake=already))[0].error is None


async def test_a_cancelled_fetch_leaves_no_watch(setting: Setting) -> None:
    wake = EarlyEnd()
    task = setting.fetch(at(0), at(1), wake=wake)
    await setting.until_parked()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert setting.parked == 0
    wake.set()
    setting.commit(P0)  # nobody is there to be woken


async def test_an_error_in_one_partition_ends_the_wait_for_all(setting: Setting) -> None:
    results = await setting.fetch(at(0), at(1, 77), at(2, topic_name="nobody"))
    assert [type(result.error) for result in results] == [
        type(None),
        OffsetOutOfRange,
        UnknownPartition,
    ]
    # A client that is out of range resets with these.
    assert (results[1].high_watermark, results[1].log_start_offset) == (0, 0)


async def test_answers_are_in_the_order_of_the_request(setting: Setting) -> None:
    for partition in (P0, P1, P2):
        setting.coordinator.add(partition)
    results = await setting.fetch(at(2), at(0), at(5), at(1))
    assert [list(result.records) for result in results] == [
        [b"wal/2/0"],
        [b"wal/0/0"],
        [],
        [b"wal/1/0"],
    ]


async def test_leader_epochs_other_than_ours_are_fenced(setting: Setting) -> None:
    setting.coordinator.add(P0)
    results = await setting.fetch(
        at(0, current_leader_epoch=0),
        at(0, current_leader_epoch=1),
        at(0, current_leader_epoch=-2),
    )
    assert [type(result.error) for result in results] == [
        type(None),
        UnknownLeaderEpoch,
        FencedLeaderEpoch,
    ]


async def test_an_object_that_vanished_is_looked_up_once_more(setting: Setting) -> None:
    """As when tiering replaces batches between the look and the read."""
    setting.coordinator.add(P0)
    setting.coordinator.add(P1)
    setting.reader.errors["wal/0/0"] = ObjectNotFound("wal/0/0")

    def tiered() -> None:
        (old,) = setting.coordinator.extents[P0]
        setting.coordinator.extents[P0] = [old._replace(object_key=ObjectKey("elsewhere"))]

    setting.reader.on_read = tiered
    results = await setting.fetch(at(0), at(1))
    assert [list(result.records) for result in results] == [[b"elsewhere"], [b"wal/1/0"]]
    assert setting.coordinator.looked == 2


async def test_an_object_that_stays_away_is_an_error_and_not_asked_for_ever(
    setting: Setting,
) -> None:
    setting.coordinator.add(P0)
    setting.coordinator.add(P1)
    setting.reader.errors["wal/0/0"] = ObjectNotFound("wal/0/0")
    results = await setting.fetch(at(0), at(1))
    assert isinstance(results[0].error, ObjectNotFound)
    assert list(results[1].records) == [b"wal/1/0"]
    assert len(setting.reader.requests) == 2


async def test_damage_shows_only_when_nothing_lies_before_it(setting: Setting) -> None:
    for _ in range(3):
        setting.coordinator.add(P0)
    setting.reader.errors["wal/0/1"] = CorruptObject("wal/0/1")
    (before,) = await setting.fetch(at(0))
    assert (before.error, list(before.records)) == (None, [b"wal/0/0"])
    (on_it,) = await setting.fetch(at(0, 1))
    assert isinstance(on_it.error, CorruptObject)
    (after,) = await setting.fetch(at(0, 2))
    assert (after.error, list(after.records)) == (None, [b"wal/0/2"])


async def test_a_deleted_topic_is_told_to_the_fetches_that_wait_for_it(setting: Setting) -> None:
    by_name = setting.fetch(at(0))
    by_id = setting.fetch(at(0, topic_id=TOPIC.topic_id, topic_name=""))
    await setting.until_parked(2)
    del setting.coordinator.by_name["t"]
    setting.manager.forget([P0, P1, P2])
    async with asyncio.timeout(SOON_S):
        assert isinstance((await by_name)[0].error, UnknownPartition)
        assert isinstance((await by_id)[0].error, UnknownTopicId)


async def test_closing_answers_the_fetches_that_still_wait(setting: Setting) -> None:
    task = setting.fetch(at(0))
    await setting.until_parked()
    setting.manager.close()
    async with asyncio.timeout(SOON_S):
        assert (await task)[0].error is None


async def test_the_brokers_own_limit_caps_what_a_client_may_ask_for(setting: Setting) -> None:
    # min_bytes above what may be answered would never come.
    setting.coordinator.add(P0, length_bytes=1 << 20)
    async with asyncio.timeout(SOON_S):
        (result,) = await setting.fetch(at(0), min_bytes=1 << 30, max_bytes=1 << 30)
    assert list(result.records) == [b"wal/0/0"]


async def test_a_fetch_reserves_what_it_reads_when_it_reads_it(setting: Setting) -> None:
    setting.granted_bytes = 250
    task = setting.fetch(at(0), at(1), min_bytes=300)
    await setting.until_parked()
    setting.commit(P0, length_bytes=200)
    await setting.until_parked()
    assert setting.reserved == [], "who waits for data holds none"
    setting.commit(P1, length_bytes=150)
    await task
    assert setting.reserved == [350]
    assert setting.reader.max_bytes == [250]


async def test_a_special_timestamp_that_does_not_exist_is_refused(setting: Setting) -> None:
    (result,) = await setting.manager.list_offsets(
        [ListOffsetsPartition("t", 0, -6, -1)], isolation=0, client=CLIENT
    )
    assert isinstance(result.error, InvalidRequest)


# The metadata topic


async def test_the_metadata_topic_is_fetched_by_name_and_by_id(setting: Setting) -> None:
    logged = [await setting.log(), await setting.log()]
    for request in (at_log(), at_log(topic_id=METADATA_TOPIC_ID)._replace(topic_name="")):
        (result,) = await setting.fetch(request)
        assert result == FetchResult(None, 4, 0, logged, 4)
    for missing in (at_log(2), at_log(-1)):
        (result,) = await setting.fetch(missing)
        assert isinstance(result.error, UnknownPartition)
    (result,) = await setting.fetch(at_log(offset=5))
    assert isinstance(result.error, OffsetOutOfRange)
    assert (result.high_watermark, result.log_start_offset) == (4, 0)
    (result,) = await setting.fetch(at_log(current_leader_epoch=1))
    assert isinstance(result.error, UnknownLeaderEpoch)


async def test_what_is_applied_wakes_the_fetch_that_waits_for_it(setting: Setting) -> None:
    task = setting.fetch(at_log(0), at_log(1), at(0))
    await setting.until_parked()
    looked = setting.coordinator.looked
    logged = await setting.log(1)
    async with asyncio.timeout(SOON_S):
        results = await task
    assert [list(result.records) for result in results] == [[], [logged], []]
    assert setting.coordinator.looked == looked, "nothing happened to the partition at its end"
    # Of others it hears nothing.
    task = setting.fetch(at_log(0))
    await setting.until_parked()
    await setting.log(1)
    assert setting.parked == 1
    await setting.log(0)
    await task


async def test_a_commit_wakes_a_fetch_of_both(setting: Setting) -> None:
    task = setting.fetch(at_log(0), at(0))
    await setting.until_parked()
    setting.commit(P0)
    async with asyncio.timeout(SOON_S):
        results = await task
    assert [list(result.records) for result in results] == [[], [b"wal/0/0"]]


async def test_any_of_the_metadata_topic_is_enough_to_answer(setting: Setting) -> None:
    logged = await setting.log()
    async with asyncio.timeout(SOON_S):
        (result,) = await setting.fetch(at_log(), min_bytes=1 << 20)
    assert result.records == [logged]


async def test_both_share_the_limit_and_who_is_asked_first_comes_first(setting: Setting) -> None:
    logged = await setting.log()
    setting.coordinator.add(P0)
    of_batches = len(b"wal/0/0")

    # The log first: it takes what it needs, and what is left is for the batches.
    log, batches = await setting.fetch(at_log(), at(0), max_bytes=len(logged))
    assert (log.records, list(batches.records)) == ([logged], [b"wal/0/0"])
    assert (setting.reader.max_bytes.pop(), setting.reader.at_least_one.pop()) == (0, False)
    log, batches = await setting.fetch(at_log(), at(0), max_bytes=1)
    assert log.records == [logged], "one batch comes whatever the limit"
    assert (setting.reader.max_bytes.pop(), setting.reader.at_least_one.pop()) == (
        1 - len(logged),
        False,
    )

    # The batches first: what they leave is for the log.
    batches, log = await setting.fetch(at(0), at_log(), max_bytes=of_batches + len(logged))
    assert (list(batches.records), log.records) == ([b"wal/0/0"], [logged])
    assert setting.reader.at_least_one.pop()
    batches, log = await setting.fetch(at(0), at_log(), max_bytes=of_batches + len(logged) - 1)
    assert (list(batches.records), list(log.records)) == ([b"wal/0/0"], [])
    assert (log.error, log.high_watermark) == (None, 2)

    # Nothing of the batches can be read: then the log gives the one that must come.
    setting.reader.errors["wal/0/0"] = CorruptObject("wal/0/0")
    batches, log = await setting.fetch(at(0), at_log(), max_bytes=1)
    assert isinstance(batches.error, CorruptObject)
    assert log.records == [logged]


async def test_the_metadata_topic_counts_in_what_a_fetch_reserves(setting: Setting) -> None:
    logged = [await setting.log() for _ in range(3)]
    setting.coordinator.add(P0, length_bytes=200)
    setting.granted_bytes = 2 * len(logged[0])
    (log, _) = await setting.fetch(at_log(max_bytes=1_000), at(0))
    assert setting.reserved == [1_200]
    assert log.records == logged[:2]


async def test_batches_that_moved_meanwhile_are_found_again_beside_a_log(
    setting: Setting,
) -> None:
    logged = await setting.log()
    setting.coordinator.add(P0)
    setting.reader.errors["wal/0/0"] = ObjectNotFound("wal/0/0")
    setting.reader.on_read = setting.reader.errors.clear
    batches, log = await setting.fetch(at(0), at_log())
    assert (list(batches.records), log.records) == ([b"wal/0/0"], [logged])


async def test_nothing_is_appended_to_the_metadata_topic(setting: Setting) -> None:
    future = setting.append(setting.batch(topic=METADATA_TOPIC), setting.batch())
    setting.write_loop.settle(0, done(0))
    refused, appended = await future
    assert isinstance(refused.error, InvalidTopic)
    assert appended.base_offset == 0
    assert [batch.partition for batch in setting.write_loop.batches] == [P0]


async def test_offsets_of_the_metadata_topic_are_listed_beside_others(setting: Setting) -> None:
    await setting.log()
    wanted = [(METADATA_TOPIC, 0, -1), ("nobody", 0, -1), (METADATA_TOPIC, 1, -1)]
    wanted += [(METADATA_TOPIC, 2, -1), (METADATA_TOPIC, 0, NOW_MS), (METADATA_TOPIC, 0, -6)]
    results = await setting.manager.list_offsets(
        [ListOffsetsPartition(*item, -1) for item in wanted], isolation=0, client=CLIENT
    )
    assert [(type(result.error), result.offset) for result in results] == [
        (type(None), 2),
        (UnknownPartition, -1),
        (type(None), 0),
        (UnknownPartition, -1),
        (type(None), 0),
        (InvalidRequest, -1),
    ]
