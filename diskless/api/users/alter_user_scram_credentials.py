"""AlterUserScramCredentials, key 51, version 0: SCRAM credentials, set and removed.

- Clients send the salted password (KIP-554); the broker never sees the password.
- A user is altered or refused as a whole, and does not hinder the others: an empty name,
  fewer than 4,096 or more than 16,384 iterations, an empty salt and a name that begins with `__`,
  which are the brokers', are UNACCEPTABLE_CREDENTIAL; an unknown mechanism is
  UNSUPPORTED_SASL_MECHANISM; a credential named twice is DUPLICATE_RESOURCE; one to be removed that
  is not there is RESOURCE_NOT_FOUND.
- An alteration is durable and in force on this broker when it is answered, on others as soon as
  they hear of it (diskless.metadata.follow.interval.ms at most). Who is logged in stays so.
- Asks for ALTER on the cluster.
- More than 20,000 credentials are POLICY_VIOLATION; Kafka has no such limit.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from diskless.api.access import Access
from diskless.api.answers import each_answered
from diskless.api.errors import (
    DuplicateResource,
    ResourceNotFound,
    UnacceptableCredential,
    UnsupportedSaslMechanism,
    error_fields,
)
from diskless.authorization import AclOperation
from diskless.loop.long_work import Steps
from diskless.ports import ScramAdmin
from diskless.protocol.messages import decode_request, encode_response
from diskless.server.registry import Api, Deferred, Outcome, ReplySteps, Request
from metadata.operations import AlterScramCredential
from metadata.scram.credentials import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SALT_BYTES_MAX,
    ScramMechanism,
    credential_of,
)
from wal.errors import DisklessError, UnknownCredential

KEY: Final = 51

RESERVED_PREFIX: Final = "__"
"""Of the names that clients have no credentials of: those of the brokers."""

USER_NAME_CHARACTERS_MAX: Final = 255

_Outcomes = dict[str, list[AlterScramCredential] | DisklessError]


def api(users: ScramAdmin, access: Access) -> Api:
    def handle(request: Request) -> Steps[Outcome]:
        asked = yield from decode_request(KEY, request.version, request.body)
        refused = access.refused_cluster(request.client, AclOperation.ALTER)
        outcomes: _Outcomes = {}
        if refused is not None:
            outcomes = {row.name: refused for row in (*asked.deletions, *asked.upsertions)}
        else:
            yield from _checked(asked, users.scram_credentials(), outcomes)
        wanted = [
            alteration
            for outcome in outcomes.values()
            if not isinstance(outcome, DisklessError)
            for alteration in outcome
        ]

        def encode(errors: Sequence[DisklessError | None]) -> ReplySteps:
            failed: dict[str, DisklessError] = {}
            for alteration, error in zip(wanted, errors, strict=True):
                if isinstance(error, UnknownCredential):
                    error = ResourceNotFound(str(error))
                if error is not None:
                    failed.setdefault(alteration.user, error)
            results = (
                {
                    "user": user,
                    **error_fields(
                        outcome if isinstance(outcome, DisklessError) else failed.get(user)
                    ),
                }
                for user, outcome in outcomes.items()
            )
            noted = access.noted(
                request.client,
                "AlterUserScramCredentials",
                results,
                lambda row: f"user:{row['user']}",
            )
            return encode_response(KEY, request.version, {"results": noted})

        request.changes = len(wanted)
        return Deferred(each_answered(users.alter_scram_credentials, wanted), encode, None)

    return Api(
        key=KEY,
        name="AlterUserScramCredentials",
        versions=range(1),
        flexible_from=0,
        handler=handle,
    )


def _checked(asked: Any, known: Mapping[tuple[str, int], Any], outcomes: _Outcomes) -> Steps[None]:
    """What is to become of each user, or why it is refused."""
    rows = [*asked.deletions, *asked.upsertions]
    named = Counter((row.name, row.mechanism) for row in rows)
    for number, row in enumerate(rows):
        yield
        before = outcomes.setdefault(row.name, [])
        if isinstance(before, DisklessError):
            continue
        is_deletion = number < len(asked.deletions)
        try:
            if named[row.name, row.mechanism] > 1:
                raise DuplicateResource("a credential is altered twice in the request")
            if is_deletion:
                before.append(_deletion(row, known))
            else:
                before.append(_upsertion(row))
        except DisklessError as error:
            outcomes[row.name] = error


def _deletion(row: Any, known: Mapping[tuple[str, int], Any]) -> AlterScramCredential:
    mechanism = _mechanism(row)
    if (row.name, int(mechanism)) not in known:
        raise ResourceNotFound("there is no such credential of this user")
    return AlterScramCredential(user=row.name, mechanism=mechanism, credential=None)


def _upsertion(row: Any) -> AlterScramCredential:
    mechanism = _mechanism(row)
    if row.iterations < ITERATIONS_MIN:
        raise UnacceptableCredential(f"too few iterations: at least {ITERATIONS_MIN}")
    if row.iterations > ITERATIONS_MAX:
        raise UnacceptableCredential(f"too many iterations: at most {ITERATIONS_MAX}")
    if not 0 < len(row.salt) <= SALT_BYTES_MAX:
        raise UnacceptableCredential(f"a salt of {len(row.salt)} bytes")
    if len(row.salted_password) != mechanism.key_bytes:
        raise UnacceptableCredential(f"a salted password of {len(row.salted_password)} bytes")
    return AlterScramCredential(
        user=row.name,
        mechanism=mechanism,
        credential=credential_of(mechanism, row.salted_password, row.salt, row.iterations),
    )


def _mechanism(row: Any) -> ScramMechanism:
    """Checks the name as well. Raises DisklessError."""
    if not row.name:
        raise UnacceptableCredential("a user name must not be empty")
    if row.name.startswith(RESERVED_PREFIX):
        raise UnacceptableCredential(f"names that begin with {RESERVED_PREFIX} are the brokers'")
    if len(row.name) > USER_NAME_CHARACTERS_MAX or "\0" in row.name:
        raise UnacceptableCredential(f"a name of {len(row.name)} characters, or with a NUL")
    try:
        return ScramMechanism(row.mechanism)
    except ValueError as error:
        raise UnsupportedSaslMechanism("unknown SCRAM mechanism") from error
