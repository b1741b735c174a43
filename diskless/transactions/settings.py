"""The configuration section of the workers beside coordinators of transactional ids.

With Kafka's names and defaults. What the rules of transactions go by is a coordinator's
(metadata/metadata_settings.py).
"""

from dataclasses import dataclass

from wal.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """How often a coordinator of transactional ids looks at all of them."""

    abort_interval_ms: int = setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        10_000,
        minimum=10,
        why="how often transactions are looked for that are open for longer than their "
        "transaction.timeout.ms; higher: readers of committed records wait that much longer behind "
        "a producer that is gone",
    )
    expire_interval_ms: int = setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        3_600_000,
        minimum=10,
        why="how often transactional ids are looked for that nobody has used for "
        "transactional.id.expiration.ms",
    )
