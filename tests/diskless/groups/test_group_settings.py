"""The configuration of consumer groups."""

import pytest

from diskless.groups.settings import GroupSettings
from wal.errors import InvalidSettings


def test_the_first_assignor_is_the_default() -> None:
    assert GroupSettings().assignors == ["uniform", "range"]
    assert GroupSettings(consumer_assignors="range").assignors == ["range"]


@pytest.mark.parametrize(
    ("policy", "may_upgrade", "may_downgrade"),
    [
        ("bidirectional", True, True),
        ("upgrade", True, False),
        ("downgrade", False, True),
        ("disabled", False, False),
    ],
)
def test_the_migration_policy(policy: str, may_upgrade: bool, may_downgrade: bool) -> None:
    settings = GroupSettings(consumer_migration_policy=policy)
    assert (settings.may_upgrade, settings.may_downgrade) == (may_upgrade, may_downgrade)


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"consumer_session_timeout_ms": 1_000}, "group.consumer.session.timeout.ms=1000"),
        ({"consumer_session_timeout_ms": 90_000}, "group.consumer.session.timeout.ms=90000"),
        ({"consumer_heartbeat_interval_ms": 100}, "group.consumer.heartbeat.interval.ms=100"),
        (
            {
                "consumer_heartbeat_interval_ms": 50_000,
                "consumer_max_heartbeat_interval_ms": 50_000,
            },
            "shorter than",
        ),
    ],
)
def test_times_that_do_not_fit_together_are_refused_by_name(
    values: dict[str, int], key: str
) -> None:
    with pytest.raises(InvalidSettings, match=key):
        GroupSettings(**values)
