"""What retention deletes of a partition: Kafka's rules, and what must hold for any rows."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.retention_settings import RetentionSettings
from metadata.rules.retention import (
    KEEP_ALL,
    ExpiredPrefix,
    RetainedRow,
    RetentionPolicy,
    expired_prefix,
    may_be_due,
    retention_policy,
)

NOW = 1_000_000
WEEK_MS = 604_800_000


def rows(*described: tuple[int, int]) -> list[RetainedRow]:
    """(bytes, timestamp) each; two records per row."""
    return [
        RetainedRow(2 * number + 1, size, timestamp)
        for number, (size, timestamp) in enumerate(described)
    ]


def expired(
    found: list[RetainedRow], policy: RetentionPolicy, *, rows_max: int = 100
) -> ExpiredPrefix | None:
    size = sum(row.size_bytes for row in found)
    return expired_prefix(found, policy, live_bytes=size, now_ms=NOW, rows_max=rows_max)


class TestBySize:
    def test_an_empty_log_has_nothing_to_delete(self) -> None:
        assert expired([], RetentionPolicy(retention_bytes=0)) is None

    def test_nothing_goes_while_the_log_is_not_larger_than_its_limit(self) -> None:
        assert expired(rows((10, 0), (10, 0)), RetentionPolicy(retention_bytes=20)) is None

    @pytest.mark.parametrize(("limit", "kept"), [(29, 3), (20, 2), (19, 2), (11, 2), (10, 1)])
    def test_at_least_the_limit_stays(self, limit: int, kept: int) -> None:
        found = expired(rows((10, 0), (10, 0), (10, 0)), RetentionPolicy(retention_bytes=limit))
        assert (0 if found is None else found.rows) == 3 - kept

    def test_a_limit_of_zero_deletes_everything(self) -> None:
        found = expired(rows((10, NOW), (10, NOW)), RetentionPolicy(retention_bytes=0))
        assert found == ExpiredPrefix(4, 2)

    def test_a_large_row_that_would_leave_too_little_keeps_those_behind_it(self) -> None:
        found = expired(rows((5, 0), (90, 0), (5, 0)), RetentionPolicy(retention_bytes=50))
        assert found == ExpiredPrefix(2, 1)

    def test_no_more_than_one_row_goes_when_that_is_the_cap(self) -> None:
        policy = RetentionPolicy(retention_bytes=0)
        assert expired(rows((10, 0), (10, 0)), policy, rows_max=1) == ExpiredPrefix(2, 1)


class TestByTime:
    policy = RetentionPolicy(retention_ms=100)

    def test_an_empty_log_has_nothing_to_delete(self) -> None:
        assert expired([], self.policy) is None

    def test_nothing_goes_while_nothing_is_too_old(self) -> None:
        assert expired(rows((1, NOW - 100), (1, NOW)), self.policy) is None

    def test_rows_go_whose_newest_record_is_too_old(self) -> None:
        found = expired(rows((1, NOW - 102), (1, NOW - 101), (1, NOW - 100)), self.policy)
        assert found == ExpiredPrefix(4, 2)

    def test_all_go_when_all_are_too_old(self) -> None:
        assert expired(rows((1, 5), (1, 6)), self.policy) == ExpiredPrefix(4, 2)

    def test_a_timestamp_in_the_future_holds_up_all_behind_it(self) -> None:
        assert expired(rows((1, NOW + 9_999), (1, 5), (1, 6)), self.policy) is None

    def test_the_first_row_that_is_young_enough_stops_it(self) -> None:
        found = expired(rows((1, 5), (1, NOW), (1, 6)), self.policy)
        assert found == ExpiredPrefix(2, 1)

    def test_an_age_of_zero_keeps_only_what_is_of_this_very_millisecond(self) -> None:
        found = expired(rows((1, NOW - 1), (1, NOW)), RetentionPolicy(retention_ms=0))
        assert found == ExpiredPrefix(2, 1)


class TestBoth:
    def test_either_rule_is_enough(self) -> None:
        found = rows((10, 5), (10, NOW), (10, NOW), (10, NOW))
        by_time = RetentionPolicy(retention_ms=100, retention_bytes=100)
        assert expired(found, by_time) == ExpiredPrefix(2, 1)
        by_size = RetentionPolicy(retention_ms=100, retention_bytes=20)
        assert expired(found, by_size) == ExpiredPrefix(4, 2)

    def test_neither_rule_keeps_everything(self) -> None:
        assert expired(rows((10, 0), (10, 0)), KEEP_ALL) is None


class TestPolicy:
    @pytest.mark.parametrize(
        ("configs", "policy"),
        [
            ({}, (WEEK_MS, -1)),
            ({"retention.ms": "5"}, (5, -1)),
            ({"retention.ms": "-1"}, (-1, -1)),
            ({"retention.bytes": "7"}, (WEEK_MS, 7)),
            ({"cleanup.policy": "compact", "retention.ms": "5"}, (-1, -1)),
            ({"cleanup.policy": "compact, delete", "retention.ms": "5"}, (5, -1)),
            ({"cleanup.policy": "delete", "retention.bytes": "0"}, (WEEK_MS, 0)),
            ({"retention.ms": "soon", "retention.bytes": "-7"}, (WEEK_MS, -1)),
        ],
    )
    def test_a_topic_overrides_kafkas_defaults(
        self, configs: Mapping[str, str], policy: tuple[int, int]
    ) -> None:
        assert retention_policy(configs, RetentionSettings()) == policy

    def test_the_broker_sets_the_defaults(self) -> None:
        settings = RetentionSettings(retention_ms=3, retention_bytes=4)
        assert retention_policy({}, settings) == (3, 4)
        assert retention_policy({"retention.ms": "9"}, settings) == (9, 4)
        compacted = RetentionSettings(cleanup_policy="compact")
        assert retention_policy({}, compacted) == KEEP_ALL
        assert retention_policy({"cleanup.policy": "delete"}, compacted) == (WEEK_MS, -1)


any_rows = st.lists(st.tuples(st.integers(1, 20), st.integers(NOW - 50, NOW + 50)), max_size=30)
limits = st.integers(-1, 60)


@given(described=any_rows, retention_ms=limits, retention_bytes=limits, rows_max=st.integers(1, 40))
def test_what_goes_is_the_longest_prefix_that_either_rule_allows(
    described: list[tuple[int, int]], retention_ms: int, retention_bytes: int, rows_max: int
) -> None:
    policy = RetentionPolicy(retention_ms, retention_bytes)
    found = rows(*described)
    total = sum(row.size_bytes for row in found)

    def goes(count: int) -> bool:
        prefix, rest = found[:count], found[count:]
        by_size = 0 <= retention_bytes <= sum(row.size_bytes for row in rest)
        by_time = retention_ms >= 0 and all(row.timestamp_ms < NOW - retention_ms for row in prefix)
        return by_size or by_time

    longest = max((count for count in range(1, len(found) + 1) if goes(count)), default=0)
    outcome = expired(found, policy, rows_max=rows_max)
    if not longest:
        assert outcome is None
    else:
        count = min(longest, rows_max)
        assert outcome == ExpiredPrefix(found[count - 1].last_offset + 1, count)
    oldest = found[0].timestamp_ms if found else NOW
    if outcome is not None:
        assert may_be_due(policy, live_bytes=total, oldest_ms=oldest, now_ms=NOW)
        assert may_be_due(policy, live_bytes=total, oldest_ms=None, now_ms=NOW)
