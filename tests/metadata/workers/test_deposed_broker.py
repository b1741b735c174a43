"""A broker that led and fell silent leaves the cluster, in the life in which it led."""

from uuid import UUID

import pytest

from metadata.operations import Leader, RegisteredBroker
from metadata.workers.deposed_broker import DeposedBroker
from wal.errors import NotCoordinator

SILENT = Leader(leader_epoch=1, broker_id=1, host="b1", port=9092, incarnation=UUID(int=1))


def broker(incarnation: int) -> RegisteredBroker:
    return RegisteredBroker(1, "b1", 9092, "", UUID(int=incarnation), "")


@pytest.mark.parametrize(
    ("registered", "is_told"),
    [({1: broker(1)}, True), ({1: broker(2)}, False), ({}, False)],
    ids=["the life that led", "its next life", "gone already"],
)
async def test_only_the_life_that_led_is_taken_out(
    registered: dict[int, RegisteredBroker], is_told: bool
) -> None:
    told = []

    async def register(one: RegisteredBroker) -> None:
        told.append((one.broker_id, one.host, one.incarnation))

    await DeposedBroker(SILENT, lambda: registered, register).run()
    assert told == ([(1, "", UUID(int=1))] if is_told else [])


async def test_a_catalogue_without_a_leader_does_not_end_the_new_one() -> None:
    async def register(one: RegisteredBroker) -> None:
        raise NotCoordinator("nobody leads")

    await DeposedBroker(SILENT, lambda: {1: broker(1)}, register).run()
