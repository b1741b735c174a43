"""`diskless metadata dump`: where it reads logs from, and the command itself."""

import asyncio
import json
import random
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest

from demo.broker_process import DISKLESS
from diskless.cli.cli import main
from diskless.cli.dumps.metadata_dump import inspect
from diskless.cli.metadata_sources import (
    LoggedRecord,
    Range,
    read_broker,
    read_bucket,
    read_directory,
)
from metadata.log.local_log import LocalMetadataLog
from metadata.log.object_log import ObjectMetadataLog
from metadata.records.control import LeaderChangeRecord, NoOpRecord
from metadata.records.records import (
    encode_record,
)
from tests.support.brokers.live_broker import LiveBroker
from tests.support.clients.stock_clients import ConfluentKafka, Record
from wal.clock import ManualClock, SystemClock
from wal.errors import CorruptLog, InvalidSettings, Rejected
from wal.stores.file_store import FileStore
from wal.wire.fields import uvarint

NOW_MS = 1_704_067_200_123
LEADER = LeaderChangeRecord(
    leader_epoch=3, broker_id=2, host="broker-2", port=9092, incarnation=UUID(int=7)
)


async def fill(log: LocalMetadataLog | ObjectMetadataLog, first: int = 0, count: int = 20) -> None:
    for number in range(first, first + count):
        records = [encode_record(NoOpRecord(leader_epoch=number))] * (1 + number % 3)
        if number == 0:
            await log.lead(records, NOW_MS, at_offset=0)
        else:
            await log.append([records], NOW_MS + number)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with two local logs, and a bucket with the same logs."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "meta.properties").write_text("version=1\nnode.id=0\ncluster.id=c\n", encoding="utf-8")

    async def make() -> None:
        clock = SystemClock()
        async with FileStore(data / "objects", clock=clock, rng=random.Random(1)) as store:
            for index in (0, 1):
                local = await LocalMetadataLog.open(
                    data / "metadata" / str(index) / "log", rng=random.Random(1)
                )
                remote = await ObjectMetadataLog.open(
                    store, index, clock=clock, rng=random.Random(1)
                )
                await fill(local, count=20 + index)
                await fill(remote, count=20 + index)
                await local.close()
                await remote.close()

    asyncio.run(make())
    return data


Read = Callable[[Path, Range], Iterator[LoggedRecord]]


def from_bucket(data: Path, wanted: Range) -> Iterator[LoggedRecord]:
    return read_bucket(f"file://{data / 'objects'}", wanted)


each_store = pytest.mark.parametrize("read", [read_directory, from_bucket])


@each_store
def test_all_partitions_are_read_one_after_the_other(data: Path, read: Read) -> None:
    records = list(read(data, Range()))
    epochs = [inspect(record).record.leader_epoch for record in records]  # type: ignore[union-attr]
    expected = [
        number for count in (20, 21) for number in range(count) for _ in range(1 + number % 3)
    ]
    assert epochs == expected
    ends = [sum(1 + number % 3 for number in range(count)) for count in (20, 21)]
    assert [(record.partition, record.offset) for record in records] == [
        (index, offset) for index in (0, 1) for offset in range(ends[index])
    ]


@each_store
def test_a_range_of_offsets_is_read_to_the_record(data: Path, read: Read) -> None:
    everything = {
        index: [record for record in read(data, Range()) if record.partition == index]
        for index in (0, 1)
    }
    for from_offset, to_offset in (
        (0, 5),
        (4, 5),
        (3, None),
        (5, 5),
        (7, 3),
        (38, 1_000),
        (99, None),
    ):
        wanted = Range(partitions=[1], from_offset=from_offset, to_offset=to_offset)
        assert list(read(data, wanted)) == everything[1][from_offset:to_offset]
    twice = Range(partitions=[1, 0, 1], to_offset=2)
    assert list(read(data, twice)) == everything[0][:2] + everything[1][:2]


@each_store
def test_a_partition_that_is_not_there_is_named(data: Path, read: Read) -> None:
    with pytest.raises(InvalidSettings, match=r"no metadata partition 7: 0 \.\. 1"):
        list(read(data, Range(partitions=[0, 7])))


@each_store
def test_reading_changes_nothing(data: Path, read: Read) -> None:
    def files() -> dict[str, bytes]:
        return {
            str(path): path.read_bytes()
            for path in data.rglob("*")
            if path.is_file() and path.name != "lock"
        }

    before = files()
    list(read(data, Range()))
    assert files() == before


