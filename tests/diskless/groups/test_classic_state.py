"""Stored classic groups: every one is read as it was written, and nothing else is read."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskless.groups.classic_state import (
    StoredClassicGroup,
    StoredMember,
    decode_classic_group,
    encode_classic_group,
)
from diskless.groups.requests import GroupProtocol
from tests.support.samples.typed_samples import values_of
from wal.errors import CorruptState

groups = values_of(StoredClassicGroup)


@given(groups)
def test_a_group_is_read_as_it_was_written(group: StoredClassicGroup) -> None:
    assert decode_classic_group(encode_classic_group(group), "g") == group


@given(groups, st.data())
def test_a_group_cut_anywhere_is_corrupt(group: StoredClassicGroup, data: Any) -> None:
    encoded = encode_classic_group(group)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(CorruptState, match="stored group 'g'"):
        decode_classic_group(encoded[:cut], "g")


@given(st.binary(max_size=200))
def test_garbage_is_a_group_or_corrupt(garbage: bytes) -> None:
    try:
        decode_classic_group(b"\x01" + garbage, "g")
    except CorruptState:
        pass


def test_the_bytes_do_not_change() -> None:
    """What one release wrote the next one reads; docs/groups.md says how."""
    group = StoredClassicGroup(
        protocol_type="consumer",
        generation_id=7,
        protocol_name="range",
        leader="m",
        members=(
            StoredMember(
                member_id="m",
                instance_id="i",
                client_id="c",
                client_host="h",
                session_timeout_ms=1,
                rebalance_timeout_ms=2,
                protocols=(GroupProtocol("range", b"\xaa"),),
                assignment=b"\xbb\xcc",
            ),
        ),
    )
    assert encode_classic_group(group).hex(" ") == (
        "01 09 63 6f 6e 73 75 6d 65 72 00 00 00 07 06 72 61 6e 67 65 02 6d "
        "02 02 6d 02 69 02 63 02 68 00 00 00 01 00 00 00 02 02 06 72 61 6e 67 65 01 aa 00 "
        "02 bb cc 00 00"
    )


def test_fields_of_the_future_are_passed_over() -> None:
    group = StoredClassicGroup(
        protocol_type="t", generation_id=1, protocol_name=None, leader=None, members=()
    )
    encoded = encode_classic_group(group)
    assert encoded[-1] == 0
    assert decode_classic_group(encoded[:-1] + b"\x01\x05\x02xx", "g") == group
