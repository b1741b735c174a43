"""The commit lane: everybody who waits for batches of a chunk gets the answers to these."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from diskless.produce.commit_lane import CommitLane
from metadata.batch_commits import BatchCommits
from metadata.clients.coordinator_client import Coordinator
from metadata.operations import BatchCommit, CommitFile, CommittedFile
from tests.support.chunks.write_path import A0, A1, B0, batch_bytes, open_directory, pending
from wal.chunks.buffer import BufferPool
from wal.chunks.chunk import Waiting
from wal.clock import ManualClock
from wal.errors import CorruptChunk, UnknownPartition


class Waiter:
    """Keeps the answer to each of its batches."""

    def __init__(self, count: int) -> None:
        self.answers: list[BatchCommit | None] = [None] * count

    def batches_done(
        self, results: Sequence[BatchCommit], places: Sequence[int] | None = None
    ) -> None:
        asked = range(len(self.answers)) if places is None else places
        for place, result in zip(asked, results, strict=True):
            assert self.answers[place] is None
            self.answers[place] = result


class Answering:
    """A coordinator that gives each batch its byte offset, and refuses every fifth."""

    def __init__(self, *, as_columns: bool) -> None:
        self._as_columns = as_columns

    async def commit_files(self, files: Sequence[CommitFile]) -> Sequence[CommittedFile]:
        return [CommittedFile(self._answers(file)) for file in files]

    def _answers(self, file: CommitFile) -> Sequence[BatchCommit]:
        offsets = [extent.byte_offset for extent in file.batches]
        errors = {at: UnknownPartition(str(at)) for at in range(0, len(offsets), 5)}
        if not self._as_columns:
            return [
                BatchCommit(error=errors[at]) if at in errors else BatchCommit(offset, 1, 0)
                for at, offset in enumerate(offsets)
            ]
        is_refused = np.isin(np.arange(len(offsets)), [*errors])
        return BatchCommits(
            base_offset=np.where(is_refused, -1, offsets),
            log_append_time_ms=np.where(is_refused, -1, 1),
            log_start_offset=np.where(is_refused, -1, 0),
            is_duplicate=np.zeros(len(offsets), np.bool_),
            errors=errors,
        )


@pytest.mark.parametrize("as_columns", [True, False])
@pytest.mark.parametrize("damaged", [(), (0, 20, 41)])
async def test_each_waiter_gets_the_answers_to_its_batches(
    tmp_path: Path, as_columns: bool, damaged: Sequence[int]
) -> None:
    counts = [1, 30, 2, 1, 17, 3]
    total = sum(counts)
    directory = open_directory(tmp_path)
    directory.recover()
    pool, rng = BufferPool(1 << 20), random.Random(4)
    writer = directory.open_chunk()
    writer.append(
        [pending(pool, rng.choice((A0, A1, B0)), batch_bytes(b"%d" % n)) for n in range(total)]
    )
    waiters = [Waiter(count) for count in counts]
    chunk = directory.seal(writer, [*map(Waiting, waiters, counts)])
    assert chunk is not None
    lane = CommitLane(
        cast(Coordinator, Answering(as_columns=as_columns)), broker_id=0, clock=ManualClock()
    )
    if damaged:
        chunk.exclude(damaged)
        await lane.abandon_batches(chunk, damaged, CorruptChunk("rotten"))
    plan = chunk.plan
    assert await lane.commit([chunk]) == [None]
    told = [answer for waiter in waiters for answer in waiter.answers]
    for place, position in enumerate(plan.positions):
        answer = told[position]
        assert answer is not None
        if place % 5 == 0:
            assert isinstance(answer.error, UnknownPartition)
        else:
            assert answer.base_offset == plan.extents.at(place).byte_offset
    for position in damaged:
        answer = told[position]
        assert answer is not None
        assert isinstance(answer.error, CorruptChunk)
    refused = len(range(0, total - len(damaged), 5))
    assert lane.batches_refused == refused
    assert lane.batches_committed == total - len(damaged) - refused
    directory.close()
