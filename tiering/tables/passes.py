"""The passes over all tables of one tiering job: the store and the registrar that they share.

PyIceberg is imported, and the store opened, when there is a table for the first time: a job without
tables needs neither. The driver reads footers and writes metadata files, so it has to reach the
bucket, which the roll leaves to its tasks.

Failure cases: InvalidSettings (PyIceberg is missing, no URL of a store); what the coordinators
raise after `repeated` gave up.
"""

import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Protocol, Self

from metadata.table_operations import (
    CommitTable,
    ListedSegments,
    ListedTables,
    ListSegments,
    ListTables,
    TableCommit,
    TableDescription,
)
from tiering.coordinator_client import repeated
from tiering.tables.live_segments import TableClient
from tiering.tables.report import TablesReport
from wal.clock import Clock
from wal.errors import InvalidSettings
from wal.stores.blocking_store import open_blocking_store


class TableWriter(Protocol):
    """The registrar, as far as it can be known without PyIceberg."""

    def run_pass(self, tables: Sequence[TableDescription]) -> TablesReport: ...


class TablePasses:
    """Writes tables, pass by pass; a context manager."""

    def __init__(
        self,
        client: TableClient,
        asked: ListTables,
        *,
        object_store_url: str | None,
        clock: Clock,
        rng: random.Random,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`object_store_url` replaces the one the broker gives, for this job alone."""
        self._client = _PatientClient(client, sleep)
        self._asked = asked
        self._object_store_url = object_store_url
        self._clock = clock
        self._rng = rng
        self._stack = ExitStack()
        self._writer: TableWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer = None
        self._stack.close()

    def run_pass(self) -> TablesReport:
        """Write those tables that are due."""
        listed = self._client.list_tables(self._asked)
        if not listed.tables:
            return TablesReport()
        if self._writer is None:
            self._writer = self._open(listed.object_store_url)
        return self._writer.run_pass(listed.tables)

    def _open(self, told_url: str) -> TableWriter:
        url = self._object_store_url or told_url
        if not url:
            raise InvalidSettings("the broker names no object store; give its URL")
        try:
            from tiering.tables.registrar import Registrar
        except ModuleNotFoundError as error:
            if error.name != "pyiceberg":
                raise
            raise InvalidSettings(
                "a topic has table.enabled=true, and tables need PyIceberg: "
                "pip install 'diskless[tables]'"
            ) from error
        store = self._stack.enter_context(
            open_blocking_store(url, clock=self._clock, rng=self._rng)
        )
        return Registrar(self._client, store, told_url or url, clock=self._clock, rng=self._rng)


class _PatientClient:
    """Asks again while that may help; all operations on tables are safe to repeat."""

    def __init__(self, client: TableClient, sleep: Callable[[float], None]) -> None:
        self._client = client
        self._sleep = sleep

    def list_tables(self, asked: ListTables) -> ListedTables:
        return repeated(lambda: self._client.list_tables(asked), self._sleep)

    def list_segments(self, asked: Sequence[ListSegments]) -> Sequence[ListedSegments]:
        return repeated(lambda: self._client.list_segments(asked), self._sleep)

    def commit_table(self, commit: CommitTable) -> TableCommit:
        return repeated(lambda: self._client.commit_table(commit), self._sleep)
