"""Applies the records of metadata/records/users.py to the SQLite state.

Called by metadata/apply/apply.py, inside its transaction; like there, everything follows from the
record and the rows, and a record that contradicts the state raises CorruptState.
"""

from sqlalchemy import and_

from metadata.apply.transaction import StateTransaction
from metadata.records.users import (
    AccessTokenCreatedRecord,
    AccessTokensRemovedRecord,
    ScramCredentialRemovedRecord,
    ScramCredentialSetRecord,
    UserRecord,
)
from metadata.state.schema import ACCESS_TOKENS, SCRAM_CREDENTIALS
from wal.errors import CorruptState


def apply_user(state: StateTransaction, record: UserRecord) -> None:
    """Raises CorruptState."""
    match record:
        case AccessTokenCreatedRecord(token=token):
            if token.token_id in state.image.tokens:
                raise CorruptState(f"token {token.token_id} was there already")
            state.insert(
                ACCESS_TOKENS,
                token.made_at_ms,
                token.ends_at_ms,
                token.token_id,
                token.user,
                token.digest,
            )
            state.changes.tokens[token.token_id] = token
        case AccessTokensRemovedRecord(token_ids=token_ids):
            token_id = ACCESS_TOKENS.table.c.token_id
            for gone in token_ids:
                if not state.delete_where(ACCESS_TOKENS, token_id == gone):
                    raise CorruptState(f"token {gone} is gone and was not there")
                state.changes.tokens[gone] = None
        case _:
            _apply_credential(state, record)


def _apply_credential(
    state: StateTransaction, record: ScramCredentialSetRecord | ScramCredentialRemovedRecord
) -> None:
    columns = SCRAM_CREDENTIALS.table.c
    user, mechanism = record.user, record.mechanism
    gone = state.delete_where(
        SCRAM_CREDENTIALS, and_(columns.mechanism == mechanism, columns.user == user)
    )
    match record:
        case ScramCredentialSetRecord(credential=credential):
            state.insert(
                SCRAM_CREDENTIALS,
                mechanism,
                credential.iterations,
                user,
                credential.salt,
                credential.stored_key,
                credential.server_key,
            )
            state.changes.scram[user, mechanism] = credential
        case ScramCredentialRemovedRecord():
            if not gone:
                raise CorruptState(f"{user} lost a SCRAM credential and had none")
            state.changes.scram[user, mechanism] = None
