"""Applies the records of metadata/records/users.py to the SQLite state.

Called by metadata/apply/apply.py, inside its transaction; like there, everything follows from the
record and the rows, and a record that contradicts the state raises CorruptState.
"""

from sqlalchemy import and_

from metadata.apply.transaction import StateTransaction
from metadata.records.users import (
    ScramCredentialRemovedRecord,
    ScramCredentialSetRecord,
    UserRecord,
)
from metadata.state.schema import SCRAM_CREDENTIALS
from wal.errors import CorruptState


def apply_user(state: StateTransaction, record: UserRecord) -> None:
    """Raises CorruptState."""
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
