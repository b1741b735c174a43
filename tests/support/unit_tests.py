"""Which tests `make check` runs: those marked `unit`, which this plugin marks.

They are all tests of the packages but those of another kind: no other program, no server, no
measurement, none that draws for a time (`fuzzed`), and none of the files that take long.
"""

from pathlib import Path
from typing import Final

import pytest

_TESTS: Final = Path(__file__).resolve().parent.parent
_DIRECTORIES: Final = frozenset(
    {"wal", "metadata", "tiering", "diskless", "docs", "conformance_tools", "scripts"}
)
_OTHER_KINDS: Final = frozenset(
    {"exhaustive", "clients", "crash", "jvm", "localstack", "measures", "minio", "moto", "spark"}
)
_SERVERS: Final = frozenset({"moto_endpoint", "localstack_endpoint", "minio_endpoint"})

LONG: Final = frozenset(
    {
        "test_chunk_recovery.py",
        "test_chunk_spares.py",
        "test_coordinator_conformance.py",
        "test_coordinator_machine.py",
        "test_damage.py",
        "test_file_committed.py",
        "test_file_life_model.py",
        "test_file_workers.py",
        "test_group_histories.py",
        "test_group_state.py",
        "test_object_log.py",
        "test_object_log_model.py",
        "test_orphan_scan.py",
        "test_rebuild_histories.py",
        "test_start_from_snapshot.py",
        "test_state_check.py",
        "test_state_recovery.py",
        "test_wire_client.py",
        "test_wire_client_ends.py",
        "test_raw_batches.py",
        "test_segment_roundtrip.py",
        "test_classic_group_machine.py",
        "test_consumer_group_machine.py",
        "test_cli.py",
        "test_configs_of_a_cluster.py",
        "test_coordinators_of_a_broker.py",
        "test_creation_races.py",
        "test_extreme_values.py",
        "test_health.py",
        "test_metadata_sources.py",
        "test_preferred_read_replica.py",
        "test_quotas_of_a_cluster.py",
        "test_rebuild.py",
        "test_several_coordinators.py",
        "test_start_on_a_store.py",
        "test_conformance_runs.py",
        "test_kafka_python_runner.py",
        "test_librdkafka_runner.py",
    }
)
"""Two seconds each or more: processes that start, and random histories."""

LONG_AND_STEADY: Final = frozenset(
    {
        "test_command_config.py",
        "test_command_login.py",
        "test_compression.py",
        "test_hidden_rows.py",
        "test_latest_rows.py",
        "test_rolled_transactions.py",
        "test_security_page.py",
        "test_segmented_log_damage.py",
        "test_share_rows.py",
        "test_shares.py",
        "test_sink_rights.py",
        "test_source_sink.py",
        "test_source_stream.py",
        "test_spark_roller.py",
        "test_table_growth.py",
        "test_table_rebuild.py",
        "test_table_steps.py",
        "test_table_types.py",
        "test_tables_page_commands.py",
        "test_tiered_histories.py",
        "test_tls_broker.py",
        "test_typed_segments.py",
        "test_typed_source.py",
    }
)
"""As long, and nothing in them lives in real time: no second try (tests/support/second_try.py)."""


@pytest.hookimpl(tryfirst=True)  # pytest selects by mark in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _is_unit(item):
            item.add_marker(pytest.mark.unit)


def _is_unit(item: pytest.Item) -> bool:
    return (
        is_steady(item)
        and item.path.name not in LONG_AND_STEADY
        and not getattr(getattr(item, "function", None), "draws_for_a_time", False)
    )


def is_steady(item: pytest.Item) -> bool:
    """Whether it has no real time in it: unit tests, and those like them that take long."""
    path = item.path.relative_to(_TESTS)
    return (
        path.parts[0] in _DIRECTORIES
        and path.name not in LONG
        and _OTHER_KINDS.isdisjoint(mark.name for mark in item.iter_markers())
        and _SERVERS.isdisjoint(getattr(item, "fixturenames", ()))
    )
