"""What is counted of requests, as Prometheus reads it."""

from prometheus_client import CollectorRegistry, generate_latest

from diskless.request_metrics import RequestMetrics


def test_requests_are_counted_by_api_and_their_latency_by_bucket() -> None:
    registry = CollectorRegistry()
    metrics = RequestMetrics(registry)
    metrics.request_received("Produce", 100)
    metrics.request_received("Produce", 20)
    metrics.request_received("Fetch", 5)
    for seconds in (0.0004, 0.001, 0.0011, 3.0, 30.0, 99.0):
        metrics.request_answered("Produce", 7, seconds)
    page = generate_latest(registry).decode()
    assert 'diskless_request_bytes_total{api="Produce"} 120.0' in page
    assert 'diskless_request_bytes_total{api="Fetch"} 5.0' in page
    assert 'diskless_response_bytes_total{api="Produce"} 42.0' in page
    buckets = {
        bound: registry.get_sample_value(
            "diskless_request_seconds_bucket", {"api": "Produce", "le": bound}
        )
        for bound in ("0.001", "0.0025", "2.5", "5.0", "30.0", "+Inf")
    }
    assert buckets == {"0.001": 2, "0.0025": 3, "2.5": 3, "5.0": 4, "30.0": 5, "+Inf": 6}
    assert 'diskless_request_seconds_count{api="Produce"} 6.0' in page
    assert 'diskless_request_seconds_sum{api="Produce"} 132.0025' in page
