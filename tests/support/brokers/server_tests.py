"""What tests of the server share: both event loops, and an API that nobody else has."""

import asyncio
import functools
import inspect
import struct
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
import uvloop

from diskless.server.registry import Api, Reply, Request
from tests.support.questions.kafka_raw_client import RawClient

Test = Callable[..., Coroutine[Any, Any, None]]


def on_both_loops(test: Test) -> Any:
    """Run a coroutine test on asyncio's loop and on uvloop's, each closed afterwards."""
    factories = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}

    @pytest.mark.parametrize("loop", list(factories))
    @functools.wraps(test)
    def run(loop: str, **arguments: Any) -> None:
        with asyncio.Runner(loop_factory=factories[loop]) as runner:
            runner.run(test(**arguments))

    own = list(inspect.signature(test).parameters.values())
    loop_parameter = inspect.Parameter("loop", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = inspect.Signature([*own, loop_parameter])  # type: ignore[attr-defined]
    return run


def private_api(answer: Callable[[Request], Awaitable[Reply]]) -> Api:
    return Api(
        key=10_000,
        name="Private",
        versions=range(1),
        flexible_from=None,
        handler=answer,
        is_advertised=False,
    )


async def call_private(client: RawClient, body: bytes = b"") -> None:
    header = struct.pack(">hhih", 10_000, 0, 9, -1)
    await client.send(struct.pack(">i", len(header) + len(body)) + header + body)
