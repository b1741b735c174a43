"""`diskless metadata`: what it prints, from where, and what it says when it cannot."""

import asyncio
import json
import random
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from demo.broker_process import DISKLESS
from diskless.cli.cli import main
from diskless.cli.metadata_dump import Dump, inspect, type_name
from diskless.cli.metadata_sources import (
    LoggedRecord,
    Range,
    read_broker,
    read_bucket,
    read_directory,
)
from diskless.cli.snapshot_list import list_snapshots
from metadata.log.local_log import LocalMetadataLog
from metadata.log.object_log import ObjectMetadataLog
from metadata.metadata_version import METADATA_VERSION
from metadata.records.control import LeaderChangeRecord, NoOpRecord
from metadata.records.file_committed import CommittedBatch, RefusedBatch
from metadata.records.groups import CommittedOffset, OffsetsCommittedRecord, OffsetsDeletedRecord
from metadata.records.records import (
    RECORD_TYPES,
    FileCommittedRecord,
    PartitionCreatedRecord,
    TopicConfigsRecord,
    encode_record,
)
from metadata.records.users import ScramCredentialSetRecord
from metadata.replica.snapshot_format import part_key
from metadata.scram.credentials import ScramCredential
from tests.metadata.records.test_records import GOLDEN
from tests.support.live_broker import LiveBroker
from tests.support.snapshot_bench import (
    CLUSTER,
    PrunableLog,
    following,
    keeper_of,
    recorded_batches,
    snapshots_in,
)
from tests.support.stock_clients import ConfluentKafka, Record
from wal.clock import ManualClock, SystemClock
from wal.coordinates import ByteOffset, ObjectKey, Offset, TopicIdPartition
from wal.errors import CorruptLog, InvalidSettings, Rejected
from wal.stores.file_store import FileStore
from wal.wire.fields import uvarint

NOW_MS = 1_704_067_200_123
TOPIC = UUID("00112233-4455-6677-8899-aabbccddeeff")
LEADER = LeaderChangeRecord(
    leader_epoch=3, broker_id=2, host="broker-2", port=9092, incarnation=UUID(int=7)
)
RECORDS = [record for record, _ in GOLDEN]
"""At least one of each type."""


def a_batch(partition: int, position: int, base: int, last: int) -> CommittedBatch:
    return CommittedBatch(
        partition=TopicIdPartition(TOPIC, partition),
        position=position,
        magic=2,
        byte_offset=ByteOffset(100 * position),
        byte_size=100,
        base_offset=Offset(base),
        last_offset=Offset(last),
        log_append_time_ms=NOW_MS,
        max_timestamp_ms=NOW_MS,
        timestamp_type=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        last_sequence=-1,
    )


FILE = FileCommittedRecord(
    object_key=ObjectKey("wal/3f/K"),
    object_format=1,
    file_size=500,
    uploader_broker_id=2,
    owner_ids=(1, 0),
    committed_at_ms=NOW_MS,
    batches=[a_batch(0, 0, 10, 14), a_batch(0, 1, 15, 15), a_batch(3, 3, 0, 0)],
    refused=[RefusedBatch(2, 45)],
)


def logged(value: bytes, offset: int = 0, partition: int = 0) -> LoggedRecord:
    return LoggedRecord(partition, offset, NOW_MS, value)


def lines(*values: bytes, dump: Dump | None = None) -> list[str]:
    """What is printed of `values`, the first one at offset 0."""
    records = [logged(value, offset) for offset, value in enumerate(values)]
    return list((dump or Dump()).lines(records))


# Lines


def test_a_record_is_a_line_with_place_time_type_and_fields() -> None:
    partition = PartitionCreatedRecord(topic_id=TOPIC, name="flights", partition=3)
    assert lines(encode_record(LEADER), encode_record(partition)) == [
        "0:0         2024-01-01 00:00:00.123  LeaderChange          leader_epoch=3 broker_id=2"
        " host=broker-2 port=9092 incarnation=00000000-0000-0000-0000-000000000007"
        f" successor_id=-1 metadata_version={METADATA_VERSION}",
        "0:1         2024-01-01 00:00:00.123  PartitionCreated     "
        f" topic_id={TOPIC} name=flights partition=3",
    ]


