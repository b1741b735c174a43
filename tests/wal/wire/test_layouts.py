"""A layout writes the bytes that its annotations say, and reads nothing else."""

import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal.coordinates import ObjectKey, TopicIdPartition
from wal.errors import CorruptLog, CorruptState
from wal.wire.fields import TAGS_MAX, FieldReader, tag_section, uvarint, zigzag
from wal.wire.layouts import (
    CompactBytes,
    EmptyIsNone,
    Field,
    Int8,
    Int16,
    Int32,
    SizedBytes,
    UInt32,
    array,
    layout,
)

TOPIC = UUID(int=7)


class Part(NamedTuple):
    """A class in an array; its bytes go another way than its fields."""

    late: Int16
    early: str
    absent: int = 5


PART = layout(Part, "early", "late")


@dataclass(frozen=True, slots=True, kw_only=True)
class Everything:
    """A field of each kind."""

    small: Int8
    flag: bool
    number: int
    unsigned: UInt32
    ratio: float
    topic: UUID
    other: UUID | None
    key: ObjectKey
    text: str | None
    name: EmptyIsNone
    sized: SizedBytes
    compact: CompactBytes
    place: TopicIdPartition
    numbers: Sequence[Int32]
    names: tuple[str, ...]
    topics: Sequence[UUID]
    parts: Annotated[Sequence[Part], array(PART)]
    settings: Mapping[str, float]
    odd: Annotated[int, Field(zigzag, FieldReader.zigzag)]


EVERYTHING = layout(Everything)
SAMPLE = Everything(
    small=-1, flag=True, number=2, unsigned=2**32 - 1, ratio=0.5, topic=TOPIC, other=None,
    key=ObjectKey("k"), text=None, name=None, sized=b"s", compact=b"c",
    place=TopicIdPartition(TOPIC, 3), numbers=(1, -1), names=("é",), topics=(TOPIC,),
    parts=(Part(4, "p"),), settings={"b": 1.0, "a": 2.0}, odd=-2,
)  # fmt: skip
BYTES = bytes.fromhex(
    "ff 01 0000000000000002 ffffffff 3fe0000000000000" + TOPIC.bytes.hex() + "00" * 16
    + "02 6b 00 01 01 73 02 63" + TOPIC.bytes.hex() + "00000003"
    + "03 00000001 ffffffff 02 03 c3a9 02" + TOPIC.bytes.hex()
    + "02 02 70 0004 00"
    + "03 02 61 4000000000000000 00 02 62 3ff0000000000000 00"
    + "03 00"
)  # fmt: skip


def read(data: bytes) -> Everything:
    reader = FieldReader(data, "everything", CorruptState)
    value = EVERYTHING.read(reader)
    reader.finish()
    return value


def test_the_bytes_are_those_of_the_annotations() -> None:
    assert EVERYTHING.write(SAMPLE) == BYTES
    assert read(BYTES) == SAMPLE


def test_unknown_tagged_fields_are_skipped() -> None:
    assert read(BYTES[:-1] + tag_section({3: b"new", 9: b""})) == SAMPLE


def test_a_section_of_nothing_but_tags_is_not_read() -> None:
    def tags(count: int) -> bytes:
        return tag_section(dict.fromkeys(range(3, 3 + count), b""))

    assert read(BYTES[:-1] + tags(TAGS_MAX)) == SAMPLE
    with pytest.raises(CorruptState, match="101 tagged fields"):
        read(BYTES[:-1] + tags(TAGS_MAX + 1))


values = st.builds(
    Everything,
    small=st.integers(-128, 127),
    flag=st.booleans(),
    number=st.integers(-(2**63), 2**63 - 1),
    unsigned=st.integers(0, 2**32 - 1),
    ratio=st.floats(allow_nan=False),
    topic=st.uuids(),
    other=st.none() | st.uuids(),
    key=st.text(max_size=3),
    text=st.none() | st.text(max_size=200),
    name=st.none() | st.text(min_size=1, max_size=3),
    sized=st.binary(max_size=3),
    compact=st.binary(max_size=3),
    place=st.builds(TopicIdPartition, st.uuids(), st.integers(-(2**31), 2**31 - 1)),
    numbers=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3).map(tuple),
    names=st.lists(st.text(max_size=3), max_size=3).map(tuple),
    topics=st.lists(st.uuids(), max_size=2).map(tuple),
    parts=st.lists(
        st.builds(Part, st.integers(-(2**15), 2**15 - 1), st.text(max_size=2), st.just(5)),
        max_size=3,
    ).map(tuple),
    settings=st.dictionaries(st.text(max_size=2), st.floats(allow_nan=False), max_size=3),
    odd=st.integers(-(2**63), 2**63 - 1),
)


@given(values)
def test_a_value_comes_back_as_it_was(value: Everything) -> None:
    encoded = EVERYTHING.write(value)
    assert read(encoded) == value
    assert len(encoded) >= EVERYTHING.bytes_min


@given(values, st.data())
def test_damage_is_refused_with_nothing_but_the_error_of_the_reader(
    value: Everything, data: Any
) -> None:
    encoded = bytearray(EVERYTHING.write(value))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    with suppress(CorruptState):
        read(bytes(encoded))


def test_what_is_cut_anywhere_is_refused() -> None:
    for length in range(len(BYTES)):
        with pytest.raises(CorruptState, match="everything: "):
            read(BYTES[:length])


class Keys(NamedTuple):
    """Nothing but arrays."""

    parts: Annotated[Sequence[Part], array(PART)] = ()
    settings: Mapping[str, float] = {}


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (uvarint(2**32 - 1), "an array of 4294967294 elements in 0 bytes"),
        (uvarint(1) + uvarint(2**32 - 1), "an array of 4294967294 elements in 0 bytes"),
        (uvarint(0), "a null array"),
        (uvarint(4) + bytes(11), "an array of 3 elements in 11 bytes"),
        (uvarint(1) + uvarint(3) + b"\x02a" + bytes(9) + b"\x02a" + bytes(9), "'a' is there twice"),
    ],
)
def test_a_count_is_held_against_the_bytes_before_anything_is_made(
    data: bytes, problem: str
) -> None:
    with pytest.raises(CorruptLog, match=problem):
        layout(Keys).read(FieldReader(data, "keys"))


@pytest.mark.parametrize("value", [Part(2**15, ""), Part(-(2**15) - 1, "")])
def test_a_number_that_does_not_fit_is_refused(value: Part) -> None:
    with pytest.raises(struct.error):
        PART.write(value)
