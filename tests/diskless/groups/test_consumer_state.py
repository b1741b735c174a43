"""Stored KIP-848 groups: every one is read as it was written, and nothing else is read."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskless.groups.assignors.assignment import TopicPartitions
from diskless.groups.consumer_state import (
    ClassicMember,
    ConsumerMember,
    MemberState,
    StoredConsumerGroup,
    decode_consumer_group,
    encode_consumer_group,
)
from diskless.groups.requests import GroupProtocol
from tests.support.samples.typed_samples import TEXT, values_of
from wal.errors import CorruptState

topic_ids = st.integers(1, 6).map(lambda number: UUID(int=number))
partitions = st.dictionaries(
    topic_ids,
    st.frozensets(st.integers(0, 40), min_size=1, max_size=12),
    max_size=3,
)
groups = values_of(
    StoredConsumerGroup,
    {
        int: st.integers(-2, 2**31 - 1),
        str | None: st.none() | TEXT.filter(bool),
        MemberState: st.sampled_from(MemberState),
        TopicPartitions: partitions,
        Mapping[UUID, int]: st.dictionaries(topic_ids, st.integers(0, 2**31 - 1), max_size=3),
    },
)


@given(groups)
def test_a_group_is_read_as_it_was_written(group: StoredConsumerGroup) -> None:
    assert decode_consumer_group(encode_consumer_group(group), "g") == group


@given(groups, st.data())
def test_a_group_cut_anywhere_is_corrupt(group: StoredConsumerGroup, data: Any) -> None:
    encoded = encode_consumer_group(group)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(CorruptState, match="stored group 'g'"):
        decode_consumer_group(encoded[:cut], "g")


@given(st.binary(max_size=200))
def test_garbage_is_a_group_or_corrupt(garbage: bytes) -> None:
    try:
        decode_consumer_group(b"\x01" + garbage, "g")
    except CorruptState:
        pass


@given(groups, st.data())
def test_a_damaged_group_is_a_group_or_corrupt(group: StoredConsumerGroup, data: Any) -> None:
    encoded = bytearray(encode_consumer_group(group))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        decode_consumer_group(bytes(encoded), "g")
    except CorruptState:
        pass


def test_the_bytes_do_not_change() -> None:
    """What one release wrote the next one reads; docs/groups.md says how."""
    topic_id = UUID(int=0xAB)
    group = StoredConsumerGroup(
        group_epoch=7,
        assignment_epoch=6,
        partition_counts={topic_id: 9},
        members=(
            ConsumerMember(
                member_id="m",
                instance_id="i",
                client_id="c",
                client_host="h",
                rebalance_timeout_ms=2,
                topic_names=("t",),
                topic_pattern="p.*",
                assignor="range",
                member_epoch=6,
                previous_epoch=5,
                state=MemberState.UNREVOKED,
                target={topic_id: frozenset({0, 1, 2, 5})},
                assigned={topic_id: frozenset({0, 1, 2, 5})},
                revoking={topic_id: frozenset({7})},
                classic=ClassicMember(
                    session_timeout_ms=3, protocols=(GroupProtocol("range", b"\xaa"),)
                ),
            ),
        ),
    )
    assert encode_consumer_group(group).hex(" ") == (
        "01 00 00 00 07 00 00 00 06 "
        "02 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 ab 00 00 00 09 00 "
        "02 02 02 74 04 70 2e 2a 00 "
        "02 02 6d 02 69 01 02 63 02 68 00 00 00 02 00 06 72 61 6e 67 65 "
        "00 00 00 06 00 00 00 05 01 "
        "02 00 03 00 02 02 00 00 02 00 02 07 00 "
        "01 00 0e 00 00 00 03 02 06 72 61 6e 67 65 01 aa 00 00"
    )


def test_fields_of_the_future_are_passed_over() -> None:
    group = StoredConsumerGroup(group_epoch=1, assignment_epoch=1, partition_counts={}, members=())
    encoded = encode_consumer_group(group)
    assert encoded[-1] == 0
    assert decode_consumer_group(encoded[:-1] + b"\x01\x05\x02xx", "g") == group


def test_partitions_take_two_bytes_at_most_and_neighbours_share_them() -> None:
    def size(partitions: frozenset[int]) -> int:
        topic_id = UUID(int=1)
        member = ConsumerMember(
            member_id="m", rebalance_timeout_ms=1, target={topic_id: partitions}
        )
        group = StoredConsumerGroup(
            group_epoch=1, assignment_epoch=1, partition_counts={}, members=(member,)
        )
        return len(encode_consumer_group(group))

    one = size(frozenset({0}))
    assert size(frozenset(range(100))) == one
    assert size(frozenset(range(0, 200, 2))) <= one + 2 * 99 + 1
