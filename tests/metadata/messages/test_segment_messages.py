"""The private segment operations survive their encoding, and garbage is refused."""

import contextlib
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.messages.segments import (
    CommitSegmentsResponse,
    CommitSegmentsResult,
    PlanSegmentsRequest,
    PlanSegmentsResponse,
    decode_commit_request,
    decode_commit_response,
    decode_plan_request,
    decode_plan_response,
    encode_commit_request,
    encode_commit_response,
    encode_plan_request,
    encode_plan_response,
)
from metadata.operations import RolledSegment, SegmentPlan, WalExtent
from tests.support.profiles import examples
from wal.coordinates import TopicIdPartition
from wal.errors import InvalidRequest

INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT16 = st.integers(-(2**15), 2**15 - 1)
TEXT = st.text(max_size=20)
PARTITIONS = st.builds(TopicIdPartition, st.uuids(), INT32)
EXTENTS = st.builds(
    WalExtent, TEXT, INT64, INT64, INT64, INT64, INT64, INT64, st.integers(0, 1), INT64
)
PLANS = st.builds(
    SegmentPlan,
    partition=PARTITIONS,
    topic_name=TEXT,
    object_key=TEXT,
    base_offset=INT64,
    last_offset=INT64,
    extents=st.lists(EXTENTS, max_size=3).map(tuple),
)
SEGMENTS = st.builds(
    RolledSegment,
    partition=PARTITIONS,
    object_key=TEXT,
    base_offset=INT64,
    last_offset=INT64,
    object_bytes=INT64,
    crc32c=st.integers(0, 2**32 - 1),
    record_count=INT64,
    max_timestamp_ms=INT64,
)
DECODERS = [
    decode_plan_request,
    decode_plan_response,
    decode_commit_request,
    decode_commit_response,
]


@given(st.builds(PlanSegmentsRequest, st.booleans(), INT32))
def test_a_plan_request_survives_encoding(request_: PlanSegmentsRequest) -> None:
    assert decode_plan_request(encode_plan_request(request_)) == request_


@given(st.builds(PlanSegmentsResponse, INT16, TEXT, TEXT, st.lists(PLANS, max_size=3).map(tuple)))
def test_a_plan_response_survives_encoding(response: PlanSegmentsResponse) -> None:
    assert decode_plan_response(encode_plan_response(response)) == response


@given(st.lists(SEGMENTS, max_size=4).map(tuple))
def test_a_commit_request_survives_encoding(segments: tuple[RolledSegment, ...]) -> None:
    assert decode_commit_request(encode_commit_request(segments)) == segments


@given(
    st.builds(
        CommitSegmentsResponse,
        INT16,
        TEXT,
        st.lists(st.builds(CommitSegmentsResult, INT16, TEXT, st.booleans()), max_size=4).map(
            tuple
        ),
    )
)
def test_a_commit_response_survives_encoding(response: CommitSegmentsResponse) -> None:
    assert decode_commit_response(encode_commit_response(response)) == response


@pytest.mark.parametrize("decode", DECODERS)
@given(data=st.binary(max_size=200))
@examples(0.6)
def test_garbage_is_refused_and_nothing_else_happens(
    decode: Callable[[bytes], Any], data: bytes
) -> None:
    with contextlib.suppress(InvalidRequest):
        decode(data)


@given(st.lists(SEGMENTS, min_size=1, max_size=2), st.data())
def test_every_cut_is_refused(segments: list[RolledSegment], data: st.DataObject) -> None:
    body = encode_commit_request(segments)
    with pytest.raises(InvalidRequest):
        decode_commit_request(body[: data.draw(st.integers(0, len(body) - 1))])


def test_a_count_that_the_bytes_cannot_hold_is_refused_before_anything_is_read() -> None:
    with pytest.raises(InvalidRequest, match="an array of 4294967294 elements"):
        decode_commit_request(b"\xff\xff\xff\xff\x0f" + bytes(100))


def test_a_field_of_a_later_version_is_skipped() -> None:
    body = encode_plan_request(PlanSegmentsRequest(True, 7))
    later = body[:-1] + b"\x01\x05\x03new"
    assert decode_plan_request(later) == PlanSegmentsRequest(True, 7)


def test_the_bytes_of_a_commit_are_those_of_the_page() -> None:
    segment = RolledSegment(
        partition=TopicIdPartition(UUID(int=1), 2),
        object_key="k",  # type: ignore[arg-type]
        base_offset=3,  # type: ignore[arg-type]
        last_offset=4,  # type: ignore[arg-type]
        object_bytes=5,
        crc32c=6,
        record_count=2,
        max_timestamp_ms=8,
    )
    assert encode_commit_request([segment]).hex(" ", -8) == (
        bytes.fromhex(
            "02" + "00" * 15 + "01" + "00000002" + "026b"
            "0000000000000003"
            "0000000000000004"
            "0000000000000005"
            "00000006"
            "0000000000000002"
            "0000000000000008"
            "00"
            "00"
        ).hex(" ", -8)
    )
