"""What a head tells its workers of users and rights, as bytes: the content of messages on lines.

    RULES     ACLs: those that came, and those that are gone
    USERS     SCRAM credentials that were set or removed, in the form of AlterUserScramCredentials
    SECRETS   what unknown users' salts follow from, and the secrets by which brokers log in

All of it is as secret as the catalogue. It is in the memory of both processes and in the socket
between them, and nowhere else: in no file, no log line and no command.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from diskless.sasl.cluster_secret import ClusterSecret, decode_secret, encode_secret
from metadata.acls import AclBinding
from metadata.messages.brokers import ALTER_SCRAM_CREDENTIALS
from metadata.operations import AlterScramCredential, ScramCredentials
from metadata.scram.credentials import ScramCredential
from wal.errors import CorruptLog
from wal.wire.fields import INT32, FieldReader, sized
from wal.wire.layouts import layout

_RULE: Final = layout(AclBinding)

UserChanges = Mapping[tuple[str, int], ScramCredential | None]
"""By user and mechanism; None: it is gone."""


class RuleNews(NamedTuple):
    """What became of rules."""

    came: Collection[AclBinding] = ()
    gone: Collection[AclBinding] = ()

    def encode(self) -> bytes:
        return b"".join(
            (
                INT32.pack(len(self.came)),
                *map(_RULE.write, self.came),
                INT32.pack(len(self.gone)),
                *map(_RULE.write, self.gone),
            )
        )

    @classmethod
    def decode(cls, data: bytes) -> "RuleNews":
        """Raises CorruptLog."""
        reader = FieldReader(data, "news of rules", CorruptLog)
        came = [_RULE.read(reader) for _ in range(reader.int32())]
        gone = [_RULE.read(reader) for _ in range(reader.int32())]
        return cls(came, gone)


def changes_of_users(before: ScramCredentials, now: ScramCredentials) -> UserChanges:
    """What makes `now` of `before`."""
    changed: dict[tuple[str, int], ScramCredential | None] = {
        key: credential for key, credential in now.items() if before.get(key) != credential
    }
    return changed | dict.fromkeys(before.keys() - now.keys())


def encode_users(changes: UserChanges) -> bytes:
    return ALTER_SCRAM_CREDENTIALS.encode_request(
        [
            AlterScramCredential(user=user, mechanism=mechanism, credential=credential)
            for (user, mechanism), credential in changes.items()
        ],
        0,
    )


def decode_users(data: bytes) -> UserChanges:
    changes, _ = ALTER_SCRAM_CREDENTIALS.decode_request(data)
    return {(change.user, change.mechanism): change.credential for change in changes}


class SecretNews(NamedTuple):
    """What is needed to ask for a log-in beside the users."""

    decoys: bytes = b""
    """Empty where nobody logs in."""
    secrets: Sequence[ClusterSecret] = ()
    """The last two of the cluster, the last one last; none where there is only this broker."""

    def __repr__(self) -> str:
        return "SecretNews(***)"

    def encode(self) -> bytes:
        parts = [sized(self.decoys), INT32.pack(len(self.secrets))]
        return b"".join((*parts, *(sized(encode_secret(secret)) for secret in self.secrets)))

    @classmethod
    def decode(cls, data: bytes) -> "SecretNews":
        """Raises CorruptLog, CorruptObject."""
        reader = FieldReader(data, "news of secrets", CorruptLog)
        decoys = reader.sized()
        return cls(decoys, [decode_secret(reader.sized()) for _ in range(reader.int32())])
