"""The coordinator's messages: as KIP-1164's schemas have them, there and back, and garbage."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata import operations as ops
from metadata.messages.codec import ENTRIES_MAX, Operation
from metadata.messages.commit_file import COMMIT_FILE, CommitFileMessage
from metadata.messages.coordinator import (
    CREATE_PARTITIONS,
    DESCRIBE_FILES,
    LIST_OFFSETS,
    DescribeFilesMessage,
)
from metadata.messages.find_batches import FIND_BATCHES, FindBatchesMessage
from tests.support.profiles import examples
from tests.support.samples.coordinator_samples import SAMPLES, Samples, draw_answers, told
from tests.support.wire.kip_1164_schemas import Field, decode, encode
from tests.support.wire.message_fields import A, B, received, schema, tagged
from wal import errors
from wal.coordinates import BatchExtent, ByteOffset, ObjectKey, Offset, TopicIdPartition

OPERATIONS = pytest.mark.parametrize("samples", SAMPLES.values(), ids=SAMPLES)
OF_THE_KIP = pytest.mark.parametrize(
    "samples",
    [samples for samples in SAMPLES.values() if samples.operation.key < 10_000],
    ids=lambda samples: samples.operation.name,
)
STRANGE = b"from a later release"


# --- there and back -------------------------------------------------------------------------------


@OPERATIONS
@given(data=st.data(), timeout_ms=st.integers(-(2**31), 2**31 - 1))
@examples(0.3)
def test_a_request_survives_encoding(
    samples: Samples, data: st.DataObject, timeout_ms: int
) -> None:
    request = data.draw(samples.requests)
    body = samples.operation.encode_request(request, timeout_ms)
    assert samples.operation.decode_request(body) == (request, timeout_ms)


@OPERATIONS
@given(data=st.data())
@examples(0.3)
def test_answers_survive_encoding_and_keep_the_order_of_the_request(
    samples: Samples, data: st.DataObject
) -> None:
    request = data.draw(samples.requests)
    answers = draw_answers(data, samples, request)
    body = samples.operation.encode_response(request, answers)
    received, call_error = samples.operation.decode_response(request, body)
    if samples is SAMPLES["DisklessFindBatches"]:
        # It has no error message.
        assert [type(answer.error) for answer in received] == [type(a.error) for a in answers]
        received = [answer._replace(error=None) for answer in received]
        answers = [answer._replace(error=None) for answer in answers]
    assert list(map(told, received)) == list(map(told, answers))
    assert call_error is None


@OPERATIONS
@given(data=st.data())
@examples(0.2)
def test_what_concerns_the_whole_call_is_in_every_entry_and_beside_them(
    samples: Samples, data: st.DataObject
) -> None:
    request = data.draw(samples.requests)
    body = samples.operation.encode_failure(request, errors.NotCoordinator("moved"))
    answers, call_error = samples.operation.decode_response(request, body)
    assert len(answers) == samples.operation.count(request)
    for answer in answers:
        error = answer if isinstance(answer, errors.NotCoordinator) else answer.error
        assert type(error) is errors.NotCoordinator
    assert told(call_error) == (errors.NotCoordinator, "moved")


# -- an implementation that knows only the schemas -------------------------------------------------


@OF_THE_KIP
@given(data=st.data(), timeout_ms=st.integers(-(2**31), 2**31 - 1))
@examples(0.3)
def test_a_request_that_reads_by_the_schema_alone_means_the_same_encoded_by_it(
    samples: Samples, data: st.DataObject, timeout_ms: int
) -> None:
    operation = samples.operation
    request = data.draw(samples.requests)
    body = operation.encode_request(request, timeout_ms)
    fields = [*schema(operation, "request"), *OUR_TAGS.get(operation.name, {}).get("request", ())]
    values = decode(fields, body)
    assert values["TimeoutMs"] == timeout_ms
    assert encode(fields, values) == body
    # The same with tagged fields that nobody knows, in every structure.
    assert operation.decode_request(encode(fields, values, strange=STRANGE)) == (
        request,
        timeout_ms,
    )


@OF_THE_KIP
@given(data=st.data())
@examples(0.3)
def test_a_response_that_reads_by_the_schema_alone_means_the_same_encoded_by_it(
    samples: Samples, data: st.DataObject
) -> None:
    operation = samples.operation
    request = data.draw(samples.requests)
    answers = draw_answers(data, samples, request)
    body = operation.encode_response(request, answers)
    fields = with_our_tags(operation)
    values = decode(fields, body)
    assert values["ThrottleTimeMs"] == 0
    assert encode(fields, values) == body
    strange, _ = operation.decode_response(request, encode(fields, values, strange=STRANGE))
    plain, _ = operation.decode_response(request, body)
    assert list(map(told, strange)) == list(map(told, plain))


OUR_TAGS: dict[str, dict[str, list[Field]]] = {
    "DisklessCommitFile": {
        "request": [
            tagged(10_000, "UploaderBrokerId", "int32"),
            tagged(10_001, "BatchCrcs", "[]uint32"),
            tagged(10_002, "TransactionNumbers", "[]int64"),
        ]
    },
    "DisklessFindBatches": {
        "request": [tagged(10_000, "AtLeastOne", "int8"), tagged(10_001, "Isolation", "int8")]
    },
    "DisklessDescribeFiles": {"request": [tagged(10_000, "CoordinatorId", "int32")]},
}


def with_our_tags(operation: Operation[Any, Any]) -> list[Field]:
    """The response's schema; found batches and listed offsets have tagged fields of ours."""

    def extended(field: Field) -> Field:
        children = list(map(extended, field.children))
        if operation is FIND_BATCHES and field.name == "Batches":
            children += [
                tagged(10_000, "ObjectFormat", "int8"),
                tagged(10_001, "ObjectSize", "int64"),
                tagged(10_002, "ProducerId", "int64"),
                tagged(10_003, "ProducerEpoch", "int16"),
                tagged(10_004, "IsCommit", "int8"),
                tagged(10_005, "CoordinatorEpoch", "int32"),
            ]
        if operation is FIND_BATCHES and field.name == "Partitions":
            names = ("ProducerId", "FirstOffset", "MarkerOffset")
            aborted = tuple(Field(name, "int64", False, None, ()) for name in names)
            children += [
                tagged(10_000, "FirstOpenOffset", "int64"),
                tagged(10_001, "AbortedTransactions", "[]")._replace(children=aborted),
            ]
        if operation is LIST_OFFSETS and field.name == "Partitions":
            children.append(tagged(10_000, "LastStableOffset", "int64"))
        return field._replace(children=children)

    return list(map(extended, schema(operation, "response")))


