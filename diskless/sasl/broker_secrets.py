"""The cluster secrets that are valid now, as this broker knows them, and the next one.

    secrets = BrokerSecrets(found, load, clock)
    secrets.offered             # what another broker must prove to have
    await secrets.password(salt)    # what this broker proves
    await secrets.refresh()     # every broker.secret.follow.interval.ms, and when a salt is unknown

A rotation needs no moment that all brokers agree on, because the salt of a SCRAM exchange says
which secret is meant:

- The broker that is asked offers the salt of the last secret it has heard of, and takes no other.
- The broker that asks has that secret, if only since a moment ago: when it does not know the salt
  it reads the secrets of the bucket again, where the other one has read it.
- The secret before the last is offered by those alone that have not heard of the last yet. It is
  proven to them for OVERLAP_MS after the last one was made, and no longer: whoever has stolen it
  could pose as a broker to this one.

So after a rotation each broker moves to the new secret by itself. Connections move too: one that
was made with an older secret is replaced by the broker that made it (`is_older`), and ended by the
other one when that secret is over (`is_over`).

Failure cases: a salt of no secret of the bucket is LoginRefused.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from diskless.sasl.cluster_secret import OVERLAP_MS, ClusterSecret
from metadata.clients.sasl_login import LoginRefused
from metadata.scram.credentials import (
    ITERATIONS_MIN,
    SALT_BYTES,
    ScramCredential,
    ScramMechanism,
    credential_of,
    salt_password,
)
from wal.clock import Clock

BROKERS_MECHANISM: Final = ScramMechanism.SHA_512


class _Known(NamedTuple):
    """A secret, and what follows from it."""

    secret: ClusterSecret
    password: str
    credential: ScramCredential


class BrokerSecrets:
    """At least one, at most two; see the module."""

    def __init__(
        self,
        found: Sequence[ClusterSecret],
        load: Callable[[], Awaitable[Sequence[ClusterSecret]]],
        clock: Clock,
    ) -> None:
        """`found` and what `load` returns are the last two of the bucket, the last one last."""
        self._load = load
        self._clock = clock
        self._known = tuple(map(_known, found))
        self._listeners: list[Callable[[], None]] = []

    @property
    def decoys(self) -> bytes:
        """What unknown users' salts follow from; no rotation changes it."""
        return self._known[-1].secret.decoys

    @property
    def found(self) -> Sequence[ClusterSecret]:
        """The last two that were read, the last one last."""
        return [one.secret for one in self._known]

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener` when other secrets were found than before."""
        self._listeners.append(listener)

    @property
    def offered(self) -> ScramCredential:
        """What a broker that logs in here has to prove."""
        return self._known[-1].credential

    def derived(self, what: str) -> Sequence[bytes]:
        """Keys for that purpose, of all secrets that count; that of the last one first."""
        return [one.secret.derived(what) for one in reversed(self._counting())]

    async def refresh(self) -> None:
        """Read the secrets again. Raises what the store raises, and CorruptObject."""
        found = await self._load()
        before = self._known
        known = {one.secret: one for one in before}
        # A listing may be behind one that this broker has seen.
        if found[-1].made_ms >= self._known[-1].secret.made_ms:
            self._known = await asyncio.to_thread(
                lambda: tuple(known.get(secret) or _known(secret) for secret in found)
            )
        if self._known != before:
            for listener in self._listeners:
                listener()

    async def password(self, salt: bytes) -> str:
        """The password of the secret that is asked for. Raises LoginRefused."""
        found = self._password(salt)
        if found is None:
            await self.refresh()
            found = self._password(salt)
        if found is None:
            raise LoginRefused("a secret is asked for that this cluster does not have")
        return found

    def is_older(self, salt: bytes) -> bool:
        """Whether there is a later secret than that of this salt."""
        return salt != self.offered.salt

    def is_over(self, salt: bytes) -> bool:
        """Whether the secret of this salt does not count any more."""
        return all(one.credential.salt != salt for one in self._counting())

    def _password(self, salt: bytes) -> str | None:
        return next((one.password for one in self._counting() if one.credential.salt == salt), None)

    def _counting(self) -> Sequence[_Known]:
        ends_ms = self._known[-1].secret.made_ms + OVERLAP_MS
        return self._known if self._clock.now_ms() < ends_ms else self._known[-1:]


def _known(secret: ClusterSecret) -> _Known:
    """Takes milliseconds."""
    password = broker_password(secret)
    salt = secret.derived("salt")[:SALT_BYTES]
    salted = salt_password(BROKERS_MECHANISM, password, salt, ITERATIONS_MIN)
    return _Known(secret, password, credential_of(BROKERS_MECHANISM, salted, salt, ITERATIONS_MIN))


def broker_password(secret: ClusterSecret) -> str:
    return secret.derived("brokers").hex()
