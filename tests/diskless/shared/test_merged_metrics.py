"""Several processes' metrics as those of one broker."""

from typing import cast

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from diskless.broker_metrics import broker_metrics
from diskless.parts.broker_parts import BrokerParts
from diskless.shared.merged_metrics import GREATEST, LEAST, MergedPages

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class Process:
    """What one process counts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("requests", "Requests", ["api"], registry=self.registry)
        self.seconds = Histogram("seconds", "Took", ["api"], buckets=(1, 2), registry=self.registry)
        self.bytes = Gauge("held_bytes", "Held", registry=self.registry)
        self.ready = Gauge("diskless_ready", "Ready", registry=self.registry)
        self.age = Gauge("diskless_commit_age_seconds", "Age", registry=self.registry)
        self.waiting = Gauge("diskless_upload_waiting_seconds", "Waits", registry=self.registry)

    def page(self) -> bytes:
        return generate_latest(self.registry)


def samples(page: bytes) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def merged(pages: MergedPages, **processes: Process | None) -> dict[tuple[str, ...], float]:
    _, page = pages.merge(
        {name: None if it is None else it.page() for name, it in processes.items()}
    )
    return samples(page)


def test_counters_and_histograms_are_summed() -> None:
    head, worker = Process(), Process()
    head.requests.labels("Fetch").inc(2)
    worker.requests.labels("Fetch").inc(3)
    worker.requests.labels("Produce").inc(5)
    head.seconds.labels("Fetch").observe(0.5)
    worker.seconds.labels("Fetch").observe(1.5)
    found = merged(MergedPages(), head=head, worker=worker)
    assert found["requests_total", "Fetch"] == 5
    assert found["requests_total", "Produce"] == 5
    assert [found["seconds_bucket", "Fetch", bound] for bound in ("1.0", "2.0", "+Inf")] == [
        1,
        2,
        2,
    ]
    assert (found["seconds_count", "Fetch"], found["seconds_sum", "Fetch"]) == (2, 2.0)


def test_gauges_are_summed_unless_they_say_how_things_stand() -> None:
    head, worker = Process(), Process()
    for process, number in ((head, 4), (worker, 7)):
        process.bytes.set(number)
        process.ready.set(number == 4)
        process.waiting.set(number)
        process.age.set(number)
    found = merged(MergedPages(), head=head, worker=worker)
    assert found["held_bytes",] == 11
    assert found["diskless_ready",] == 0
    assert found["diskless_upload_waiting_seconds",] == 7
    assert found["diskless_commit_age_seconds",] == 4
    head.age.set(-1)
    assert merged(MergedPages(), head=head, worker=worker)["diskless_commit_age_seconds",] == 7


def test_what_a_process_counted_stays_when_it_is_gone() -> None:
    pages, head, worker = MergedPages(), Process(), Process()
    head.requests.labels("Fetch").inc(2)
    worker.requests.labels("Fetch").inc(100)
    worker.seconds.labels("Fetch").observe(0.5)
    worker.bytes.set(9)
    assert merged(pages, head=head, first=worker)["requests_total", "Fetch"] == 102
    again = Process()
    again.requests.labels("Fetch").inc()
    for _ in range(2):
        found = merged(pages, head=head, second=again)
        assert found["requests_total", "Fetch"] == 103
        assert found["seconds_bucket", "Fetch", "+Inf"] == 1
        assert found["held_bytes",] == 0


def test_a_process_that_does_not_answer_is_as_it_was() -> None:
    pages, head, worker = MergedPages(), Process(), Process()
    worker.requests.labels("Fetch").inc(7)
    worker.bytes.set(9)
    merged(pages, head=head, worker=worker)
    found = merged(pages, head=head, worker=None, starting=None)
    assert (found["requests_total", "Fetch"], found["held_bytes",]) == (7, 9)
    worker.requests.labels("Fetch").inc()
    assert merged(pages, head=head, worker=worker)["requests_total", "Fetch"] == 8


def test_the_page_is_valid_openmetrics() -> None:
    head, worker = Process(), Process()
    for process in (head, worker):
        for api in ("Fetch", "Produce"):
            process.requests.labels(api).inc()
            process.seconds.labels(api).observe(1.5)
    worker.seconds.labels("Metadata").observe(1.5)
    content_type, page = MergedPages().merge({"0": head.page(), "1": worker.page()}, OPENMETRICS)
    assert content_type.startswith("application/openmetrics-text")
    families = {family.name: family for family in openmetrics_families(page.decode())}
    counts = {
        sample.labels["api"]: sample.value
        for sample in families["seconds"].samples
        if sample.name == "seconds_count"
    }
    assert counts == {"Fetch": 2, "Produce": 2, "Metadata": 1}


def test_what_is_no_page_is_refused() -> None:
    with pytest.raises(ValueError, match="could not convert"):
        MergedPages().merge({"0": b"no page {"})


def test_gauges_with_a_rule_of_their_own_are_gauges_of_the_broker() -> None:
    gauges = {
        source.name for source in broker_metrics(cast(BrokerParts, None)) if source.kind == "gauge"
    }
    ruled = {name for name in LEAST | GREATEST if name.startswith("diskless_")}
    assert ruled <= gauges
    assert not LEAST & GREATEST
    # Whatever tells a time or a state has a rule: sums of those mean nothing.
    assert {name for name in gauges if name.endswith(("_seconds", "_ready"))} <= ruled