def test_every_field_of_a_commit_is_where_the_kip_has_it() -> None:
    batch = BatchExtent(TopicIdPartition(A, 3), ByteOffset(64), 90, 5, 77, 1_000, 1, 9, 2, 7, 4, 31)
    file = ops.CommitFile(
        object_key=ObjectKey("wal/00/X"),
        file_size_bytes=200,
        uploader_broker_id=6,
        batches=[batch],
        owner_ids=(2, 0),
    )
    body = COMMIT_FILE.encode_request(CommitFileMessage(file), 1_234)
    fields = [*schema(COMMIT_FILE, "request"), *OUR_TAGS[COMMIT_FILE.name]["request"]]
    assert decode(fields, body) == {
        "ObjectKey": "wal/00/X",
        "ObjectFormat": 1,
        "FileSize": 200,
        "OwnerIds": [2, 0],
        "Batches": [
            {
                "Magic": 2,
                "RequestId": 4,
                "TopicId": A,
                "PartitionIndex": 3,
                "ByteOffset": 64,
                "Size": 90,
                "BaseOffset": 0,
                "LastOffset": 4,
                "BatchMaxTimestamp": 1_000,
                "TimestampType": 1,
                "ProducerId": 9,
                "ProducerEpoch": 2,
                "BaseSequence": 7,
                "LastSequence": 11,
            }
        ],
        "TimeoutMs": 1_234,
        "UploaderBrokerId": 6,
        "BatchCrcs": [77],
        "TransactionNumbers": [31],
    }
    answers = [ops.BatchCommit(40, 2_000, 10, True)]
    body = COMMIT_FILE.encode_response(CommitFileMessage(file), answers)
    assert decode(schema(COMMIT_FILE, "response"), body) == {
        "ThrottleTimeMs": 0,
        "Batches": [
            {
                "ErrorCode": 0,
                "ErrorMessage": None,
                "AssignedBaseOffset": 40,
                "LogAppendTime": 2_000,
                "LogStartOffset": 10,
                "IsDuplicate": True,
            }
        ],
    }