def test_a_file_is_summed_up_and_its_batches_follow_if_wanted() -> None:
    (line,) = lines(encode_record(FILE))
    assert line.startswith("0:0         2024-01-01 00:00:00.123  FileCommitted ")
    assert "object_key=wal/3f/K " in line
    assert "owner_ids=[1,0] " in line
    assert line.endswith(
        "partition_count=2 batch_count=3 record_count=7 batch_bytes=300 refused_count=1"
    )
    summary, *rest = lines(encode_record(FILE), dump=Dump(verbose=True))
    assert summary == line
    assert [row.partition(" magic")[0] for row in rest] == [
        f"    topic_id={TOPIC} partition=0 batch_count=2 base_offset=10 last_offset=15",
        "        position=0",
        "        position=1",
        f"    topic_id={TOPIC} partition=3 batch_count=1 base_offset=0 last_offset=0",
        "        position=3",
        "    refused position=2 error_code=45 base_offset=-1 log_append_time_ms=-1"
        " log_start_offset=-1",
    ]


@pytest.mark.parametrize("verbose", [False, True])
def test_every_type_of_record_is_one_line_of_json(verbose: bool) -> None:
    values = [encode_record(record) for record in RECORDS]
    dump = Dump(as_json=True, verbose=verbose)
    rows = [json.loads(line) for line in lines(*values, dump=dump)]
    assert dump.undecoded == 0
    assert {row["type"] for row in rows} == {type_name(kind) for kind in RECORD_TYPES.values()}
    for offset, (row, value, record) in enumerate(zip(rows, values, RECORDS, strict=True)):
        assert (row["partition"], row["offset"], row["timestamp_ms"]) == (0, offset, NOW_MS)
        assert RECORD_TYPES[row["api_key"]] is type(record)
        assert row["bytes"] == len(value)
        for name, shown in row["fields"].items():
            stored = getattr(record, name, None)
            if isinstance(stored, int | str):
                assert shown == stored


def test_the_json_of_a_file_has_its_batches_if_wanted() -> None:
    (short,) = map(json.loads, lines(encode_record(FILE), dump=Dump(as_json=True)))
    (full,) = map(json.loads, lines(encode_record(FILE), dump=Dump(as_json=True, verbose=True)))
    assert "batches" not in short["fields"]
    batches = full["fields"].pop("batches")
    assert full["fields"].pop("refused") == [FILE.refused[0]._asdict()]
    assert full == short
    assert [(item["topic_id"], item["partition"], item["base_offset"]) for item in batches] == [
        (str(TOPIC), 0, 10),
        (str(TOPIC), 0, 15),
        (str(TOPIC), 3, 0),
    ]


def test_the_offsets_of_a_group_have_names() -> None:
    place = TopicIdPartition(TOPIC, 3)
    offset = CommittedOffset(partition=place, offset=9, commit_ms=5, metadata="m")
    committed, deleted = map(
        json.loads,
        lines(
            encode_record(OffsetsCommittedRecord(group_id="g", offsets=[offset])),
            encode_record(OffsetsDeletedRecord(group_id="g", partitions=[place])),
            dump=Dump(as_json=True),
        ),
    )
    where = {"topic_id": str(TOPIC), "partition": 3}
    assert deleted["fields"]["partitions"] == [where]
    assert committed["fields"]["offsets"] == [
        {
            **where,
            "offset": 9,
            "commit_ms": 5,
            "leader_epoch": -1,
            "metadata": "m",
            "expire_ms": -1,
        }
    ]


