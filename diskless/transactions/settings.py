"""Limits and times of transactions, with Kafka's defaults."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """What a coordinator of transactional ids goes by."""

    max_timeout_ms: int = 900_000
    """Producers that ask for a longer time are refused: readers of committed records wait that long
    behind a producer that is gone."""
    abort_interval_ms: int = 10_000
    """How often transactions are looked for that are open for too long."""
    expire_interval_ms: int = 3_600_000
    """How often transactional ids are looked for that nobody uses."""