def test_every_field_of_found_batches_is_where_the_kip_has_it() -> None:
    extents = [
        ops.SegmentExtent(ObjectKey("segments/s"), 900, Offset(5), Offset(9), 50),
        ops.WalExtent(
            ObjectKey("wal/00/X"), ByteOffset(64), 90, Offset(10), Offset(19), 8, 7, 1, 200
        ),
    ]
    message = FindBatchesMessage([ops.FindBatches(TopicIdPartition(A, 3), 5, 100)], 1_000, 2, False)
    request = decode(
        [*schema(FIND_BATCHES, "request"), *OUR_TAGS[FIND_BATCHES.name]["request"]],
        FIND_BATCHES.encode_request(message, 9),
    )
    assert request == {
        "FetchMaxBytes": 1_000,
        "MaxBatchesPerPartition": 2,
        "Topics": [
            {
                "TopicId": A,
                "Partitions": [{"PartitionIndex": 3, "Offset": 5, "MaxPartitionFetchBytes": 100}],
            }
        ],
        "TimeoutMs": 9,
        "AtLeastOne": 0,
    }
    body = FIND_BATCHES.encode_response(message, [ops.FoundBatches(2, 20, extents)])
    assert decode(with_our_tags(FIND_BATCHES), body)["Topics"] == [
        {
            "TopicId": A,
            "Partitions": [
                {
                    "PartitionIndex": 3,
                    "ErrorCode": 0,
                    "LogStartOffset": 2,
                    "HighWatermark": 20,
                    "Batches": [
                        {
                            "BatchId": 5,
                            "ObjectKey": "segments/s",
                            "Magic": 2,
                            "ByteOffset": 0,
                            "ByteSize": 900,
                            "BaseOffset": 5,
                            "LastOffset": 9,
                            "LogAppendTimestamp": -1,
                            "BatchMaxTimestamp": 50,
                            "TimestampType": 0,
                            "ObjectFormat": 2,
                            "ObjectSize": 900,
                        },
                        {
                            "BatchId": 10,
                            "ObjectKey": "wal/00/X",
                            "Magic": 2,
                            "ByteOffset": 64,
                            "ByteSize": 90,
                            "BaseOffset": 10,
                            "LastOffset": 19,
                            "LogAppendTimestamp": 8,
                            "BatchMaxTimestamp": 7,
                            "TimestampType": 1,
                            "ObjectSize": 200,
                        },
                    ],
                }
            ],
        }
    ]


def test_what_we_add_may_be_left_out() -> None:
    values: dict[str, Any] = {
        "ObjectKey": "k", "ObjectFormat": 1, "FileSize": 1, "OwnerIds": [], "Batches": [],
        "TimeoutMs": 5,
    }  # fmt: skip
    message, _ = COMMIT_FILE.decode_request(encode(schema(COMMIT_FILE, "request"), values))
    assert message.file.uploader_broker_id == -1
    values = {"FetchMaxBytes": 1, "MaxBatchesPerPartition": 1, "Topics": [], "TimeoutMs": 5}
    found, _ = FIND_BATCHES.decode_request(encode(schema(FIND_BATCHES, "request"), values))
    assert found.at_least_one
    values = {"Files": [{"ObjectKey": "k"}], "TimeoutMs": 5}
    files, _ = DESCRIBE_FILES.decode_request(encode(schema(DESCRIBE_FILES, "request"), values))
    assert files.coordinator is None


# --- order ----------------------------------------------------------------------------------------


def test_a_group_is_a_run_of_one_topic_and_entries_of_a_partition_keep_their_order() -> None:
    requests = [
        ops.ListOffsets(TopicIdPartition(topic, index), timestamp)
        for topic, index, timestamp in [(A, 0, 1), (A, 0, 2), (B, 0, 3), (A, 0, 4)]
    ]
    body = LIST_OFFSETS.encode_request(requests, 5)
    groups = decode(schema(LIST_OFFSETS, "request"), body)["Topics"]
    assert [(group["TopicId"], len(group["Partitions"])) for group in groups] == [
        (A, 2),
        (B, 1),
        (A, 1),
    ]
    assert LIST_OFFSETS.decode_request(body)[0] == requests


