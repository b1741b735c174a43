"""What the write loop does in its thread: append to the open chunk, seal it, have it put early.

It owns nothing between two calls: the open chunk goes back to the loop with each. A call never
raises; what went wrong is in its result, beside the chunk that there may be nevertheless.

An early put that goes beside the writing of a chunk (wal/write_path/early_puts.py) gets each append
before the chunk does, and hears in the end which object the chunk became. A chunk of one append is
laid out before it is written.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from wal.chunks.chunk import ChunkWriter, PendingBatches, Waiting
from wal.chunks.chunk_directory import ChunkDirectory
from wal.chunks.laying_out import LaidOut
from wal.chunks.sealed_chunk import SealedChunk
from wal.errors import AppendTooLarge, DisklessError, Overloaded, StorageFailed
from wal.failpoint import failpoint
from wal.write_path.early_puts import LENT_BYTES_MAX, EarlyPuts, PutBeside


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

        The payloads of `earlier` were given back. `put` is for a chunk of `group` alone.
        """
        chunk: SealedChunk | None = None
        laid_out: LaidOut | None = None
        refused: DisklessError | None = None
        is_appended = False
        try:
            if group:
                try:
                    writer, laid_out = self._append(writer, group, put, seals=seals)
                except (StorageFailed, Overloaded, AppendTooLarge) as error:
                    refused = error
                else:
                    is_appended = True
                    failpoint("chunk.after_append")
            if seals and writer is not None:
                batches = [*earlier, *(group if is_appended else ())]
                waiting = [Waiting(some.token, some.batch_count) for some in batches]
                sealing, writer = writer, None
                chunk = self._directory.seal(sealing, waiting, laid_out)
                if chunk is not None and put is not None:
                    chunk.early_put = put
                elif chunk is not None:
                    payloads = () if earlier else [some.payload for some in batches]
                    self._puts.at_once(chunk, self._is_cancelled, payloads)
        except BaseException as error:
            return Written(writer, is_appended, None, refused, error)
        finally:
            if put is not None and writer is None:
                put.finish(None if chunk is None else chunk.plan)
                put.wait_read()
        return Written(writer, is_appended, chunk, refused, None)

    def _append(
        self,
        writer: ChunkWriter | None,
        group: Sequence[PendingBatches],
        put: PutBeside | None,
        *,
        seals: bool,
    ) -> tuple[ChunkWriter, LaidOut | None]:
        """Append to the open chunk, or to a new one, which is not left behind when that fails."""
        opened = writer or self._directory.open_chunk()
        laid_out: LaidOut | None = None
        try:
            placed = opened.place(group)
            if put is not None:
                batches = placed.batches()
                if seals and writer is None:
                    laid_out = self._directory.objects.lay_out(opened.identity, batches)
                    batches = laid_out.plan.batches
                if laid_out is not None and placed.data_end <= LENT_BYTES_MAX:
                    put.lend(opened, laid_out.plan, [some.payload for some in group])
                else:
                    put.add(opened, batches, placed)
            opened.write(placed)
        except BaseException:
            if writer is None:
                # Nothing is in it: this removes its files.
                self._directory.seal(opened, (), laid_out)
            raise
        return opened, laid_out
