"""The configuration section of quotas: how rates are measured; Kafka's names and defaults."""

from dataclasses import dataclass

from wal.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSettings:
    """Windows of the rates; `diskless.config` fills it."""

    window_count: int = setting(
        "quota.window.num",
        11,
        minimum=2,
        maximum=1_000,
        why="windows a rate is measured over; one less of them is what a client that was idle may "
        "send at once; more: larger bursts, and longer waits after them",
    )
    window_s: int = setting(
        "quota.window.size.seconds",
        1,
        minimum=1,
        maximum=3_600,
        why="length of a window; longer: as quota.window.num",
    )

    changes_per_s: int = setting(
        "metadata.changes.per.second.max",
        10,
        minimum=0,
        maximum=1_000_000,
        why="changes of topics, configs, users, rules and quotas by one user that has no "
        "controller_mutation_rate, after as many as ten windows hold; more: one user can fill the "
        "metadata log; who has not logged in is not held to it; 0: nobody is",
    )

    @property
    def burst_s(self) -> int:
        """The seconds' worth of a quota that may come at once."""
        return (self.window_count - 1) * self.window_s
