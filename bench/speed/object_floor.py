"""What one small WAL object costs when nothing but the durable work is done, in one thread.

The same files in the same order as a broker's: two chunk files, written over in place; an object
that is written, synced, linked and whose directory is synced; a record in a log that is synced; and
one SQLite transaction with the state's rows of an object of four batches. No socket, no event loop,
no other thread, nothing decided, nothing checked but the object's CRC. So it is what a broker in
Python cannot go below, and the distance to `small_object_cpu_ms` is what the broker adds.
"""

import os
import time
from pathlib import Path
from typing import Final, Self

from sqlalchemy import create_engine

from metadata.state import schema
from wal.crc import crc32c
from wal.ulid import wal_object_key

BATCHES: Final = 4
BATCH_BYTES: Final = 15 << 10
_ENTRY_BYTES: Final = 100
_WINDOW_BYTES: Final = 64


class ObjectFloor:
    """The files of one broker that does nothing else; closed by its `with`."""

    def __init__(self, directory: Path) -> None:
        self._objects = directory / "objects"
        self._objects.mkdir(parents=True)
        self._drafts = directory / "drafts"
        self._drafts.mkdir()
        self._chunk = [directory / "chunk.data", directory / "chunk.idx"]
        for path in self._chunk:
            path.touch()
        self._log = os.open(directory / "log", os.O_RDWR | os.O_CREAT)
        self._log_index = os.open(directory / "log.index", os.O_RDWR | os.O_CREAT)
        self._engine = create_engine(f"sqlite:///{directory / 'state.db'}")
        with self._engine.begin() as connection:
            schema.SCHEMA.create_all(connection)
        self._connection = self._engine.raw_connection()
        driver = self._connection.driver_connection
        assert driver is not None
        self._state = driver
        self._state.isolation_level = None
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL"):
            self._state.execute(f"PRAGMA {pragma}").close()
        self._batch = os.urandom(BATCH_BYTES)
        self._done = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # SQLite has its index of the WAL mapped: who cut that file would end this process.
        self._connection.close()
        self._engine.dispose()
        os.close(self._log)
        os.close(self._log_index)

    def run(self, objects: int) -> float:
        """Processor seconds of so many objects, one after the other."""
        began = time.process_time()
        for _ in range(objects):
            self._write_chunk()
            self._put()
            self._append_to_log()
            self._apply()
            self._done += 1
        return time.process_time() - began

    def _write_chunk(self) -> None:
        data, index = [os.open(path, os.O_RDWR) for path in self._chunk]
        os.pwritev(index, [bytes(64)], 0)
        os.pwritev(data, [self._batch] * BATCHES, 0)
        os.pwritev(index, [bytes(_ENTRY_BYTES * BATCHES)], 64)
        os.close(data)
        os.close(index)

    def _put(self) -> None:
        draft = self._drafts / str(self._done)
        to = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        chunk = os.open(self._chunk[0], os.O_RDONLY)
        data = bytearray(BATCHES * BATCH_BYTES)
        os.preadv(chunk, [data], 0)
        os.close(chunk)
        footer = crc32c(data).to_bytes(_ENTRY_BYTES * BATCHES, "big")
        os.writev(to, [data, footer])
        os.fdatasync(to)
        os.close(to)
        os.link(draft, self._objects / str(self._done))
        parent = os.open(self._objects, os.O_RDONLY)
        os.fsync(parent)
        os.close(parent)
        os.unlink(draft)

    def _append_to_log(self) -> None:
        record = bytes(_ENTRY_BYTES * BATCHES)
        os.pwritev(self._log, [record], self._done * len(record))
        os.pwritev(self._log_index, [bytes(20)], self._done * 20)
        os.fdatasync(self._log)

    def _apply(self) -> None:
        """The rows of an object, each of whose batches is of another partition."""
        file = self._done
        execute = self._state.execute
        execute("BEGIN IMMEDIATE")
        key = wal_object_key(f"{file:026d}")
        for table, rows in (
            (schema.FILES, [(file, *[0] * 8, key, b"")]),
            (schema.FILE_ANSWERS, [(file, bytes(32), bytes(_ENTRY_BYTES))]),
            (schema.BATCHES, [(number, file, *[0] * 8) for number in range(BATCHES)]),
            (
                schema.PRODUCER_STATES,
                [(number, 1, 0, file, bytes(_WINDOW_BYTES)) for number in range(BATCHES)],
            ),
            (schema.PARTITIONS, [(n, n, n, *[file] * 7) for n in range(BATCHES)]),
        ):
            sql = table.insert_sql.replace("INSERT", "INSERT OR REPLACE", 1)
            self._state.executemany(sql, [table.row(*row) for row in rows])
        execute("COMMIT")
