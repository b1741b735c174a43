"""What producers get of a store as far away as S3, in virtual time (`write_path_model`)."""

from dataclasses import replace

import pytest

from tests.support.chunks.write_path_model import BYTES_PER_S, PUT_S, bulk, most_in_a_second, paced
from wal.chunks.wal_settings import WalSettings

ON_S3 = WalSettings()
MIB = 1 << 20
PUT_MS = 1.1 * PUT_S * 1_000
"""Of a small object, in the mean."""
IN_FLIGHT_BYTES = 8 * 5 * 785_000
"""Of eight idempotent producers: five batches each, a quarter of which is small."""


def test_a_slow_producer_has_the_whole_budget_and_waits_for_two_puts() -> None:
    waits = paced(ON_S3, partitions=4)
    assert waits.p50_ms <= 2 * PUT_MS + 10
    assert most_in_a_second(waits.sealed) == 20


@pytest.mark.parametrize("puts_per_s", [20, 60])
def test_who_waits_for_a_put_of_metadata_too_is_not_kept_apart_by_the_budget(
    puts_per_s: int,
) -> None:
    settings = replace(ON_S3, puts_per_second_max=puts_per_s)
    waits = paced(settings, partitions=4, commit_s=0.005 + PUT_MS / 1_000)
    assert waits.p50_ms <= 3.5 * PUT_MS + 10


def test_producers_of_large_batches_get_what_is_in_flight_by_the_latency() -> None:
    flow = bulk(ON_S3, producers=8, mib=384)
    # Were nothing ever waiting, each of eight connections would carry an eighth.
    at_most = IN_FLIGHT_BYTES / (PUT_MS / 1_000 + IN_FLIGHT_BYTES / 8 / BYTES_PER_S) / 1e6
    assert 0.7 * at_most <= flow.mb_per_s <= at_most
    counted = bulk(replace(ON_S3, puts_large_bytes=0), producers=8, mib=128)
    assert flow.mb_per_s >= 1.7 * counted.mb_per_s
    assert most_in_a_second(counted.sealed) <= 20


@pytest.mark.parametrize("producers", [1, 8])
def test_what_the_budget_does_not_count_is_large(producers: int) -> None:
    flow = bulk(ON_S3, producers=producers, mib=64)
    small = [chunk for chunk in flow.sealed if chunk.bytes < ON_S3.puts_large_bytes]
    assert most_in_a_second(small) <= 20
    assert max(chunk.bytes for chunk in flow.sealed) <= ON_S3.chunk_max_bytes
