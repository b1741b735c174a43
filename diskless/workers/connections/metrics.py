"""What is measured of connections over workers."""

from collections.abc import Sequence

from diskless.metrics import MetricsOf, MetricSource
from diskless.workers.connections.assigner import Assigner
from diskless.workers.connections.heavy_connections import HeavyConnections


def assigner_metrics(assigner: Assigner) -> Sequence[MetricSource]:
    """Those of the head."""
    return [
        MetricsOf(lambda: assigner).gauge(
            "diskless_workers_active", "Workers that are given connections", lambda it: it.active
        )
    ]


def heavy_connection_metrics(heavy: HeavyConnections) -> Sequence[MetricSource]:
    """Those of a worker."""
    return [
        MetricsOf(lambda: heavy).counter(
            "diskless_connections_given_up",
            "Closed because their worker was full and another did less",
            lambda it: it.given_up,
        )
    ]
