"""`diskless tier`: what it takes, and the port where it says how it goes."""

import argparse
import os
from contextlib import ExitStack
from typing import Final

from diskless.cli.options import Commands, add_bootstrap, add_pairs, command, key_values
from tiering.types.registry import REGISTRY_AUTH, REGISTRY_URL, registry_settings
from wal.errors import InvalidSettings

HTTP_LISTEN: Final = "127.0.0.1:9645"
"""Next to a broker's."""


def add_tier(commands: Commands) -> None:
    tier = command(
        commands,
        "tier",
        _tier,
        help="roll committed batches into Parquet segments with Spark",
        description="Ask the broker what is due, do it on Spark, commit it: batches are rolled "
        "into segments, small segments merged, compacted topics compacted, tables written. "
        "Repeating it after a failure converges on the same files. Without --once it goes on: the "
        "next pass begins within a second while there is work, and up to --interval later when "
        "there is none. SIGTERM and SIGINT end it behind the commit under way.",
    )
    add_bootstrap(tier)
    tier.add_argument("--once", action="store_true", help="one pass, then exit")
    tier.add_argument(
        "--all",
        action="store_true",
        help="roll partial segments too, without waiting for segment.bytes or segment.ms",
    )
    tier.add_argument(
        "--topic",
        action="append",
        default=[],
        metavar="NAME",
        help="roll this topic alone; a name, or a pattern such as 'flights.*'; may come again",
    )
    tier.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="NAME",
        help="roll all but these",
    )
    tier.add_argument(
        "--master",
        help="Spark master; default: what spark-submit or spark-defaults.conf say, else local[*]",
    )
    tier.add_argument(
        "--remote",
        metavar="sc://HOST:PORT",
        help="a Spark Connect server to run on, instead of a master; default: $SPARK_REMOTE",
    )
    add_pairs(tier, "--conf", "one of Spark's settings")
    tier.add_argument(
        "--interval",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="the longest pause between passes; default: 60",
    )
    tier.add_argument(
        "--http-listen",
        metavar="HOST:PORT",
        help="where /metrics, /readyz and /livez are; empty: nowhere; default: "
        f"{HTTP_LISTEN} without --once, else nowhere",
    )
    tier.add_argument(
        "--object-store", metavar="URL", help="when Spark reaches the bucket by another URL"
    )
    tier.add_argument(
        "--schema-registry",
        metavar="URL",
        help="where schemas are of topics with value.schema.source=registry:…; default: "
        f"${REGISTRY_URL}",
    )
    tier.add_argument(
        "--schema-registry-auth",
        metavar="file:PATH",
        help=f"a file with USER:PASSWORD for it; default: ${REGISTRY_AUTH}, that or the text",
    )


def _tier(options: argparse.Namespace) -> int:
    from diskless.cli.admin_connection import client_security
    from diskless.cli.tier.tier_http import tier_http
    from metadata.operations import PlanSegments
    from tiering.jobs.command import tier
    from tiering.jobs.statistics import TierStatistics
    from wal.clock import SystemClock

    if options.interval <= 0:
        raise InvalidSettings("--interval must be more than 0")
    clock = SystemClock()
    statistics = TierStatistics(clock)
    address = options.http_listen
    if address is None and not options.once:
        address = HTTP_LISTEN
    with ExitStack() as stack:
        if address:
            is_default = options.http_listen is None
            stack.enter_context(tier_http(address, is_default, statistics, clock))
        return tier(
            bootstrap=options.bootstrap,
            security=client_security(options),
            master=options.master,
            remote=options.remote,
            spark_settings=key_values(options.conf),
            once=options.once,
            asked=PlanSegments(
                include_partial=options.all, topics=options.topic, excluded_topics=options.exclude
            ),
            interval_s=options.interval,
            object_store_url=options.object_store,
            registry=registry_settings(
                options.schema_registry, options.schema_registry_auth, os.environ
            ),
            statistics=statistics,
            clock=clock,
        )
