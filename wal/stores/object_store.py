"""Defines what this project asks of an object store: six operations, one contract.

Implementations: `wal.stores.file_store` (a directory), `wal.stores.memory_store` (tests),
`wal.stores.s3_store`. All pass `tests/wal/stores/test_object_store_contract.py`.
`wal.stores.store_url.open_store` picks one by URL. What of it a Spark task needs,
`wal.stores.blocking_store` offers without an event loop.

Rules every implementation keeps:

- `put` is put-if-absent and atomic: a reader sees all of the object or none of it. When `put`
  returns, the object is durable, its stored length and checksum were verified. A body can be read
  again from its start for every attempt; an attempt never sends what an earlier one left over.
- A put whose response was lost is recognised (by its put-id where the store can keep one) and is a
  success, not a conflict. So is a put of exactly the bytes that are stored under the key already:
  that is how a chunk recovered after a crash uploads again without knowing what the lost process
  achieved. An election by `put` therefore puts something of its own into the body.
- The body's buffers are not touched after `put` returned or raised, even when it was cancelled.
- Every call has a deadline. Retries are bounded, jittered, and only where repeating is safe.
- Foreign exceptions are translated: ObjectStoreUnavailable (did not happen), UploadOutcomeUnknown
  (may still happen), ObjectExists, ObjectNotFound.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Final, NamedTuple, Protocol, Self, runtime_checkable

from wal.coordinates import ObjectKey
from wal.errors import Rejected

OBJECT_KEY_BYTES_MAX: Final = 900
"""S3 allows 1024 bytes; the store's prefix needs some of them."""

STAGING_DIRECTORY: Final = ".diskless-puts"
"""Where the file store keeps unfinished puts; no key may start with it, in any store."""

Buffer = bytes | bytearray | memoryview


class ObjectBody(Protocol):
    """Bytes to put, as fragments that are never joined. Plain `bytes` go in `BytesBody`."""

    @property
    def length_bytes(self) -> int: ...

    def fragments(self) -> Iterable[Buffer]:
        """The whole content from its start, each time it is called; may block on a disk.

        A fragment is valid until the next one is asked for, except that the fragments of a list
        or tuple are all valid together. The memory of the last one that was asked for is not used
        for anything else while somebody refers to it. Raises CorruptChunk when the source fails
        its own checks; then nothing is stored.
        """
        ...


@runtime_checkable
class ChecksummedBody(ObjectBody, Protocol):
    """A body that knows its checksum before it is read."""

    def crc32c(self) -> int:
        """CRC32C of the whole content; may take a thread's time, but reads nothing."""
        ...


def is_in_memory(fragments: Iterable[Buffer]) -> bool:
    """Whether these are all there, for as long as their body's put takes."""
    return isinstance(fragments, (list, tuple))


class BytesBody:
    """A body that is in memory already, as one or several buffers."""

    def __init__(self, *buffers: Buffer) -> None:
        self._buffers = buffers
        self.length_bytes = sum(len(memoryview(buffer).cast("B")) for buffer in buffers)

    def fragments(self) -> Iterable[Buffer]:
        return self._buffers


class ObjectStat(NamedTuple):
    """One stored object, as `head` and `list` tell it."""

    key: ObjectKey
    length_bytes: int
    last_modified_ms: int
    """By the store's own clock; S3 gives whole seconds."""


class StoreStatistics(NamedTuple):
    """Counters since the store was opened; requests include retries."""

    puts: int = 0
    put_bytes: int = 0
    gets: int = 0
    get_bytes: int = 0
    heads: int = 0
    lists: int = 0
    deletes: int = 0
    retries: int = 0
    errors: int = 0


@dataclass(slots=True)
class StoreCounters:
    """What an implementation counts; only its event loop writes it."""

    puts: int = 0
    put_bytes: int = 0
    gets: int = 0
    get_bytes: int = 0
    heads: int = 0
    lists: int = 0
    deletes: int = 0
    retries: int = 0
    errors: int = 0

    def snapshot(self) -> StoreStatistics:
        return StoreStatistics(*astuple(self))


