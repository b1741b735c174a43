"""The operations of the S3 stores, without their I/O: the next request, and what its answer means.

Two stores speak to S3: `wal.stores.s3_store` for the broker's event loop and
`wal.stores.blocking_s3_store` for the threads of Spark tasks. What they promise
(`wal.stores.object_store`) is decided once, here. An operation is a generator; its store makes the
steps that it yields and sends back what came of them:

| step | sent back |
|---|---|
| `Request`: one attempt at one request, within its timeout | `Answer` or `Failed` |
| `BodyWork`: read the caller's body, which may block on a disk | what `work()` returned |
| `Wait`: before the next attempt | None, after that time |

    step = next(operation)
    while True:
        step = operation.send(perform(step))    # StopIteration.value is the operation's result

A store translates its client's exceptions into `Failed`, with what each means; whatever else it
raises ends the operation. The generator raises the errors of the contract. It ends by itself: every
`Wait` is granted by `wal.stores.retry.Retries`, within attempts and deadline, and counts as a
retry. No state is kept between operations, so any number of them may run at once, in any threads,
as long as the clock and the random generator allow it.
"""

import random
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

from wal.clock import Clock
from wal.coordinates import ObjectKey
from wal.errors import (
    CorruptObject,
    ObjectExists,
    ObjectNotFound,
    ObjectStoreRefused,
    ObjectStoreUnavailable,
    UploadOutcomeUnknown,
)
from wal.stores.object_store import (
    ObjectBody,
    ObjectStat,
    check_object_key,
    is_in_memory,
    may_start_object_keys,
)
from wal.stores.retry import Retries
from wal.stores.s3_protocol import (
    COMPARE_BYTES,
    PIECE_BYTES,
    PUT_ID_METADATA,
    BodyReader,
    Failure,
    S3Location,
    body_checksum,
    check_range,
    check_stored,
    check_whole,
    full_checksum,
    last_modified_ms,
    new_put_id,
    put_arguments,
)
from wal.stores.s3_refusals import explain_refusal
from wal.stores.s3_settings import S3Settings

_Result = TypeVar("_Result")
Method = Literal["put_object", "get_object", "head_object", "list_objects_v2", "delete_objects"]

