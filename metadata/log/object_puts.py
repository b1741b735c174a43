"""What became of a put to the metadata log in an object store.

When the answer of a put is lost, the put may still be on its way, and land at any later time. So
nothing else is put at that offset by this process until it is known what lies there: the identical
bytes, whose put-id no other append has, are put again. Either they are stored now or are found
stored: the append happened, and once, because a copy that is still on its way meets an object. Or
something else was there first: the append did not happen and never will, for the same reason. When
the store does not answer for as long as the limits allow it is CommitOutcomeUnknown.

Used by metadata/log/object_log.py alone, which tells how leaders are fenced. A listing is asked
what lies behind an object; one that took as long as the prune delay is not believed when it shows
nothing.
"""

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from metadata.log.log_object import LogObject, LogObjectHeader, decode_header
from metadata.log.object_log_reader import ListedObject, ObjectLogReader
from wal import errors
from wal.clock import Clock, Sleep
from wal.stores.object_store import BytesBody, ObjectStore
from wal.stores.retry import Retries, RetryLimits

_Result = TypeVar("_Result")


class ObjectPuts:
    """The puts of one metadata partition."""

    def __init__(
        self,
        store: ObjectStore,
        partition: int,
        reader: ObjectLogReader,
        *,
        clock: Clock,
        rng: random.Random,
        prune_delay_ms: int,
        limits: RetryLimits,
        sleep: Sleep,
    ) -> None:
        self._store = store
        self._partition = partition
        self._reader = reader
        self._clock = clock
        self._rng = rng
        self._prune_delay_s = prune_delay_ms / 1000
        self._limits = limits
        self._sleep = sleep

    async def put(self, made: LogObject) -> LogObjectHeader | None:
        """Put an object, and find out what became of it.

        None: it is there. Otherwise the header of what is there in its place.
        Raises: CommitFailed, CommitOutcomeUnknown.
        """
        key = self._reader.key(made.header.base_offset)
        body = BytesBody(made.data)
        retries = self._retries()
        may_land = False
        cause: errors.DisklessError
        while True:
            try:
                await self._store.put(key, body)
                return None
            except errors.ObjectExists:
                try:
                    stored = await self._store.get(key)
                    if stored == made.data:
                        return None
                    return decode_header(self._partition, key, stored)
                except errors.DisklessError as error:
                    # Also when it is gone again: then whoever leads now has pruned it.
                    cause = error
                    may_land = True
            except errors.ObjectStoreUnavailable as error:
                if not may_land:
                    raise errors.CommitFailed(f"{key}: {error}") from error
                cause = error
            except errors.DisklessError as error:
                cause = error
                may_land = True
            delay_s = retries.next_delay_s()
            if delay_s is None:
                attempts = f"unknown after {retries.attempts} attempts"
                raise errors.CommitOutcomeUnknown(f"{key}: {attempts}: {cause}") from cause
            await self._sleep(delay_s)

    async def refuse(self, foreign: LogObjectHeader, *, in_time: bool) -> None:
        """Raise what it means that `foreign` lies where this leader wanted to append.

        Nothing of ours is in the log, unless ours was there between two attempts and was pruned,
        and `foreign` is a stray; its successor tells.
        """
        where = f"{self._reader.key(foreign.base_offset)}: another writer has appended there"
        if not in_time and not await self._is_in_log(foreign):
            raise errors.CommitOutcomeUnknown(f"{where}, and the log has gone on without it")
        raise errors.NotCoordinator(where)

    async def is_last(self, header: LogObjectHeader) -> bool:
        """Whether nothing lies behind an object that is there. Raises: CommitOutcomeUnknown."""
        return not await self._settled(lambda: self._behind(header))

    async def _is_in_log(self, header: LogObjectHeader) -> bool:
        """Whether readers believe an object that is there. Raises: CommitOutcomeUnknown."""

        async def is_named_or_last() -> bool:
            # By name: a listing might show what is behind its successor, and not that.
            is_last = not await self._behind(header)
            try:
                successor = await self._reader.header(header.next_offset)
            except errors.ObjectNotFound:
                return is_last
            return successor.previous_put_id == header.put_id

        return await self._settled(is_named_or_last)

    async def _behind(self, header: LogObjectHeader) -> Sequence[ListedObject]:
        """The first object behind one that is there. Raises: StorageFailed."""
        began = self._clock.monotonic()
        listed = await self._reader.list(after=header.base_offset, limit=1)
        if not listed and self._clock.monotonic() - began >= self._prune_delay_s:
            raise errors.StorageFailed(
                f"{self._reader.prefix}: a listing took longer than the prune delay; what it does"
                " not show may have come and gone meanwhile"
            )
        return listed

    async def _settled(self, look: Callable[[], Awaitable[_Result]]) -> _Result:
        """What `look` finds, tried again for a while. Raises: CommitOutcomeUnknown."""
        retries = self._retries()
        while True:
            try:
                return await look()
            except errors.StorageFailed as error:
                delay_s = retries.next_delay_s()
                if delay_s is None:
                    raise errors.CommitOutcomeUnknown(str(error)) from error
                await self._sleep(delay_s)
            except errors.CorruptLog as error:
                raise errors.CommitOutcomeUnknown(str(error)) from error

    def _retries(self) -> Retries:
        return Retries(self._limits, clock=self._clock, rng=self._rng)
