"""The object store `s3://bucket/prefix`: aioboto3 against S3, MinIO, LocalStack or moto.

One long-lived client per store, opened and closed with it. What to ask and what an answer means is
in `wal.stores.s3_operations` and `wal.stores.s3_protocol`; this module does the waiting, on the
broker's event loop: attempts under a timeout of their own and the delays between them.

A body is never joined. botocore sees a seekable file (`BodyReader`), which it does not read;
aiohttp sees a payload of its own kind that writes pieces of 256 KiB as fast as the socket takes
them. Neither the plain file nor the plain bytes would do: aiohttp reads a file in steps of 64 KiB
through the event loop's shared thread pool (128 hops for 8 MiB), and holds the loop while it hands
over megabytes at once.

A body that lies on disk is read in the store's own threads, once for each attempt: into the body's
own memory, and from there into the socket. Its next fragment may overwrite this one, so it is asked
for when the transport has nothing left to send. A body in memory needs no thread; it is copied, for
its owner may use its memory again after a put that failed.

Without TLS, botocore reads the body once more and hashes it on the event loop (9 ms for 8 MiB),
unless `s3.payload.signed` is off.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final, Self, TypeVar, assert_never

import aioboto3
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from aiohttp.abc import AbstractStreamWriter
from aiohttp.client_exceptions import ClientConnectionResetError, ClientConnectorError
from aiohttp.client_exceptions import ClientError as AiohttpError
from aiohttp.payload import Payload
from botocore.exceptions import BotoCoreError, EndpointConnectionError

from wal.clock import Clock
from wal.coordinates import ObjectKey
from wal.errors import DisklessError, InvalidSettings, ObjectStoreUnavailable
from wal.stores.object_store import (
    Buffer,
    ObjectBody,
    ObjectStat,
    StoreCounters,
    StoreStatistics,
    is_in_memory,
)
from wal.stores.s3_operations import (
    Answer,
    BodyWork,
    Failed,
    Method,
    Operation,
    Request,
    S3Operations,
    Step,
    Wait,
)
from wal.stores.s3_protocol import (
    DELETE_KEYS_MAX,
    PIECE_BYTES,
    TRANSPORT_ERRORS,
    BodyReader,
    Failure,
    S3Location,
    check_bucket_name,
    client_configuration,
    drop_unwanted_work,
    endpoint_to_reopen_with,
    failure_of,
    pieces,
    share_models,
)
from wal.stores.s3_settings import S3Settings
from wal.worker_threads import WorkerThreads, wait_ended

_Result = TypeVar("_Result")

# aiohttp's own errors come through while a response body is read, botocore's at any other time.
_ATTEMPT_ERRORS: Final = (*TRANSPORT_ERRORS, AiohttpError, TimeoutError, OSError)


class S3Store:
    """An S3 bucket below one prefix; its contract is `wal.stores.object_store.ObjectStore`.

    Credentials, and the endpoint and region where None is given, come from the AWS settings.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint_url: str | None = None,
        region: str | None = None,
        clock: Clock,
        rng: random.Random,
        settings: S3Settings | None = None,
    ) -> None:
        self._settings = settings or S3Settings()
        self._location = S3Location.of(bucket, prefix, endpoint_url, region, self._settings)
        self._operations = S3Operations(
            self._location, clock=clock, rng=rng, settings=self._settings
        )
        self._counters = StoreCounters()
        self._open = AsyncExitStack()
        self._client: Any = None
        self._threads = WorkerThreads("s3-body", self._settings.body_threads)

    @property
    def url(self) -> str:
        return self._location.url

    def statistics(self) -> StoreStatistics:
        return self._counters.snapshot()

    async def __aenter__(self) -> Self:
        """Makes no request. Raises: InvalidSettings (a bucket name, an endpoint or AWS settings
        that no client can be made with)."""
        try:
            check_bucket_name(self._location.bucket)
            self._client = await self._open_client()
        except (BotoCoreError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise InvalidSettings(f"object store {self.url}: {reason}") from error
        return self

    async def _open_client(self) -> Any:
        core = get_session()
        session = aioboto3.Session(botocore_session=core)
        share_models(core)
        endpoint_url = self._location.endpoint_url
        client = await self._open.enter_async_context(self._new_client(session, endpoint_url))
        if endpoint_url is None and (other := endpoint_to_reopen_with(client, self._settings)):
            await self._open.aclose()
            client = await self._open.enter_async_context(self._new_client(session, other))
        drop_unwanted_work(client)
        return client

    async def __aexit__(self, *_: object) -> None:
        self._client = None
        await self._open.aclose()
        await self._threads.close()

    def _new_client(self, session: aioboto3.Session, endpoint_url: str | None) -> Any:
        configuration = client_configuration(self._settings, endpoint_url=endpoint_url)
        return session.client(
            "s3",
            endpoint_url=endpoint_url,
            region_name=self._location.region,
            config=AioConfig(**configuration),
        )

    # -- operations

    async def put(self, key: ObjectKey, body: ObjectBody) -> None:
        await self._run(self._operations.put(key, body))
        self._counters.put_bytes += body.length_bytes

    async def get(self, key: ObjectKey) -> bytes:
        data = await self._run(self._operations.get(key))
        self._counters.get_bytes += len(data)
        return data

    async def get_range(self, key: ObjectKey, start: int, length: int) -> bytes:
        data = await self._run(self._operations.get_range(key, start, length))
        self._counters.get_bytes += len(data)
        return data

    async def head(self, key: ObjectKey) -> ObjectStat:
        return await self._run(self._operations.head(key))

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectStat]:
        while True:
            page = await self._run(self._operations.list_page(prefix, start_after))
            for stat in page.stats:
                yield stat
            if page.is_last:
                return
            start_after = page.stats[-1].key

    async def delete(self, keys: Sequence[ObjectKey]) -> Sequence[ObjectKey]:
        gone: dict[ObjectKey, None] = {}
        failure: ObjectStoreUnavailable | None = None
        for first in range(0, len(keys), DELETE_KEYS_MAX):
            some = keys[first : first + DELETE_KEYS_MAX]
            try:
                gone.update(dict.fromkeys(await self._run(self._operations.delete(some))))
            except ObjectStoreUnavailable as error:
                failure = error
        if failure is not None and not gone:
            raise failure
        return tuple(gone)

    # -- steps

    async def _run(self, operation: Operation[_Result]) -> _Result:
        """What the operation returns or raises, its steps made and counted."""
        try:
            step = next(operation)
            while True:
                step = operation.send(await self._perform(step))
        except StopIteration as end:
            result: _Result = end.value
            return result
        except DisklessError:
            self._counters.errors += 1
            raise
        finally:
            operation.close()

    async def _perform(self, step: Step) -> object:
        match step:
            case Request():
                return await self._ask(step)
            case BodyWork():
                return await self._threads.run_to_end(step.work)
            case Wait():
                self._counters.retries += 1
                await asyncio.sleep(step.seconds)
                return None
            case _:
                assert_never(step)

    async def _ask(self, request: Request) -> Answer | Failed:
        """One attempt. Raises: CorruptChunk (from the body)."""
        self._count(request.method)
        payload = None if request.body is None else _BodyPayload(request.body, self._threads)
        body = {} if payload is None else {"Body": payload}
        try:
            async with asyncio.timeout(request.timeout_s):
                call = getattr(self._client, request.method)
                fields: Mapping[str, Any] = await call(**request.arguments, **body)
                return Answer(fields, await _read_body(fields))
        except _ATTEMPT_ERRORS as error:
            if payload is not None and payload.failure is not None:
                raise payload.failure from error
            # aiohttp sends a PUT again by itself when a kept connection turns out to be closed.
            sent_again = payload is not None and payload.times_sent > 1
            return Failed(_failure(error), error, sent_again)
        finally:
            if payload is not None:
                await payload.settled()
                again = max(0, payload.times_sent - 1)
                self._counters.puts += again
                self._counters.retries += again

    def _count(self, method: Method) -> None:
        match method:
            case "put_object":
                self._counters.puts += 1
            case "get_object":
                self._counters.gets += 1
            case "head_object":
                self._counters.heads += 1
            case "list_objects_v2":
                self._counters.lists += 1
            case "delete_objects":
                self._counters.deletes += 1
            case _:
                assert_never(method)


