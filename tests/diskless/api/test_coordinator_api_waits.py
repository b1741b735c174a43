"""The coordinators' operations: time that is up, order, connections that end."""

import asyncio
import struct
from collections.abc import Mapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from metadata import operations as ops
from tests.support.questions.kafka_raw_client import RawClient
from tests.support.samples.coordinator_samples import SAMPLES
from tests.support.wire.coordinator_listener import A, Serving, ask, batch_fields, codes_of, serving
from wal.coordinates import ObjectKey, TopicIdPartition
from wal.errors import (
    CommitFailed,
    CommitOutcomeUnknown,
)

# --- time -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout_ms", [1, 0, -5])
async def test_when_the_time_is_up_every_entry_says_so_and_the_operation_goes_on(
    timeout_ms: int,
) -> None:
    async with serving() as s:
        s.coordinators.let_go.clear()
        commit = {
            "ObjectKey": "k",
            "ObjectFormat": 1,
            "FileSize": 300,
            "OwnerIds": [0],
            "Batches": [batch_fields(), batch_fields(Magic=1)],
            "TimeoutMs": timeout_ms,
        }
        values = await ask(s.address, 95, commit)
        assert [row["ErrorCode"] for row in values["Batches"]] == [7, 87]
        assert (s.coordinators.finished, len(s.running)) == ([], 1)
        s.coordinators.let_go.set()
        await asyncio.wait(s.running._tasks)
        assert s.coordinators.finished == ["commit_file"]


async def test_a_read_whose_time_is_up_may_be_repeated() -> None:
    async with serving() as s:
        s.coordinators.let_go.clear()
        values = await ask_for_listing(s, timeout_ms=1)
        assert list(codes_of(values)) == [15]
        with pytest.raises(CommitFailed):
            await s.client.list_offsets(
                [ops.ListOffsets(TopicIdPartition(A, 0), -1)], timeout_ms=30
            )


async def ask_for_listing(s: Serving, *, timeout_ms: int) -> Mapping[str, Any]:
    partitions = [{"PartitionIndex": 0, "Timestamp": -1}]
    topics = [{"TopicId": A, "Partitions": partitions}]
    return await ask(s.address, 97, {"Topics": topics, "TimeoutMs": timeout_ms})


async def test_an_operation_that_nobody_waits_for_may_fail_without_harm() -> None:
    async with serving() as s:
        s.coordinators.let_go.clear()
        await ask_for_listing(s, timeout_ms=0)
        await ask_for_listing(s, timeout_ms=0)
        s.coordinators.error = CommitOutcomeUnknown("nobody hears it")
        with capture_logs() as logs:
            s.coordinators.let_go.set()
            await asyncio.wait(s.running._tasks)
        assert logs == []


async def test_a_bug_that_shows_when_nobody_waits_is_logged() -> None:
    async with serving() as s:
        s.coordinators.let_go.clear()
        await ask_for_listing(s, timeout_ms=0)
        s.coordinators.error = ZeroDivisionError("a bug")
        with capture_logs() as logs:
            s.coordinators.let_go.set()
            await asyncio.wait(s.running._tasks)
            await asyncio.sleep(0)
        assert [(log["event"], log["operation"]) for log in logs] == [
            ("operation failed", "DisklessListOffsets")
        ]


async def test_leaving_ends_what_still_runs() -> None:
    async with serving() as s:
        s.coordinators.let_go.clear()
        await ask_for_listing(s, timeout_ms=0)
        running = s.running
        assert len(running) == 1
    assert len(running) == 0
    assert s.coordinators.finished == []


async def test_a_time_out_of_the_operations_own_is_not_taken_for_the_requests() -> None:
    async with serving() as s:
        s.coordinators.error = TimeoutError("inside")
        with capture_logs(), pytest.raises(CommitFailed, match="lost"):
            await s.client.list_offsets([ops.ListOffsets(TopicIdPartition(A, 0), -1)])


# --- connections ----------------------------------------------------------------------------------


async def test_commits_of_one_connection_reach_the_coordinators_in_their_order() -> None:
    async with serving() as s:
        s.coordinators.let_go.clear()
        s.coordinators.answers["commit_file"] = []
        commits = [
            asyncio.create_task(
                s.client.commit_file(
                    ops.CommitFile(
                        object_key=ObjectKey(str(number)),
                        file_size_bytes=1,
                        uploader_broker_id=1,
                        batches=[],
                    )
                )
            )
            for number in range(50)
        ]
        await asyncio.sleep(0)
        s.coordinators.let_go.set()
        await asyncio.gather(*commits)
        keys = [message.file.object_key for _, message, _ in s.coordinators.calls]
        assert keys == [str(number) for number in range(50)]


@pytest.mark.parametrize("key", sorted(samples.operation.key for samples in SAMPLES.values()))
async def test_bytes_that_are_no_request_end_their_connection_alone(key: int) -> None:
    async with serving() as s:
        header = struct.pack(">hhih", key, 0, 9, 3) + b"kip" + b"\x00"
        for body in (b"", b"\xff" * 40):
            raw = await RawClient.connect(s.address)
            await raw.send(struct.pack(">i", len(header) + len(body)) + header + body)
            assert await raw.is_closed_by_server()
            await raw.close()
        assert s.coordinators.calls == []
        s.coordinators.answers["list_offsets"] = [ops.ListedOffset(3)]
        (answer,) = await s.client.list_offsets([ops.ListOffsets(TopicIdPartition(A, 0), -1)])
        assert answer.offset == 3


async def test_another_version_ends_the_connection() -> None:
    async with serving() as s:
        raw = await RawClient.connect(s.address)
        header = struct.pack(">hhih", 95, 1, 9, 3) + b"kip" + b"\x00"
        await raw.send(struct.pack(">i", len(header)) + header)
        assert await raw.is_closed_by_server()
        await raw.close()
