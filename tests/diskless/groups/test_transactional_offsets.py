"""Offsets that a transaction commits: who may write them, and who waits for them."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from diskless.groups import errors as group_errors
from diskless.groups import requests
from diskless.loop.long_work import done_at_once
from diskless.transactions.errors import NotTransactionCoordinator, TransactionAbortable
from diskless.transactions.transaction_router import Producer
from metadata.transaction_operations import JoinTransaction
from tests.support.groups.consumer_requests import consumer_join
from tests.support.groups.group_requests import CLIENT
from tests.support.groups.groups_bench import SETTINGS, GroupsBench
from wal.errors import (
    DisklessError,
    InvalidProducerIdMapping,
    InvalidTransactionState,
    ProducerFenced,
    StaleProducerEpoch,
    UnknownPartition,
)

PRODUCER = Producer("id", 40, 3)
RETENTION_S = SETTINGS.offsets_retention_minutes * 60.0


@pytest.fixture
async def bench() -> AsyncIterator[GroupsBench]:
    bench = GroupsBench()
    await bench.start()
    yield bench
    await bench.stop()


async def commit(
    bench: GroupsBench,
    *offsets: tuple[str, int, int],
    group_id: str = "group",
    generation_id: int = -1,
    member_id: str = "",
    instance_id: str | None = None,
    number: int = 5,
    error: DisklessError | None = None,
    producer: Producer = PRODUCER,
) -> Sequence[DisklessError | None]:
    request = requests.CommitOffsets(
        group_id,
        generation_id,
        member_id,
        instance_id,
        -1,
        True,
        [requests.CommitOffset(*offset, 0, "") for offset in offsets],
    )
    committing = asyncio.ensure_future(bench.router.commit_in_transaction(request, producer))
    await asyncio.sleep(0)
    await bench.numbers.answer(number, error)
    return await committing


def end(bench: GroupsBench, group_id: str = "group", *, is_commit: bool = True) -> None:
    bench.store.end(group_id, PRODUCER.producer_id, is_commit=is_commit)
    bench.router.offsets_ended(0, [group_id])


async def stable(bench: GroupsBench, *partitions: tuple[str, int]) -> dict[int, int | None]:
    """Offsets by partition; None: not stable."""
    found = await bench.router.fetch_offsets(
        requests.FetchOffsets("group", None, -1, partitions or None, True)
    )
    unstable = group_errors.UnstableOffset
    assert all(one.error is None or isinstance(one.error, unstable) for one in found.offsets)
    return {one.partition: one.offset if one.error is None else None for one in found.offsets}


async def test_offsets_are_there_when_the_transaction_is_committed(bench: GroupsBench) -> None:
    await bench.commit(("topic", 0, 1), ("topic", 1, 1))
    assert await commit(bench, ("topic", 0, 7)) == [None]
    assert bench.numbers.asked == [JoinTransaction(*PRODUCER, groups=["group"])]
    assert await bench.fetched() == {("topic", 0): 1, ("topic", 1): 1}
    assert await stable(bench) == {0: None, 1: 1}
    assert await stable(bench, ("topic", 1), ("topic", 0)) == {1: 1, 0: None}
    end(bench)
    assert await bench.fetched() == {("topic", 0): 7, ("topic", 1): 1}
    assert await stable(bench) == {0: 7, 1: 1}


async def test_offsets_of_an_aborted_transaction_never_were(bench: GroupsBench) -> None:
    assert await commit(bench, ("topic", 0, 7)) == [None]
    assert await stable(bench, ("topic", 0)) == {0: None}
    end(bench, is_commit=False)
    assert await stable(bench, ("topic", 0)) == {0: -1}


async def test_a_group_is_there_from_the_end_of_the_transaction_on(bench: GroupsBench) -> None:
    await commit(bench, ("topic", 0, 7))
    assert done_at_once(bench.router.list_groups()) == []
    end(bench)
    assert [one.group_id for one in done_at_once(bench.router.list_groups())] == ["group"]


async def test_a_group_that_comes_to_be_while_groups_are_read_is_known(
    bench: GroupsBench,
) -> None:
    await commit(bench, ("topic", 0, 7))
    await bench.stop()
    bench.lead()
    assert bench.led.refusal() is not None
    # Its offsets were committed after its row would have been read.
    bench.router.offsets_ended(0, ["group"])
    await bench.settled()
    assert [one.group_id for one in done_at_once(bench.router.list_groups())] == ["group"]


async def test_bad_offsets_are_refused_alone(bench: GroupsBench) -> None:
    errors = await commit(bench, ("topic", 0, 7), ("gone", 0, 1))
    assert [type(error) for error in errors] == [type(None), UnknownPartition]
    (error,) = await commit(bench, ("topic", 0, 7), group_id="")
    assert isinstance(error, group_errors.InvalidGroupId)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (NotTransactionCoordinator("not here"), group_errors.GroupLoading),
        (InvalidTransactionState("not in it"), TransactionAbortable),
        (ProducerFenced("another has it"), StaleProducerEpoch),
        (InvalidProducerIdMapping("unknown"), InvalidProducerIdMapping),
    ],
)
async def test_a_question_without_a_number_is_the_answer(
    bench: GroupsBench, error: DisklessError, told: type[DisklessError]
) -> None:
    errors = await commit(bench, ("topic", 0, 7), ("topic", 1, 7), error=error)
    assert [type(one) for one in errors] == [told, told]
    assert bench.store.writes == []


async def test_a_number_that_has_ended_is_refused(bench: GroupsBench) -> None:
    bench.store.failures.append(InvalidTransactionState("ended"))
    (error,) = await commit(bench, ("topic", 0, 7))
    assert isinstance(error, InvalidTransactionState)


async def test_who_says_that_he_is_a_member_has_to_be_one(bench: GroupsBench) -> None:
    member = await bench.member(instance_id="static")
    generation, member_id = member.generation_id, member.member_id

    async def answer(generation_id: int, name: str, instance: str | None = None) -> object:
        (error,) = await commit(
            bench,
            ("topic", 0, 7),
            generation_id=generation_id,
            member_id=name,
            instance_id=instance,
        )
        return type(error)

    assert await answer(generation, member_id) is type(None)
    assert await answer(generation, member_id, "static") is type(None)
    assert await answer(-1, "") is type(None), "old clients do not say who they are"
    assert await answer(generation, "somebody") is group_errors.UnknownMember
    assert await answer(generation, "somebody", "static") is group_errors.FencedInstanceId
    assert await answer(generation - 1, member_id) is group_errors.IllegalGeneration


async def test_a_group_without_members_knows_no_generation(bench: GroupsBench) -> None:
    (error,) = await commit(bench, ("topic", 0, 7), generation_id=1, member_id="m")
    assert isinstance(error, group_errors.IllegalGeneration), "there is no such group"
    await bench.commit(("topic", 0, 1))
    (error,) = await commit(bench, ("topic", 0, 7), generation_id=1, member_id="m")
    assert isinstance(error, group_errors.UnknownMember)


async def test_a_member_may_commit_while_its_group_is_assigned(bench: GroupsBench) -> None:
    joined = await bench.join()
    errors = await commit(
        bench, ("topic", 0, 7), generation_id=joined.generation_id, member_id=joined.member_id
    )
    assert errors == [None]


async def test_members_of_new_groups_commit_in_their_epoch(bench: GroupsBench) -> None:
    joined = await bench.router.consumer_heartbeat(consumer_join("m"), CLIENT)
    assert joined.error is None

    async def answer(epoch: int, name: str) -> object:
        (error,) = await commit(bench, ("topic", 0, 7), generation_id=epoch, member_id=name)
        return type(error)

    assert await answer(joined.member_epoch, "m") is type(None)
    assert await answer(-1, "") is type(None)
    assert await answer(joined.member_epoch + 1, "m") is group_errors.IllegalGeneration
    assert await answer(joined.member_epoch, "n") is group_errors.UnknownMember


async def test_what_waits_goes_with_the_group_and_with_its_offset(bench: GroupsBench) -> None:
    await bench.commit(("topic", 0, 1), ("topic", 1, 1))
    await commit(bench, ("topic", 0, 7), ("topic", 1, 7))
    assert await bench.router.delete_offsets("group", [("topic", 0)]) == [None]
    assert await stable(bench, ("topic", 0), ("topic", 1)) == {0: -1, 1: None}
    assert await bench.router.delete_group("group") is None
    assert await stable(bench, ("topic", 0), ("topic", 1)) == {0: -1, 1: -1}
    end(bench)
    assert await bench.fetched() == {}


async def test_an_old_offset_stays_while_another_one_waits(bench: GroupsBench) -> None:
    await bench.commit(("topic", 0, 1), ("topic", 1, 1))
    await bench.advance(RETENTION_S + 1)
    await commit(bench, ("topic", 0, 7))
    await bench.led.forget_unused()
    assert await bench.fetched() == {("topic", 0): 1}
    end(bench, is_commit=False)
    await bench.led.forget_unused()
    assert await bench.fetched() == {}
    assert done_at_once(bench.router.list_groups()) == []
