"""What a leader asks the log before a strict read is answered, and when the answer is a proof."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from metadata.log.object_log import ObjectMetadataLog
from tests.support.logs.log_bucket import LEASE_S, PRUNE_S, Bucket, key_at, settle
from tests.support.logs.log_contract import NOW_MS
from tests.support.stores.stepped_store import Fate, Steps
from wal.errors import NotCoordinator, StorageFailed


@pytest.fixture
async def bucket() -> AsyncIterator[Bucket]:
    bucket = Bucket()
    yield bucket
    await bucket.close()


async def deposed_and_pruned(bucket: Bucket) -> None:
    """Another leads behind the first object, and prunes what it began with."""
    new, _ = await bucket.leader(b"new")
    for _ in range(3):
        await new.append([[b"b"]], NOW_MS)
    bucket.clock.advance(1.2 * PRUNE_S)
    await new.append([[b"c"]], NOW_MS)
    assert await new.prune(new.end_offset) > 2


def requests(steps: Steps) -> dict[str, int]:
    return {kind: steps.count(kind) for kind in ("get", "list", "put")}


async def test_a_proof_is_one_get_and_does_not_renew_the_lease(bucket: Bucket) -> None:
    log, steps = await bucket.leader()
    expires_at, before = log.lease_expires_at, requests(steps)
    bucket.clock.advance(3 * LEASE_S)
    await log.prove()
    assert requests(steps) == before | {"get": before["get"] + 1}
    assert log.lease_expires_at == expires_at
    assert log.proven_since == 3 * LEASE_S


async def test_reads_share_only_a_question_that_began_after_they_came(bucket: Bucket) -> None:
    log, steps = await bucket.leader()
    gets = steps.count("get")
    steps.held = True
    first = asyncio.create_task(log.prove())
    await settle()
    others = [asyncio.create_task(log.prove()) for _ in range(5)]
    await settle()
    assert steps.count("get") == gets + 1
    steps.waiting[0].decide(Fate.OK)
    await first
    await settle()
    assert not any(other.done() for other in others)
    assert steps.count("get") == gets + 2
    steps.waiting[0].decide(Fate.OK)
    await asyncio.gather(*others)
    assert steps.count("get") == gets + 2


async def test_a_read_that_gives_up_leaves_the_question_to_the_others(bucket: Bucket) -> None:
    log, steps = await bucket.leader()
    steps.held = True
    first, second = (asyncio.create_task(log.prove()) for _ in range(2))
    await settle()
    first.cancel()
    await settle()
    for waiting in list(steps.waiting):
        waiting.decide(Fate.OK)
    await settle()
    for waiting in list(steps.waiting):
        waiting.decide(Fate.OK)
    await second


async def test_another_leader_is_found_at_once_however_fresh_the_lease_is(bucket: Bucket) -> None:
    log, _ = await bucket.leader(b"old")
    await bucket.leader(b"new")
    assert bucket.clock.monotonic() < (log.lease_expires_at or 0)
    with pytest.raises(NotCoordinator, match="another writer"):
        await log.prove()
    assert log.lease_expires_at is None
    with pytest.raises(NotCoordinator):
        await log.append([[b"lost"]], NOW_MS)


async def test_a_leader_that_wakes_after_pruning_does_not_believe_that_nothing_is_there(
    bucket: Bucket,
) -> None:
    log, _ = await bucket.leader(b"old")
    await deposed_and_pruned(bucket)
    assert str(key_at(1)) not in await bucket.keys()
    with pytest.raises(NotCoordinator):
        await log.prove()
    assert not log.is_leading


async def test_an_answer_counts_by_when_it_arrives(bucket: Bucket) -> None:
    """Asked in time, looked up after pruning, or heard of after it: a pause may lie anywhere."""
    log, steps = await bucket.leader(b"old")
    steps.held = True
    asked = asyncio.create_task(log.prove())
    await settle()
    await deposed_and_pruned(bucket)
    steps.held = False
    steps.waiting[0].decide(Fate.OK)
    with pytest.raises(NotCoordinator):
        await asked


async def test_an_answer_that_arrives_late_is_asked_for_by_a_listing(bucket: Bucket) -> None:
    log, steps = await bucket.leader()
    steps.held = True
    asked = asyncio.create_task(log.prove())
    await settle()
    bucket.clock.advance(PRUNE_S)
    steps.held = False
    before = requests(steps)
    steps.waiting[0].decide(Fate.OK)
    await asked
    assert requests(steps) == before | {"list": before["list"] + 1}
    assert log.proven_since == PRUNE_S


async def test_proofs_go_on_from_each_other(bucket: Bucket) -> None:
    log, steps = await bucket.leader()
    lists = steps.count("list")
    for _ in range(5):
        bucket.clock.advance(0.7 * PRUNE_S)
        await log.prove()
    assert steps.count("list") == lists
    bucket.clock.advance(PRUNE_S)
    await log.prove()
    assert steps.count("list") == lists + 1


async def test_a_listing_that_took_as_long_as_the_delay_proves_nothing(bucket: Bucket) -> None:
    log, steps = await bucket.leader()
    bucket.clock.advance(PRUNE_S)

    async def slow(kind: str, key: str) -> None:
        bucket.clock.advance(PRUNE_S)

    steps.before_answer = slow
    with pytest.raises(StorageFailed, match="longer than the prune delay"):
        await log.prove()
    assert log.is_leading


async def appending(
    log: ObjectMetadataLog, steps: Steps, record: bytes
) -> tuple["asyncio.Task[int]", asyncio.Event]:
    """An append whose put has reached the store, and the event that lets its answer come."""
    answer = asyncio.Event()
    arrived = asyncio.Event()

    async def hold(kind: str, key: str) -> None:
        if kind == "put":
            steps.before_answer = None
            arrived.set()
            await answer.wait()

    steps.before_answer = hold
    task = asyncio.create_task(log.append([[record]], NOW_MS))
    await arrived.wait()
    return task, answer


async def test_an_own_append_at_the_end_is_waited_for_and_proves_nothing_itself(
    bucket: Bucket,
) -> None:
    log, steps = await bucket.leader()
    append, answer = await appending(log, steps, b"a")
    asked = asyncio.create_task(log.prove())
    await settle()
    assert not asked.done()
    gets = steps.count("get")
    answer.set()
    assert await append == 1
    await asked
    assert steps.count("get") == gets + 1, "what is behind it was asked"


async def test_another_leader_behind_an_own_append_is_found(bucket: Bucket) -> None:
    """A leader whose put reached the log, and which was paused before it heard of that."""
    log, steps = await bucket.leader(b"old")
    append, answer = await appending(log, steps, b"a")
    await bucket.leader(b"new")
    asked = asyncio.create_task(log.prove())
    await settle()
    assert not asked.done()
    answer.set()
    assert await append == 1, "it was in the log before"
    with pytest.raises(NotCoordinator):
        await asked


async def test_an_append_that_began_later_is_a_proof(bucket: Bucket) -> None:
    log, steps = await bucket.leader()
    steps.held = True
    asked = asyncio.create_task(log.prove())
    await settle()
    append = asyncio.create_task(log.append([[b"a"]], NOW_MS))
    await settle()
    get, put = steps.waiting
    put.decide(Fate.OK)
    assert await append == 1
    get.decide(Fate.OK)
    await asked
    assert not steps.waiting, "the question met the append, and nothing more had to be asked"


async def test_a_question_of_an_earlier_term_proves_nothing_in_the_next(bucket: Bucket) -> None:
    log, steps = await bucket.leader(b"old")
    steps.held = True
    asked = asyncio.create_task(log.prove())
    await settle()
    (get,) = steps.waiting
    steps.held = False
    await bucket.leader(b"new")
    end = await log.refresh()
    assert await log.lead([b"old again"], NOW_MS, at_offset=end) == end
    get.decide(Fate.OK)
    with pytest.raises(NotCoordinator):
        await asked
    await log.prove()


async def test_a_store_that_does_not_answer_fails_the_read_alone(bucket: Bucket) -> None:
    log, steps = await bucket.leader()
    steps.others.append(Fate.AWAY)
    with pytest.raises(StorageFailed):
        await log.prove()
    await log.prove()
    assert await log.append([[b"a"]], NOW_MS) == 1
