"""What commits that are decided both ways are about, and how a way is chosen.

Files of these tests are small; `deciding` makes the columns decide them all the same.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from uuid import UUID

import pytest

from metadata.metadata_settings import CoordinatorSettings
from metadata.rules import commit_request
from wal.clock import ManualClock
from wal.coordinates import TopicIdPartition
from wal.ulid import mint_ulid, wal_object_key

NOW_MS = 1_704_067_200_000
EXPIRATION_MS = 1_000
SETTINGS = CoordinatorSettings(producer_expiration_ms=EXPIRATION_MS)
KEY = wal_object_key(mint_ulid(ManualClock(NOW_MS), random.Random(1)))
OTHER_KEY = wal_object_key(mint_ulid(ManualClock(NOW_MS), random.Random(2)))
KNOWN = [TopicIdPartition(UUID(int=topic), index) for topic in (1, 2) for index in (0, 1)]
FEW: Final = "few"
COLUMNS: Final = "columns"

both_ways = pytest.mark.parametrize("way", [FEW, COLUMNS])


@contextmanager
def deciding(way: str) -> Iterator[None]:
    """How requests that are checked here are decided."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit_request, "FEW_MAX", 10_000 if way == FEW else -1)
        yield
