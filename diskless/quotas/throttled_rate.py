"""Measures the rate of one client against its quota, and how long the client has to wait.

Measured as Kafka does: amounts are summed in windows of a second, the last eleven of which count
(`quota.window.size.seconds`, `quota.window.num`). The rate is the sum over the time since the
oldest of these windows began, and over no less than ten windows, so that a client that was idle may
send ten windows' worth at once. When it is above the quota, the wait is as long as it takes for the
sum to be that of the quota: sum / quota - time.

Kafka's windows forget. Who sends twenty windows' worth at once and comes back after eleven windows
finds no trace of it, and on the whole sends almost twice its quota. So beside the windows there is
a debt: when all that was sent will be paid for, at the quota's rate, with those ten windows granted
once. The wait is the longer of the two; they differ only for who sends more than the windows hold.

Where a broker is several processes, each measures what passes through it, and adds what the client
did in the others within the same windows. The debt is each one's own: who sends a burst through all
of them is granted it by each, and by none again before it is paid for there.

Invariant: a client that waits as long as told sends in any time t no more than quota * (t + ten
windows), plus its last amount.

Every amount costs the same, however many there were before.
"""

from collections import deque
from typing import Final, Protocol

from diskless.quotas.quota_settings import QuotaSettings


class OtherProcesses(Protocol):
    """What the same client does in other processes of the broker."""

    def add(self, amount: float) -> None:
        """It did something here."""
        ...

    def elsewhere(self) -> float:
        """Returns the sum of what it did in the others, in the windows that count."""
        ...


class ThrottledRate:
    """What one client, or all that share a quota, sent lately. Times are monotonic seconds."""

    __slots__ = ("_debt_paid_at", "_others", "_settings", "_sum", "_windows", "limit")

    def __init__(
        self, limit: float, settings: QuotaSettings, others: OtherProcesses | None = None
    ) -> None:
        """`limit`: the quota, in units per second."""
        self.limit = limit
        self._settings: Final = settings
        self._others: Final = others
        self._windows: deque[list[float]] = deque()
        """(begin, sum), the oldest first; a new one begins with the first amount after the last."""
        self._sum = 0.0
        self._debt_paid_at = float("-inf")

    def record(self, amount: float, now: float) -> float:
        """Count `amount`; the seconds to wait before anything more."""
        self._forget_old(now)
        windows = self._windows
        if not windows or now - windows[-1][0] >= self._settings.window_s:
            windows.append([now, 0.0])
        windows[-1][1] += amount
        self._sum += amount
        paid_at = max(self._debt_paid_at, now - self._settings.burst_s)
        self._debt_paid_at = paid_at + amount / self.limit
        if self._others is not None:
            self._others.add(amount)
        return self.wait_s(now)

    def wait_s(self, now: float) -> float:
        """The seconds to wait for what was recorded; 0.0 when there is nothing to wait for."""
        self._forget_old(now)
        wait_s = max(self._debt_paid_at - now, 0.0)
        done = self._done()
        if done:
            wait_s = max(wait_s, done / self.limit - self._measured_s(now))
        return wait_s

    def allowance(self, now: float) -> float:
        """Returns how much may be recorded now without a wait; negative while there is one."""
        self._forget_old(now)
        by_windows = self._measured_s(now) * self.limit - self._done()
        since_paid_s = min(now - self._debt_paid_at, self._settings.burst_s)
        return min(by_windows, since_paid_s * self.limit)

    def is_idle(self, now: float) -> bool:
        """Whether a new rate would be the same as this one."""
        self._forget_old(now)
        return not self._windows and self._debt_paid_at <= now - self._settings.burst_s

    def limit_to(self, limit: float, now: float) -> None:
        """The quota is another one; what was sent in the windows counts against it."""
        self.limit = limit
        self._forget_old(now)
        self._debt_paid_at = now - self._settings.burst_s + self._sum / limit

    def _done(self) -> float:
        """The sum of the windows, of all processes."""
        return self._sum if self._others is None else self._sum + self._others.elsewhere()

    def _measured_s(self, now: float) -> float:
        """Over which time the sum was sent: no less than all windows but the one that runs."""
        settings = self._settings
        elapsed_s = now - self._windows[0][0] if self._windows else 0.0
        missing = settings.window_count - 1 - int(elapsed_s / settings.window_s)
        return elapsed_s + max(missing, 0) * settings.window_s

    def _forget_old(self, now: float) -> None:
        begins = now - self._settings.window_count * self._settings.window_s
        windows = self._windows
        while windows and windows[0][0] <= begins:
            self._sum -= windows.popleft()[1]
        if not windows:
            self._sum = 0.0  # exactly, after all the additions
