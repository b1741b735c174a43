"""docs/operations.md against the code: metrics, defaults and keys."""

import re
from pathlib import Path
from typing import Final, cast

from prometheus_client import CollectorRegistry

from diskless.broker_metrics import broker_metrics
from diskless.config import explain_all
from diskless.parts.broker_parts import BrokerParts
from diskless.request_metrics import LoopLag, RequestMetrics
from diskless.topics.topic_configs import TOPIC_CONFIGS

PAGE: Final = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")


def test_the_page_has_every_metric_and_no_other() -> None:
    registry = CollectorRegistry()
    RequestMetrics(registry)
    LoopLag(registry)
    kinds = {metric.name: metric.type for metric in registry.collect()}
    # The sources read their components at a scrape only, so none is needed to name them.
    kinds |= {source.name: source.kind for source in broker_metrics(cast(BrokerParts, None))}
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
