"""Whether a broker has ended, as its listener says."""

import asyncio
import socket
from collections.abc import Mapping
from types import SimpleNamespace
from typing import cast
from uuid import UUID

import pytest

from diskless.listeners.listeners import Listener
from diskless.parts.foundation import Foundation
from diskless.parts.peers import Peers
from metadata.operations import RegisteredBroker
from tests.support.ports import own_port

BROKER = RegisteredBroker(2, "elsewhere.invalid", 9, "", UUID(int=2), "")


def knocking(registered: Mapping[int, RegisteredBroker]) -> Peers:
    listener = cast(Listener, SimpleNamespace(name="INSIDE"))
    base = cast(Foundation, SimpleNamespace(inter_broker=[listener]))
    return Peers(base, None, registered=lambda: registered)


async def is_refused(host: str, port: int) -> bool:
    """Of a broker whose listener between brokers is there."""
    broker = BROKER._replace(endpoints=f"OUTSIDE://h:1,INSIDE://{host}:{port}")
    return await knocking({2: broker}).is_refused(broker)


async def test_who_listens_no_more_is_refused() -> None:
    port = own_port()
    assert await is_refused("127.0.0.1", port)
    with socket.create_server(("127.0.0.1", port)):
        assert not await is_refused("127.0.0.1", port)
    assert await is_refused("127.0.0.1", port)


async def test_a_process_that_is_paused_is_not() -> None:
    with socket.create_server(("127.0.0.1", own_port()), backlog=0) as server:
        port = server.getsockname()[1]
        answers = [await is_refused("127.0.0.1", port) for _ in range(3)]
    assert answers == [False] * 3, "also when the system takes no more connections for it"


async def test_one_of_several_addresses_is_enough() -> None:
    port = own_port()
    with socket.create_server(("127.0.0.1", port)):
        assert not await is_refused("localhost", port)
    assert await is_refused("localhost", port)


@pytest.mark.parametrize("error", [OSError("no route to host"), TimeoutError()])
async def test_a_broker_that_cannot_be_reached_is_not(
    error: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", fail)
    assert not await is_refused("127.0.0.1", own_port())


async def test_a_name_without_an_address_is_not() -> None:
    assert not await knocking({}).is_refused(BROKER)
