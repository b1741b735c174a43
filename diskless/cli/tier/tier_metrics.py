"""Lists the metrics of a tiering job; docs/operations.md says when to look at them."""

from collections.abc import Callable, Sequence

from diskless.metrics import MetricsOf, MetricSource, Samples
from tiering.jobs.statistics import JobFigures, TierFigures, TierStatistics
from wal.clock import Clock


def tier_metrics(statistics: TierStatistics, clock: Clock) -> Sequence[MetricSource]:
    """Read from `statistics` at a scrape."""
    job = MetricsOf(lambda: statistics.figures)

    def by_job(name: str, meaning: str, read: Callable[[JobFigures], float]) -> MetricSource:
        return job.counters(
            name, "job", meaning, lambda it: {kind: read(one) for kind, one in it.jobs.items()}
        )

    def failures() -> Samples:
        return {labels: float(count) for labels, count in statistics.figures.failures.items()}

    def age_s(figures: TierFigures) -> float:
        ended_s = figures.pass_ended_s
        return -1.0 if ended_s is None else clock.monotonic() - ended_s

    return [
        job.counters(
            "diskless_tier_passes", "result", "Passes that ended, by how", lambda it: it.passes
        ),
        job.gauge(
            "diskless_tier_pass_age_seconds",
            "Since the last pass ended; -1 before the first one did",
            age_s,
        ),
        job.gauge(
            "diskless_tier_pause_seconds",
            "Between the last pass and the next",
            lambda it: it.pause_s,
        ),
        by_job("diskless_tier_job_seconds", "Spent, by kind of job", lambda it: it.seconds),
        by_job(
            "diskless_tier_committed",
            "Segments rolled, merges, compactions of a partition, snapshots of a table",
            lambda it: it.committed,
        ),
        by_job(
            "diskless_tier_input_bytes",
            "Batches and segments in whose place others were committed",
            lambda it: it.input_bytes,
        ),
        by_job(
            "diskless_tier_output_bytes", "Segments that were committed", lambda it: it.output_bytes
        ),
        by_job(
            "diskless_tier_records",
            "Records of segments that were committed",
            lambda it: it.record_count,
        ),
        MetricSource(
            "diskless_tier_failures",
            "counter",
            "What was due and failed, by kind of job and topic",
            ("job", "topic"),
            failures,
        ),
        job.counters(
            "diskless_tier_typed_records",
            "topic",
            "Records of topics with a schema that were rolled",
            lambda it: {name: counts.records for name, counts in it.typed.items()},
        ),
        job.counters(
            "diskless_tier_poison_values",
            "topic",
            "Keys and values of these that did not fit",
            lambda it: {name: counts.poison for name, counts in it.typed.items()},
        ),
        job.counters(
            "diskless_tier_schema_problems",
            "topic",
            "Times that a schema was found to give no columns",
            lambda it: it.schema_problems,
        ),
        job.gauges(
            "diskless_tier_rolled_lag_seconds",
            "topic",
            "How old the first batch was of what the last commit of a topic rolled",
            lambda it: it.rolled_lag_s,
        ),
    ]
