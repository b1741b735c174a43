"""How the brokers of a cluster log in to each other: as `User:__broker`, by SCRAM-SHA-512.

The password follows from the cluster's secret, which those have who may read `meta/` of the bucket,
and nobody else; there is nothing to configure. No user of the catalogue can have that name, and it
is known on the inter-broker listener alone, by that mechanism alone.

Failure case: a broker that another one refuses has the secret of another cluster. It is
CommitFailed, as with a broker that is not to be reached: nothing was sent.
"""

import random
from collections.abc import Callable
from typing import Final

from diskless.authorization import BROKER_USER
from diskless.sasl.scram_users import ScramUsers
from metadata.clients.sasl_login import Ask, LogIn, LoginRefused, log_in
from metadata.operations import ScramCredentials
from metadata.scram.credentials import (
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    credential_of,
    salt_password,
)
from wal.errors import CommitFailed
from wal.security.client_login import ClientLogin, SaslMechanism
from wal.security.secret import Secret

BROKERS_MECHANISM: Final = ScramMechanism.SHA_512

_SALT: Final = b"brokers of one cluster"
"""The password is random, so no table of passwords would be of use."""


class UsersAndBrokers(ScramUsers):
    """The users of the catalogue, and `__broker`."""

    def __init__(
        self, known: Callable[[], ScramCredentials], *, decoy_key: bytes, password: str
    ) -> None:
        super().__init__(known, decoy_key=decoy_key)
        salted = salt_password(BROKERS_MECHANISM, password, _SALT, ITERATIONS_MIN)
        self._broker = credential_of(BROKERS_MECHANISM, salted, _SALT, ITERATIONS_MIN)

    def credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential:
        """The user's, or one that is nobody's."""
        if user == BROKER_USER and mechanism is BROKERS_MECHANISM:
            return self._broker
        return super().credential(mechanism, user)


def as_broker(password: str) -> LogIn:
    """The log-in of one broker at another."""
    login = ClientLogin(
        mechanism=SaslMechanism(BROKERS_MECHANISM.sasl_name),
        user=BROKER_USER,
        password=Secret(password),
        source="meta/secret/ of the bucket",
    )

    async def log_in_as_broker(address: str, ask: Ask, rng: random.Random) -> None:
        try:
            await log_in(login, address, ask, rng)
        except LoginRefused as error:
            raise CommitFailed(str(error)) from error

    return log_in_as_broker