class _BodyPayload(BodyReader, Payload):
    """A body for botocore (a file) and for aiohttp (a payload) at once.

    `failure` is what the body itself raised while aiohttp wrote it: aiohttp reports that as a
    broken connection.
    """

    _autoclose = True  # holds nothing that aiohttp would have to close

    def __init__(self, body: ObjectBody, threads: WorkerThreads) -> None:
        BodyReader.__init__(self, body)
        Payload.__init__(self, body)
        self._size = body.length_bytes
        self._threads = threads
        self._writing: asyncio.Task[None] | None = None
        self.times_sent = 0
        self.failure: DisklessError | None = None

    async def write(self, writer: AbstractStreamWriter) -> None:
        self.times_sent += 1
        self._writing = asyncio.create_task(self._write(writer), name="s3-body")
        try:
            await self._writing
        except asyncio.CancelledError:
            self._writing.cancel()
            raise

    async def _write(self, writer: AbstractStreamWriter) -> None:
        fragments = self._body.fragments()
        if is_in_memory(fragments):
            for piece in pieces(self._body):
                await writer.write(piece)
            return
        # Or aiohttp would join them with the first piece.
        writer.send_headers()
        _drain_to_the_end(writer)
        remaining = iter(fragments)
        try:
            while (view := await self._threads.run_to_end(partial(_next_view, remaining))).nbytes:
                while view:
                    await writer.write(view[:PIECE_BYTES])
                    view = view[PIECE_BYTES:]
                await writer.drain()
        except DisklessError as error:
            self.failure = error
            raise

    async def settled(self) -> None:
        """Wait until no thread reads the body any more, whatever became of the request."""
        if self._writing is not None:
            self._writing.cancel()
            await wait_ended(self._writing)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        raise TypeError("a body is bytes")


def _next_view(remaining: Iterator[Buffer]) -> memoryview:
    """The next fragment that is not empty, as bytes; an empty one at the end. Blocks."""
    for fragment in remaining:
        view = memoryview(fragment).cast("B")
        if view:
            return view
    return memoryview(b"")


def _drain_to_the_end(writer: AbstractStreamWriter) -> None:
    """Have `drain` wait until the transport refers to none of what was written any more."""
    transport = writer.transport
    if transport is None:
        raise ClientConnectionResetError("the connection is closed")
    # Transports stop their writers above a limit of what they hold, those of TLS from it on.
    limit = 0 if transport.get_extra_info("sslcontext") is None else 1
    transport.set_write_buffer_limits(limit, 0)


async def _read_body(fields: Mapping[str, Any]) -> bytes:
    if "Body" not in fields:
        return b""
    async with fields["Body"] as stream:
        data: bytes = await stream.read()
    return data


def _failure(error: BaseException) -> Failure:
    """`failure_of`, knowing that aiobotocore reports a reset connection like a refused one."""
    if isinstance(error, EndpointConnectionError):
        cause = error.kwargs.get("error")
        connected = not isinstance(cause, ClientConnectorError)
        return Failure.MAYBE_APPLIED if connected else Failure.NOT_APPLIED
    return failure_of(error)
