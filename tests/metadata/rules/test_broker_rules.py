"""Which brokers may register, and which of them leave."""

from pathlib import Path
from uuid import UUID

import pytest

from metadata.metadata_version import METADATA_VERSION
from metadata.operations import RegisteredBroker
from tests.support.coordinators.coordinator_bench import MemoryMetadataLog, running_coordinator
from wal.errors import InvalidRequest


@pytest.mark.parametrize("other", [METADATA_VERSION - 1, METADATA_VERSION + 1])
async def test_a_broker_that_writes_other_metadata_is_refused_by_name(
    tmp_path: Path, other: int
) -> None:
    async with running_coordinator(tmp_path, MemoryMetadataLog()) as bench:
        mine = RegisteredBroker(1, "h", 1, "", UUID(int=1), "", metadata_version=METADATA_VERSION)
        await bench.coordinator.register_broker(mine)
        theirs = mine._replace(broker_id=7, incarnation=UUID(int=7), metadata_version=other)
        said = f"broker 7 writes metadata version {other}, and this cluster {METADATA_VERSION}"
        with pytest.raises(InvalidRequest, match=said):
            await bench.coordinator.register_broker(theirs)
        assert set(bench.coordinator.replica.brokers()) == {1}


async def test_only_the_life_that_is_registered_leaves(tmp_path: Path) -> None:
    async with running_coordinator(tmp_path, MemoryMetadataLog()) as bench:
        mine = RegisteredBroker(1, "h", 1, "", UUID(int=1), "", metadata_version=METADATA_VERSION)
        await bench.coordinator.register_broker(mine)
        stopping = mine._replace(host="", port=0)
        await bench.coordinator.register_broker(stopping._replace(incarnation=UUID(int=7)))
        assert set(bench.coordinator.replica.brokers()) == {1}, "that one was refused"
        with pytest.raises(InvalidRequest, match="in use"):
            await bench.coordinator.register_broker(
                mine._replace(host="elsewhere", incarnation=UUID(int=7))
            )
        await bench.coordinator.register_broker(stopping)
        assert not bench.coordinator.replica.brokers()
