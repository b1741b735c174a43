"""The group of the purgatory measures what it says, on little."""

from bench.requests.purgatory import measure_purgatory


def test_operations_that_wait() -> None:
    figures = measure_purgatory(operations=100, seconds=0.05)
    assert 0 <= figures.idle_cpu_ratio < 1
    assert figures.watch_us > 0
