"""The port of a tiering job: metrics, and whether all that was due was done."""

import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from diskless.cli.tier.tier_http import tier_http
from tiering.jobs.statistics import TierStatistics
from tiering.rounds import Failure, Sizes
from wal.clock import ManualClock
from wal.errors import InvalidSettings


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_job_tells_what_it_did_and_is_ready_when_all_was_done() -> None:
    clock = ManualClock()
    statistics = TierStatistics(clock)
    with tier_http("127.0.0.1:0", False, statistics, clock) as server:
        assert get(server.port, "/livez") == (200, "live\n")
        assert get(server.port, "/readyz") == (503, "no pass has ended yet\n")
        statistics.committed("roll", [Sizes("flights", 1_000, 300, 7, clock.now_ms() - 5_000)])
        sizes = Sizes("flights", 0, 0, 40, untyped_count=3)
        statistics.committed("roll", [sizes, sizes._replace(untyped_count=0)])
        statistics.not_typed("weather", "value", "why")
        statistics.failed("merge", Failure("flights", "merge flights-0", "why"))
        statistics.pass_ended("1 that were due failed", 4.0)
        assert get(server.port, "/readyz") == (503, "1 that were due failed\n")
        statistics.pass_ended("", 1.0)
        assert get(server.port, "/readyz") == (200, "ready\n")
        status, page = get(server.port, "/metrics")
    assert status == 200
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name.startswith("diskless_tier_") and sample.value
    }
    assert found == {
        ("diskless_tier_passes_total", "done"): 1,
        ("diskless_tier_passes_total", "failed"): 1,
        ("diskless_tier_pause_seconds",): 1,
        ("diskless_tier_committed_total", "roll"): 3,
        ("diskless_tier_input_bytes_total", "roll"): 1_000,
        ("diskless_tier_output_bytes_total", "roll"): 300,
        ("diskless_tier_records_total", "roll"): 87,
        ("diskless_tier_typed_records_total", "flights"): 80,
        ("diskless_tier_poison_values_total", "flights"): 3,
        ("diskless_tier_schema_problems_total", "weather"): 1,
        ("diskless_tier_failures_total", "merge", "flights"): 1,
        ("diskless_tier_rolled_lag_seconds", "flights"): 5,
    }


def test_an_address_that_was_asked_for_is_had_or_is_an_error() -> None:
    clock = ManualClock()
    statistics = TierStatistics(clock)
    with tier_http("127.0.0.1:0", False, statistics, clock) as taken:
        address = f"127.0.0.1:{taken.port}"
        with (
            pytest.raises(InvalidSettings, match=f"--http-listen: .*{address}"),
            tier_http(address, False, statistics, clock),
        ):
            pass
        with tier_http(address, True, statistics, clock) as other:
            assert get(other.port, "/livez")[0] == 200
