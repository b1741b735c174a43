"""Brokers, as processes, that a cluster does not take: they stop, and one line says why.

Those that are there are not disturbed by them.
"""

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

import metadata
from demo.broker_process import BrokerError, BrokerProcess
from metadata.metadata_version import METADATA_VERSION
from metadata.records.control import BrokerUnregisteredRecord
from tests.support.brokers.broker_cluster import SETTINGS, Cluster
from tests.support.brokers.broker_racks import logged_records
from tests.support.brokers.live_broker import until
from tests.support.clients.numbered_records import NumberedProducer, assert_each_once


class Stranger:
    """A broker beside those of a cluster, on its bucket."""

    def __init__(self, path: Path, stack: ExitStack, *, node_id: int, data: Path) -> None:
        self._log = path / "broker.log"
        path.mkdir()
        self.broker = stack.enter_context(
            BrokerProcess(
                data,
                path,
                {**SETTINGS, "node.id": str(node_id)},
                object_store=f"file://{path.parent}/bucket",
            )
        )

    def refused(self, environment: Mapping[str, str] | None = None) -> str:
        """Start it, and see it end by itself; the only line that names an error."""
        try:
            self.broker.start(environment)
            status = self.broker.wait_for_death()
        except BrokerError as error:
            status = 1 if "(status 1)" in str(error) else -1
        assert status == 1
        lines = self._log.read_text().splitlines()
        (said,) = [line for line in lines if "error" in line or line.startswith("diskless: ")]
        assert "Traceback" not in "".join(lines)
        return said


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def test_of_two_brokers_with_one_node_id_the_second_stops(tmp_path: Path, stack: ExitStack) -> None:
    cluster = Cluster(tmp_path, f"file://{tmp_path}/bucket", stack)
    first = cluster.start(1)
    cluster.create(1, "t")
    until(lambda: cluster.live_brokers(1) == {1}, "it is registered")
    producer = NumberedProducer(first.bootstrap)
    producer.send(30)
    producer.flush()

    elsewhere = Stranger(tmp_path / "b", stack, node_id=1, data=tmp_path / "data-b")
    said = elsewhere.refused()
    assert f"node.id=1 is in use by a live broker at {first.bootstrap}" in said

    same_directory = Stranger(tmp_path / "c", stack, node_id=1, data=tmp_path / "data-1")
    assert f"{tmp_path}/data-1 is in use by another broker" in same_directory.refused()

    assert cluster.live_brokers(1) == {1}
    producer.send(30)
    producer.flush()
    assert_each_once(first.bootstrap, producer)
    left = [
        record
        for _, record in logged_records(f"file://{tmp_path}/bucket")
        if isinstance(record, BrokerUnregisteredRecord)
    ]
    assert not left, "the first one was never taken out"


@pytest.fixture
def later_release(tmp_path: Path) -> Mapping[str, str]:
    """The environment of a release that writes the next version of metadata, and is this one else.

    A broker reads it when its Python starts, so it is not forked.
    """
    package = tmp_path / "later" / "metadata"
    shutil.copytree(Path(metadata.__file__).parent, package)
    file = package / "metadata_version.py"
    changed, count = re.subn(
        r"^METADATA_VERSION: Final = \d+$",
        f"METADATA_VERSION: Final = {METADATA_VERSION + 1}",
        file.read_text(),
        flags=re.MULTILINE,
    )
    assert count == 1
    file.write_text(changed)
    path = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": os.pathsep.join([str(package.parent), *path.split(os.pathsep)])}


@pytest.mark.exhaustive
def test_brokers_that_write_other_metadata_refuse_each_other_by_name(
    tmp_path: Path, stack: ExitStack, later_release: Mapping[str, str]
) -> None:
    cluster = Cluster(tmp_path, f"file://{tmp_path}/bucket", stack)
    cluster.start(1)
    cluster.create(1, "t")
    producer = NumberedProducer(cluster.brokers[1].bootstrap)
    producer.send(30)
    producer.flush()
    later = Stranger(tmp_path / "later-broker", stack, node_id=2, data=tmp_path / "data-2")
    said = later.refused(later_release)
    assert (
        f"broker 2 writes metadata version {METADATA_VERSION + 1}, "
        f"and this cluster {METADATA_VERSION}" in said
    )
    assert cluster.live_brokers(1) == {1}

    cluster.brokers[1].stop()
    later.broker.start(later_release)
    assert_each_once(later.broker.bootstrap, producer)
    with pytest.raises(BrokerError, match=rf"this release reads up to {METADATA_VERSION}\b"):
        cluster.start(1)