def test_a_log_that_was_pruned_is_read_from_where_it_begins(tmp_path: Path) -> None:
    async def make() -> int:
        clock = ManualClock()
        async with FileStore(tmp_path / "bucket", clock=clock, rng=random.Random(1)) as store:
            log = await ObjectMetadataLog.open(store, 0, clock=clock, rng=random.Random(1))
            await fill(log)
            clock.advance(3_600.0)
            start_offset = await log.prune(10)
            await log.close()
            return start_offset

    start_offset = asyncio.run(make())
    assert start_offset > 0
    records = list(read_bucket(f"file://{tmp_path / 'bucket'}", Range(from_offset=2)))
    assert records[0].offset == start_offset


def test_a_bucket_can_be_followed(data: Path) -> None:
    """What is appended between two listings is shown; the end of the range ends it."""
    url = f"file://{data / 'objects'}"
    rounds: list[float] = []

    async def append(seconds: float) -> None:
        rounds.append(seconds)
        assert len(rounds) < 10, "it should have seen it by now"
        async with FileStore(data / "objects", clock=SystemClock(), rng=random.Random(2)) as store:
            log = await ObjectMetadataLog.open(
                store, 0, clock=SystemClock(), rng=random.Random(len(rounds))
            )
            await log.lead([encode_record(LEADER)], NOW_MS, at_offset=log.end_offset)
            await log.close()

    wanted = Range(partitions=[0], from_offset=38, to_offset=42, follow=True)
    records = list(read_bucket(url, wanted, sleep=append))
    assert [record.offset for record in records] == [38, 39, 40, 41]
    assert inspect(records[-1]).record == LEADER
    assert len(rounds) == 3


def test_a_damaged_log_is_an_error_that_names_the_object(data: Path) -> None:
    path = sorted((data / "objects" / "meta" / "0" / "log").iterdir())[5]
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.chmod(0o644)
    path.write_bytes(damaged)
    with pytest.raises(CorruptLog, match=path.name):
        list(from_bucket(data, Range(partitions=[0])))
    assert list(from_bucket(data, Range(partitions=[1])))


def test_places_without_a_log_are_told_apart(data: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="no data directory"):
        list(read_directory(tmp_path / "nowhere", Range()))
    for path in data.glob("metadata/*/log/*.*"):
        path.unlink()
    with pytest.raises(InvalidSettings, match=re.escape(f"--store URL, which is file://{data}")):
        list(read_directory(data, Range()))
    assert not list(data.glob("metadata/*/log/*.*"))
    with pytest.raises(InvalidSettings, match="no such directory"):
        list(read_bucket(f"file://{tmp_path / 'nowhere'}", Range()))
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidSettings, match="has no metadata log"):
        list(read_bucket(f"file://{tmp_path / 'empty'}", Range()))
    with pytest.raises(InvalidSettings, match="--bootstrap"):
        list(read_directory(data, Range(follow=True)))


# The command


@pytest.fixture(scope="module", params=["local", "object"])
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveBroker]:
    settings = {
        "diskless.metadata.topic.num.partitions": "2",
        "diskless.metadata.log": request.param,
        "num.partitions": "2",
    }
    data = tmp_path_factory.mktemp("dump") / "data"
    with LiveBroker(data, settings) as broker:
        ConfluentKafka().produce(broker.bootstrap, "flights", [Record()] * 10)
        yield broker


def data_of(broker: LiveBroker) -> Path:
    return broker.broker.base.data.path


