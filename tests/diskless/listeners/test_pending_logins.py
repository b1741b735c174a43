"""Connections that are about to log in: how many, whose, and their memory."""

from diskless.listeners.pending_logins import PLACE_BYTES, SHARED_BYTES, PendingLogins


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
