"""Whose passwords are checked, and against what: the users of the catalogue.

A user that is unknown, or has no credential of the mechanism that it asked for, gets one like
everybody else: its salt follows from the name and a key of the cluster, so that it is the same at
every broker and at every attempt, and nobody's password has its keys. So an exchange tells nobody
which users there are; it fails at the end, as a wrong password does.
"""

import hmac
from collections.abc import Callable
from typing import NamedTuple

from metadata.operations import ScramCredentials
from metadata.scram.credentials import (
    ITERATIONS_DEFAULT,
    SALT_BYTES,
    ScramCredential,
    ScramMechanism,
)


class FoundCredential(NamedTuple):
    """What a password is to be checked against."""

    mechanism: ScramMechanism
    credential: ScramCredential
    is_known: bool
    """False: it is nobody's."""


class ScramUsers:
    """Looks up credentials; no I/O."""

    def __init__(self, known: Callable[[], ScramCredentials], *, decoy_key: bytes) -> None:
        """`known` gives another mapping after every change."""
        self._known = known
        self._decoy_key = decoy_key

    def credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential:
        """The user's, or one that is nobody's."""
        return self._known().get((user, mechanism)) or self._decoy(mechanism, user)

    def is_over(self, user: str, credential: ScramCredential) -> bool:
        """Whether who has proven this is not let go on. A user's log-in lasts, as with Kafka."""
        return False

    def password_credential(self, user: str) -> FoundCredential:
        """What a password of the user is checked against: the stronger one that it has."""
        for mechanism in (ScramMechanism.SHA_512, ScramMechanism.SHA_256):
            found = self._known().get((user, mechanism))
            if found is not None:
                return FoundCredential(mechanism, found, is_known=True)
        mechanism = ScramMechanism.SHA_512
        return FoundCredential(mechanism, self._decoy(mechanism, user), is_known=False)

    def _decoy(self, mechanism: ScramMechanism, user: str) -> ScramCredential:
        # As many iterations as others have: which is what the tool that adds users here decides.
        iterations = next(
            (one.iterations for (_, kind), one in self._known().items() if kind == mechanism),
            ITERATIONS_DEFAULT,
        )
        return ScramCredential(
            salt=self._derived("salt", mechanism, user)[:SALT_BYTES],
            stored_key=self._derived("stored", mechanism, user)[: mechanism.key_bytes],
            server_key=self._derived("server", mechanism, user)[: mechanism.key_bytes],
            iterations=iterations,
        )

    def _derived(self, what: str, mechanism: ScramMechanism, user: str) -> bytes:
        text = f"{what},{mechanism.sasl_name},{user}"
        return hmac.digest(self._decoy_key, text.encode(), "sha512")
