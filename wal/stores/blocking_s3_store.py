"""The object store `s3://bucket/prefix` for the threads of a Spark task: boto3, no event loop.

`wal.stores.blocking_store.open_blocking_store` makes it. It speaks to S3 as the broker's
`wal.stores.s3_store` does, by the same operations (`wal.stores.s3_operations`); only the waiting
differs, and here it blocks.

How long a call may block: attempts start before the operation's deadline only, and the clock is
looked at between the pieces of a body, sent or received. The socket calls between them end by
timeouts that botocore takes per client and not per request, so an operation may outlive its
deadline by `s3.connect.timeout.ms` and `s3.read.timeout.ms` together. The head of an answer is one
such piece: a server that trickled that, byte by byte, would be waited for.

One client per store; boto3's clients may be shared between threads.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Self, TypeVar, assert_never

import boto3
from botocore.config import Config
from botocore.exceptions import EndpointConnectionError
from botocore.session import get_session
from urllib3.exceptions import HTTPError

from wal.clock import Clock
from wal.coordinates import ObjectKey
from wal.errors import DisklessError, ObjectStoreUnavailable
from wal.stores.object_store import ObjectBody, ObjectStat
from wal.stores.s3_operations import (
    Answer,
    BodyWork,
    Failed,
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
    client_configuration,
    drop_unwanted_work,
    endpoint_to_reopen_with,
    failure_of,
    share_models,
)
from wal.stores.s3_settings import S3Settings

_Result = TypeVar("_Result")

# urllib3's own errors come through while a response body is read, botocore's at any other time.
_ATTEMPT_ERRORS: Final = (*TRANSPORT_ERRORS, HTTPError, TimeoutError, OSError)


class BlockingS3Store:
    """An S3 bucket below one prefix; its contract is `wal.stores.blocking_store.BlockingStore`.

    Credentials, and the endpoint and region where None is given, come from the AWS settings.
    `sleep` waits between attempts.
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
        sleep: Callable[[float], None] = time.sleep,
        settings: S3Settings | None = None,
    ) -> None:
        self._settings = settings or S3Settings()
        self._location = S3Location.of(bucket, prefix, endpoint_url, region, self._settings)
        self._operations = S3Operations(
            self._location, clock=clock, rng=rng, settings=self._settings
        )
        self._clock = clock
        self._sleep = sleep
        self._client: Any = None

    @property
    def url(self) -> str:
        return self._location.url

    def __enter__(self) -> Self:
        # A session of our own: boto3's default one must not be used by several threads.
        core = get_session()
        session = boto3.session.Session(botocore_session=core)
        share_models(core)
        endpoint_url = self._location.endpoint_url
        client = self._new_client(session, endpoint_url)
        if endpoint_url is None and (other := endpoint_to_reopen_with(client, self._settings)):
            client.close()
            client = self._new_client(session, other)
        drop_unwanted_work(client)
        self._client = client
        return self

    def __exit__(self, *_: object) -> None:
        client, self._client = self._client, None
        client.close()

    def _new_client(self, session: boto3.session.Session, endpoint_url: str | None) -> Any:
        configuration = client_configuration(self._settings, endpoint_url=endpoint_url)
        return session.client(
            "s3",
            endpoint_url=endpoint_url,
            region_name=self._location.region,
            config=Config(**configuration),
        )

    # -- operations

    def put(self, key: ObjectKey, body: ObjectBody) -> None:
        self._run(self._operations.put(key, body))

    def get(self, key: ObjectKey) -> bytes:
        return self._run(self._operations.get(key))

    def get_range(self, key: ObjectKey, start: int, length: int) -> bytes:
        return self._run(self._operations.get_range(key, start, length))

    def head(self, key: ObjectKey) -> ObjectStat:
        return self._run(self._operations.head(key))

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectStat]:
        while True:
            page = self._run(self._operations.list_page(prefix, start_after))
            yield from page.stats
            if page.is_last:
                return
            start_after = page.stats[-1].key

    def delete(self, keys: Sequence[ObjectKey]) -> Sequence[ObjectKey]:
        gone: dict[ObjectKey, None] = {}
        failure: ObjectStoreUnavailable | None = None
        for first in range(0, len(keys), DELETE_KEYS_MAX):
            some = keys[first : first + DELETE_KEYS_MAX]
            try:
                gone.update(dict.fromkeys(self._run(self._operations.delete(some))))
            except ObjectStoreUnavailable as error:
                failure = error
        if failure is not None and not gone:
            raise failure
        return tuple(gone)

    # -- steps

    def _run(self, operation: Operation[_Result]) -> _Result:
        """What the operation returns or raises, its steps made."""
        if self._client is None:
            raise ValueError("the store is not open; use it in a with statement")
        try:
            step = next(operation)
            while True:
                step = operation.send(self._perform(step))
        except StopIteration as end:
            result: _Result = end.value
            return result
        finally:
            operation.close()

    def _perform(self, step: Step) -> object:
        match step:
            case Request():
                return self._ask(step)
            case BodyWork():
                return step.work()
            case Wait():
                self._sleep(step.seconds)
                return None
            case _:
                assert_never(step)

    def _ask(self, request: Request) -> Answer | Failed:
        """One attempt. Raises: CorruptChunk (from the body)."""
        ends_at = self._clock.monotonic() + request.timeout_s
        reader = None if request.body is None else _SentBody(request.body, self._clock, ends_at)
        body = {} if reader is None else {"Body": reader}
        try:
            call = getattr(self._client, request.method)
            fields: Mapping[str, Any] = call(**request.arguments, **body)
            return Answer(fields, self._read_body(fields, ends_at))
        except _ATTEMPT_ERRORS as error:
            cause = (reader and reader.stopped_by) or error
            if isinstance(cause, DisklessError):
                raise cause from error
            return Failed(_failure(cause), cause)

    def _read_body(self, fields: Mapping[str, Any], ends_at: float) -> bytes:
        if "Body" not in fields:
            return b""
        received: list[bytes] = []
        with fields["Body"] as stream:
            # read1 returns what has come, so the clock is looked at however slowly it trickles.
            while piece := stream.read1(PIECE_BYTES):
                received.append(piece)
                _check_time(self._clock, ends_at)
        return b"".join(received)


class _SentBody(BodyReader):
    """A body that stops being read when its attempt's time is over.

    `stopped_by` is what a read raised, for want of time or from the body itself: botocore reports
    either as a broken connection.
    """

    def __init__(self, body: ObjectBody, clock: Clock, ends_at: float) -> None:
        super().__init__(body)
        self._clock = clock
        self._ends_at = ends_at
        self.stopped_by: DisklessError | TimeoutError | None = None

    def read(self, length: int | None = -1) -> bytes:
        try:
            _check_time(self._clock, self._ends_at)
            return super().read(length)
        except (DisklessError, TimeoutError) as error:
            self.stopped_by = error
            raise


def _check_time(clock: Clock, ends_at: float) -> None:
    if clock.monotonic() > ends_at:
        raise TimeoutError("the attempt took too long")


def _failure(error: BaseException) -> Failure:
    """`failure_of`, knowing that botocore reports so only connections that never stood."""
    if isinstance(error, EndpointConnectionError):
        return Failure.NOT_APPLIED
    return failure_of(error)
