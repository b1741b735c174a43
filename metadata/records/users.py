"""Metadata records about users: what is stored of their passwords and access tokens.

They are framed and encoded like all metadata records (metadata/records/records.py) and applied by
metadata/apply/apply_users.py. Catalogue only.

    1015 ScramCredentialSet      User string, Mechanism int8, Iterations int32, Salt bytes,
                                 StoredKey bytes, ServerKey bytes
    1016 ScramCredentialRemoved  User string, Mechanism int8
    1017 AccessTokenCreated      TokenId string, User string, Digest bytes, MadeAt int64,
                                 EndsAt int64
    1018 AccessTokensRemoved     TokenIds [] string

Whoever is shown the log is shown them without their secrets (`blanked`). The log itself has them,
as Kafka's has: to read `meta/` in the bucket is as strong as being the cluster.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from metadata.access_tokens import AccessToken
from metadata.scram.credentials import ScramCredential
from wal.wire.layouts import Int8


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredentialSetRecord:
    """The user has this credential of the mechanism from here on, and no other of it."""

    user: str
    mechanism: Int8
    credential: ScramCredential


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredentialRemovedRecord:
    """The user has no credential of the mechanism any more."""

    user: str
    mechanism: Int8


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessTokenCreatedRecord:
    """Whoever has the token is its user from here on, until it ends."""

    token: AccessToken


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessTokensRemovedRecord:
    """These were revoked, or have ended."""

    token_ids: Sequence[str]


UserRecord = (
    ScramCredentialSetRecord
    | ScramCredentialRemovedRecord
    | AccessTokenCreatedRecord
    | AccessTokensRemovedRecord
)

USER_RECORDS: Final[Mapping[int, type[Any]]] = {
    1015: ScramCredentialSetRecord,
    1016: ScramCredentialRemovedRecord,
    1017: AccessTokenCreatedRecord,
    1018: AccessTokensRemovedRecord,
}

SECRET_RECORDS: Final = frozenset({1015})
"""Those with something that nobody is shown."""


def blanked(record: ScramCredentialSetRecord) -> ScramCredentialSetRecord:
    """Returns the record with zeros for its secrets; its bytes are as many."""
    credential = record.credential
    return replace(
        record,
        credential=replace(
            credential,
            salt=bytes(len(credential.salt)),
            stored_key=bytes(len(credential.stored_key)),
            server_key=bytes(len(credential.server_key)),
        ),
    )
