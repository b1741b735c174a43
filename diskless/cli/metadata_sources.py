"""Reads a metadata log for `diskless metadata` from a broker, a data directory or an object store.

- A broker is asked with a stock consumer, as anybody could: it serves the log as a topic.
- A data directory is opened as a broker opens it, which needs its lock and cuts a torn tail. While
  a broker has it, that broker has to be asked instead.
- An object store is only read; brokers may go on appending and pruning meanwhile.

Kafka's client is imported only where a broker is asked.

All of them give records in the order of each log, partition after partition, or, while following,
as they come. What was pruned is stepped over. Everything blocks.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from diskless.storage.data_directory import read_properties
from metadata.log.local_log import LocalMetadataLog
from metadata.log.log import MetadataLog
from metadata.log.log_object import log_prefix
from metadata.log.object_log import ObjectMetadataLog
from metadata.operations import METADATA_TOPIC
from metadata.replica.snapshot_format import snapshots_prefix
from wal.clock import SystemClock
from wal.errors import InvalidSettings, NotCoordinator, OutOfBounds, Rejected
from wal.security.client_security import PLAINTEXT, ClientSecurity
from wal.segmented_log.log_file_store import STORE_SUFFIX
from wal.stores.object_store import ObjectStore
from wal.stores.store_url import open_store, parse_store_url

FOLLOW_INTERVAL_S: Final = 1.0
"""How often a followed object store is listed."""

_READ_BYTES: Final = 4 << 20
_POLL_MS: Final = 500
_BROKER_SILENT_S: Final = 30.0
_BOOTSTRAP_TIMEOUT_MS: Final = 5_000

_Result = TypeVar("_Result")


class LoggedRecord(NamedTuple):
    """One metadata record where it lies; `value` is not decoded."""

    partition: int
    offset: int
    timestamp_ms: int
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Which records are wanted: of each of `partitions` the offsets [from_offset, to_offset)."""

    partitions: Sequence[int] = ()
    """Empty: all there are."""
    from_offset: int = 0
    to_offset: int | None = None
    """None: up to the end, or for ever."""
    follow: bool = False

    def chosen(self, existing: Sequence[int], where: str) -> Sequence[int]:
        """The wanted ones of the `existing` partitions. Raises InvalidSettings."""
        if not existing:
            raise InvalidSettings(f"{where} has no metadata log")
        missing = [index for index in self.partitions if index not in existing]
        if missing:
            raise InvalidSettings(
                f"{where} has no metadata partition {missing[0]}: 0 .. {max(existing)}"
            )
        return sorted(set(self.partitions)) or existing


# --- a broker ------------------------------------------------------------------------------------


def read_broker(
    bootstrap: str, wanted: Range, security: ClientSecurity = PLAINTEXT
) -> Generator[LoggedRecord, None, None]:
    """Consume the metadata topic. Raises: BrokerUnreachable, Rejected, InvalidSettings."""
    from kafka import KafkaConsumer, TopicPartition

    from diskless.cli.admin_connection import check_login, translated_errors

    check_login(bootstrap, security)
    with translated_errors(bootstrap):
        consumer = KafkaConsumer(
            bootstrap_servers=bootstrap,
            client_id="diskless-cli",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            allow_auto_create_topics=False,
            bootstrap_timeout_ms=_BOOTSTRAP_TIMEOUT_MS,
            **security.kafka_python(),
        )
        try:
            existing = consumer.partitions_for_topic(METADATA_TOPIC) or ()
            where = f"the broker at {bootstrap}"
            places = [
                TopicPartition(METADATA_TOPIC, index)
                for index in wanted.chosen(sorted(existing), where)
            ]
            starts = consumer.beginning_offsets(places)
            ends = consumer.end_offsets(places)
            for together in [places] if wanted.follow else [[place] for place in places]:
                consumer.assign(together)
                for place in together:
                    consumer.seek(place, max(wanted.from_offset, starts[place]))
                until = {
                    place: _end(wanted, None if wanted.follow else ends[place])
                    for place in together
                }
                yield from _consume(consumer, until, bootstrap, is_patient=wanted.follow)
        finally:
            consumer.close()


def _consume(
    consumer: Any, until: dict[Any, int | None], bootstrap: str, *, is_patient: bool
) -> Generator[LoggedRecord, None, None]:
    from diskless.cli.admin_connection import BrokerUnreachable

    clock = SystemClock()
    heard_at = clock.monotonic()
    while until:
        for place, messages in consumer.poll(_POLL_MS).items():
            heard_at = clock.monotonic()
            end = until.get(place)
            for message in messages:
                if place in until and (end is None or message.offset < end):
                    yield LoggedRecord(
                        message.partition, message.offset, message.timestamp, message.value
                    )
        for place, end in list(until.items()):
            if end is not None and consumer.position(place) >= end:
                del until[place]
        if not is_patient and clock.monotonic() - heard_at > _BROKER_SILENT_S:
            raise BrokerUnreachable(f"{bootstrap}: silent for {_BROKER_SILENT_S:.0f} s")


# --- a data directory ----------------------------------------------------------------------------