def test_what_is_stored_of_a_password_is_not_shown() -> None:
    secrets = [b"salt-of-ann", b"stored-key-of-ann", b"server-key-of-ann"]
    credential = ScramCredential(
        iterations=4_096, salt=secrets[0], stored_key=secrets[1], server_key=secrets[2]
    )
    record = ScramCredentialSetRecord(user="ann", mechanism=1, credential=credential)
    data = bytes(encode_record(record))
    # The second is one of a newer release.
    for value in (data, data.replace(b"\xf7\x07\x00", b"\xf7\x07\x09", 1)):
        for as_json in (False, True):
            logged = LoggedRecord(0, 1, NOW_MS, value)
            (line,) = Dump(as_json=as_json).lines([logged])
            assert not [secret for secret in secrets if secret.decode() in line]
            assert not [secret for secret in secrets if secret.hex() in line]
            assert "***" in line


def test_a_value_that_is_no_plain_word_stays_in_its_line() -> None:
    record = TopicConfigsRecord(topic_id=TOPIC, configs={"a": "line\nend \u2028\x1b[2J", "b": ""})
    (line,) = lines(encode_record(record))
    assert line.endswith(r'configs={"a":"line\nend \u2028\u001b[2J","b":""}')
    nobody = PartitionCreatedRecord(topic_id=TOPIC, name="", partition=0)
    assert ' name="" partition=0' in lines(encode_record(nobody))[0]


@pytest.mark.parametrize("timestamp_ms", [-1, -(2**63), 2**63 - 1, 253_402_300_800_000])
def test_a_time_that_no_calendar_has_is_shown_as_a_number(timestamp_ms: int) -> None:
    record = LoggedRecord(0, 0, timestamp_ms, encode_record(LEADER))
    assert f"  {timestamp_ms} ms  LeaderChange" in next(Dump().lines([record]))


# What cannot be decoded


def test_a_record_of_a_newer_release_is_shown_raw() -> None:
    newer_type = uvarint(1) + uvarint(4242) + uvarint(3) + b"\xff"
    newer_version = uvarint(1) + uvarint(102) + uvarint(9) + b"\x01"
    dump = Dump()
    unknown, known, after = lines(newer_type, newer_version, encode_record(LEADER), dump=dump)
    assert "  Unknown               api_key=4242 version=3 problem=" in unknown
    assert unknown.endswith(f" raw={newer_type.hex()}")
    assert "  FileCommitted         api_key=102 version=9 problem=" in known
    assert known.endswith(f" raw={newer_version.hex()}")
    assert "leader_epoch=3" in after
    assert dump.undecoded == 2


def test_records_of_a_newer_release_can_be_chosen_by_api_key() -> None:
    newer = uvarint(1) + uvarint(4242) + uvarint(0)
    (line,) = lines(encode_record(LEADER), newer, dump=Dump(types=["4242"]))
    assert line.startswith("0:1 ")


@given(
    st.binary(max_size=60)
    | st.builds(
        lambda start, rest: start + rest,
        st.sampled_from([encode_record(record)[:20] for record in RECORDS]),
        st.binary(max_size=20),
    )
)
@example(b"")
def test_whatever_lies_in_the_log_is_one_line(value: bytes) -> None:
    for dump in (Dump(), Dump(as_json=True)):
        (line,) = lines(value, dump=dump)
        assert line.isprintable()
        assert dump.undecoded == (inspect(logged(value)).record is None)
        if dump.undecoded:
            assert (value.hex() if inspect(logged(value)).api_key != 1015 else "***") in line
    json.loads(line)


# Choosing


def test_types_are_names_in_any_case_or_api_keys() -> None:
    values = [encode_record(record) for record in RECORDS]
    by_type: dict[str, int] = {}
    for row in map(json.loads, lines(*values, dump=Dump(as_json=True))):
        by_type[row["type"]] = row["api_key"]
    for name, api_key in by_type.items():
        for wanted in (name, name.lower(), str(api_key)):
            chosen = lines(*values, dump=Dump(as_json=True, types=[wanted]))
            assert {json.loads(line)["type"] for line in chosen} == {name}
    both = lines(*values, dump=Dump(types=["NoOp", "leaderchange"]))
    assert len(both) == 2
    with pytest.raises(InvalidSettings, match=r"no-such.*FileCommitted"):
        lines(dump=Dump(types=["no-such"]))


