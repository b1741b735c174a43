"""A reverse proxy in front of an S3 server that does to requests what networks and S3 do to them.

    async def test_something(faulty_s3: FaultyS3) -> None:
        faulty_s3.add(Fault("lose_response", method="PUT", key_prefix="wal/", nth=2))
        store = S3Store(bucket, endpoint_url=faulty_s3.url, ...)
        ...
        assert faulty_s3.hits("lose_response") == 1

A `Fault` applies to the requests that match its method and key prefix, from the `nth` of them on,
`count` times (None: for ever). The first matching fault with hits left wins. `probability` below 1
is drawn from the proxy's own seeded generator.

| action | what happens |
|---|---|
| `status` | the request is not passed on; the answer is `status` with S3's XML error `code` |
| `status_after` | the request is passed on and applied; the answer is `status` all the same |
| `drop` | the request is not passed on; the connection is closed |
| `lose_response` | the request is passed on and applied; the connection is closed |
| `hang` | the request is not passed on; no answer until the proxy is closed |
| `hang_after` | the request is passed on and applied; no answer until the proxy is closed |
| `truncate` | half of the answer's body, then the connection is closed |
| `shorten` | half of the answer's body, with a Content-Length that fits it |
| `corrupt` | one byte in the middle of the answer's body is flipped |
| `hide_checksum` | the answer loses its checksum headers, as from servers that know none |
| `trickle` | a byte of the answer's body now and then, until the proxy is closed |

Requests pass unchanged, Host header included, so that their signatures hold. Fixture:
`faulty_s3` stands before moto (`tests.support.moto_server`).
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final, Literal, Self
from urllib.parse import unquote

import aiohttp
import pytest
from aiohttp import web

Action = Literal[
    "status",
    "status_after",
    "drop",
    "lose_response",
    "hang",
    "hang_after",
    "truncate",
    "shorten",
    "corrupt",
    "hide_checksum",
    "trickle",
]

_BODY_BYTES_MAX: Final = 256 * 1024 * 1024
_HOP_BY_HOP: Final = frozenset({"connection", "content-length", "keep-alive", "transfer-encoding"})


@dataclass(slots=True)
class Fault:
    """What to do with which requests."""

    action: Action
    method: str = ""
    """Empty: any."""
    key_prefix: str = ""
    """Of the key within the bucket."""
    nth: int = 1
    """The first matching request it is for, counted from 1."""
    count: int | None = 1
    """How many requests it is for; None: all from the nth on."""
    status: int = 503
    code: str = "SlowDown"
    probability: float = 1.0
    matched: int = 0
    hits: int = 0


class FaultyS3:
    """The proxy; use it as an async context manager."""

    def __init__(self, upstream: str, *, seed: int = 0) -> None:
        self._upstream = upstream.rstrip("/")
        self._rng = random.Random(seed)
        self._faults: list[Fault] = []
        self._closing = asyncio.Event()
        self.requests: list[tuple[str, str]] = []
        """(method, key) of every request, in order of arrival."""
        self._arrived = asyncio.Condition()
        self.alter_body: Callable[[bytes], bytes] | None = None
        """Applied to the body of every PUT before it is passed on: damage on the way."""
        self.url = ""

    def add(self, fault: Fault) -> Fault:
        self._faults.append(fault)
        return fault

    def clear(self) -> None:
        """The outage is over: requests pass again, and hanging ones are let go."""
        self._faults.clear()
        self._closing.set()
        self._closing = asyncio.Event()

    def hits(self, action: Action) -> int:
        return sum(fault.hits for fault in self._faults if fault.action == action)

    async def until_requests(self, count: int) -> None:
        """Wait until that many requests have arrived, bodies included."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.requests) >= count)

    async def __aenter__(self) -> Self:
        self._client = aiohttp.ClientSession(auto_decompress=False)
        app = web.Application(client_max_size=_BODY_BYTES_MAX)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing.set()
        await self._runner.cleanup()
        await self._client.close()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        _, _, key = unquote(request.path.lstrip("/")).partition("/")
        fault = self._fault_for(request.method, key)
        action = fault.action if fault is not None else ""
        body = await request.read()
        self.requests.append((request.method, key))
        async with self._arrived:
            self._arrived.notify_all()
        if self.alter_body is not None and request.method == "PUT":
            body = self.alter_body(body)
        if fault is not None and action == "status":
            return _error(fault)
        if action == "drop":
            return _cut(request)
        if action == "hang":
            await self._closing.wait()
            return _cut(request)
        status, headers, answer = await self._pass_on(request, body)
        if action == "lose_response":
            return _cut(request)
        if action == "hang_after":
            await self._closing.wait()
            return _cut(request)
        if fault is not None and action == "status_after":
            return _error(fault)
        if action == "hide_checksum":
            headers = {k: v for k, v in headers.items() if "checksum" not in k.lower()}
        if action == "shorten":
            answer = answer[: len(answer) // 2]
        if action == "corrupt" and answer:
            middle = len(answer) // 2
            answer = answer[:middle] + bytes([answer[middle] ^ 1]) + answer[middle + 1 :]
        response = web.StreamResponse(status=status, headers=headers)
        if request.method == "HEAD":
            response.headers["Content-Length"] = headers.get("X-Length", "0")
            del response.headers["X-Length"]
            await response.prepare(request)
            return response
        response.content_length = len(answer)
        await response.prepare(request)
        if action == "truncate":
            await response.write(answer[: len(answer) // 2])
            return _cut(request)
        if action == "trickle":
            for position in range(len(answer)):
                await response.write(answer[position : position + 1])
                try:
                    async with asyncio.timeout(0.02):
                        await self._closing.wait()
                    break
                except TimeoutError:
                    continue
            return _cut(request)
        await response.write(answer)
        await response.write_eof()
        return response

    def _fault_for(self, method: str, key: str) -> Fault | None:
        for fault in self._faults:
            if fault.method not in ("", method) or not key.startswith(fault.key_prefix):
                continue
            if fault.count is not None and fault.hits >= fault.count:
                continue
            fault.matched += 1
            if fault.matched >= fault.nth and self._rng.random() < fault.probability:
                fault.hits += 1
                return fault
        return None

    async def _pass_on(
        self, request: web.Request, body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        async with self._client.request(
            request.method,
            aiohttp.client.URL(self._upstream + request.raw_path, encoded=True),
            headers={k: v for k, v in request.headers.items() if k.lower() not in _HOP_BY_HOP},
            data=body,
        ) as upstream:
            answer = await upstream.read()
            headers = {k: v for k, v in upstream.headers.items() if k.lower() not in _HOP_BY_HOP}
            if request.method == "HEAD":
                headers["X-Length"] = upstream.headers.get("Content-Length", "0")
            return upstream.status, headers, answer


def _cut(request: web.Request) -> web.StreamResponse:
    """Close the connection at once, without an answer or in the middle of one."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)


def _error(fault: Fault) -> web.Response:
    return web.Response(
        status=fault.status,
        content_type="application/xml",
        text=f"<?xml version='1.0'?><Error><Code>{fault.code}</Code>"
        f"<Message>injected</Message></Error>",
    )


@pytest.fixture
async def faulty_s3(moto_endpoint: str) -> AsyncIterator[FaultyS3]:
    """A fault-injecting proxy in front of the session's moto."""
    async with FaultyS3(moto_endpoint) as proxy:
        yield proxy
