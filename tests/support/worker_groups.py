"""Which tests stay together when several processes share a run, and which of them begin first.

`make test` runs four workers of pytest-xdist with `--dist loadgroup`: one worker runs a group, in
order. The tests of a file are a group, so that what a module sets up is set up once. Tests of a
kind are one group across files: those that start JVMs (`jvm`), those that start Spark in processes
of their own (`spark programs`), those that need a server of a session (Spark's session, LocalStack,
MinIO, moto), those that measure a broker (`measures`). So no two tests of a kind run at the same
time, and no server is started twice, but for tests that need it beside Spark: MinIO, which takes a
second, and in `make test-all`, or where there is no MinIO, LocalStack.

Groups are handed out in the order in which tests are collected. The longest come first here: else
the run ends with one worker that has begun a long one late, and another with nothing to do.

A run without workers has neither groups nor another order.
"""

from pathlib import PurePath
from typing import Final

import pytest
from _pytest.nodeid import coerce_node_id

_KINDS: Final = {
    "jvm": "jvm",
    "spark": "spark programs",
    "localstack": "localstack",
    "minio": "minio",
    "moto": "moto",
    "measures": "measures",
}
"""Group by marker, the first that a test has."""

_SERVERS: Final = {"spark_roller": "spark session", "moto_endpoint": "moto"}
"""Group by the session's fixture that a test asks for, whatever it is marked."""

LONGEST_FIRST: Final = (
    "jvm",
    "spark programs",
    "moto",
    "spark session",
    "test_bank.py",
    "test_coordinator_conformance.py",
    "measures",
    "localstack",
    "test_rebuild.py",
    "test_rebalance_storms.py",
    "minio",
    "test_groups.py",
    "test_cluster.py",
    "test_object_store_faults.py",
    "test_snapshot_crash.py",
    "test_groups_move.py",
    "test_login.py",
    "test_crash_points.py",
    "test_scram.py",
    "test_stock_clients.py",
    "test_gateways.py",
    "test_oauth.py",
    "test_start_from_snapshot.py",
    "test_file_workers.py",
    "test_slow_consumers.py",
    "test_consumer_protocol.py",
    "test_quota_clients.py",
    "test_cli.py",
    "test_protocol_messages.py",
    "test_secure_cluster.py",
)
"""Kinds, and files, of more than a quarter of a minute; one that is missing costs time, no more."""


@pytest.hookimpl(trylast=True)  # pytest selects and orders by id and by mark in the same hook
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not hasattr(config, "workerinput"):
        return
    groups = {item: _group(item) for item in items}
    for item, group in groups.items():
        # xdist reads a group off the end of a node's id. Its own mark for groups changes an
        # attribute from which pytest 9.2 does not take the id any more.
        item._id = coerce_node_id(f"{item.nodeid}@{group}")
    ranks = {group: rank for rank, group in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: ranks.get(PurePath(groups[item]).name, len(ranks)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fails where groups would not hold, which one saw only in how long a run takes."""
    if hasattr(session.config, "workerinput"):
        for item in session.items:
            assert item.nodeid.endswith(f"@{_group(item)}"), item.nodeid


def _group(item: pytest.Item) -> str:
    for fixture, group in _SERVERS.items():
        if fixture in getattr(item, "fixturenames", ()):
            return group
    for marker, group in _KINDS.items():
        if item.get_closest_marker(marker) is not None:
            return group
    # Not its location: cases that a class inherits, and state machines, are written elsewhere.
    path = item.nodeid.partition("::")[0]
    return "measures" if path.startswith("tests/bench/") else path