def check_object_key(key: str) -> None:
    """Raise Rejected unless `key` can name an object in every store.

    Slash-separated non-empty names, none of them `.` or `..`, no control characters, at most
    OBJECT_KEY_BYTES_MAX bytes of UTF-8. The first name may not be the file store's own directory.
    """
    names = key.split("/")
    if (
        any(name in ("", ".", "..") for name in names)
        or not key.isprintable()
        or names[0] == STAGING_DIRECTORY
    ):
        raise Rejected(f"not an object key: {key!r}")
    if len(key.encode()) > OBJECT_KEY_BYTES_MAX:
        raise Rejected(f"object key longer than {OBJECT_KEY_BYTES_MAX} bytes: {key!r}")


def may_start_object_keys(prefix: str) -> bool:
    """Whether objects are looked for below `prefix`: not where a name in it is none of a key.

    A last name of `.` or `..` counts as whole, although `..x` starts with it: MinIO lists neither.
    """
    *whole, last = prefix.split("/")
    return last not in (".", "..") and not any(name in ("", ".", "..") for name in whole)


class ObjectStore(Protocol):
    """An S3-like bucket below one prefix. Async context manager: its user enters and closes it."""

    @property
    def url(self) -> str:
        """The URL that opens the same store again, without secrets."""
        ...

    def statistics(self) -> StoreStatistics: ...

    async def put(self, key: ObjectKey, body: ObjectBody) -> None:
        """Store `body` under `key` unless the key exists; durable and verified on return.

        Raises: ObjectExists (other bytes are there), ObjectStoreUnavailable, UploadOutcomeUnknown
        (repeat with the same key and body only), CorruptChunk (from the body), CorruptObject (the
        body is not as long as it says; nothing was stored), Rejected (not a key).
        """
        ...

    async def get(self, key: ObjectKey) -> bytes:
        """The whole object. Raises: ObjectNotFound, ObjectStoreUnavailable."""
        ...

    async def get_range(self, key: ObjectKey, start: int, length: int) -> bytes:
        """Exactly bytes [start, start + length); a range past the end is an error.

        Raises: ObjectNotFound, CorruptObject (the object is shorter), ObjectStoreUnavailable.
        """
        ...

    async def head(self, key: ObjectKey) -> ObjectStat:
        """Raises: ObjectNotFound, ObjectStoreUnavailable."""
        ...

    def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectStat]:
        """Objects whose key starts with `prefix` and sorts after `start_after`, in key order.

        A listing is no snapshot. It shows every object that was there when the call was made (its
        put had returned, or a get, head or listing had shown it) and that nobody deletes before
        the listing ends. It shows no object whose delete had been confirmed before the call. Of
        puts and deletes that happen meanwhile it shows any subset: a later one without an
        earlier one, too. So an object that is missing beside a newer one may be about to show. A
        caller to whom that matters asks for it by name.

        "The call" is the first step of the iterator; before it, the store is asked nothing.
        Raises: ObjectStoreUnavailable.
        """
        ...

    async def delete(self, keys: Sequence[ObjectKey]) -> Sequence[ObjectKey]:
        """Delete many; returns the keys confirmed gone, absent ones included.

        Raises: ObjectStoreUnavailable when not even one request could be made.
        """
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...


@runtime_checkable
class ThreadPuts(Protocol):
    """A store that also takes a put of who has a thread already: one hand-over less."""

    def put_in_thread(
        self,
        key: ObjectKey,
        body: ObjectBody,
        abandoned: Callable[[], bool],
        meanwhile: Callable[[], object] | None = None,
    ) -> None:
        """`ObjectStore.put`, blocking; ObjectStoreUnavailable too when `abandoned` says so.

        `meanwhile` may block. It is called when the store has taken all of the object, beside the
        disk that makes it durable and before anybody can find it; `abandoned` is asked once more
        behind it. It is not called where the put fails before.

        The fragments of `body` may come as slowly as they like, and be there for one reading; its
        length need not be known before the last of them.

        Nothing is counted: `put_noted` does so, on the event loop, for those that succeeded. What
        failed is put again by `put`.
        """
        ...

    def put_noted(self, length_bytes: int) -> None: ...
