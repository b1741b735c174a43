"""The head and the workers see how many connections each has."""

import os

from diskless.shared.connection_counts import ConnectionCounts


def test_all_processes_see_what_each_worker_has_and_has_taken() -> None:
    fd = ConnectionCounts.make(3)
    head, *workers = (ConnectionCounts(fd, number) for number in range(4))
    os.close(fd)
    for connections, worker in enumerate(workers, start=1):
        worker.changed(connections)
        worker.took(10 * connections)
    assert head.rows() == workers[0].rows() == [(1, 10), (2, 20), (3, 30)]
    assert [one.elsewhere() for one in workers] == [5, 4, 3]


def test_a_worker_that_is_gone_or_begins_anew_has_none() -> None:
    fd = ConnectionCounts.make(2)
    head, first, second = (ConnectionCounts(fd, number) for number in range(3))
    for one in (first, second):
        one.changed(5)
        one.took(7)
    head.forget(2)
    assert head.rows() == [(5, 7), (0, 0)]
    assert first.elsewhere() == 0
    ConnectionCounts(fd, 1)
    os.close(fd)
    assert head.rows() == [(0, 0), (0, 0)]
