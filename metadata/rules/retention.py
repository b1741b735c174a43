"""Decides what retention deletes: pure functions over the rows of one partition, oldest first.

Kafka's rules, with rows for its segments. A row is a WAL row or a Parquet segment; it is deleted
whole or stays.

- *By time* (`retention.ms`): from the oldest row on, while a row's greatest timestamp lies before
  now - retention.ms. The first one that does not keeps everything behind it, so that one timestamp
  in the future holds up the rest. With LogAppendTime a row's timestamp is that of its commit. A row
  without any timestamp has its commit's as well; Kafka takes the file's modification time there.
  Aborted records count in a WAL row and not in a segment, which has none; in Kafka they count. So a
  segment may go sooner than Kafka's, but not before each record in it is old enough.
- *By size* (`retention.bytes`): from the oldest row on, while at least retention.bytes stay without
  it. So a partition ends at or above its limit, never below.
- A row goes when either rule says so. -1 switches a rule off; a cleanup.policy without `delete`
  switches off both.

Both rules choose a prefix of the rows, so the outcome is one offset: the new log start.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from metadata.retention_settings import RetentionSettings

RETENTION_MS_CONFIG: Final = "retention.ms"
RETENTION_BYTES_CONFIG: Final = "retention.bytes"
CLEANUP_POLICY_CONFIG: Final = "cleanup.policy"

UNLIMITED: Final = -1


class RetentionPolicy(NamedTuple):
    """The limits of one topic; -1 = none."""

    retention_ms: int = UNLIMITED
    retention_bytes: int = UNLIMITED


KEEP_ALL: Final = RetentionPolicy()


class RetainedRow(NamedTuple):
    """One row of a partition, as much of it as the rules need."""

    last_offset: int
    size_bytes: int
    timestamp_ms: int


class ExpiredPrefix(NamedTuple):
    """The rows that go: how many they are, and where the log starts without them."""

    new_log_start: int
    rows: int


def retention_policy(configs: Mapping[str, str], settings: RetentionSettings) -> RetentionPolicy:
    """The policy of a topic that set `configs`; the settings are the defaults."""
    policy = configs.get(CLEANUP_POLICY_CONFIG, settings.cleanup_policy)
    if "delete" not in [item.strip() for item in policy.split(",")]:
        return KEEP_ALL
    return RetentionPolicy(
        _number(configs, RETENTION_MS_CONFIG, settings.retention_ms),
        _number(configs, RETENTION_BYTES_CONFIG, settings.retention_bytes),
    )


def _number(configs: Mapping[str, str], name: str, default: int) -> int:
    """Values were validated when the topic was created; what was not is as if it were not set."""
    text = configs.get(name)
    if text is None:
        return default
    try:
        number = int(text)
    except ValueError:
        return default
    return number if number >= UNLIMITED else default


def may_be_due(
    policy: RetentionPolicy, *, live_bytes: int, oldest_ms: int | None, now_ms: int
) -> bool:
    """Whether it is worth looking at the rows: in O(1), from what is kept in memory.

    `oldest_ms` is the timestamp of the oldest row, or of an older one; None = not known.
    """
    by_size = 0 <= policy.retention_bytes < live_bytes
    by_time = policy.retention_ms >= 0 and (
        oldest_ms is None or oldest_ms < now_ms - policy.retention_ms
    )
    return by_size or by_time


def expired_prefix(
    rows: Iterable[RetainedRow],
    policy: RetentionPolicy,
    *,
    live_bytes: int,
    now_ms: int,
    rows_max: int,
) -> ExpiredPrefix | None:
    """Returns what goes of `rows`, at most `rows_max` of them; None when nothing does.

    `rows` are those from the log start on in offset order, and may be cut off anywhere behind
    `rows_max`; `live_bytes` is the size of all there are. Draws no more of them than it needs.
    """
    surplus = live_bytes - policy.retention_bytes
    by_size, by_time = policy.retention_bytes >= 0, policy.retention_ms >= 0
    oldest_kept_ms = now_ms - policy.retention_ms
    new_log_start = count = 0
    for row in rows:
        surplus -= row.size_bytes
        by_size = by_size and surplus >= 0
        by_time = by_time and row.timestamp_ms < oldest_kept_ms
        if not (by_size or by_time):
            break
        new_log_start = row.last_offset + 1
        count += 1
        if count >= rows_max:
            break
    return ExpiredPrefix(new_log_start, count) if count else None
