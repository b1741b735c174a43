"""Serves `/livez`, `/readyz` and `/metrics` of a tiering job over HTTP.

A thread of its own answers, so that it does while Spark works for hours. Ready is a job whose last
pass did all that was due; the first pass has to end for that. Nobody is asked who he is, so the
default is an address that only this machine reaches.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from prometheus_client import CollectorRegistry

from diskless.broker_http import metrics_route, take_address
from diskless.cli.tier.tier_metrics import tier_metrics
from diskless.health.http_server import HttpAnswer, HttpRequest, HttpServer, plain
from diskless.metrics import MetricsPage
from tiering.jobs.statistics import TierStatistics
from wal.clock import Clock

OPTION = "--http-listen"


@contextmanager
def tier_http(
    address: str, is_default: bool, statistics: TierStatistics, clock: Clock
) -> Iterator[HttpServer]:
    """Serve within the block. Raises: InvalidSettings (an address that was asked for is taken)."""
    metrics = MetricsPage(CollectorRegistry(), clock=clock)
    metrics.add(tier_metrics(statistics, clock))

    async def livez(_: HttpRequest) -> HttpAnswer:
        return plain(HTTPStatus.OK, "live\n")

    async def readyz(_: HttpRequest) -> HttpAnswer:
        problem = statistics.figures.problem
        if not problem:
            return plain(HTTPStatus.OK, "ready\n")
        return plain(HTTPStatus.SERVICE_UNAVAILABLE, f"{problem}\n")

    routes = {"/livez": livez, "/readyz": readyz, "/metrics": metrics_route(metrics, None)}
    with HttpServer(take_address(address, OPTION, is_default=is_default), routes) as server:
        yield server