def test_a_brokers_log_is_dumped_as_it_is(
    broker: LiveBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = [part.replica.applied_offset for part in broker.broker.coordination.partitions]
    assert main(["metadata", "dump", "--bootstrap", broker.bootstrap, "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    rows = [json.loads(line) for line in printed.out.splitlines()]
    for index, end in enumerate(ends):
        offsets = [row["offset"] for row in rows if row["partition"] == index]
        assert offsets == list(range(len(offsets)))
        # A leader may append by itself meanwhile.
        assert len(offsets) >= end
        assert rows[offsets[0]]["type"] == "LeaderChange"
    assert {"PartitionCreated", "PartitionsAssigned", "FileCommitted"} <= {
        row["type"] for row in rows
    }
    assert sum(row["fields"].get("record_count", 0) for row in rows) == 10


def test_the_command_chooses_what_it_is_told(
    broker: LiveBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["metadata", "dump", "--bootstrap", broker.bootstrap]
    assert main([*command, "--partition", "1", "--type", "leaderchange", "--limit", "1"]) == 0
    assert re.match(
        r"1:0 +\d{4}-\d\d-\d\d .* LeaderChange +leader_epoch=1 ", capsys.readouterr().out
    )
    assert main([*command, "--partition", "0", "--from", "1", "--to", "2"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("0:1 ")
    assert main([*command, "--type", "FileCommitted", "--verbose"]) == 0
    assert " base_offset=" in capsys.readouterr().out
    # Following would go on for ever, were it not for the limit.
    assert main([*command, "--follow", "--limit", "3"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert main([*command, "--follow", "--partition", "0", "--to", "1"]) == 0
    assert capsys.readouterr().out.startswith("0:0 ")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--partition", "5"], "no metadata partition 5"),
        (["--type", "Comit"], "--type Comit: must be an api key or one of PartitionCreated"),
    ],
)
def test_what_makes_no_sense_ends_with_status_2(
    broker: LiveBroker, arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["metadata", "dump", "--bootstrap", broker.bootstrap, *arguments]) == 2
    assert named in capsys.readouterr().err


def test_a_running_brokers_directory_is_left_alone(
    broker: LiveBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["metadata", "dump", "--data", str(data_of(broker))])
    error = capsys.readouterr().err
    if broker.broker.base.is_shared:
        assert status == 2
        assert f"--store URL, which is file://{data_of(broker)}/objects" in error
        store = f"file://{data_of(broker)}/objects"
        assert main(["metadata", "dump", "--store", store, "--limit", "4"]) == 0
        assert len(capsys.readouterr().out.splitlines()) == 4
    else:
        assert status == 1
        assert "--bootstrap" in error
        ConfluentKafka().produce(broker.bootstrap, "flights", [Record()])


def test_nobody_at_the_address_is_an_error_in_words() -> None:
    finished = subprocess.run(
        [DISKLESS, "metadata", "dump", "--bootstrap", "127.0.0.1:1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 1
    assert finished.stderr.startswith("diskless: BrokerUnreachable: 127.0.0.1:1")
    assert "Traceback" not in finished.stderr


def test_the_installed_command_stops_quietly_when_its_reader_has_seen_enough(data: Path) -> None:
    dumping = subprocess.Popen(
        [DISKLESS, "metadata", "dump", "--data", data],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert dumping.stdout is not None
    dumping.stdout.close()
    assert dumping.stderr is not None
    assert dumping.stderr.read() == b""
    dumping.stderr.close()
    assert dumping.wait(60) == 1


def test_help_teaches_by_example() -> None:
    finished = subprocess.run(
        [DISKLESS, "metadata", "dump", "--help"], capture_output=True, text=True, check=True
    )
    for part in ("--follow", "--json", "--store s3://", "examples:", "__diskless_metadata"):
        assert part in finished.stdout


def test_undecoded_records_are_counted_in_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def make() -> None:
        async with FileStore(tmp_path, clock=SystemClock(), rng=random.Random(1)) as store:
            log = await ObjectMetadataLog.open(store, 0, clock=SystemClock(), rng=random.Random(1))
            newer = uvarint(1) + uvarint(4242) + uvarint(0)
            await log.lead([newer, encode_record(LEADER), newer], NOW_MS, at_offset=0)
            await log.close()

    asyncio.run(make())
    assert main(["metadata", "dump", "--store", f"file://{tmp_path}"]) == 0
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 3
    assert printed.err.startswith("diskless: 2 records could not be decoded")


def test_no_snapshots_is_no_error(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metadata", "snapshots", "--data", str(data)]) == 0
    assert capsys.readouterr().out.startswith("no snapshots in file://")


def test_a_log_of_a_broker_is_read_while_it_grows(broker: LiveBroker) -> None:
    with closing(read_broker(broker.bootstrap, Range(partitions=[0], follow=True))) as records:
        first = next(records)
        assert first.offset == 0
        end = broker.broker.coordination.partitions[0].replica.applied_offset
        for expected in range(1, end):
            assert next(records).offset == expected
        ConfluentKafka().produce(broker.bootstrap, "another", [Record()])
        assert next(records).offset == end


def test_a_directory_that_is_in_use_is_rejected_in_words(data: Path) -> None:
    async def hold() -> None:
        log = await LocalMetadataLog.open(data / "metadata" / "0" / "log", rng=random.Random(1))
        try:
            with pytest.raises(Rejected, match="--bootstrap HOST:PORT"):
                await asyncio.to_thread(list, read_directory(data, Range()))
        finally:
            await log.close()

    asyncio.run(hold())
