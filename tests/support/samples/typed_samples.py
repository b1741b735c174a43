"""Hypothesis strategies that follow from annotations, as layouts do (wal/wire/layouts.py).

    values_of(SegmentPlannedRecord)             all that its fields can hold
    values_of(Sequence[ops.FindBatches], known) `known`: the strategies of classes, or of
                                                (class, field), where an annotation says too little

Integers are as large as their field, and a plain `int` an int64. Topic ids and partitions are few,
so that the same one comes several times. Sequences are tuples. An error is one of those that come
back as themselves whatever was asked.
"""

from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from hypothesis import strategies as st

from metadata.messages.errors import COORDINATOR_CODES, REQUEST_TIMED_OUT, UNKNOWN_SERVER_ERROR
from metadata.operations import QuotaEntity
from wal.coordinates import TopicIdPartition
from wal.errors import DisklessError
from wal.wire.layouts import EmptyIsNone, Fixed

Strategy = st.SearchStrategy[Any]
Known = Mapping[Any, Strategy]

INT64: Final = st.integers(-(2**63), 2**63 - 1)
UINT32: Final = st.integers(0, 2**32 - 1)
INT32: Final = st.integers(-(2**31), 2**31 - 1)
INT16: Final = st.integers(-(2**15), 2**15 - 1)
INT8: Final = st.integers(-(2**7), 2**7 - 1)
TEXT: Final = st.text(st.characters(codec="utf-8"), max_size=20)
ERRORS: Final = st.builds(
    lambda kind, text: kind(text),
    st.sampled_from(
        [
            row.kind
            for row in COORDINATOR_CODES
            if row.code not in (UNKNOWN_SERVER_ERROR, REQUEST_TIMED_OUT)
        ]
    ),
    TEXT.filter(bool),
)

_FIXED: Final = {"b": INT8, "h": INT16, "i": INT32, "I": UINT32}
_KNOWN: Final[Known] = {
    int: INT64,
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    bytes: st.binary(max_size=300),
    str: TEXT,
    UUID: st.sampled_from([UUID(int=number << 64 | 5) for number in (1, 2, 2**63)]) | st.uuids(),
    NoneType: st.none(),
    EmptyIsNone: st.none() | TEXT.filter(bool),
    QuotaEntity: st.dictionaries(TEXT, st.none() | TEXT, max_size=3).map(
        lambda parts: tuple(sorted(parts.items()))
    ),
    DisklessError: ERRORS,
    (TopicIdPartition, "partition"): st.sampled_from([0, 1, 2**31 - 1]) | INT32,
}


def values_of(hint: Any, known: Known = _KNOWN) -> Strategy:
    """All values that an annotation, or the fields of a class, allow."""
    known = {**_KNOWN, **known}
    if isinstance(hint, TypeVar):
        return known[hint]
    while hasattr(hint, "__supertype__"):  # a NewType
        hint = hint.__supertype__
    if hint in known:
        return known[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        fixed = [mark for mark in hint.__metadata__ if isinstance(mark, Fixed)]
        return _FIXED[fixed[0].code] if fixed else values_of(arguments[0], known)
    if origin in (Union, UnionType):
        return st.one_of(*(values_of(choice, known) for choice in arguments))
    if origin is not None and hasattr(origin, "_fields"):  # a generic NamedTuple
        parameters = dict(zip(origin.__parameters__, arguments, strict=True))
        return values_of(
            origin, {**known, **{one: values_of(of, known) for one, of in parameters.items()}}
        )
    if origin is not None and issubclass(origin, Mapping):
        key, value = (values_of(of, known) for of in arguments)
        return st.dictionaries(key, value, max_size=3)
    if origin is not None:
        return st.lists(values_of(arguments[0], known), max_size=4).map(tuple)
    hints = get_type_hints(hint, include_extras=True)
    fields = {name: known.get((hint, name)) for name in hints}
    return st.builds(
        hint,
        **{
            name: values_of(hints[name], known) if given is None else given
            for name, given in fields.items()
        },
    )
