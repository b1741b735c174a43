"""What classic members say to each other, read and written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskless.groups.classic.subscription import (
    Subscription,
    read_assignment,
    read_subscription,
    subscribed_topics,
    write_assignment,
)
from tests.support.groups.group_requests import subscription, subscription_with_owned

names = st.text(max_size=10)
partitions = st.dictionaries(names, st.frozensets(st.integers(0, 2**31 - 1), max_size=5))


def test_a_subscription_is_read_in_every_version() -> None:
    assert read_subscription(subscription("a", "b")) == Subscription(
        0, frozenset({"a", "b"}), {}, None
    )
    for version, rack_id in ((1, None), (2, None), (3, "rack")):
        metadata = subscription_with_owned(["a"], {"b": [1, 2], "c": []}, version)
        assert read_subscription(metadata) == Subscription(
            version, frozenset({"a"}), {"b": frozenset({1, 2}), "c": frozenset()}, rack_id
        )


def test_what_later_versions_add_is_passed_over() -> None:
    metadata = b"\x00\x09" + subscription_with_owned(["a"], {"a": [1]}, 3)[2:] + b"more"
    read = read_subscription(metadata)
    assert read is not None
    assert (read.version, read.owned, read.rack_id) == (9, {"a": frozenset({1})}, "rack")


@given(st.integers(0, 3), partitions)
def test_an_assignment_is_read_as_it_was_written(
    version: int, assigned: dict[str, frozenset[int]]
) -> None:
    assert read_assignment(write_assignment(version, assigned)) == assigned


def test_the_bytes_of_an_assignment() -> None:
    assert write_assignment(1, {"t": {2, 1}}).hex(" ") == (
        "00 01 00 00 00 01 00 01 74 00 00 00 02 00 00 00 01 00 00 00 02 ff ff ff ff"
    )


def test_nothing_at_all_is_nothing_assigned() -> None:
    assert read_assignment(b"") == {}


@given(st.binary(max_size=60))
def test_garbage_is_something_or_cannot_be_made_out(garbage: bytes) -> None:
    read_subscription(garbage)
    read_assignment(garbage)
    subscribed_topics(garbage)


@pytest.mark.parametrize("version", [1, 3])
def test_a_subscription_cut_anywhere_cannot_be_made_out(version: int) -> None:
    whole = subscription_with_owned(["a"], {"a": [1]}, version)
    for cut in range(len(whole)):
        assert read_subscription(whole[:cut]) is None
