"""What producers get of a store as far away as S3, or of a directory, in virtual time."""

from dataclasses import replace

import pytest

from tests.support.chunks.write_path_model import (
    BYTES_PER_S,
    DIRECTORY_COMMIT_S,
    DIRECTORY_PUT_S,
    PUT_S,
    bulk,
    in_step,
    most_in_a_second,
    paced,
)
from wal.chunks.wal_settings import WalSettings, for_directory
from wal.write_path.seal_policy import ANSWERED_S

ON_S3 = WalSettings()
ON_DIRECTORY = for_directory(WalSettings(), set())
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


@pytest.mark.parametrize("client_s", [0.001, 0.002, 0.004])
@pytest.mark.parametrize(("log_puts", "waits_of_puts"), [(0, 2.0), (1, 3.5)])
def test_a_client_that_takes_its_time_waits_for_one_answer_and_not_for_two(
    client_s: float, log_puts: int, waits_of_puts: float
) -> None:
    put_ms = 55.0
    waits = paced(
        ON_S3,
        partitions=4,
        put_s=put_ms / 1.1e3,
        commit_s=0.004 + log_puts * put_ms / 1e3,
        client_s=client_s,
    )
    assert waits.p50_ms <= waits_of_puts * put_ms + 10


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


@pytest.mark.parametrize("requests", [2, 4, 8])
@pytest.mark.parametrize("jitter_s", [0.1e-3, 0.3e-3])
def test_a_round_that_was_split_is_one_object_from_the_next_on(
    requests: int, jitter_s: float
) -> None:
    def late(number: int) -> float:
        return 2.5 * ANSWERED_S if number % 20 == 0 else 0.0

    rounds = in_step(
        ON_DIRECTORY, requests=lambda _: requests, rounds=200, jitter_s=jitter_s, late=late
    )
    assert [each.objects for each in rounds] == [2 if late(n) else 1 for n in range(200)]


@pytest.mark.parametrize("requests", [2, 4, 8])
def test_requests_that_a_client_sends_one_behind_the_other_are_one_object(requests: int) -> None:
    rounds = in_step(ON_DIRECTORY, requests=lambda _: requests, rounds=100, jitter_s=1.2e-3)
    assert sum(each.objects > 1 for each in rounds) <= 1 + 2  # The first, and what that splits.


def test_a_round_that_grew_smaller_waits_for_nobody_else_from_the_third_on() -> None:
    def requests(number: int) -> int:
        return 4 if number == 0 else 2

    rounds = in_step(ON_DIRECTORY, requests=requests, rounds=50, jitter_s=0.1e-3)
    one_object_s = 0.2e-3 + 1.2 * DIRECTORY_PUT_S + 30_000 / BYTES_PER_S + DIRECTORY_COMMIT_S
    assert rounds[1].objects == 1
    assert rounds[1].seconds <= one_object_s + ANSWERED_S
    assert all(each.objects == 1 and each.seconds <= one_object_s for each in rounds[2:])