def read_directory(data: Path, wanted: Range) -> Generator[LoggedRecord, None, None]:
    """Read the local logs of a stopped broker.

    Raises: InvalidSettings (no local log there), Rejected (a broker is running on it), CorruptLog.
    """
    if wanted.follow:
        raise InvalidSettings("--follow needs a running broker (--bootstrap) or --store")
    read_properties(data)
    directories = {
        int(log.parent.name): log
        for log in (data / "metadata").glob("*/log")
        # A broker whose log is in the object store has an empty directory here.
        if log.parent.name.isdecimal() and any(log.glob(f"*{STORE_SUFFIX}"))
    }
    if not directories:
        raise InvalidSettings(
            f"{data} has no local metadata log; with diskless.metadata.log=object it is in the"
            f" object store: --store URL, which is file://{data.resolve() / 'objects'} by default"
        )
    for index in wanted.chosen(sorted(directories), str(data)):
        yield from _blocking(_read_directory(index, directories[index], wanted))


async def _read_directory(
    index: int, directory: Path, wanted: Range
) -> AsyncIterator[Sequence[LoggedRecord]]:
    try:
        log = await LocalMetadataLog.open(directory, rng=random.Random(0))
    except NotCoordinator as error:
        raise Rejected(
            f"a broker is running on it, ask that one with --bootstrap HOST:PORT: {error}"
        ) from error
    try:
        async for records in _LogReader(index, log, wanted).read():
            yield records
    finally:
        await log.close()


# --- an object store -----------------------------------------------------------------------------


def read_bucket(
    url: str, wanted: Range, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> Generator[LoggedRecord, None, None]:
    """Read the object logs below a store's prefix.

    Raises: InvalidSettings (no object log there), CorruptLog, StorageFailed.
    """
    return _blocking(_read_bucket(url, wanted, sleep))


async def _read_bucket(
    url: str, wanted: Range, sleep: Callable[[float], Awaitable[None]]
) -> AsyncIterator[Sequence[LoggedRecord]]:
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(existing_store(url))
        existing = await stored_partitions(store, log_prefix)
        readers = []
        for index in wanted.chosen(existing, url):
            log = await ObjectMetadataLog.open(
                store, index, clock=SystemClock(), rng=random.Random(0)
            )
            stack.push_async_callback(log.close)
            readers.append(_LogReader(index, log, wanted))
        while True:
            for reader in readers:
                async for records in reader.read():
                    yield records
            if not wanted.follow or all(reader.is_done for reader in readers):
                return
            await sleep(FOLLOW_INTERVAL_S)
            for reader in readers:
                await reader.log.refresh()


def existing_store(url: str) -> ObjectStore:
    """An object store to be entered; reading must not create a directory for a misspelt one."""
    location = parse_store_url(url)
    if location.scheme == "file" and not Path(location.place).is_dir():
        raise InvalidSettings(f"{url}: no such directory")
    return open_store(url, clock=SystemClock(), rng=random.Random(0))


async def stored_partitions(store: ObjectStore, *prefixes: Callable[[int], str]) -> Sequence[int]:
    """Metadata partitions of which `store` has anything below one of `prefixes`; they have no gaps.

    Asked one by one: listing everything below `meta/` might take long.
    """
    index = 0
    while True:
        for prefix in prefixes:
            if await _is_any_below(store, prefix(index)):
                break
        else:
            return range(index)
        index += 1


async def snapshot_partitions(store: ObjectStore) -> Sequence[int]:
    """Metadata partitions with a log or snapshots in `store`."""
    return await stored_partitions(store, log_prefix, snapshots_prefix)


async def _is_any_below(store: ObjectStore, prefix: str) -> bool:
    listing = store.list(prefix)
    try:
        return await anext(listing, None) is not None
    finally:
        if isinstance(listing, AsyncGenerator):
            await listing.aclose()


# --- a metadata log ------------------------------------------------------------------------------


class _LogReader:
    """Reads one log from where it stopped the last time up to its end."""

    def __init__(self, partition: int, log: MetadataLog, wanted: Range) -> None:
        self.log = log
        self._partition = partition
        self._wanted = wanted
        self._offset = max(wanted.from_offset, log.start_offset)

    @property
    def is_done(self) -> bool:
        to_offset = self._wanted.to_offset
        return to_offset is not None and self._offset >= to_offset

    async def read(self) -> AsyncIterator[Sequence[LoggedRecord]]:
        end = _end(self._wanted, self.log.end_offset)
        assert end is not None
        while self._offset < end:
            try:
                batches = await self.log.read(self._offset, _READ_BYTES)
            except OutOfBounds:
                if self.log.start_offset <= self._offset:
                    raise
                self._offset = self.log.start_offset
                continue
            records = [
                LoggedRecord(self._partition, offset, batch.timestamp_ms, value)
                for batch in batches
                for offset, value in enumerate(batch.records, batch.base_offset)
                if self._offset <= offset < end
            ]
            self._offset = batches[-1].next_offset
            yield records


def _end(wanted: Range, log_end: int | None) -> int | None:
    ends = [end for end in (wanted.to_offset, log_end) if end is not None]
    return min(ends, default=None)


def _blocking(batches: AsyncIterator[Sequence[_Result]]) -> Generator[_Result, None, None]:
    """What an asynchronous generator gives, on an event loop of its own."""

    async def following() -> Sequence[_Result] | None:
        return await anext(batches, None)

    async def close() -> None:
        if isinstance(batches, AsyncGenerator):
            await batches.aclose()

    with asyncio.Runner() as runner:
        try:
            while (batch := runner.run(following())) is not None:
                yield from batch
        finally:
            runner.run(close())