@given(st.permutations(range(6)))
def test_answers_in_another_order_find_their_places(order: list[int]) -> None:
    partitions = [
        TopicIdPartition(topic, index)
        for topic, index in [(A, 0), (B, 0), (A, 1), (A, 0), (B, 0), (A, 0)]
    ]
    requests = [ops.ListOffsets(partition, -1) for partition in partitions]
    rows = [
        {
            "TopicId": partitions[number].topic_id,
            "Partitions": [
                {
                    "PartitionIndex": partitions[number].partition,
                    "ErrorCode": 0,
                    "ErrorMessage": None,
                    "Timestamp": -1,
                    "Offset": number,
                }
            ],
        }
        for number in order
    ]
    body = encode(schema(LIST_OFFSETS, "response"), {"ThrottleTimeMs": 3, "Topics": rows})
    answers, _ = LIST_OFFSETS.decode_response(requests, body)
    for partition in set(partitions):
        places = [place for place, other in enumerate(partitions) if other == partition]
        came = [number for number in order if partitions[number] == partition]
        assert [answers[place].offset for place in places] == came


def test_an_answer_about_something_else_is_no_answer() -> None:
    asked = [ops.ListOffsets(TopicIdPartition(A, 0), -1)]
    for others in ([], [ops.ListOffsets(TopicIdPartition(A, 1), -1)], asked * 2):
        body = LIST_OFFSETS.encode_response(others, [ops.ListedOffset(1)] * len(others))
        with pytest.raises(errors.InvalidRequest):
            LIST_OFFSETS.decode_response(asked, body)


# --- what does not fit, garbage -------------------------------------------------------------------


def test_a_value_without_a_place_in_its_field_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(errors.InvalidRequest):
        LIST_OFFSETS.encode_request([ops.ListOffsets(TopicIdPartition(A, 2**31), -1)], 5)
    with pytest.raises(errors.InvalidRequest):
        CREATE_PARTITIONS.encode_request(
            [ops.CreatePartitions(topic_id=A, name="\ud800", partition_count=1)], 5
        )


def test_limits_beyond_the_field_are_the_fields_own() -> None:
    message = FindBatchesMessage([ops.FindBatches(TopicIdPartition(A, 0), 0, 2**40)], 2**40, 2**40)
    decoded, _ = FIND_BATCHES.decode_request(FIND_BATCHES.encode_request(message, 5))
    assert decoded.max_bytes == decoded.batches_per_partition_max == 2**31 - 1
    assert decoded.requests[0].max_bytes == 2**31 - 1


def test_an_error_with_text_that_is_no_unicode_can_be_told() -> None:
    body = DESCRIBE_FILES.encode_failure(
        DESCRIBE_FILES.decode_request(DESCRIBE_FILES.encode_request(_files("k"), 5))[0],
        errors.UnknownFile("\ud800" + "x" * 5_000),
    )
    (answer,), _ = DESCRIBE_FILES.decode_response(_files("k"), body)
    assert type(answer.error) is errors.UnknownFile
    assert str(answer.error) == "?" + "x" * 999


def _files(*keys: str) -> Any:
    return DescribeFilesMessage([ObjectKey(key) for key in keys])


@OPERATIONS
@given(data=st.binary(max_size=300))
@examples(0.3)
def test_garbage_is_refused_and_nothing_else_happens(samples: Samples, data: bytes) -> None:
    with contextlib.suppress(errors.InvalidRequest):
        samples.operation.decode_request(data)


@OPERATIONS
@given(data=st.data())
@examples(0.3)
def test_damaged_bytes_are_refused_or_read_and_nothing_else_happens(
    samples: Samples, data: st.DataObject
) -> None:
    operation = samples.operation
    request = data.draw(samples.requests)
    for body, read in [
        (operation.encode_request(request, 5), operation.decode_request),
        (
            operation.encode_response(request, draw_answers(data, samples, request)),
            lambda body: operation.decode_response(request, body),
        ),
    ]:
        cut = data.draw(st.integers(0, len(body) - 1))
        with pytest.raises(errors.InvalidRequest):
            read(body[:cut])
        with pytest.raises(errors.InvalidRequest):
            read(body + b"\x00")
        flipped = bytearray(body)
        flipped[cut] ^= data.draw(st.integers(1, 255))
        with contextlib.suppress(errors.InvalidRequest):
            read(bytes(flipped))


