"""Which tests stay together; the lists by which runs are shared and shortened name real files."""

from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.unit_tests import LONG, LONG_AND_STEADY
from tests.support.worker_groups import LONGEST_FIRST, _group

FILES = {path.name for path in Path(__file__).parents[2].rglob("test_*.py")}


def test_files_that_take_long_are_there() -> None:
    assert LONG | LONG_AND_STEADY <= FILES
    assert not LONG & LONG_AND_STEADY


def test_groups_that_come_first_are_kinds_or_files_that_are_there() -> None:
    assert {name for name in LONGEST_FIRST if name.endswith(".py")} <= FILES


@pytest.mark.parametrize(
    ("marks", "fixtures", "group"),
    [
        ({"spark"}, {"spark_roller"}, "spark session"),
        ({"spark", "crash"}, set(), "spark programs"),
        ({"spark", "minio"}, {"minio_server"}, "spark programs"),
        ({"spark", "localstack"}, {"localstack_server"}, "spark programs"),
        ({"localstack"}, {"localstack_server"}, "localstack"),
        (set(), {"moto_endpoint"}, "moto"),
        (set(), set(), "tests/wal/test_crc.py"),
    ],
)
def test_only_what_shares_a_session_of_spark_waits_for_it(
    marks: Collection[str], fixtures: Collection[str], group: str
) -> None:
    item = SimpleNamespace(
        nodeid="tests/wal/test_crc.py::test_of_something",
        fixturenames=fixtures,
        get_closest_marker=lambda name: name if name in marks else None,
    )
    assert _group(item) == group  # type: ignore[arg-type]
