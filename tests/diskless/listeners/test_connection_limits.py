"""Who may connect, counted."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskless.config import load_config
from diskless.listeners.connection_limits import (
    CREATION_BURST_S,
    ConnectionLimits,
    ListenerLimits,
    parse_ip_overrides,
    plain_address,
)
from wal.errors import InvalidSettings


def limits(**values):
    return ConnectionLimits(
        **{
            "connections_max": 10,
            "per_ip_max": 3,
            "per_ip_overrides": {},
            "creations_per_s": 1_000_000,
            "now": 0.0,
            **values,
        }
    )


def test_addresses_are_counted_for_themselves_and_together():
    counted = limits(connections_max=5, per_ip_overrides={"10.0.0.9": 1, "::1": 0})
    for address in ("a", "a", "a", "10.0.0.9"):
        assert counted.refusal(address) is None
        counted.opened(address, 0.0)
    assert counted.refusal("a") == "max.connections.per.ip"
    assert counted.refusal("10.0.0.9") == "max.connections.per.ip"
    assert counted.refusal("::1") == "max.connections.per.ip"
    counted.opened("b", 0.0)
    assert counted.refusal("b") == "max.connections"
    counted.closed("a")
    assert counted.refusal("b") is None
    assert counted.refusal("a") is None


@given(st.integers(0, 1 << 30), st.integers(1, 50))
def test_never_more_are_read_from_in_a_second_than_the_rate_and_its_burst(seed, rate):
    rng = random.Random(seed)
    counted = limits(creations_per_s=rate)
    now, begun = 0.0, []
    for _ in range(200):
        now += rng.choice((0.0, 0.0, 0.001, 0.3, 5.0))
        begun.append(now + counted.opened("a", now))
    # Who comes later begins no earlier.
    assert begun == sorted(begun)
    burst = rate * (CREATION_BURST_S + 1) + 1
    for first, start in enumerate(begun):
        within = sum(1 for at in begun[first:] if at < start + 1)
        assert within <= burst + 1e-6


def test_who_comes_slowly_never_waits():
    counted = limits(creations_per_s=10)
    assert [counted.opened("a", number * 0.1) for number in range(100)] == [0.0] * 100
    assert [round(counted.opened("a", 100.0), 3) for number in range(13)] == [
        *[0.0] * 10,
        0.1,
        0.2,
        0.3,
    ]


def test_overrides_are_addresses_with_counts():
    assert parse_ip_overrides("") == {}
    assert parse_ip_overrides("10.0.0.1:5, 10.0.0.2 : 0,") == {"10.0.0.1": 5, "10.0.0.2": 0}
    assert parse_ip_overrides("[::1]:7,fe80:0::1:2") == {"::1": 7, "fe80::1": 2}


def test_an_ipv4_address_is_the_same_on_an_ipv6_listener():
    assert plain_address("::ffff:10.0.0.1") == plain_address("10.0.0.1") == "10.0.0.1"
    assert parse_ip_overrides("[::ffff:10.0.0.1]:3") == {"10.0.0.1": 3}
    assert plain_address("::ffff:1") == "::ffff:1"
    assert plain_address("fe80::1") == "fe80::1"


@pytest.mark.parametrize("text", ["10.0.0.1", "10.0.0.1:", "10.0.0.1:x", "host:1", "10.0.0.1:-1"])
def test_bad_overrides_stop_the_start_by_name(text):
    with pytest.raises(InvalidSettings, match=r"max\.connections\.per\.ip\.overrides: '10|host"):
        load_config(overrides={"max.connections.per.ip.overrides": text})


def test_a_listener_has_limits_of_its_own():
    own = {"OUTSIDE": ListenerLimits(connections_max=1, creations_per_s=2)}
    counted = limits(listeners=own)
    assert counted.refusal("a", "OUTSIDE") is None
    counted.opened("a", 0.0, "OUTSIDE")
    assert counted.refusal("b", "OUTSIDE") == "listener.name.outside.max.connections"
    assert counted.refusal("b", "INSIDE") is None
    counted.closed("a", "OUTSIDE")
    assert counted.refusal("b", "OUTSIDE") is None
    waits = [counted.opened(address, 0.0, "OUTSIDE") for address in "abcd"]
    # The first one above was of the rate too.
    assert waits == [0.0, 0.5, 1.0, 1.5]
    assert counted.opened("e", 0.0, "INSIDE") == 0.0


def test_a_user_has_no_more_than_their_number():
    counted = limits(per_user_max=2)
    assert [counted.known(user) for user in ("ann", "ann", "bob", "ann")] == [
        True,
        True,
        True,
        False,
    ]
    counted.opened("a", 0.0)
    counted.closed("a", user="ann")
    assert counted.known("ann")
    assert not counted.known("ann")


def test_the_quota_of_an_address_delays_it_alone():
    counted = limits(quota=lambda address: 7.0 if address == "fast" else 0.0)
    assert counted.opened("fast", 5.0) == 2.0
    assert counted.opened("slow", 5.0) == 0.0
