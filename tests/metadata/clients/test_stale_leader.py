"""A broker that was paused does not know yet that it leads no more: the log tells it."""

import random
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from metadata import operations as ops
from metadata.clients.local_client import LocalClient
from wal.coordinates import TopicIdPartition
from wal.errors import NotCoordinator, OffsetOutOfRange

PARTITION = TopicIdPartition(UUID(int=2), 0)


@pytest.mark.parametrize("holds", [True, False])
async def test_only_a_leader_that_leads_still_calls_an_offset_out_of_range(holds: bool) -> None:
    async def find_batches(*_: object, **__: object) -> list[ops.FoundBatches]:
        return [ops.FoundBatches(0, 50, error=OffsetOutOfRange("60 is not within 0..50"))]

    async def confirm() -> None:
        if not holds:
            raise NotCoordinator("another leads")

    lease = SimpleNamespace(confirm=confirm)
    partition: Any = SimpleNamespace(
        index=0,
        replica=SimpleNamespace(find_batches=find_batches),
        coordinator=SimpleNamespace(lease=lease),
    )
    client = LocalClient([partition], rng=random.Random(1))
    (found,) = await client.find_batches([ops.FindBatches(PARTITION, 60, 1_000)], max_bytes=1_000)
    assert (found.error is not None) is holds
    assert found.high_watermark == 50
