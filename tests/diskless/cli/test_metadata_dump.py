"""`diskless metadata`: what it prints, from where, and what it says when it cannot."""

import json
from collections.abc import Iterator
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from diskless.cli.dumps.metadata_dump import Dump, inspect, type_name
from diskless.cli.metadata_sources import (
    LoggedRecord,
)
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
from metadata.scram.credentials import ScramCredential
from tests.support.samples.record_samples import GOLDEN
from wal.coordinates import ByteOffset, ObjectKey, Offset, TopicIdPartition
from wal.errors import InvalidSettings
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
