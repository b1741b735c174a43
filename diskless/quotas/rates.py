"""The rates of clients that have a quota of one kind: whose quota counts, and what it limits.

The order of entities and whose rate each of them limits is told in `diskless.quotas.quotas`. Of
addresses there are two entities: the address, and the default of all that have none of their own;
each address has a rate of its own.

Invariant: there are never more than RATES_MAX rates of a kind; those of clients that were quiet go
first.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from hashlib import blake2b
from typing import Final, NamedTuple

from diskless.authorization import BROKER_USER
from diskless.ports import ClientInfo
from diskless.quotas.quota_entities import CLIENT_ID, IP, USER
from diskless.quotas.quota_settings import QuotaSettings
from diskless.quotas.throttled_rate import OtherProcesses, ThrottledRate
from metadata.operations import QuotaEntity

RATES_MAX: Final = 10_000
"""Of each kind of quota; the one that was used longest ago is forgotten for a new one."""

THROTTLE_MAX_S: Final = 600.0
"""The longest wait at a time. A connection that is not read cannot be seen to be gone."""

_THROTTLE_MIN_S: Final = 0.001
"""What clients are told is in milliseconds. A shorter wait is not lost: it is in the next one."""

_NAME_LENGTH_MAX: Final = 64
_FORGOTTEN_PER_USE: Final = 2

_Names = tuple[str | None, str | None]
"""Whose rate it is: user and client id, None: of all. Of an address: that, and nothing."""


class ThrottleStatistics(NamedTuple):
    """Of one kind of quota, since the start."""

    requests: int
    seconds: float
    """Waits that were imposed. Those of requests in flight at the same time overlap."""
    rates: int
    """How many are kept now."""


class Rates:
    """The quotas of one key, and the rates of the clients they are about."""

    def __init__(
        self,
        key: str,
        settings: QuotaSettings,
        *,
        wait_max_s: float = THROTTLE_MAX_S,
        others: Callable[[str], OtherProcesses] | None = None,
    ) -> None:
        """`others` gives what a rate of some name is in other processes of this broker."""
        self._key = key
        self._settings = settings
        self._others = others
        self._wait_max_s = wait_max_s
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
        """The rate that a request of this client counts in; None: it has no quota, or is a broker.

        What brokers ask of each other is for clients that have quotas of their own.
        """
        if client.user == BROKER_USER:
            return None
        for level in self._levels:
            limit = self.limits.get(_entity(level, client.user, client.client_id))
            if limit is not None:
                return self._named(_names(level, client.user, client.client_id), limit, now)
        return None

    def of_address(self, address: str, now: float) -> ThrottledRate | None:
        """The rate that a connection of this address counts in."""
        limit = self.limits.get(((IP, address),), self.limits.get(((IP, None),)))
        return None if limit is None else self._named((address, None), limit, now)

    def by_default(self, client: ClientInfo, limit: float, now: float) -> ThrottledRate:
        """The rate of a user who has no quota, and is held to the broker's own limit."""
        return self._named((_short(client.user), None), limit, now)

    def throttled(self, wait_s: float, now: float) -> float:
        """Returns until when to wait, or 0.0."""
        if wait_s < _THROTTLE_MIN_S:
            return 0.0
        wait_s = min(wait_s, self._wait_max_s)
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
            others = None if self._others is None else self._others(repr((self._key, names)))
            rate = rates[names] = ThrottledRate(limit, self._settings, others)
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