def test_the_limit_counts_what_is_shown_and_reads_no_further() -> None:
    taken: list[int] = []

    def records() -> Iterator[LoggedRecord]:
        for offset in range(100):
            taken.append(offset)
            record = LEADER if offset % 10 == 0 else NoOpRecord(leader_epoch=1)
            yield logged(encode_record(record), offset)

    dump = Dump(types=["LeaderChange"], limit=2, verbose=True)
    assert [line.split()[0] for line in dump.lines(records())] == ["0:0", "0:10"]
    assert taken == list(range(11))
    taken.clear()
    assert list(Dump(limit=0).lines(records())) == []
    assert taken == []


# Sources


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


# Snapshots


async def take_snapshots(directory: Path, count: int = 2) -> Sequence[int]:
    """Snapshots of a metadata partition in `directory`/bucket; their state hashes, newest first."""
    log = PrunableLog(await recorded_batches(directory))
    hashes = []
    async with FileStore(
        directory / "bucket", clock=SystemClock(), rng=random.Random(1), sync=False
    ) as store:
        snapshots = snapshots_in(store)
        for number in range(1, count + 1):
            until = log.batches[number * len(log.batches) // count - 1].next_offset
            state_directory = directory / f"state-{number}"
            state_directory.mkdir()
            async with following(state_directory, log, until) as followed:
                await keeper_of(followed, snapshots, seed=number).take_once()
                hashes.append(followed.image.state_hash)
    return hashes[::-1]


def test_snapshots_are_listed_and_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hashes = asyncio.run(take_snapshots(tmp_path))
    store = f"file://{tmp_path / 'bucket'}"
    listed = list_snapshots(store, verify=True)
    assert [snapshot.state_hash for snapshot in listed] == hashes
    assert listed[0].next_offset > listed[1].next_offset
    for snapshot in listed:
        assert (snapshot.partition, snapshot.status, snapshot.problem) == (0, "usable", None)
        assert snapshot.cluster_id == CLUSTER
        assert snapshot.file_bytes is not None
        assert 0 < snapshot.stored_bytes < snapshot.file_bytes
    assert list_snapshots(store, partitions=[3]) == []

    assert main(["metadata", "snapshots", "--store", store, "--verify"]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    for row, snapshot in zip(rows, listed, strict=True):
        assert row.startswith(f"0          {snapshot.name}")
        assert f"{snapshot.state_hash:016x}" in row
        assert row.rstrip().endswith("usable, verified now")
    assert main(["metadata", "snapshots", "--store", store, "--json"]) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert shown == [snapshot._asdict() for snapshot in listed]


def test_a_damaged_snapshot_is_shown_and_is_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(take_snapshots(tmp_path, 3))
    store = f"file://{tmp_path / 'bucket'}"
    newest, middle, oldest = list_snapshots(store)
    # One that only loading finds, one that the listing shows, one that was never finished.
    part = tmp_path / "bucket" / part_key(0, newest.name, 0)
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.chmod(0o644)
    part.write_bytes(content)
    (tmp_path / "bucket" / part_key(0, middle.name, 0)).unlink()
    (tmp_path / "bucket" / part_key(0, oldest.name, 0)).with_name("manifest").unlink()

    assert [snapshot.status for snapshot in list_snapshots(store)] == [
        "usable",
        "damaged",
        "without a manifest",
    ]
    assert main(["metadata", "snapshots", "--store", store, "--verify"]) == 1
    rows = capsys.readouterr().out.splitlines()[1:]
    assert "DAMAGED: " in rows[0]
    assert rows[1].rstrip().endswith("damaged")
    assert rows[2].rstrip().endswith("without a manifest")
    (found, _, _) = list_snapshots(store, verify=True)
    assert found.problem is not None


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
