"""Kafka's primitive types, read from whole and from cut buffers, and from bytes that lie."""

import itertools
from struct import Struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskless.loop.long_work import done_at_once
from diskless.protocol import messages
from diskless.protocol.header import read_request_header, response_start
from diskless.protocol.wire import ITEMS_MAX, ProtocolError, Reader, nullable_string, string
from wal.wire.fields import TAGS_MAX, uvarint


@st.composite
def cut_bytes(draw: st.DrawFn, data: bytes) -> list[memoryview]:
    """`data` as consecutive views, some of them empty."""
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=6)))
    edges = [0, *cuts, len(data)]
    return [memoryview(data)[start:end] for start, end in itertools.pairwise(edges)]


@given(st.data(), st.integers(-(2**63), 2**63 - 1), st.text(max_size=60), st.uuids())
def test_a_cut_buffer_reads_like_a_whole_one(data, number, text, topic_id):
    whole = (
        Struct(">bhiq").pack(-5, -300, 70_000, number)
        + string(text, flexible=True)
        + string(text, flexible=False)
        + topic_id.bytes
        + uvarint(2**32 - 1)
        + b"tail"
    )
    reader = Reader(data.draw(cut_bytes(whole)))
    assert (reader.int8(), reader.int16(), reader.int32()) == (-5, -300, 70_000)
    assert reader.int64() == number
    assert reader.string(flexible=True) == text
    assert reader.string(flexible=False) == text
    assert reader.topic_id() == (topic_id if topic_id.int else None)
    assert reader.uvarint() == 2**32 - 1
    assert reader.consumed == len(whole) - 4
    reader.pass_over(2)
    assert bytes(reader.take(2)) == b"il"
    assert reader.remaining == 0
    with pytest.raises(ProtocolError):
        reader.uint8()


@given(st.integers(0, 2**32 - 1))
def test_varints_come_back_as_written(value):
    written = uvarint(value)
    reader = Reader([written])
    assert reader.uvarint() == value
    assert reader.remaining == 0


def test_a_length_of_ours_beyond_a_varint_is_an_error_not_a_wrong_length():
    with pytest.raises(ValueError, match="does not fit"):
        uvarint(2**32)


@pytest.mark.parametrize(
    "lie", [b"\xff\xff\xff\xff\xff\x01", b"\xff\xff\xff\xff\x7f", b"\x80\x80\x80\x80\x80"]
)
def test_a_varint_beyond_32_bits_is_refused(lie):
    with pytest.raises(ProtocolError):
        Reader([lie]).uvarint()


@pytest.mark.parametrize("flexible", [False, True])
def test_an_array_that_cannot_fit_is_refused_before_it_is_made(flexible):
    count = uvarint(2**31) if flexible else Struct(">i").pack(2**31 - 1)
    with pytest.raises(ProtocolError, match="array of"):
        Reader([count + b"x" * 100]).array_count(flexible=flexible, item_bytes_min=1)
    with pytest.raises(ProtocolError):
        Reader([b"\xff\xff\xff\xfe" + b"x"]).array_count(flexible=False, item_bytes_min=1)


def test_small_arrays_in_large_numbers_are_refused():
    reader = Reader([b"\x65" * 200_000])
    for _ in range(ITEMS_MAX // 100):
        assert reader.array_count(flexible=True, item_bytes_min=1) == 100
    with pytest.raises(ProtocolError, match="array items"):
        reader.array_count(flexible=True, item_bytes_min=1)


def test_null_is_an_array_only_where_the_schema_allows_it():
    assert Reader([b"\x00"]).nullable_array_count(flexible=True, item_bytes_min=1) == -1
    with pytest.raises(ProtocolError):
        Reader([b"\x00"]).array_count(flexible=True, item_bytes_min=1)


@pytest.mark.parametrize("flexible", [False, True])
def test_null_is_a_string_only_where_the_schema_allows_it(flexible):
    written = nullable_string(None, flexible=flexible)
    assert Reader([written]).nullable_string(flexible=flexible) is None
    with pytest.raises(ProtocolError, match="null"):
        Reader([written]).string(flexible=flexible)


def test_a_string_that_is_not_utf8_is_refused():
    with pytest.raises(ProtocolError, match="UTF-8"):
        Reader([b"\x00\x02\xff\xfe"]).string(flexible=False)


def test_more_tagged_fields_than_bytes_are_refused():
    with pytest.raises(ProtocolError, match="tagged"):
        Reader([uvarint(2**32 - 1) + b"\x00" * 10]).skip_tags()


def test_a_header_of_nothing_but_tags_is_refused():
    """It may have a hundred MiB, and is read before anybody is asked who sent it."""

    def header(count):
        tags = uvarint(count) + b"\x01\x00" * count
        return Reader([b"\x00\x00\x00\x2a\xff\xff" + tags])

    assert read_request_header(header(TAGS_MAX), flexible=True) == (42, "")
    with pytest.raises(ProtocolError, match="101 tagged fields"):
        read_request_header(header(TAGS_MAX + 1), flexible=True)


def test_a_message_of_nothing_but_tags_is_refused():
    def metadata(count):
        return b"\x01\x01\x00\x00" + uvarint(count) + b"\x01\x00" * count

    read_at_once = messages.decode_request(3, 9, metadata(TAGS_MAX))
    assert list(done_at_once(read_at_once).topics) == []
    with pytest.raises(ProtocolError, match="101 tagged fields"):
        done_at_once(messages.decode_request(3, 9, metadata(TAGS_MAX + 1)))


@given(st.binary(max_size=80), st.data())
def test_garbage_gives_a_protocol_error_or_a_value_never_anything_else(garbage, data):
    views = data.draw(cut_bytes(garbage))
    methods = (
        lambda r: r.nullable_string(flexible=True),
        lambda r: r.nullable_string(flexible=False),
        lambda r: r.nullable_bytes_length(flexible=True),
        lambda r: r.nullable_bytes_length(flexible=False),
        lambda r: r.skip_tags(),
        lambda r: r.topic_id(),
        lambda r: r.array_count(flexible=True, item_bytes_min=1),
        lambda r: read_request_header(r, flexible=True),
    )
    for method in methods:
        reader = Reader(views)
        try:
            method(reader)
        except ProtocolError:
            pass
        assert reader.consumed <= len(garbage)


def test_a_flexible_header_keeps_the_short_client_id_and_skips_its_tags():
    tags = b"\x02" + b"\x00\x03abc" + uvarint(1_000) + b"\x01z"
    reader = Reader([b"\x00\x00\x00\x2a" + string("me", flexible=False) + tags + b"body"])
    assert read_request_header(reader, flexible=True) == (42, "me")
    assert bytes(reader.take(reader.remaining)) == b"body"


def test_a_null_client_id_is_an_empty_one():
    reader = Reader([b"\x00\x00\x00\x2a\xff\xff"])
    assert read_request_header(reader, flexible=False) == (42, "")


def test_a_response_frame_counts_its_header():
    assert response_start(7, 10, flexible=False) == b"\x00\x00\x00\x0e\x00\x00\x00\x07"
    assert response_start(7, 10, flexible=True) == b"\x00\x00\x00\x0f\x00\x00\x00\x07\x00"
