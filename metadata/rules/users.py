"""Decides SCRAM credentials and access tokens of users; pure functions over the speculative view.

They are the catalogue's. A user is whoever has a credential, and is gone with the last of them.

Taking in a token that is there already, or revoking one that is not, changes nothing and succeeds,
so both can be repeated. Tokens that have ended go when others come.
"""

from collections.abc import Sequence
from typing import Final

from metadata.access_tokens import AlterAccessToken
from metadata.operations import AlterScramCredential
from metadata.records.users import (
    AccessTokenCreatedRecord,
    AccessTokensRemovedRecord,
    ScramCredentialRemovedRecord,
    ScramCredentialSetRecord,
    UserRecord,
)
from metadata.rules.commit import Decision
from metadata.state.speculative import SpeculativeView
from wal.errors import DisklessError, PolicyViolation, UnknownCredential

SCRAM_CREDENTIALS_MAX: Final = 20_000
"""Every broker keeps all of them in memory, and a copy is made at every change."""


ACCESS_TOKENS_MAX: Final = 10_000
"""Every broker keeps all of them in memory, and a copy is made at every change."""


def decide_alter_scram_credentials(
    view: SpeculativeView, requests: Sequence[AlterScramCredential]
) -> Decision[Sequence[DisklessError | None]]:
    """A record for each credential that is another afterwards."""
    records: list[UserRecord] = []
    answer: list[DisklessError | None] = []
    count = before_all = view.scram_count()
    for request in requests:
        user, mechanism, wanted = request.user, request.mechanism, request.credential
        before = view.scram(user, mechanism)
        error: DisklessError | None = None
        if request.is_first and before_all:
            error = PolicyViolation("the cluster has users already")
        elif wanted is None and before is None:
            error = UnknownCredential("the user has no credential of this mechanism")
        elif before is None and count >= SCRAM_CREDENTIALS_MAX:
            error = PolicyViolation(f"there are {SCRAM_CREDENTIALS_MAX} SCRAM credentials already")
        elif wanted != before:
            count += (before is None) - (wanted is None)
            view.put_scram(user, mechanism, wanted)
            records.append(
                ScramCredentialRemovedRecord(user=user, mechanism=mechanism)
                if wanted is None
                else ScramCredentialSetRecord(user=user, mechanism=mechanism, credential=wanted)
            )
        answer.append(error)
    return Decision(records, answer)


def decide_alter_access_tokens(
    view: SpeculativeView, requests: Sequence[AlterAccessToken]
) -> Decision[Sequence[DisklessError | None]]:
    """A record for each that comes, and one for those that go."""
    known = dict(view.access_tokens())
    made = [one.token for one in requests if not one.is_revoked]
    revoked = {one.token.token_id for one in requests if one.is_revoked}
    now_ms = max((token.made_at_ms for token in made), default=0)
    ended = {token_id for token_id, token in known.items() if token.ends_at_ms <= now_ms}
    gone = sorted((revoked | ended) & known.keys())
    records: list[UserRecord] = []
    if gone:
        records.append(AccessTokensRemovedRecord(token_ids=gone))
    for token_id in gone:
        del known[token_id]
        view.put_access_token(token_id, None)
    answer: list[DisklessError | None] = []
    for request in requests:
        token = request.token
        if request.is_revoked or known.get(token.token_id) == token:
            answer.append(None)
        elif token.token_id in known:
            answer.append(PolicyViolation(f"there is another token {token.token_id}"))
        elif len(known) >= ACCESS_TOKENS_MAX:
            answer.append(PolicyViolation(f"there are {ACCESS_TOKENS_MAX} tokens already"))
        else:
            known[token.token_id] = token
            view.put_access_token(token.token_id, token)
            records.append(AccessTokenCreatedRecord(token=token))
            answer.append(None)
    return Decision(records, answer)
