"""The groups on an S3 store measure what they say, on little."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.cluster import followers
from bench.s3 import outliers
from bench.s3.writing import produced, raw_mb_per_s
from bench.speed.slow_store import LOGS, measure, raw_put_ms
from bench.tools.s3_bed import BUCKET, S3Bed, s3_bed
from bench.tools.slow_s3 import Delays

ROOT = Path(__file__).parents[3]
DELAYS = Delays(put_ms=5, first_byte_ms=5, bytes_per_s=40e6)


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Bed]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.chdir(tmp_path_factory.mktemp("bench"))
        with s3_bed(DELAYS) as bed:
            yield bed


def test_the_proxy_delays_answers_and_bodies_and_counts_them(bed: S3Bed) -> None:
    client = bed.client()
    before = bed.proxy.passed()
    body = bytes(range(256)) * 4096
    started = time.monotonic()
    client.put_object(Bucket=BUCKET, Key="object", Body=body)
    put = time.monotonic()
    answer = client.get_object(Bucket=BUCKET, Key="object", Range="bytes=1-")
    assert answer["Body"].read() == body[1:]
    read = time.monotonic()
    transfer_s = len(body) / DELAYS.bytes_per_s
    assert put - started > DELAYS.put_ms / 1_000 + transfer_s
    assert read - put > DELAYS.first_byte_ms / 1_000 + transfer_s
    client.close()
    after = bed.proxy.passed()
    assert after.requests["PUT"] - before.requests.get("PUT", 0) == 1
    assert after.requests["GET"] - before.requests.get("GET", 0) == 1
    assert after.sent_bytes - before.sent_bytes >= len(body)
    assert after.received_bytes - before.received_bytes == len(body) - 1


def test_objects_and_producers_are_counted_in_bytes(bed: S3Bed, tmp_path: Path) -> None:
    assert raw_mb_per_s(bed, puts=2) > 0
    with bed.broker(tmp_path / "data", "produced", {}) as broker:
        before = bed.proxy.passed()
        run = produced(broker, total_bytes=16 << 20)
        sent = bed.proxy.passed().sent_bytes - before.sent_bytes
    assert run.mb_per_s > 0
    assert run.core_s_per_gib > 0
    assert sent > 30 << 20  # twice, in calls of whole records


def test_a_broker_on_a_bucket_with_either_log(bed: S3Bed) -> None:
    assert raw_put_ms(bed, puts=2) > DELAYS.put_ms
    for log in LOGS:
        figures = measure(bed, log.name, log.name, {}, 4 << 20, paced_s=0.3)
        assert min(figures) > 0


def test_waits_beside_outliers_are_those_of_the_second_time(bed: S3Bed) -> None:
    settings = {"wal.upload.second.percent": 50}
    waits = outliers.measure(bed, "outliers", settings, settling_s=0.3, paced_s=0.3)
    assert 0 < waits.p50_ms <= waits.p99_ms
    assert waits.puts > waits.second_puts >= 0


def test_a_follower_is_measured_and_an_idle_cluster_counted(
    bed: S3Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = followers.measure_staleness(bed, commits=3)
    assert len(waits) == 3
    assert min(waits) > 0
    monkeypatch.setattr(followers, "IDLE_BROKERS", 1)
    requests = followers.measure_idle(bed, settling_s=0.1, seconds=0.2)
    assert all(count >= 0 for count in requests.values())