_WORTH_REPEATING: Final = (Failure.NOT_APPLIED, Failure.MAYBE_APPLIED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One attempt: the client's method of that name, with these arguments and `body` as Body."""

    method: Method
    arguments: Mapping[str, Any]
    body: ObjectBody | None
    timeout_s: float
    """For all of it, the body of the answer included."""


@dataclass(frozen=True, slots=True)
class BodyWork:
    """Something that reads the caller's body; its errors (CorruptChunk) end the operation."""

    work: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Wait:
    """Time to let pass before the next attempt."""

    seconds: float


Step: TypeAlias = Request | BodyWork | Wait
Operation: TypeAlias = Generator[Step, Any, _Result]


class Answer(NamedTuple):
    """S3 did what it was asked for, in as far as its answer tells."""

    fields: Mapping[str, Any]
    data: bytes
    """The whole body of a GetObject's answer; empty for other requests."""


class Failed(NamedTuple):
    """An attempt that came to nothing, or to nothing that is known."""

    failure: Failure
    cause: BaseException
    sent_again: bool = False
    """Whether the client sent it more than once: then any of them may have been applied."""


class ListPage(NamedTuple):
    """A part of a listing, in key order."""

    stats: Sequence[ObjectStat]
    is_last: bool


class S3Operations:
    """Every operation on one prefix of one bucket."""

    def __init__(
        self, location: S3Location, *, clock: Clock, rng: random.Random, settings: S3Settings
    ) -> None:
        self._location = location
        self._clock = clock
        self._rng = rng
        self._settings = settings

    # -- put

    def put(self, key: ObjectKey, body: ObjectBody) -> Operation[None]:
        """See `ObjectStore.put`; `wal.stores.s3_protocol` tells how it stays exact."""
        check_object_key(key)
        work = partial(body_checksum, key, body)
        # What is short and in memory takes less time than the way to a thread and back.
        is_quick = body.length_bytes <= PIECE_BYTES and is_in_memory(body.fragments())
        checksum: str = work() if is_quick else (yield BodyWork(work))
        put_id = new_put_id(self._rng)
        arguments = put_arguments(self._location, checksum, put_id)
        retries = self._retries()
        maybe_applied = False
        while True:
            outcome: Answer | Failed
            outcome = yield self._request("put_object", retries, key, body, **arguments)
            try:
                if isinstance(outcome, Answer):
                    maybe_applied = True
                    yield from self._verify(key, outcome, body.length_bytes, checksum, retries)
                    return
                maybe_applied |= outcome.sent_again or outcome.failure is Failure.MAYBE_APPLIED
                worth_repeating = outcome.failure in _WORTH_REPEATING
                if outcome.failure is Failure.EXISTS:
                    if (yield from self._is_ours(key, body, checksum, put_id, retries)):
                        return
                    worth_repeating = True  # what stood in the way is gone again
            except ObjectStoreUnavailable as error:
                if maybe_applied:
                    raise UploadOutcomeUnknown(str(error)) from error
                raise
            delay_s = retries.next_delay_s() if worth_repeating else None
            if delay_s is None:
                reason = _reason(key, retries, outcome.cause)
                if maybe_applied:
                    if (yield from self._has_landed(key, body, checksum, put_id, retries)):
                        return
                    raise UploadOutcomeUnknown(reason) from outcome.cause
                if outcome.failure is Failure.REFUSED:
                    raise self._refused("put_object", key, outcome.cause) from outcome.cause
                raise ObjectStoreUnavailable(reason) from outcome.cause
            yield Wait(delay_s)

    def _has_landed(
        self, key: ObjectKey, body: ObjectBody, checksum: str, put_id: str, retries: Retries
    ) -> Operation[bool]:
        """The last look before a put is given up: whether it is there after all.

        Absent means little: an attempt of which nobody has heard may land later.
        Raises: ObjectExists, CorruptObject.
        """
        if retries.remaining_s() <= 0:
            return False
        try:
            return (yield from self._is_ours(key, body, checksum, put_id, retries))
        except ObjectStoreUnavailable:
            return False

    def _verify(
        self, key: ObjectKey, answer: Answer, length: int, checksum: str, retries: Retries
    ) -> Operation[None]:
        """After a 200. Raises: CorruptObject, ObjectStoreUnavailable (not known)."""
        if full_checksum(answer.fields) == checksum:
            return
        # This server does not tell in its answer what it has stored.
        try:
            stored = yield from self._head(key, retries)
        except ObjectNotFound as error:
            raise ObjectStoreUnavailable(f"{key}: put, and not there") from error
        check_stored(key, stored, length, checksum)

    def _is_ours(
        self, key: ObjectKey, body: ObjectBody, checksum: str, put_id: str, retries: Retries
    ) -> Operation[bool]:
        """After a 412: True when the object is what we put, False when it is gone again.

        Raises: ObjectExists, CorruptObject, ObjectStoreUnavailable (not known).
        """
        try:
            stored = yield from self._head(key, retries)
            if stored.get("Metadata", {}).get(PUT_ID_METADATA) == put_id:
                check_stored(key, stored, body.length_bytes, checksum)
                return True
            if (
                int(stored["ContentLength"]) == body.length_bytes
                and full_checksum(stored) in (None, checksum)
                and (yield from self._has_content(key, body, retries))
            ):
                return True
        except ObjectNotFound:
            return False
        raise ObjectExists(f"{self._location.url}: {key}")

    def _has_content(self, key: ObjectKey, body: ObjectBody, retries: Retries) -> Operation[bool]:
        """Whether the stored object, which is as long as the body, has the body's bytes."""
        reader = BodyReader(body)
        for start in range(0, body.length_bytes, COMPARE_BYTES):
            length = min(COMPARE_BYTES, body.length_bytes - start)
            stored = yield from self._get_range(key, start, length, retries)
            equal: bool = yield BodyWork(partial(reader.continues_with, stored))
            if not equal:
                return False
        return True

    # -- read

    def get(self, key: ObjectKey) -> Operation[bytes]:
        """See `ObjectStore.get`."""

        def whole(answer: Answer) -> bytes:
            check_whole(key, answer.fields, answer.data)
            return answer.data

        return self._repeat("get_object", self._retries(), key, whole, ChecksumMode="ENABLED")

    def get_range(self, key: ObjectKey, start: int, length: int) -> Operation[bytes]:
        """See `ObjectStore.get_range`."""
        if start >= 0 and length > 0:
            return (yield from self._get_range(key, start, length, self._retries()))
        # HTTP has no empty range.
        stored = yield from self._head(key, self._retries())
        size = int(stored["ContentLength"])
        if start < 0 or length < 0 or start > size:
            raise CorruptObject(f"{key}: no bytes [{start}, {start + length}): it has {size}")
        return b""

    def _get_range(
        self, key: ObjectKey, start: int, length: int, retries: Retries
    ) -> Operation[bytes]:
        def exact(answer: Answer) -> bytes:
            check_range(key, answer.fields, answer.data, start, length)
            return answer.data

        wanted = f"bytes={start}-{start + length - 1}"
        return self._repeat("get_object", retries, key, exact, Range=wanted)

    def head(self, key: ObjectKey) -> Operation[ObjectStat]:
        """See `ObjectStore.head`."""
        stored = yield from self._head(key, self._retries())
        return ObjectStat(key, int(stored["ContentLength"]), last_modified_ms(stored))

    def _head(self, key: ObjectKey, retries: Retries) -> Operation[Mapping[str, Any]]:
        return self._repeat("head_object", retries, key, _fields, ChecksumMode="ENABLED")

    def list_page(self, prefix: str, start_after: str) -> Operation[ListPage]:
        """The next keys of `ObjectStore.list`.

        By key, not by continuation token: a token cannot be used again by another process, and
        some servers' tokens go wrong with keys that need encoding. Only where a server gives an
        empty page and says that more follows, as some do behind many delete markers, there is no
        key to go on from, and its token is followed.
        """
        if not may_start_object_keys(prefix):
            return ListPage((), is_last=True)  # MinIO would refuse the request
        location = self._location
        retries = self._retries()
        start: dict[str, str] = {"StartAfter": location.name_of(start_after)} if start_after else {}
        while True:
            page = yield from self._repeat(
                "list_objects_v2",
                retries,
                None,
                _fields,
                Prefix=location.name_of(prefix),
                MaxKeys=self._settings.list_page,
                **start,
            )
            if page.get("Contents") or not page.get("IsTruncated"):
                break
            token = page.get("NextContinuationToken")
            if not token or token == start.get("ContinuationToken"):
                raise ObjectStoreUnavailable(
                    f"{location.url}: LIST after {start_after!r} is empty, not the last, and"
                    " does not say how to go on"
                )
            start = {"ContinuationToken": token}
            retries = self._retries()
        stats = [
            ObjectStat(location.key_of(entry), int(entry["Size"]), last_modified_ms(entry))
            for entry in page.get("Contents", ())
        ]
        if stats and stats[0].key <= start_after:
            # A server that does not look at StartAfter: going on would never end.
            raise ObjectStoreUnavailable(
                f"{location.url}: LIST after {start_after!r} answered {stats[0].key!r}"
            )
        return ListPage(stats, is_last=not page.get("IsTruncated"))

    # -- delete

    def delete(self, keys: Sequence[ObjectKey]) -> Operation[Sequence[ObjectKey]]:
        """Those of at most DELETE_KEYS_MAX keys that are confirmed gone."""
        objects = [{"Key": self._location.name_of(key)} for key in keys]
        answer = yield from self._repeat(
            "delete_objects",
            self._retries(),
            None,
            _fields,
            Delete={"Objects": objects, "Quiet": False},
        )
        asked = set(keys)
        confirmed = map(self._location.key_of, answer.get("Deleted", ()))
        return [key for key in confirmed if key in asked]

    # -- attempts

    def _retries(self) -> Retries:
        return Retries(self._settings.retry_limits(), clock=self._clock, rng=self._rng)

    def _refused(
        self, method: Method, key: ObjectKey | None, cause: BaseException
    ) -> ObjectStoreRefused:
        return ObjectStoreRefused(explain_refusal(self._location.url, method, key, cause))

    def _request(
        self,
        method: Method,
        retries: Retries,
        key: ObjectKey | None,
        body: ObjectBody | None = None,
        **arguments: Any,
    ) -> Request:
        named = {} if key is None else {"Key": self._location.name_of(key)}
        return Request(
            method=method,
            arguments={"Bucket": self._location.bucket, **named, **arguments},
            body=body,
            timeout_s=min(self._settings.attempt_timeout_ms / 1000, retries.remaining_s()),
        )

    def _repeat(
        self,
        method: Method,
        retries: Retries,
        key: ObjectKey | None,
        result: Callable[[Answer], _Result],
        **arguments: Any,
    ) -> Operation[_Result]:
        """`result` of the first good answer to a request that may be repeated freely.

        Wrong bytes (`result` raises CorruptObject) are asked for once more; then they are what the
        store has. `key` is None for a request that is not about one object.
        Raises: ObjectNotFound, CorruptObject, ObjectStoreUnavailable, ObjectStoreRefused; Rejected
        for what is no key: some servers say that there is none, MinIO refuses the request.
        """
        if key is not None:
            check_object_key(key)
        what = key or method
        refetched = False
        while True:
            delay_s = None
            outcome: Answer | Failed = yield self._request(method, retries, key, **arguments)
            if isinstance(outcome, Answer):
                try:
                    return result(outcome)
                except CorruptObject:
                    if not refetched:
                        refetched = True
                        delay_s = retries.next_delay_s()
                    if delay_s is None:
                        raise
            else:
                failure, cause = outcome.failure, outcome.cause
                if failure is Failure.NOT_FOUND:
                    raise ObjectNotFound(f"{self._location.url}: {what}") from cause
                if failure is Failure.OUT_OF_RANGE:
                    raise CorruptObject(f"{what}: shorter than the range asked for") from cause
                if failure is Failure.REFUSED:
                    raise self._refused(method, key, cause) from cause
                if failure in _WORTH_REPEATING:
                    delay_s = retries.next_delay_s()
                if delay_s is None:
                    raise ObjectStoreUnavailable(_reason(what, retries, cause)) from cause
            yield Wait(delay_s)


def _fields(answer: Answer) -> Mapping[str, Any]:
    return answer.fields


def _reason(what: str, retries: Retries, cause: BaseException) -> str:
    return f"{what}: {cause!r} (attempt {retries.attempts})"
