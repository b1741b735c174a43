"""Whose passwords are checked, and against what: the users of the catalogue.

A user that is unknown, or has no credential of the mechanism that it asked for, gets one like
everybody else: its salt follows from the name and a key of the cluster, so that it is the same at
every broker and at every attempt, and nobody's password has its keys. It has as many iterations as
some user has, chosen by the name in the same way: where users have different ones, those of no user
would be told by always having the same. So an exchange tells nobody which users there are; it fails
at the end, as a wrong password does, and takes as long.
"""

import hmac
from collections.abc import Callable, Collection
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


_Kind = tuple[ScramMechanism, int]
"""What can be seen of a credential: its mechanism and its iterations."""


class _Kinds(NamedTuple):
    """Those there are among some credentials."""

    known: ScramCredentials
    all: Collection[_Kind]
    of_passwords: Collection[_Kind]
    """Those that passwords are checked against."""


class ScramUsers:
    """Looks up credentials; no I/O."""

    def __init__(self, known: Callable[[], ScramCredentials], *, decoy_key: bytes) -> None:
        """`known` gives another mapping after every change."""
        self._known = known
        self._decoy_key = decoy_key
        self._kinds = _kinds_of({})

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
        mechanism, iterations = self._decoy_kind(
            self._known_kinds().of_passwords, ScramMechanism.SHA_512, user
        )
        decoy = self._decoy_credential(mechanism, iterations, user)
        return FoundCredential(mechanism, decoy, is_known=False)

    def _decoy(self, mechanism: ScramMechanism, user: str) -> ScramCredential:
        kinds = [kind for kind in self._known_kinds().all if kind[0] == mechanism]
        _, iterations = self._decoy_kind(kinds, mechanism, user)
        return self._decoy_credential(mechanism, iterations, user)

    def _known_kinds(self) -> _Kinds:
        known = self._known()
        if known is not self._kinds.known:
            self._kinds = _kinds_of(known)
        return self._kinds

    def _decoy_kind(self, kinds: Collection[_Kind], otherwise: ScramMechanism, user: str) -> _Kind:
        """One of them, the same as long as it is there."""
        return max(
            kinds,
            key=lambda kind: self._derived(f"{kind[1]} iterations", kind[0], user),
            default=(otherwise, ITERATIONS_DEFAULT),
        )

    def _decoy_credential(
        self, mechanism: ScramMechanism, iterations: int, user: str
    ) -> ScramCredential:
        return ScramCredential(
            salt=self._derived("salt", mechanism, user)[:SALT_BYTES],
            stored_key=self._derived("stored", mechanism, user)[: mechanism.key_bytes],
            server_key=self._derived("server", mechanism, user)[: mechanism.key_bytes],
            iterations=iterations,
        )

    def _derived(self, what: str, mechanism: ScramMechanism, user: str) -> bytes:
        text = f"{what},{mechanism.sasl_name},{user}"
        return hmac.digest(self._decoy_key, text.encode(), "sha512")


def _kinds_of(known: ScramCredentials) -> _Kinds:
    kinds: set[_Kind] = set()
    stronger: dict[str, _Kind] = {}
    for (user, number), credential in known.items():
        kind = ScramMechanism(number), credential.iterations
        kinds.add(kind)
        stronger[user] = max(kind, stronger.get(user, kind))
    return _Kinds(known, kinds, set(stronger.values()))
