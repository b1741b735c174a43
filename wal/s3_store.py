"""The object store `s3://bucket/prefix`: aioboto3 against S3, MinIO, LocalStack or moto.

One long-lived client per store, opened and closed with it. What requests and answers mean is in
`wal.s3_protocol`; this module does the waiting: attempts under a timeout of their own, jittered
delays between them, all of it under the operation's deadline.

A body is never joined. botocore sees a seekable file (`BodyReader`); aiohttp sees a payload of its
own kind that writes pieces of 256 KiB as fast as the socket takes them. Neither the plain file nor
the plain bytes would do: aiohttp reads a file in steps of 64 KiB through the event loop's shared
thread pool (128 hops for 8 MiB), and holds the loop while it hands over megabytes of bytes at once.
A body that lies on disk is read in the store's own threads, a body in memory without any.

Without TLS the signature covers the body, and botocore hashes it on the event loop (about 8 ms for
8 MiB): acceptable against a local server, and the reason to use https where speed matters.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote, urlencode

import aioboto3
from aiobotocore.config import AioConfig
from aiohttp.abc import AbstractStreamWriter
from aiohttp.client_exceptions import ClientConnectorError
from aiohttp.client_exceptions import ClientError as AiohttpError
from aiohttp.payload import Payload
from botocore.exceptions import EndpointConnectionError
from botocore.handlers import add_expect_header, set_list_objects_encoding_type_url

from wal.clock import Clock
from wal.coordinates import ObjectKey
from wal.errors import (
    CorruptObject,
    DisklessError,
    ObjectExists,
    ObjectNotFound,
    ObjectStoreUnavailable,
    UploadOutcomeUnknown,
)
from wal.object_store import (
    ObjectBody,
    ObjectStat,
    StoreCounters,
    StoreStatistics,
    check_object_key,
)
from wal.retry import Retries
from wal.s3_protocol import (
    COMPARE_BYTES,
    DELETE_KEYS_MAX,
    PUT_ID_METADATA,
    TRANSPORT_ERRORS,
    BodyReader,
    Failure,
    body_checksum,
    check_range,
    check_stored,
    check_whole,
    client_configuration,
    failure_of,
    full_checksum,
    new_put_id,
    pieces,
    put_arguments,
)
from wal.s3_settings import S3Settings
from wal.worker_threads import WorkerThreads, wait_ended

_Result = TypeVar("_Result")
_Answer = Mapping[str, Any]

# aiohttp's own errors come through while a response body is read, botocore's at any other time.
_ATTEMPT_ERRORS: Final = (*TRANSPORT_ERRORS, AiohttpError, TimeoutError, OSError)
_WORTH_REPEATING: Final = (Failure.NOT_APPLIED, Failure.MAYBE_APPLIED)


class S3Store:
    """An S3 bucket below one prefix; its contract is `wal.object_store.ObjectStore`.

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
        self._bucket = bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._endpoint_url = endpoint_url
        self._region = region
        self._clock = clock
        self._rng = rng
        self._settings = settings or S3Settings()
        self._counters = StoreCounters()
        self._open = AsyncExitStack()
        self._client: Any = None
        self._threads = WorkerThreads("s3-body", self._settings.body_threads)

    @property
    def url(self) -> str:
        options = {"endpoint_url": self._endpoint_url, "region": self._region}
        query = urlencode({name: value for name, value in options.items() if value})
        path = quote(self._prefix.rstrip("/"))
        return f"s3://{self._bucket}/{path}{'?' if query else ''}{query}"

    def statistics(self) -> StoreStatistics:
        return self._counters.snapshot()

    async def __aenter__(self) -> Self:
        session = aioboto3.Session()
        client = await self._open.enter_async_context(self._new_client(session, self._endpoint_url))
        if self._endpoint_url is None:
            # Only botocore knows where its settings point to; when that is not AWS, the client
            # needs other options, which cannot be changed afterwards.
            resolved = str(client.meta.endpoint_url)
            configured = client_configuration(self._settings, endpoint_url=resolved)
            if configured != client_configuration(self._settings, endpoint_url=None):
                await self._open.aclose()
                client = await self._open.enter_async_context(self._new_client(session, resolved))
        # "Expect: 100-continue" before each body would cost a round trip per put, and spares
        # nothing but the rare refused one.
        client.meta.events.unregister("before-call.s3", add_expect_header)
        # Our keys need no URL encoding in XML, and LocalStack compares StartAfter with the encoded
        # keys when they are.
        client.meta.events.unregister(
            "before-parameter-build.s3.ListObjectsV2", set_list_objects_encoding_type_url
        )
        self._client = client
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._client = None
        await self._open.aclose()
        await self._threads.close()

    def _new_client(self, session: aioboto3.Session, endpoint_url: str | None) -> Any:
        configuration = client_configuration(self._settings, endpoint_url=endpoint_url)
        return session.client(
            "s3",
            endpoint_url=endpoint_url,
            region_name=self._region,
            config=AioConfig(**configuration),
        )

    # -- put

    async def put(self, key: ObjectKey, body: ObjectBody) -> None:
        check_object_key(key)
        with self._counting_errors():
            await self._put(key, body)
        self._counters.put_bytes += body.length_bytes

    async def _put(self, key: ObjectKey, body: ObjectBody) -> None:
        checksum = await self._threads.run_to_end(lambda: body_checksum(key, body))
        put_id = new_put_id(self._rng)
        retries = self._retries()
        maybe_applied = False
        while True:
            cause: BaseException | None = None
            payload = _BodyPayload(body, self._threads)
            try:
                response = await self._send(key, payload, put_arguments(checksum, put_id), retries)
                failure = None
            except _ATTEMPT_ERRORS as error:
                failure, cause = _failure(error), error
            # aiohttp sends a PUT again by itself when a kept connection turns out to be closed.
            maybe_applied |= payload.times_sent > 1
            self._counters.retries += max(0, payload.times_sent - 1)
            try:
                if failure is None:
                    maybe_applied = True
                    await self._verify(key, response, body.length_bytes, checksum, retries)
                    return
                if failure is Failure.EXISTS:
                    if await self._is_ours(key, body, checksum, put_id, retries):
                        return
                    failure = Failure.NOT_APPLIED  # what stood in the way is gone again
            except ObjectStoreUnavailable as error:
                if maybe_applied:
                    raise UploadOutcomeUnknown(str(error)) from error
                raise
            maybe_applied |= failure is Failure.MAYBE_APPLIED
            delay_s = retries.next_delay_s() if failure in _WORTH_REPEATING else None
            if delay_s is None:
                reason = _reason(key, retries, cause)
                if maybe_applied:
                    raise UploadOutcomeUnknown(reason) from cause
                raise ObjectStoreUnavailable(reason) from cause
            self._counters.retries += 1
            await asyncio.sleep(delay_s)

    async def _send(
        self,
        key: ObjectKey,
        payload: "_BodyPayload",
        arguments: Mapping[str, Any],
        retries: Retries,
    ) -> _Answer:
        """One PutObject. Raises: a client's error, CorruptChunk (from the body)."""
        try:
            async with self._attempt_timeout(retries):
                response: _Answer = await self._client.put_object(
                    Bucket=self._bucket, Key=self._prefix + key, Body=payload, **arguments
                )
        except _ATTEMPT_ERRORS as error:
            if payload.failure is not None:
                raise payload.failure from error
            raise
        finally:
            await payload.settled()
            self._counters.puts += max(1, payload.times_sent)
        return response

    async def _verify(
        self, key: ObjectKey, response: _Answer, length: int, checksum: str, retries: Retries
    ) -> None:
        """After a 200. Raises: CorruptObject, ObjectStoreUnavailable (not known)."""
        if full_checksum(response) == checksum:
            return
        # This server does not tell in its answer what it has stored.
        try:
            stored = await self._with_retries(key, partial(self._head, key), retries)
        except ObjectNotFound as error:
            raise ObjectStoreUnavailable(f"{key}: put, and not there") from error
        check_stored(key, stored, length, checksum)

    async def _is_ours(
        self, key: ObjectKey, body: ObjectBody, checksum: str, put_id: str, retries: Retries
    ) -> bool:
        """After a 412: True when the object is what we put, False when it is gone again.

        Raises: ObjectExists, CorruptObject, ObjectStoreUnavailable (not known).
        """
        try:
            stored = await self._with_retries(key, partial(self._head, key), retries)
            if stored.get("Metadata", {}).get(PUT_ID_METADATA) == put_id:
                check_stored(key, stored, body.length_bytes, checksum)
                return True
            if (
                int(stored["ContentLength"]) == body.length_bytes
                and full_checksum(stored) in (None, checksum)
                and await self._has_content(key, body, retries)
            ):
                return True
        except ObjectNotFound:
            return False
        raise ObjectExists(f"{self.url}: {key}")

    async def _has_content(self, key: ObjectKey, body: ObjectBody, retries: Retries) -> bool:
        """Whether the stored object, which is as long as the body, has the body's bytes."""
        reader = BodyReader(body)
        for start in range(0, body.length_bytes, COMPARE_BYTES):
            length = min(COMPARE_BYTES, body.length_bytes - start)
            stored = await self._with_retries(
                key, partial(self._get_range_once, key, start, length), retries
            )
            if not await self._threads.run_to_end(partial(reader.continues_with, stored)):
                return False
        return True

    # -- read

    async def get(self, key: ObjectKey) -> bytes:
        async def attempt(retries: Retries) -> bytes:
            self._counters.gets += 1
            async with self._attempt_timeout(retries):
                response = await self._client.get_object(
                    Bucket=self._bucket, Key=self._prefix + key, ChecksumMode="ENABLED"
                )
                data = await _read_body(response)
            check_whole(key, response, data)
            return data

        with self._counting_errors():
            data = await self._with_retries(key, attempt)
        self._counters.get_bytes += len(data)
        return data

    async def get_range(self, key: ObjectKey, start: int, length: int) -> bytes:
        with self._counting_errors():
            if start < 0 or length <= 0:
                # HTTP has no empty range.
                stored = await self._with_retries(key, partial(self._head, key))
                size = int(stored["ContentLength"])
                if start < 0 or length < 0 or start > size:
                    raise CorruptObject(
                        f"{key}: no bytes [{start}, {start + length}): it has {size}"
                    )
                return b""
            data = await self._with_retries(key, partial(self._get_range_once, key, start, length))
        self._counters.get_bytes += length
        return data

    async def _get_range_once(
        self, key: ObjectKey, start: int, length: int, retries: Retries
    ) -> bytes:
        self._counters.gets += 1
        async with self._attempt_timeout(retries):
            response = await self._client.get_object(
                Bucket=self._bucket,
                Key=self._prefix + key,
                Range=f"bytes={start}-{start + length - 1}",
            )
            data = await _read_body(response)
        check_range(key, response, data, start, length)
        return data

    async def head(self, key: ObjectKey) -> ObjectStat:
        with self._counting_errors():
            response = await self._with_retries(key, partial(self._head, key))
        return ObjectStat(key, int(response["ContentLength"]), _milliseconds(response))

    async def _head(self, key: ObjectKey, retries: Retries) -> _Answer:
        self._counters.heads += 1
        async with self._attempt_timeout(retries):
            response: _Answer = await self._client.head_object(
                Bucket=self._bucket, Key=self._prefix + key, ChecksumMode="ENABLED"
            )
        return response

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectStat]:
        while True:
            with self._counting_errors():
                page = await self._with_retries(
                    prefix, partial(self._list_page, prefix, start_after)
                )
                stats = [
                    ObjectStat(
                        ObjectKey(str(entry["Key"])[len(self._prefix) :]),
                        int(entry["Size"]),
                        _milliseconds(entry),
                    )
                    for entry in page.get("Contents", ())
                ]
                if stats and stats[0].key <= start_after:
                    # A server that does not look at StartAfter: going on would never end.
                    raise ObjectStoreUnavailable(
                        f"{self.url}: LIST after {start_after!r} answered {stats[0].key!r}"
                    )
            for stat in stats:
                yield stat
            if not page.get("IsTruncated") or not stats:
                return
            start_after = stats[-1].key

    async def _list_page(self, prefix: str, start_after: str, retries: Retries) -> _Answer:
        """One page. By key, not by continuation token: a token cannot be used again by another
        process, and some servers' tokens go wrong with keys that need encoding."""
        position = {"StartAfter": self._prefix + start_after} if start_after else {}
        self._counters.lists += 1
        async with self._attempt_timeout(retries):
            page: _Answer = await self._client.list_objects_v2(
                Bucket=self._bucket,
                Prefix=self._prefix + prefix,
                MaxKeys=self._settings.list_page,
                **position,
            )
        return page

    # -- delete

    async def delete(self, keys: Sequence[ObjectKey]) -> Sequence[ObjectKey]:
        gone: dict[ObjectKey, None] = {}
        failure: ObjectStoreUnavailable | None = None
        for first in range(0, len(keys), DELETE_KEYS_MAX):
            some = keys[first : first + DELETE_KEYS_MAX]
            try:
                gone.update(dict.fromkeys(await self._delete_some(some)))
            except ObjectStoreUnavailable as error:
                failure = error
        if failure is not None:
            self._counters.errors += 1
            if not gone:
                raise failure
        return tuple(gone)

    async def _delete_some(self, keys: Sequence[ObjectKey]) -> Sequence[ObjectKey]:
        objects = [{"Key": self._prefix + key} for key in keys]

        async def attempt(retries: Retries) -> _Answer:
            self._counters.deletes += 1
            async with self._attempt_timeout(retries):
                response: _Answer = await self._client.delete_objects(
                    Bucket=self._bucket, Delete={"Objects": objects, "Quiet": False}
                )
            return response

        response = await self._with_retries(keys[0], attempt)
        asked = set(keys)
        confirmed = (
            ObjectKey(str(entry["Key"])[len(self._prefix) :])
            for entry in response.get("Deleted", ())
        )
        return [key for key in confirmed if key in asked]

    # -- attempts

    def _retries(self) -> Retries:
        return Retries(self._settings.retry_limits(), clock=self._clock, rng=self._rng)

    def _attempt_timeout(self, retries: Retries) -> asyncio.Timeout:
        return asyncio.timeout(min(self._settings.attempt_timeout_ms / 1000, retries.remaining_s()))

    async def _with_retries(
        self,
        key: str,
        attempt: Callable[[Retries], Awaitable[_Result]],
        retries: Retries | None = None,
    ) -> _Result:
        """The first success of an attempt that may be repeated freely.

        Wrong bytes are asked for once more; then they are what the store has: CorruptObject.
        Raises: ObjectNotFound, CorruptObject, ObjectStoreUnavailable.
        """
        retries = retries or self._retries()
        refetched = False
        while True:
            delay_s = None
            try:
                return await attempt(retries)
            except CorruptObject:
                if not refetched:
                    refetched = True
                    delay_s = retries.next_delay_s()
                if delay_s is None:
                    raise
            except _ATTEMPT_ERRORS as error:
                failure = _failure(error)
                if failure is Failure.NOT_FOUND:
                    raise ObjectNotFound(f"{self.url}: {key}") from error
                if failure is Failure.OUT_OF_RANGE:
                    raise CorruptObject(f"{key}: shorter than the range asked for") from error
                if failure in _WORTH_REPEATING:
                    delay_s = retries.next_delay_s()
                if delay_s is None:
                    raise ObjectStoreUnavailable(_reason(key, retries, error)) from error
            self._counters.retries += 1
            await asyncio.sleep(delay_s)

    @contextmanager
    def _counting_errors(self) -> Iterator[None]:
        try:
            yield
        except DisklessError:
            self._counters.errors += 1
            raise


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
        remaining = pieces(self._body)
        in_memory = isinstance(self._body.fragments(), (list, tuple))
        try:
            while True:
                if in_memory:
                    piece = next(remaining, b"")
                else:
                    piece = await self._threads.run_to_end(lambda: next(remaining, b""))
                if not piece:
                    return
                await writer.write(piece)
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


async def _read_body(response: _Answer) -> bytes:
    async with response["Body"] as stream:
        data: bytes = await stream.read()
    return data


def _milliseconds(response: _Answer) -> int:
    return int(response["LastModified"].timestamp() * 1000)


def _failure(error: BaseException) -> Failure:
    """`failure_of`, knowing that aiobotocore reports a reset connection like a refused one."""
    if isinstance(error, EndpointConnectionError):
        cause = error.kwargs.get("error")
        connected = not isinstance(cause, ClientConnectorError)
        return Failure.MAYBE_APPLIED if connected else Failure.NOT_APPLIED
    return failure_of(error)


def _reason(key: str, retries: Retries, cause: BaseException | None) -> str:
    return f"{key}: {cause or 'conflicting puts'!r} (attempt {retries.attempts})"
