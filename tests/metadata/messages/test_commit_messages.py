"""What a commit of a WAL object may say on the wire, batch by batch."""

from typing import Any

import pytest

from metadata import operations as ops
from metadata.messages.commit_file import COMMIT_FILE
from tests.support.wire.kip_1164_schemas import decode, encode
from tests.support.wire.message_fields import commit_values, received, schema, tagged
from wal import errors


def test_offsets_of_a_batch_count_from_anywhere() -> None:
    message = received({"BaseOffset": 0, "LastOffset": 9}, {"BaseOffset": 100, "LastOffset": 104})
    assert [batch.record_count for batch in message.file.batches] == [10, 5]


@pytest.mark.parametrize(
    "wrong",
    [
        {"Magic": 1},
        {"Magic": 0},
        {"BaseOffset": 5, "LastOffset": 4},
        {"BaseOffset": 0, "LastOffset": 2**31 - 1},
        {"BaseOffset": -(2**63), "LastOffset": 2**63 - 1},
        {"LastSequence": 0},
        {"ProducerId": 1, "BaseSequence": 3, "LastSequence": 4},
        {"ProducerId": 1, "BaseSequence": 3, "LastSequence": -1},
    ],
)
def test_a_batch_that_contradicts_itself_is_refused_alone(wrong: dict[str, Any]) -> None:
    message = received({"ByteOffset": 0}, wrong, {"ByteOffset": 200}, wrong)
    assert [batch.byte_offset for batch in message.file.batches] == [0, 200]
    assert {position: type(error) for position, error in message.refused.items()} == {
        1: errors.InvalidRecord,
        3: errors.InvalidRecord,
    }
    body = COMMIT_FILE.encode_response(
        message, [ops.BatchCommit(7, 1, 0), ops.BatchCommit(8, 1, 0)]
    )
    rows = decode(schema(COMMIT_FILE, "response"), body)["Batches"]
    assert [(row["ErrorCode"], row["AssignedBaseOffset"]) for row in rows] == [
        (0, 7),
        (87, -1),
        (0, 8),
        (87, -1),
    ]


def test_sequences_of_a_batch_may_wrap() -> None:
    message = received(
        {"ProducerId": 1, "BaseSequence": 2**31 - 2, "LastOffset": 3, "LastSequence": 1}
    )
    assert not message.refused
    assert message.file.batches[0].last_sequence == 1


def test_the_append_time_is_told_where_it_applies() -> None:
    message = received({"TimestampType": 0}, {"TimestampType": 1})
    body = COMMIT_FILE.encode_response(message, [ops.BatchCommit(0, 99, 0)] * 2)
    rows = decode(schema(COMMIT_FILE, "response"), body)["Batches"]
    assert [row["LogAppendTime"] for row in rows] == [-1, 99]


def test_a_refused_commit_keeps_the_reasons_of_its_bad_batches() -> None:
    message = received({}, {"Magic": 1})
    body = COMMIT_FILE.encode_failure(message, errors.CommitFailed("disk"))
    # The tagged field that says so again is two varints, a code and a text behind the last entry.
    plain = COMMIT_FILE.encode_response(
        message, [ops.BatchCommit(error=errors.CommitFailed("disk"))]
    )
    assert body.startswith(plain[:-1])
    rows = decode(schema(COMMIT_FILE, "response"), plain)["Batches"]
    assert [row["ErrorCode"] for row in rows] == [15, 87]


def test_crcs_must_be_as_many_as_batches() -> None:
    fields = [*schema(COMMIT_FILE, "request"), tagged(10_001, "BatchCrcs", "[]uint32")]
    for crcs in ([], [1, 2], [1]):
        body = encode(fields, {**commit_values({}), "BatchCrcs": crcs})
        if len(crcs) == 1:
            assert COMMIT_FILE.decode_request(body)[0].file.batches[0].crc == 1
        else:
            with pytest.raises(errors.InvalidRequest, match="CRCs"):
                COMMIT_FILE.decode_request(body)
