"""Applies quotas: computes how long a client has to be quiet for what it sent or was sent.

How it works. Quotas are records of the catalogue, so every broker knows all of them and hears of
changes as it follows the metadata log. Each broker enforces them by itself, on what passes through
it: as with Kafka, a client may have its quota at every broker. A broker that is several processes
counts over all of them.

A request's quota is that of the first entity in this order that has one of the kind:

    user and client id; user and default client id; user;
    default user and client id; default user and default client id; default user;
    client id; default client id

Quotas of both count for the pair, those of a user for all its client ids together, those of a
client id for all its users together; a default gives each user or client id a rate of its own.

Produce counts when it has arrived, with all its bytes: what a producer has in flight must not pass
unseen for as long as a commit takes. Fetch is answered with no more than a burst's rest, or a
window's worth, and counts when its answer is there; it is refused while there is something to wait
for from before. A client that has to wait learns it from throttle_time_ms, and its connection is
not read from until then (`Request.mute`), so that clients which do not heed it wait as well.

A share of a processor (`request_percentage`) counts the time that the event loop takes for the
requests of a client; no single wait is longer than a window, so that members of groups still come
in time. Changes of metadata (`controller_mutation_rate`) count the partitions that topics are made,
grown or deleted with. A user without that quota may make `metadata.changes.per.second.max` changes
of any kind; who has not said who they are is not held to that. Connections count by address, before
anything is read from them (`connection_creation_rate`).

What brokers ask of each other counts nowhere.

Nothing is paid for where no quota is set: the mapping of quotas is compared with the one seen last,
and that is all.

Failure cases: who uses a new client id for every request has, under a default of client ids, a new
rate each time; the remedy is a quota of its user.
"""

import math
from collections.abc import Callable, Mapping
from typing import Final

from diskless.authorization import BROKER_USER
from diskless.ports import ANONYMOUS, ClientInfo
from diskless.quotas.quota_entities import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from diskless.quotas.quota_settings import QuotaSettings
from diskless.quotas.rates import Rates, ThrottleStatistics
from diskless.quotas.throttled_rate import OtherProcesses, ThrottledRate
from metadata.operations import QuotaEntity
from wal.clock import Clock

CHANGES_WAIT_MAX_S: Final = 10.0
"""Who deletes a thousand topics at once is heard again before clients give up; what is owed beyond
that is in the next wait."""


class QuotaEnforcer:
    """What clients may send and be sent; every call is cheap, and made on the event loop.

    Times are of the monotonic clock: from when the connection may be read from again; 0.0: now.
    """

    def __init__(
        self,
        quotas: Callable[[], Mapping[QuotaEntity, Mapping[str, float]]],
        *,
        settings: QuotaSettings,
        clock: Clock,
        others: Callable[[str], OtherProcesses] | None = None,
    ) -> None:
        """`quotas` gives all of them, and another mapping after every change.

        `others` gives what a rate of some name is in other processes of this broker.
        """
        self._quotas = quotas
        self._clock = clock
        self._window_s: Final = settings.window_s
        self._changes_per_s: Final = settings.changes_per_s
        self._known: Mapping[QuotaEntity, Mapping[str, float]] = {}
        self._produce = Rates(PRODUCER_BYTE_RATE, settings, others=others)
        self._fetch = Rates(CONSUMER_BYTE_RATE, settings, others=others)
        self._requests = Rates(
            REQUEST_PERCENTAGE, settings, wait_max_s=settings.window_s, others=others
        )
        self._mutations = Rates(CONTROLLER_MUTATION_RATE, settings, others=others)
        self._changes = Rates("", settings, wait_max_s=CHANGES_WAIT_MAX_S, others=others)
        """Of users without a quota of mutations."""
        self._connections = Rates(CONNECTION_CREATION_RATE, settings, others=others)

    def produced(self, client: ClientInfo, size_bytes: int) -> float:
        """A Produce request arrived: until when its connection is muted; 0.0: not at all."""
        return self._record(self._produce, client, size_bytes)

    def held_until(self, client: ClientInfo) -> float:
        """Until when the client has to be quiet for what it produced so far; 0.0: not at all.

        For what is produced otherwise than by a Produce request, whose connection may be gone.
        """
        rate = self._rate(self._produce, client)
        if rate is None:
            return 0.0
        now = self._clock.monotonic()
        return self._produce.throttled(rate.wait_s(now), now)

    def fetched(self, client: ClientInfo, size_bytes: int) -> float:
        """As `produced`, of an answer to Fetch."""
        return self._record(self._fetch, client, size_bytes)

    def may_fetch(self, client: ClientInfo, max_bytes: int) -> tuple[float, int]:
        """Returns until when nothing may be fetched, or 0.0; and how much may, to `max_bytes`."""
        rate = self._rate(self._fetch, client)
        if rate is None:
            return 0.0, max_bytes
        now = self._clock.monotonic()
        until = self._fetch.throttled(rate.wait_s(now), now)
        # A window's worth in any case: answers of a few bytes would cost more than they bring.
        allowed = max(rate.allowance(now), rate.limit * self._window_s)
        return until, int(min(max_bytes, allowed))

    @property
    def measures_requests(self) -> bool:
        """Whether anybody has a quota of processor time."""
        # Asked in every turn of a connection: a call less.
        if self._quotas() is not self._known:
            self._learn()
        return bool(self._requests.limits)

    def used(self, client: ClientInfo, seconds: float) -> float:
        """As `produced`, of the processor time that requests of a client took."""
        return self._record(self._requests, client, seconds * 100)

    def changed(self, client: ClientInfo, changes: int, partitions: int) -> float:
        """As `produced`, of metadata that a request changes."""
        rate = self._rate(self._mutations, client)
        now = self._clock.monotonic()
        if rate is not None:
            return self._mutations.throttled(rate.record(partitions, now), now)
        if not self._changes_per_s or client.user in (ANONYMOUS, BROKER_USER):
            return 0.0
        rate = self._changes.by_default(client, self._changes_per_s, now)
        return self._changes.throttled(rate.record(changes, now), now)

    def connected(self, address: str) -> float:
        """As `produced`, of a connection that was accepted."""
        self._learn()
        if not self._connections.limits:
            return 0.0
        now = self._clock.monotonic()
        rate = self._connections.of_address(address, now)
        return 0.0 if rate is None else self._connections.throttled(rate.record(1, now), now)

    def left_ms(self, until: float) -> int:
        """Returns the time left until then, for throttle_time_ms."""
        if not until:
            return 0
        return max(math.ceil((until - self._clock.monotonic()) * 1000), 0)

    def statistics(self) -> Mapping[str, ThrottleStatistics]:
        """By API, or by what else is limited."""
        return {
            "Produce": self._produce.statistics(),
            "Fetch": self._fetch.statistics(),
            "requests": self._requests.statistics(),
            "mutations": self._mutations.statistics(),
            "changes": self._changes.statistics(),
            "connections": self._connections.statistics(),
        }

    def _record(self, rates: Rates, client: ClientInfo, amount: float) -> float:
        rate = self._rate(rates, client)
        if rate is None:
            return 0.0
        now = self._clock.monotonic()
        return rates.throttled(rate.record(amount, now), now)

    def _rate(self, rates: Rates, client: ClientInfo) -> ThrottledRate | None:
        self._learn()
        if not rates.limits:
            return None
        return rates.of(client, self._clock.monotonic())

    def _learn(self) -> None:
        quotas = self._quotas()
        if quotas is not self._known:
            self._known = quotas
            for rates in (
                self._produce,
                self._fetch,
                self._requests,
                self._mutations,
                self._connections,
            ):
                rates.learn(quotas)
