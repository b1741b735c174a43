"""Applies quotas: computes how long a client has to be quiet for what it sent or was sent.

How it works. Quotas are records of the catalogue, so every broker knows all of them and hears of
changes as it follows the metadata log. Each broker enforces them by itself, on what passes through
it: as with Kafka, a client may have its quota at every broker.

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

Nothing is paid for where no quota is set: the mapping of quotas is compared with the one seen last,
and that is all. Rates of clients that were quiet are forgotten, and there are never more than
RATES_MAX of each kind.

Failure cases: who uses a new client id for every request has, under a default of client ids, a new
rate each time; the remedy is a quota of its user.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from hashlib import blake2b
from typing import Final, NamedTuple

from diskless.ports import ClientInfo
from diskless.quotas.quota_entities import CLIENT_ID, CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, USER
from diskless.quotas.quota_settings import QuotaSettings
from diskless.quotas.throttled_rate import ThrottledRate
from metadata.operations import QuotaEntity
from wal.clock import Clock

RATES_MAX: Final = 10_000
"""Of each kind of quota; the one that was used longest ago is forgotten for a new one."""

THROTTLE_MAX_S: Final = 600.0
"""The longest wait at a time. A connection that is not read cannot be seen to be gone."""

_THROTTLE_MIN_S: Final = 0.001
"""What clients are told is in milliseconds. A shorter wait is not lost: it is in the next one."""

_NAME_LENGTH_MAX: Final = 64
_FORGOTTEN_PER_USE: Final = 2

_Names = tuple[str | None, str | None]
"""Whose rate it is: user and client id, None: of all."""


class ThrottleStatistics(NamedTuple):
    """Of one kind of quota, since the start."""

    requests: int
    seconds: float
    """Waits that were imposed. Those of requests in flight at the same time overlap."""
    rates: int
    """How many are kept now."""


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
    ) -> None:
        """`quotas` gives all of them, and another mapping after every change."""
        self._quotas = quotas
        self._clock = clock
        self._window_s: Final = settings.window_s
        self._known: Mapping[QuotaEntity, Mapping[str, float]] = {}
        self._produce = _Rates(PRODUCER_BYTE_RATE, settings)
        self._fetch = _Rates(CONSUMER_BYTE_RATE, settings)

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

    def left_ms(self, until: float) -> int:
        """Returns the time left until then, for throttle_time_ms."""
        if not until:
            return 0
        return max(math.ceil((until - self._clock.monotonic()) * 1000), 0)

    def statistics(self) -> Mapping[str, ThrottleStatistics]:
        """By API."""
        return {"Produce": self._produce.statistics(), "Fetch": self._fetch.statistics()}

    def _record(self, rates: "_Rates", client: ClientInfo, size_bytes: int) -> float:
        rate = self._rate(rates, client)
        if rate is None:
            return 0.0
        now = self._clock.monotonic()
        return rates.throttled(rate.record(size_bytes, now), now)

    def _rate(self, rates: "_Rates", client: ClientInfo) -> ThrottledRate | None:
        quotas = self._quotas()
        if quotas is not self._known:
            self._known = quotas
            self._produce.learn(quotas)
            self._fetch.learn(quotas)
        if not rates.limits:
            return None
        return rates.of(client, self._clock.monotonic())


class _Rates:
    """The quotas of one key, and the rates of the clients they are about."""

    def __init__(self, key: str, settings: QuotaSettings) -> None:
        self._key = key
        self._settings = settings
        self.limits: Mapping[QuotaEntity, float] = {}
        self._levels: Sequence[_Level] = ()
        """Those that some entity is of, the most specific first."""
        self._rates: OrderedDict[_Names, ThrottledRate] = OrderedDict()
        """The one that was used longest ago first."""
        self._throttled = 0
        self._throttled_s = 0.0

    def learn(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        self.limits = {
            entity: values[self._key] for entity, values in quotas.items() if self._key in values
        }
        used = {_level_of(entity) for entity in self.limits}
        self._levels = [level for level in _LEVELS if level in used]
        if not self.limits:
            self._rates.clear()

    def of(self, client: ClientInfo, now: float) -> ThrottledRate | None:
        """The rate that a request of this client counts in; None: it has no quota."""
        for level in self._levels:
            limit = self.limits.get(_entity(level, client.user, client.client_id))
            if limit is not None:
                return self._named(_names(level, client.user, client.client_id), limit, now)
        return None

    def throttled(self, wait_s: float, now: float) -> float:
        """Returns until when to wait, or 0.0."""
        if wait_s < _THROTTLE_MIN_S:
            return 0.0
        wait_s = min(wait_s, THROTTLE_MAX_S)
        self._throttled += 1
        self._throttled_s += wait_s
        return now + wait_s

    def statistics(self) -> ThrottleStatistics:
        return ThrottleStatistics(self._throttled, self._throttled_s, len(self._rates))

    def _named(self, names: _Names, limit: float, now: float) -> ThrottledRate:
        rates = self._rates
        rate = rates.get(names)
        if rate is None:
            self._make_room(now)
            rate = rates[names] = ThrottledRate(limit, self._settings)
            return rate
        rates.move_to_end(names)
        if rate.limit != limit:
            rate.limit_to(limit, now)
        return rate

    def _make_room(self, now: float) -> None:
        """Rates come one by one; so a few that are idle go for each of them."""
        for _ in range(_FORGOTTEN_PER_USE):
            if not self._rates:
                return
            oldest = next(iter(self._rates))
            if len(self._rates) < RATES_MAX and not self._rates[oldest].is_idle(now):
                return
            del self._rates[oldest]


class _Part(Enum):
    """How an entity names a user or a client id."""

    NAMED = auto()
    DEFAULT = auto()
    ABSENT = auto()


class _Level(NamedTuple):
    """A kind of entities."""

    user: _Part
    client_id: _Part


_LEVELS: Final = (
    _Level(_Part.NAMED, _Part.NAMED),
    _Level(_Part.NAMED, _Part.DEFAULT),
    _Level(_Part.NAMED, _Part.ABSENT),
    _Level(_Part.DEFAULT, _Part.NAMED),
    _Level(_Part.DEFAULT, _Part.DEFAULT),
    _Level(_Part.DEFAULT, _Part.ABSENT),
    _Level(_Part.ABSENT, _Part.NAMED),
    _Level(_Part.ABSENT, _Part.DEFAULT),
)
"""In the order in which their quotas count."""


def _level_of(entity: QuotaEntity) -> _Level:
    parts = {kind: _Part.DEFAULT if name is None else _Part.NAMED for kind, name in entity}
    return _Level(parts.get(USER, _Part.ABSENT), parts.get(CLIENT_ID, _Part.ABSENT))


def _entity(level: _Level, user: str, client_id: str) -> QuotaEntity:
    """The entity of this level that is about these two."""
    parts: list[tuple[str, str | None]] = []
    if level.client_id is not _Part.ABSENT:
        parts.append((CLIENT_ID, client_id if level.client_id is _Part.NAMED else None))
    if level.user is not _Part.ABSENT:
        parts.append((USER, user if level.user is _Part.NAMED else None))
    return tuple(parts)


def _names(level: _Level, user: str, client_id: str) -> _Names:
    """Whose rate a quota of this level limits."""
    return (
        None if level.user is _Part.ABSENT else _short(user),
        None if level.client_id is _Part.ABSENT else _short(client_id),
    )


def _short(name: str) -> str:
    """A name to tell clients apart by; a client may call itself 32 KiB."""
    if len(name) <= _NAME_LENGTH_MAX:
        return name
    digest = blake2b(name.encode(errors="surrogatepass"), digest_size=32).hexdigest()
    return f"{digest}…"
