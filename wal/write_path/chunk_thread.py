"""What the write loop does in its thread: append to the open chunk, seal it, have it put early.

It owns nothing between two calls: the open chunk goes back to the loop with each. A call never
raises; what went wrong is in its result, beside the chunk that there may be nevertheless.

A chunk that one append makes is laid out before it is written. Where that is for this thread to put
(wal/write_path/early_puts.py), it gives the object to the store, writes the chunk while the disk
takes the object, and waits for the disk. A put that began with the chunk's first append gets each
append before the chunk does, and hears in the end which object the chunk became.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from wal.chunks.chunk import ChunkWriter, PendingBatches, Waiting
from wal.chunks.chunk_directory import ChunkDirectory
from wal.chunks.sealed_chunk import SealedChunk
from wal.chunks.wal_object import FreshObjectBody
from wal.errors import AppendTooLarge, DisklessError, Overloaded, StorageFailed
from wal.failpoint import failpoint
from wal.write_path.early_puts import EarlyPuts, PutBeside

_REFUSALS: Final = (StorageFailed, Overloaded, AppendTooLarge)


class Written(NamedTuple):
    """What one way to the thread brought."""

    writer: ChunkWriter | None
    """The open chunk; None after it was sealed."""
    is_appended: bool
    chunk: SealedChunk | None
    """The sealed one, if anything was in it."""
    refused: DisklessError | None
    """Why the disk did not take the append."""
    error: BaseException | None
    """Any other failure, of the append or of the sealing."""


class ChunkThread:
    """The blocking half of one write loop; see the module's text."""

    def __init__(
        self, directory: ChunkDirectory, puts: EarlyPuts, *, is_cancelled: Callable[[], bool]
    ) -> None:
        """`is_cancelled`: whether the loop is; then nothing is put for it any more."""
        self._directory: Final = directory
        self._puts: Final = puts
        self._is_cancelled: Final = is_cancelled

    def write(
        self,
        writer: ChunkWriter | None,
        earlier: Sequence[PendingBatches],
        group: Sequence[PendingBatches],
        *,
        seals: bool,
        put: PutBeside | None = None,
    ) -> Written:
        """Append `group` behind `earlier`, what the open chunk holds, then seal if asked to.

        The payloads of `earlier` were given back. `put` is for a chunk that `group` begins.
        """
        if seals and writer is None and group:
            return self._write_whole(group, put)
        chunk: SealedChunk | None = None
        refused: DisklessError | None = None
        is_appended = False
        try:
            if group:
                try:
                    writer = self._append(writer, group, put)
                except _REFUSALS as error:
                    refused = error
                else:
                    is_appended = True
                    failpoint("chunk.after_append")
            if seals and writer is not None:
                batches = [*earlier, *(group if is_appended else ())]
                sealing, writer = writer, None
                chunk = self._directory.seal(sealing, _waiting(batches))
                if chunk is not None and put is not None:
                    chunk.early_put = put
                elif chunk is not None:
                    self._puts.at_once(chunk, self._is_cancelled)
        except BaseException as error:
            return Written(writer, is_appended, None, refused, error)
        finally:
            if put is not None and writer is None:
                put.finish(None if chunk is None else chunk.plan)
        return Written(writer, is_appended, chunk, refused, None)

    def _append(
        self,
        writer: ChunkWriter | None,
        group: Sequence[PendingBatches],
        put: PutBeside | None,
    ) -> ChunkWriter:
        """Append to the open chunk, or to a new one, which is not left behind when that fails."""
        opened = writer or self._directory.open_chunk()
        try:
            placed = opened.place(group)
            if put is not None:
                put.add(opened, placed.batches(), placed)
            opened.write(placed)
        except BaseException:
            if writer is None:
                # Nothing is in it: this removes its files.
                self._directory.seal(opened, ())
            raise
        return opened

    def _write_whole(self, group: Sequence[PendingBatches], put: PutBeside | None) -> Written:
        """Make a chunk of `group`, which takes no other append."""
        chunk: _WholeChunk | None = None
        written: Written | None = None
        try:
            chunk = _WholeChunk(self._directory, group)
            if put is not None:
                chunk.add_to(put)
            elif self._puts.takes_with_chunk(chunk.batch_count, chunk.data_bytes):
                return self._write_with_put(chunk)
            written = chunk.write()
            if written.chunk is not None:
                written.chunk.early_put = put
            return written
        except BaseException as error:
            return _not_appended(error) if chunk is None else chunk.ended_by(error)
        finally:
            if put is not None:
                sealed = None if written is None else written.chunk
                put.finish(None if sealed is None else sealed.plan)

    def _write_with_put(self, chunk: "_WholeChunk") -> Written:
        """Write it while its object is put. Raises: FailpointError."""
        is_stored = self._puts.with_chunk(
            chunk.body, lambda: self._is_cancelled() or chunk.is_over, chunk.write
        )
        written = chunk.written or chunk.write()
        if written.chunk is not None:
            written.chunk.is_stored = is_stored
        return written


class _WholeChunk:
    """A chunk that one append makes: laid out at first, then written and sealed."""

    def __init__(self, directory: ChunkDirectory, group: Sequence[PendingBatches]) -> None:
        """Open it. Leaves nothing behind where that raises."""
        self._directory = directory
        self._group = group
        self._writer = directory.open_chunk()
        try:
            self._placed = self._writer.place(group)
            batches = self._placed.batches()
            self._laid_out = directory.objects.lay_out(self._writer.identity, batches)
        except BaseException:
            directory.seal(self._writer, ())
            raise
        self.batch_count: Final = len(batches)
        self.data_bytes: Final = self._placed.data_end
        self.written: Written | None = None
        """What came of it, once it was written."""

    @property
    def body(self) -> FreshObjectBody:
        """The object that it is to become."""
        payloads = [some.payload for some in self._group]
        return FreshObjectBody(self._laid_out.plan, payloads, self._writer.paths.data)

    @property
    def is_over(self) -> bool:
        """Whether it came to nothing, or became another object."""
        if self.written is None:
            return False
        chunk = self.written.chunk
        return chunk is None or chunk.plan is not self._laid_out.plan

    def add_to(self, put: PutBeside) -> None:
        """Have `put` store its object."""
        put.add(self._writer, self._laid_out.plan.batches, self._placed)

    def write(self) -> Written:
        """Write and seal it."""
        self.written = self._written()
        return self.written

    def ended_by(self, error: BaseException) -> Written:
        """What came of it before `error`, which ends the write loop."""
        if self.written is None:
            self._remove()
            return _not_appended(error)
        return self.written._replace(chunk=None, error=error)

    def _written(self) -> Written:
        try:
            self._writer.write(self._placed)
        except BaseException as error:
            self._remove()
            return _not_appended(error)
        try:
            failpoint("chunk.after_append")
            chunk = self._directory.seal(self._writer, _waiting(self._group), self._laid_out)
        except BaseException as error:
            return Written(None, True, None, None, error)
        return Written(None, True, chunk, None, None)

    def _remove(self) -> None:
        """Nothing is in it: this removes its files."""
        self._directory.seal(self._writer, (), self._laid_out)


def _not_appended(error: BaseException) -> Written:
    """What an append brings that is in no chunk because of `error`."""
    if isinstance(error, _REFUSALS):
        return Written(None, False, None, error, None)
    return Written(None, False, None, None, error)


def _waiting(batches: Sequence[PendingBatches]) -> Sequence[Waiting]:
    return [Waiting(some.token, some.batch_count) for some in batches]
