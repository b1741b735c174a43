"""docs/operations.md against the code: metrics, defaults and keys."""

import re
from pathlib import Path
from typing import Final, cast

from prometheus_client import CollectorRegistry

from diskless.broker_metrics import broker_metrics
from diskless.cli.tier.tier_metrics import tier_metrics
from diskless.config import explain_all
from diskless.parts.broker_parts import BrokerParts
from diskless.request_metrics import LoopLag, RequestMetrics
from diskless.topics.topic_configs import TOPIC_CONFIGS
from diskless.workers.connections.assigner import Assigner
from diskless.workers.connections.heavy_connections import HeavyConnections
from diskless.workers.connections.metrics import assigner_metrics, heavy_connection_metrics
from tiering.jobs.statistics import TierStatistics
from wal.clock import SystemClock

PAGE: Final = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")


def test_the_page_has_every_metric_and_no_other() -> None:
    registry = CollectorRegistry()
    RequestMetrics(registry)
    LoopLag(registry)
    kinds = {metric.name: metric.type for metric in registry.collect()}
    # The sources read their components at a scrape only, so none is needed to name them.
    kinds |= {source.name: source.kind for source in broker_metrics(cast(BrokerParts, None))}
    workers = [
        *assigner_metrics(cast(Assigner, None)),
        *heavy_connection_metrics(cast(HeavyConnections, None)),
    ]
    kinds |= {source.name: source.kind for source in workers}
    tier = tier_metrics(TierStatistics(SystemClock()), SystemClock())
    kinds |= {source.name: source.kind for source in tier}
    exposed = {name + ("_total" if kind == "counter" else "") for name, kind in kinds.items()}
    told = re.findall(r"^\| `(diskless_\w+)` \|", PAGE, re.MULTILINE)
    assert len(told) == len(set(told))
    assert set(told) == exposed


def test_the_page_names_keys_that_exist() -> None:
    keys = {key for key, _, _ in explain_all()} | set(TOPIC_CONFIGS)
    told = set(re.findall(r"`((?!spark\.)[a-z0-9]+(?:\.[a-z0-9]+)+)`", PAGE)) - {"0.0.0.0"}
    assert told
    assert told <= keys


def test_the_defaults_in_the_table_of_memory_are_those_of_the_code() -> None:
    defaults = {key: default for key, default, _ in explain_all()}
    rows = re.findall(r"^\| `([\w.]+)` \| ([\d,]+)( MiB)? \|", PAGE, re.MULTILINE)
    assert len(rows) == 9
    for key, number, unit in rows:
        assert defaults[key] == int(number.replace(",", "")) * (1 << 20 if unit else 1), key


def test_what_a_month_costs_follows_from_the_prices() -> None:
    prices = re.search(
        r"\$([\d.]+) per 1,000 PUT or LIST, \$([\d.]+) per 1,000 GET and \$([\d.]+) per GB", PAGE
    )
    assert prices is not None
    put, get, stored = map(float, prices.groups())
    seconds = 30 * 24 * 3600
    section = PAGE.partition("## What a month costs")[2].partition("\n- ")[0]
    rows = [
        [float(cell.replace(",", "")) for cell in line.split("|")[2:-1]]
        for line in section.splitlines()[6:]
        if line.startswith("| ")
    ]
    assert len(rows) == 5
    for puts, gets, lists, gigabytes, *dollars in rows:
        exact = [
            puts * seconds * put / 1000,
            gets * seconds * get / 1000,
            lists * seconds * put / 1000,
            gigabytes * stored,
        ]
        assert dollars == [float(f"{number:.0f}") for number in (*exact, sum(exact))]
