"""How the brokers of a cluster log in to each other: as `User:__broker`, by SCRAM-SHA-512.

The password follows from the cluster's secret, which those have who may read `meta/` of the bucket,
and nobody else; there is nothing to configure. Which secret, and how another one takes its place,
is in diskless/sasl/broker_secrets.py. No user of the catalogue can have that name, and it
is known on the listeners between brokers alone, by that mechanism alone.

Failure case: a broker that another one refuses has the secret of another cluster. It is
CommitFailed, as with a broker that is not to be reached: nothing was sent.
"""

import random
from collections.abc import Callable
from typing import Final

from diskless.authorization import BROKER_USER
from diskless.sasl.broker_secrets import BROKERS_MECHANISM, BrokerSecrets
from diskless.sasl.scram_users import ScramUsers
from metadata.clients.sasl_login import Ask, IsStale, LogIn, LoginRefused, log_in_by_salt
from metadata.operations import ScramCredentials
from metadata.scram.credentials import ScramCredential, ScramMechanism
from wal.clock import Clock
from wal.errors import CommitFailed

_SOURCE: Final = "meta/secret/ of the bucket"


class UsersAndBrokers(ScramUsers):
    """The users of the catalogue, and `__broker`."""

    def __init__(
        self, known: Callable[[], ScramCredentials], *, decoy_key: bytes, secrets: BrokerSecrets
    ) -> None:
        super().__init__(known, decoy_key=decoy_key)
        self._secrets = secrets

    def credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential:
        """The user's, or one that is nobody's."""
        if user == BROKER_USER and mechanism is BROKERS_MECHANISM:
            return self._secrets.offered
        return super().credential(mechanism, user)

    def is_over(self, user: str, credential: ScramCredential) -> bool:
        """Whether a broker's secret does not count any more."""
        return user == BROKER_USER and self._secrets.is_over(credential.salt)


def as_broker(secrets: BrokerSecrets, clock: Clock, retry_s: float) -> LogIn:
    """The log-in of one broker at another.

    A connection that was made with an older secret is stale `retry_s` later: until then the other
    broker may not have heard of the new one.
    """

    async def log_in_as_broker(address: str, ask: Ask, rng: random.Random) -> IsStale:
        try:
            salt = await log_in_by_salt(
                BROKERS_MECHANISM, BROKER_USER, secrets.password, _SOURCE, address, ask, rng
            )
        except LoginRefused as error:
            raise CommitFailed(str(error)) from error
        due_at = clock.monotonic() + retry_s
        return lambda: clock.monotonic() >= due_at and secrets.is_older(salt)

    return log_in_as_broker
