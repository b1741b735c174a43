"""Workers accept in turns, by how many connections each has."""

import os

from diskless.shared.connection_counts import PATIENCE_S, ConnectionCounts, forget, make_counts


def test_who_has_more_than_another_leaves_the_next_connection_to_it() -> None:
    fd = make_counts(3)
    first, second, third = (ConnectionCounts(fd, number) for number in (1, 2, 3))
    os.close(fd)
    first.changed(2)
    second.changed(1)
    third.changed(1)
    patience = [one.patience_s() for one in (first, second, third)]
    assert patience == [PATIENCE_S, 0.0, 0.0]
    assert [one.elsewhere() for one in (first, second, third)] == [2, 3, 3]


def test_a_worker_that_begins_anew_has_none() -> None:
    fd = make_counts(2)
    first, second = (ConnectionCounts(fd, number) for number in (1, 2))
    second.changed(7)
    ConnectionCounts(fd, 2)
    os.close(fd)
    assert first.elsewhere() == 0


def test_a_worker_that_is_gone_has_none_and_is_left_none() -> None:
    fd = make_counts(3)
    first, second, third = (ConnectionCounts(fd, number) for number in (1, 2, 3))
    for one in (first, second, third):
        one.changed(5)
    forget(fd, 2)
    third.changed(6)
    assert [one.elsewhere() for one in (first, third)] == [6, 5]
    assert [one.patience_s() for one in (first, third)] == [0.0, PATIENCE_S]
    forget(fd, 1)
    assert third.patience_s() == 0.0
    second = ConnectionCounts(fd, 2)
    os.close(fd)
    assert third.patience_s() == PATIENCE_S
    assert second.elsewhere() == 6