def test_a_count_that_the_bytes_cannot_hold_is_refused_before_anything_is_read() -> None:
    with pytest.raises(errors.InvalidRequest, match="an array of 4294967294 elements"):
        LIST_OFFSETS.decode_request(b"\xff\xff\xff\xff\x0f" + bytes(100))


def test_a_request_of_too_many_entries_is_refused() -> None:
    requests = [ops.ListOffsets(TopicIdPartition(A, 0), -1)] * ENTRIES_MAX
    body = LIST_OFFSETS.encode_request(requests, 5)
    with pytest.raises(errors.InvalidRequest, match=f"more than {ENTRIES_MAX} entries"):
        LIST_OFFSETS.decode_request(body)


@pytest.mark.parametrize(("magic", "object_format"), [(1, 1), (2, 4)])
def test_batches_that_we_cannot_read_are_no_answer(magic: int, object_format: int) -> None:
    message = FindBatchesMessage([ops.FindBatches(TopicIdPartition(A, 0), 0, 9)], 9, 9)
    batch = {
        "BatchId": 1, "ObjectKey": "k", "Magic": magic, "ByteOffset": 0, "ByteSize": 1,
        "BaseOffset": 0, "LastOffset": 0, "LogAppendTimestamp": 0, "BatchMaxTimestamp": 0,
        "TimestampType": 0, "ObjectFormat": object_format,
    }  # fmt: skip
    row = {
        "PartitionIndex": 0, "ErrorCode": 0, "LogStartOffset": 0, "HighWatermark": 1,
        "Batches": [batch],
    }  # fmt: skip
    values = {"ThrottleTimeMs": 0, "Topics": [{"TopicId": A, "Partitions": [row]}]}
    with pytest.raises(errors.InvalidRequest):
        FIND_BATCHES.decode_response(message, encode(with_our_tags(FIND_BATCHES), values))


def test_codes_that_nobody_knows_mean_what_the_operation_allows() -> None:
    asked = [ops.ListOffsets(TopicIdPartition(A, 0), -1)]
    row = {
        "PartitionIndex": 0, "ErrorCode": 119, "ErrorMessage": None, "Timestamp": -1, "Offset": -1,
    }  # fmt: skip
    values = {"ThrottleTimeMs": 0, "Topics": [{"TopicId": A, "Partitions": [row]}]}
    body = encode(schema(LIST_OFFSETS, "response"), values)
    (answer,), _ = LIST_OFFSETS.decode_response(asked, body)
    assert told(answer.error) == (errors.CommitFailed, "the coordinator answered with code 119")
    message = received({})
    refusal = {
        "ErrorCode": 119, "ErrorMessage": "what", "AssignedBaseOffset": -1, "LogAppendTime": -1,
        "LogStartOffset": -1, "IsDuplicate": False,
    }  # fmt: skip
    values = {"ThrottleTimeMs": 0, "Batches": [refusal]}
    (commit,), _ = COMMIT_FILE.decode_response(
        message, encode(schema(COMMIT_FILE, "response"), values)
    )
    assert told(commit.error) == (errors.CommitOutcomeUnknown, "what")


def test_found_batches_name_the_error_that_came_as_a_number() -> None:
    message = FindBatchesMessage([ops.FindBatches(TopicIdPartition(A, 0), 0, 9)], 9, 9)
    body = FIND_BATCHES.encode_response(
        message, [ops.FoundBatches(error=errors.UnknownPartition("no such"))]
    )
    (answer,), _ = FIND_BATCHES.decode_response(message, body)
    assert told(answer.error) == (
        errors.UnknownPartition,
        "the coordinator answered with UNKNOWN_TOPIC_OR_PARTITION",
    )


def test_many_entries_are_read_and_written_in_steps() -> None:
    requests = [ops.ListOffsets(TopicIdPartition(A, number), -1) for number in range(3_000)]
    body = LIST_OFFSETS.encode_request(requests, 1_000)
    assert len([*LIST_OFFSETS.decode_in_steps(body)]) >= len(requests)
    answers = [ops.ListedOffset(number, number) for number in range(len(requests))]
    assert len([*LIST_OFFSETS.encode_in_steps(requests, answers)]) >= len(requests)
    failed = errors.NotCoordinator("moved")
    assert len([*LIST_OFFSETS.encode_failure_in_steps(requests, failed)]) >= len(requests)
    answered = LIST_OFFSETS.encode_response(requests, answers)
    assert LIST_OFFSETS.decode_response(requests, answered) == (answers, None)
