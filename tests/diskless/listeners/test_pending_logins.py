"""Connections that are about to log in: how many, whose, and their memory."""

import asyncio
import os

from diskless.listeners.pending_logins import PLACE_BYTES, SHARED_BYTES, PendingLogins
from diskless.shared.shared_counts import SharedCounts, make_counts
from tests.support.loops.until import until


def test_a_tenth_of_all_connections_may_be_at_it() -> None:
    pending = PendingLogins(connections_max=200, per_ip_max=100)
    places = [pending.begin(str(number)) for number in range(20)]
    assert pending.refusal("x") == "unauthenticated connections"
    places[0].end()
    places[0].end()
    assert pending.refusal("x") is None
    assert pending.places == 19


def test_an_address_keeps_no_other_out() -> None:
    pending = PendingLogins(connections_max=1_000, per_ip_max=2)
    places = [pending.begin("a") for _ in range(2)]
    assert pending.refusal("a") == "max.connections.unauthenticated.per.ip"
    assert pending.refusal("b") is None
    places[0].end()
    assert pending.refusal("a") is None


async def test_a_failed_log_in_has_its_place_until_it_is_answered_though_its_client_goes() -> None:
    loop = asyncio.get_running_loop()
    pending = PendingLogins(connections_max=1_000, per_ip_max=2)
    gone, answered = (pending.begin("a") for _ in range(2))
    gone.end_after(3_600)
    gone.end()
    gone.end()
    assert pending.refusal("a") == "max.connections.unauthenticated.per.ip"
    over = loop.create_future()
    answered.end_after(1e-6)
    loop.call_later(1e-6, over.set_result, None)
    await over
    assert pending.places == 2, "its client is there"
    answered.end()
    assert (pending.places, pending.refusal("a")) == (1, None)
    last = pending.begin("a")
    last.end_after(1e-6)
    last.end()
    await until(lambda: pending.places == 1)


def test_who_finds_no_memory_waits_until_others_are_done() -> None:
    pending = PendingLogins(connections_max=10_000, per_ip_max=1_000)
    token_bytes = 512 << 10
    woken: list[int] = []
    places = []
    while True:
        place = pending.begin("a")
        number = len(places)
        if not place.may_hold(token_bytes, lambda number=number: woken.append(number)):
            break
        places.append(place)
    used_bytes = pending.token_bytes + 1_000 * PLACE_BYTES
    assert SHARED_BYTES - token_bytes < used_bytes <= SHARED_BYTES
    assert not place.may_hold(token_bytes, lambda: woken.append(-1))
    small = pending.begin("b")
    assert small.may_hold(PLACE_BYTES, lambda: None), "a usual token need not wait"
    places[0].end()
    assert woken == [-1]
    assert place.may_hold(token_bytes, lambda: None)
    for other in (place, small, *places):
        other.end()
    assert (pending.token_bytes, pending.places) == (0, 0)


def test_who_leaves_while_it_waits_is_not_woken() -> None:
    pending = PendingLogins(connections_max=10_000, per_ip_max=1_000)
    big = pending.begin("a")
    size_bytes = SHARED_BYTES - 1_000 * PLACE_BYTES
    woken: list[int] = []
    assert big.may_hold(size_bytes, lambda: None)
    waiting = pending.begin("a")
    assert not waiting.may_hold(3 * PLACE_BYTES, lambda: woken.append(1))
    waiting.end()
    big.end()
    assert (woken, pending.token_bytes) == ([], 0)


def test_processes_count_together_who_is_at_it_and_share_the_memory() -> None:
    fd = make_counts(2)
    counts = [SharedCounts(fd, lane) for lane in range(2)]
    os.close(fd)
    token_bytes = 512 << 10
    first, second = (
        PendingLogins(
            connections_max=200, per_ip_max=3, others=own, processes=2, token_max=token_bytes
        )
        for own in counts
    )
    places = [first.begin("a"), first.begin("a"), second.begin("a")]
    for one in (first, second):
        assert one.refusal("a") == "max.connections.unauthenticated.per.ip"
        assert one.refusal("b") is None
    places += [(first, second)[number % 2].begin(str(number)) for number in range(17)]
    for one in (first, second):
        assert one.refusal("c") == "unauthenticated connections"
    places[0].end()
    places[0].end()
    assert second.refusal("c") is None
    assert second.refusal("a") is None
    counts[1].forget(0)
    assert second.refusal("a") is None, "those of a process that is gone are gone"
    for one in (first, second):
        while one.begin("d").may_hold(token_bytes, lambda: None):
            pass
    held = first.token_bytes + second.token_bytes + 20 * PLACE_BYTES
    assert SHARED_BYTES - 2 * token_bytes < held <= SHARED_BYTES


def test_one_token_is_received_however_many_processes_there_are() -> None:
    token_bytes = 512 << 10
    pending = PendingLogins(
        connections_max=10_000, per_ip_max=1, processes=256, token_max=token_bytes
    )
    assert pending.begin("a").may_hold(token_bytes, lambda: None)
