"""The group `holds` asks what the broker answers, and measures all of it."""

from bench.limits.holds import measure_holds


def test_every_request_of_the_table_is_answered_and_measured() -> None:
    holds = measure_holds(rows=50, topics=5)
    assert len(holds) == 20
    assert all(hold_ms > 0 for hold_ms in holds.values())
